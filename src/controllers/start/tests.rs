use std::cell::Cell;
use std::future::pending;

use pilothouse_actors::directory;
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::start_steps::StartSteps;
use pilothouse_apimachinery::status::Result;
use pilothouse_types::clock::Timestamp;

use super::super::informer::Break;
use super::super::queue::{Outcome, Queue};
use super::super::runner::{ObjectChange, WatchedTypes};
use super::*;

const NAME: &str = "panicking";

/// Panics the given number of times.
struct PanickingController {
    remaining_panics: Rc<Cell<u32>>,
    done: Rc<Cell<bool>>,
}

impl Controller for PanickingController {
    type Key = ();

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[])
    }

    fn initial_keys(&self) -> Vec<()> {
        vec![()]
    }

    fn on_change(&self, _: &ObjectChange<'_>, _: &mut Queue<()>) {}

    fn reconcile(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move {
            let remaining_panics = self.remaining_panics.get();
            self.remaining_panics.set(remaining_panics.saturating_sub(1));
            assert_eq!(remaining_panics, 0, "a controller that panics on purpose");
            self.done.set(true);
            Ok(Outcome::Done)
        }
        .boxed_local()
    }
}

fn make_controller(make: impl Fn() -> PanickingController + 'static) -> MakeController<()> {
    Box::new(move || Rc::new(make()))
}

fn never() -> WaitForInputs {
    Box::new(|| pending().boxed_local())
}

#[actix_rt::test]
async fn panicked_controller_is_reported_and_restarted() {
    let (_storage, informers, deps) = environment();
    let metrics = deps.metrics.clone();
    let (sender, mut down) = watch::channel(Down::new());
    let (remaining_panics, done) = (Rc::new(Cell::new(1)), Rc::new(Cell::new(false)));
    let make = {
        let (remaining_panics, done) = (remaining_panics.clone(), done.clone());
        move || PanickingController { remaining_panics: remaining_panics.clone(), done: done.clone() }
    };
    actix::spawn(supervise(NAME, make_controller(make), never(), informers, deps, Rc::new(sender)));
    let reasons = down.wait_for(|down| down.contains_key(NAME)).await.unwrap().clone();
    assert_eq!(reasons[NAME], "panicked and waits to be restarted");
    assert!(!done.get());
    drop(down.wait_for(Down::is_empty).await.unwrap());
    while !done.get() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let text = String::from_utf8(metrics.text().unwrap()).unwrap();
    assert!(text.contains("pilothouse_controller_restarts_total{name=\"panicking\"} 1"), "{text}");
}

/// In-memory stores without a server, with an informer and the dependencies of controllers.
fn environment() -> (directory::Stores, Rc<InformerHandle>, RunnerDeps) {
    let storage = directory::start(Box::new(Memory::new()), directory::Options::default()).unwrap();
    let followed = storage.clone();
    let stores = Arc::new(move || Stores::new(&followed));
    let informers = Rc::new(InformerHandle::new(storage.notifiers.clone(), stores));
    let metrics = Arc::new(Metrics::new(Timestamp(0)).unwrap());
    let deps = RunnerDeps {
        clock: Clock::system(),
        metrics,
        activity: ActivityRegistry::default(),
        steps: StartSteps::default(),
        leadership: Leadership::default(),
        stopping: ShutdownFlag::default(),
    };
    (storage, informers, deps)
}

#[actix_rt::test]
async fn controller_that_ends_at_shutdown_is_not_reported() {
    let (_storage, informers, deps) = environment();
    let (metrics, stopping) = (deps.metrics.clone(), deps.stopping.clone());
    let (sender, down) = watch::channel(Down::new());
    let done = Rc::new(Cell::new(false));
    let make = {
        let done = done.clone();
        move || PanickingController { remaining_panics: Rc::default(), done: done.clone() }
    };
    let supervised =
        supervise(NAME, make_controller(make), never(), informers.clone(), deps, Rc::new(sender));
    let supervised = actix::spawn(supervised);
    while !done.get() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stopping.begin();
    assert!(informers.informer().0.send(Break).await.is_err());
    let ended = tokio::time::timeout(Duration::from_secs(10), supervised).await;
    ended.expect("it is not started again").unwrap();
    assert!(down.borrow().is_empty());
    let text = String::from_utf8(metrics.text().unwrap()).unwrap();
    assert!(text.contains("pilothouse_controller_restarts_total{name=\"panicking\"} 0"), "{text}");
}

#[actix_rt::test]
async fn controllers_restart_with_a_new_informer_when_theirs_panics() {
    let (_storage, informers, deps) = environment();
    let (sender, mut down) = watch::channel(Down::new());
    let (runs, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let make = {
        let (runs, done) = (runs.clone(), done.clone());
        move || {
            runs.set(runs.get() + 1);
            PanickingController { remaining_panics: Rc::default(), done: done.clone() }
        }
    };
    actix::spawn(supervise(NAME, make_controller(make), never(), informers.clone(), deps, Rc::new(sender)));
    while !done.get() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    done.set(false);
    let (panicked, _) = informers.informer();
    assert!(panicked.send(Break).await.is_err());
    let reasons = down.wait_for(|down| down.contains_key(NAME)).await.unwrap().clone();
    assert_eq!(reasons[NAME], "lost its informer and waits to be restarted");
    while !done.get() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(runs.get(), 2);
    assert!(down.borrow().is_empty() && informers.informer().0.connected() && !panicked.connected());
}

#[actix_rt::test]
async fn controller_restarts_at_once_when_its_inputs_change() {
    let (_storage, informers, deps) = environment();
    let metrics = deps.metrics.clone();
    let (sender, down) = watch::channel(Down::new());
    let (change, changes) = watch::channel(0);
    let (runs, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let make = {
        let (runs, done) = (runs.clone(), done.clone());
        move || {
            runs.set(runs.get() + 1);
            PanickingController { remaining_panics: Rc::default(), done: done.clone() }
        }
    };
    let inputs_changed = move || {
        let mut changes = changes.clone();
        changes.mark_unchanged();
        async move { drop(changes.changed().await) }.boxed_local()
    };
    actix::spawn(supervise(
        NAME,
        make_controller(make),
        Box::new(inputs_changed),
        informers,
        deps,
        Rc::new(sender),
    ));
    for round in 1..=2 {
        while !done.get() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(runs.get(), round);
        done.set(false);
        change.send(round).unwrap();
    }
    while !done.get() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(down.borrow().is_empty());
    let text = String::from_utf8(metrics.text().unwrap()).unwrap();
    assert!(text.contains("pilothouse_controller_restarts_total{name=\"panicking\"} 0"), "{text}");
}
