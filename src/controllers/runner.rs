//! The actor around one loop: receives events of the types that the loop follows, keeps its queue, and runs a bounded number of
//! workers.
//!
//! The informer sends it events. Work begins only after the informer has caught up: before a loop acts on an owner, it must know
//! all dependents that were acknowledged before. A loop that panics takes its actor with it. The drop notifies the supervisor,
//! which starts another one.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::prelude::*;
use futures::future::LocalBoxFuture;
use pilothouse_actors::event::{Change, Event};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_types::clock::{Clock, Moment, Timestamp};
use pilothouse_types::object::{Object, Revision, TypeName};
use tokio::sync::oneshot;

use crate::metrics::Metrics;

use super::lease::{Leadership, Wake};
use super::queue::{Outcome, Queue};

/// The types that a loop follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// All types.
    Every,
    /// The types with these names.
    These(&'static [&'static str]),
}

impl Follows {
    /// Whether this type is followed.
    pub fn includes(self, name: &TypeName) -> bool {
        match self {
            Follows::Every => true,
            Follows::These(names) => names.contains(&name.as_str()),
        }
    }
}

/// One event.
pub struct ObjectChange<'a> {
    /// The type of the object.
    pub of: &'a TypeName,
    /// Its present state, or the last one.
    pub object: &'a Arc<Object>,
    /// Its previous state, if known.
    pub previous: Option<&'a Arc<Object>>,
    /// Whether it was removed.
    pub gone: bool,
    /// The time of the event; `None` if the object existed before the loop began.
    pub at: Option<Timestamp>,
}

/// A control loop: it decides what to work on after an event, and does the work.
pub trait Controller: 'static {
    /// The key of a work item.
    type Key: Clone + Debug + Eq + Hash + Unpin + 'static;

    /// The types that it follows.
    fn follows(&self) -> Follows;

    /// The number of keys that it works on concurrently.
    fn workers(&self) -> usize {
        5
    }

    /// The maximum pause between retries of a failing key.
    fn longest_retry(&self) -> Duration {
        Duration::from_secs(1_000)
    }

    /// Keys that it works on at the start, whatever exists.
    fn begins_with(&self) -> Vec<Self::Key> {
        Vec::new()
    }

    /// Handles one event.
    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Self::Key>);

    /// Hears of all objects of a type, when it begins or when it has missed something. Nothing says what has gone unheard: a loop
    /// that acts on what goes looks at all that this may concern.
    fn on_list(&self, of: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Self::Key>) {
        self.on_each(of, snapshot, queue);
    }

    /// Hears of the objects of a type one by one.
    fn on_each(&self, of: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Self::Key>) {
        for object in snapshot.iter().filter(|object| object.is_readable()) {
            self.on_change(&ObjectChange { of, object, previous: None, gone: false, at: None }, queue);
        }
    }

    /// Works on one key.
    fn work(self: Rc<Self>, key: Self::Key) -> LocalBoxFuture<'static, Outcome>;

    /// Further keys that the work so far has found. Called after each work and each event.
    fn more(&self) -> Vec<Self::Key> {
        Vec::new()
    }
}

/// All objects of a type, as they are now. Answers nothing. The sender waits; on Closed the loop has ended.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct Listed {
    /// The type of the objects.
    pub of: TypeName,
    /// The objects.
    pub snapshot: Snapshot,
}

/// The events of a type, in order. Answers nothing. The sender waits; on Closed the loop has ended.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct Changed {
    /// The type of the objects.
    pub of: TypeName,
    /// The events in order.
    pub events: Arc<[Arc<Event>]>,
}

/// All events so far were sent. Answers nothing. The sender waits; on Closed the loop has ended.
#[derive(Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct CaughtUp;

/// Ends the loop, because its informer has ended. Answers nothing. On Closed it has ended.
#[derive(Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// Dependencies of every runner besides its loop.
#[derive(Clone)]
pub struct RunnerDeps {
    /// The source of time.
    pub clock: Clock,
    /// Counts the work of the loops.
    pub metrics: Arc<Metrics>,
    /// Whether this server holds the lease.
    pub leadership: Leadership,
    /// Whether the server is stopping.
    pub stopping: ShutdownFlag,
}

/// Set once, when the server begins to stop: loops that end afterwards are not restarted. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ShutdownFlag(Arc<AtomicBool>);

impl ShutdownFlag {
    /// The server begins to stop.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the server is stopping.
    pub fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The revision of the last snapshot of each type, until a later event comes: the older ones are known.
#[derive(Default)]
struct LastSnapshots(HashMap<TypeName, Revision>);

impl LastSnapshots {
    /// Whether the event of this revision, the next one of its type, is not in the snapshot.
    fn is_news(&mut self, of: &TypeName, revision: Revision) -> bool {
        match self.0.get(of) {
            Some(listed) if revision <= *listed => false,
            Some(_) => self.0.remove(of).is_some(),
            None => true,
        }
    }
}

/// The actor. See the module documentation.
pub struct Runner<L: Controller> {
    /// The name in flags, health checks and metrics.
    name: &'static str,
    inner: Rc<L>,
    queue: Queue<L::Key>,
    /// The number of keys being worked on.
    working: usize,
    /// Whether the informer has caught up.
    caught_up: bool,
    listed: LastSnapshots,
    /// The numbers of added and retried keys at the last update of the metrics.
    counted: (u64, u64),
    /// The only timer, for the next delayed key.
    timer: Option<(Timestamp, SpawnHandle)>,
    deps: RunnerDeps,
    /// Dropped with the runner: that signals its end.
    _ended: oneshot::Sender<()>,
}

impl<L: Controller> Runner<L> {
    /// Starts the actor on this thread. `ended` is dropped when it ends.
    pub fn begin(
        name: &'static str,
        inner: L,
        deps: RunnerDeps,
        ended: oneshot::Sender<()>,
    ) -> Addr<Runner<L>> {
        let mut queue = Queue::new(inner.longest_retry());
        inner.begins_with().into_iter().for_each(|key| queue.add(key));
        let runner = Runner {
            name,
            inner: Rc::new(inner),
            queue,
            working: 0,
            caught_up: false,
            listed: LastSnapshots::default(),
            counted: (0, 0),
            timer: None,
            deps,
            _ended: ended,
        };
        runner.start()
    }

