use std::cell::Cell;
use std::future::pending;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::directory;
use pilothouse_actors::engine::memory::Memory;
use pilothouse_types::clock::Timestamp;

use super::super::informer::Break;
use super::super::queue::{Outcome, Queue};
use super::super::runner::{Follows, ObjectChange};
use super::*;

/// Panics as often as it is told to.
struct Fragile {
    left: Rc<Cell<u32>>,
    done: Rc<Cell<bool>>,
}

impl Controller for Fragile {
    type Key = ();

    fn follows(&self) -> Follows {
        Follows::These(&[])
    }

    fn begins_with(&self) -> Vec<()> {
        vec![()]
    }

    fn on_change(&self, _: &ObjectChange<'_>, _: &mut Queue<()>) {}

    fn work(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Outcome> {
        async move {
            let left = self.left.get();
            self.left.set(left.saturating_sub(1));
            assert_eq!(left, 0, "a loop that fails on purpose");
            self.done.set(true);
            Outcome::Done
        }
        .boxed_local()
    }
}

#[actix_rt::test]
async fn a_loop_that_panics_is_told_of_and_started_again() {
    let (_storage, informers, deps) = surroundings();
    let metrics = deps.metrics.clone();
    let (tell, mut down) = watch::channel(Down::new());
    let (left, done) = (Rc::new(Cell::new(1)), Rc::new(Cell::new(false)));
    let make = {
        let (left, done) = (left.clone(), done.clone());
        move || Fragile { left: left.clone(), done: done.clone() }
    };
    actix::spawn(supervise(expiry::NAME, make, pending, informers, deps, Rc::new(tell)));
    let first = down.wait_for(|down| down.contains_key(expiry::NAME)).await.unwrap().clone();
    assert_eq!(first[expiry::NAME], "panicked and waits to be started again");
    assert!(!done.get());
    drop(down.wait_for(Down::is_empty).await.unwrap());
    while !done.get() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let text = String::from_utf8(metrics.text().unwrap()).unwrap();
    assert!(text.contains("pilothouse_controller_restarts_total{name=\"event-expiry\"} 1"), "{text}");
}

/// A server's stores without a server, the hearing on them, and what loops are given besides.
fn surroundings() -> (directory::Stores, Rc<InformerHandle>, RunnerDeps) {
    let storage = directory::start(Box::new(Memory::new()), directory::Options::default()).unwrap();
    let finder = storage.directory.clone();
    let stores = Arc::new(move || Stores::new(finder.clone()));
    let informers = Rc::new(InformerHandle::new(storage.notifiers.clone(), stores));
    let metrics = Arc::new(Metrics::new(Timestamp(0)).unwrap());
    let deps = RunnerDeps {
        clock: Clock::system(),
        metrics,
        leadership: Leadership::default(),
        stopping: ShutdownFlag::default(),
    };
    (storage, informers, deps)
}

#[actix_rt::test]
async fn a_loop_that_ends_with_its_server_is_not_missed() {
    let (_storage, informers, deps) = surroundings();
    let (metrics, stopping) = (deps.metrics.clone(), deps.stopping.clone());
    let (tell, down) = watch::channel(Down::new());
    let done = Rc::new(Cell::new(false));
    let make = {
        let done = done.clone();
        move || Fragile { left: Rc::default(), done: done.clone() }
    };
    let supervised = supervise(expiry::NAME, make, pending, informers.clone(), deps, Rc::new(tell));
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
    assert!(!text.contains("pilothouse_controller_restarts_total{name=\"event-expiry\"}"), "{text}");
}

#[actix_rt::test]
async fn loops_that_hear_nothing_any_more_are_started_again_with_a_new_informer() {
    let (_storage, informers, deps) = surroundings();
    let (tell, mut down) = watch::channel(Down::new());
    let (made, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let make = {
        let (made, done) = (made.clone(), done.clone());
        move || {
            made.set(made.get() + 1);
            Fragile { left: Rc::default(), done: done.clone() }
        }
    };
    actix::spawn(supervise(expiry::NAME, make, pending, informers.clone(), deps, Rc::new(tell)));
    while !done.get() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    done.set(false);
    let (broken, _) = informers.informer();
    assert!(broken.send(Break).await.is_err());
    let said = down.wait_for(|down| down.contains_key(expiry::NAME)).await.unwrap().clone();
    assert_eq!(said[expiry::NAME], "hears nothing and waits to be started again");
    while !done.get() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(made.get(), 2);
    assert!(down.borrow().is_empty() && informers.informer().0.connected() && !broken.connected());
}

#[actix_rt::test]
async fn a_loop_whose_makings_change_is_made_anew_at_once() {
    let (_storage, informers, deps) = surroundings();
    let metrics = deps.metrics.clone();
    let (tell, down) = watch::channel(Down::new());
    let (change, changes) = watch::channel(0);
    let (made, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let make = {
        let (made, done) = (made.clone(), done.clone());
        move || {
            made.set(made.get() + 1);
            Fragile { left: Rc::default(), done: done.clone() }
        }
    };
    let stale = move || {
        let mut changes = changes.clone();
        changes.mark_unchanged();
        async move { drop(changes.changed().await) }
    };
    actix::spawn(supervise(expiry::NAME, make, stale, informers, deps, Rc::new(tell)));
    for round in 1..=2 {
        while !done.get() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(made.get(), round);
        done.set(false);
        change.send(round).unwrap();
    }
    while !done.get() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(down.borrow().is_empty());
    let text = String::from_utf8(metrics.text().unwrap()).unwrap();
    assert!(!text.contains("pilothouse_controller_restarts_total{"), "{text}");
}