    /// Gives free workers keys, and sets the timer for delayed ones.
    fn go_on(&mut self, ctx: &mut Context<Self>) {
        self.inner.more().into_iter().for_each(|key| self.queue.add(key));
        // Work only while this server holds the lease.
        if !self.caught_up || !self.deps.leadership.allows(self.name) {
            return;
        }
        let (now, begun) = (self.deps.clock.now(), self.deps.clock.moment());
        while self.working < self.inner.workers() {
            let Some(key) = self.queue.next(now) else { break };
            self.working += 1;
            let work = self.inner.clone().work(key.clone());
            let work = work
                .into_actor(self)
                .map(move |outcome, runner, ctx| runner.worked(key, &outcome, begun, ctx));
            ctx.spawn(work);
        }
        self.set_timer(now, ctx);
        self.count();
    }

    fn worked(&mut self, key: L::Key, outcome: &Outcome, begun: Moment, ctx: &mut Context<Self>) {
        if let Outcome::Again(why) = outcome {
            tracing::debug!(controller = self.name, ?key, %why, "will be tried again");
        }
        self.working -= 1;
        let took = self.deps.clock.elapsed(begun);
        self.deps.metrics.loops.count_work(self.name, took.as_secs_f64());
        self.queue.done(key, outcome, self.deps.clock.now());
        self.go_on(ctx);
    }

    fn set_timer(&mut self, now: Timestamp, ctx: &mut Context<Self>) {
        // A worker that ends calls this again: while all are busy, a timer would fire in vain.
        let due = self.queue.due().filter(|_| self.working < self.inner.workers());
        if self.timer.as_ref().map(|(at, _)| *at) == due {
            return;
        }
        if let Some((_, old)) = self.timer.take() {
            ctx.cancel_future(old);
        }
        let Some(due) = due else { return };
        let wait = due.since(now);
        let handle = ctx.run_later(wait, |runner, ctx| {
            runner.timer = None;
            runner.go_on(ctx);
        });
        self.timer = Some((due, handle));
    }

    fn count(&mut self) {
        let (name, all) = (self.name, (self.queue.added, self.queue.retried));
        let (added, retried) = std::mem::replace(&mut self.counted, all);
        self.deps.metrics.loops.count_queue(name, self.queue.depth(), all.0 - added, all.1 - retried);
    }
}

impl<L: Controller> Actor for Runner<L> {
    type Context = Context<Self>;
}

impl<L: Controller> Handler<Listed> for Runner<L> {
    type Result = ();

    fn handle(&mut self, Listed { of, snapshot }: Listed, _: &mut Self::Context) {
        self.caught_up = false;
        self.inner.on_list(&of, &snapshot, &mut self.queue);
        self.listed.0.insert(of, snapshot.revision);
    }
}

impl<L: Controller> Handler<Changed> for Runner<L> {
    type Result = ();

    fn handle(&mut self, Changed { of, events }: Changed, _: &mut Self::Context) {
        self.caught_up = false;
        for event in events.iter().filter(|event| self.listed.is_news(&of, event.revision())) {
            let gone = event.change == Change::Removed;
            let (object, previous) = (&event.object, event.previous.as_ref());
            // The contents of a corrupt object are unknown; it must not be taken for an empty one.
            if !gone && !object.is_readable() {
                continue;
            }
            let change = ObjectChange { of: &of, object, previous, gone, at: Some(event.at) };
            self.inner.on_change(&change, &mut self.queue);
        }
    }
}

impl<L: Controller> Handler<CaughtUp> for Runner<L> {
    type Result = ();

    fn handle(&mut self, _: CaughtUp, ctx: &mut Self::Context) {
        self.caught_up = true;
        self.go_on(ctx);
    }
}

impl<L: Controller> Handler<Wake> for Runner<L> {
    type Result = ();

    fn handle(&mut self, _: Wake, ctx: &mut Self::Context) {
        self.go_on(ctx);
    }
}

impl<L: Controller> Handler<Stop> for Runner<L> {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.terminate();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_remembered_until_something_newer_is_heard() {
        let (pods, nodes) = (TypeName::new("pods"), TypeName::new("nodes"));
        let mut listed = LastSnapshots(HashMap::from([(pods.clone(), Revision(5))]));
        assert!(listed.is_news(&nodes, Revision(2)));
        assert!(!listed.is_news(&pods, Revision(4)));
        assert!(!listed.is_news(&pods, Revision(5)));
        assert!(listed.is_news(&pods, Revision(6)));
        assert!(listed.is_news(&pods, Revision(7)));
        assert!(listed.0.is_empty(), "types that come and go leave nothing behind");
    }
}
