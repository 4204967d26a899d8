//! The actor around one controller: receives events of the types that it watches, keeps its queue, and runs a bounded number of
//! workers.
//!
//! The informer sends it events. Work begins only after the informer has caught up: before a controller acts on an owner, it must
//! know all dependents that were acknowledged before. A controller that panics takes its actor with it. The drop notifies the
//! supervisor, which starts another one.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::prelude::*;
use futures::future::LocalBoxFuture;
use pilothouse_actors::describe::Describe;
use pilothouse_actors::event::{Change, Event};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::start_steps::StartSteps;
use pilothouse_apimachinery::status::Result;
use pilothouse_types::activity::{Activity, QueueDepth};
use pilothouse_types::clock::{Clock, Moment, Timestamp};
use pilothouse_types::object::{Object, Revision, TypeName};
use tokio::sync::oneshot;

use crate::activity::ActivityRegistry;
use crate::metrics::Metrics;

use super::lease::{Leadership, Wake};
use super::queue::{Outcome, Queue};

/// The types that a controller watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchedTypes {
    /// All types.
    All,
    /// The types with these names.
    Only(&'static [&'static str]),
}

impl WatchedTypes {
    /// Whether this type is watched.
    pub fn includes(self, name: &TypeName) -> bool {
        match self {
            WatchedTypes::All => true,
            WatchedTypes::Only(names) => names.contains(&name.as_str()),
        }
    }
}

/// One event.
pub struct ObjectChange<'a> {
    /// The type of the object.
    pub type_name: &'a TypeName,
    /// Its present state, or the last one.
    pub object: &'a Arc<Object>,
    /// Its previous state, if known.
    pub previous: Option<&'a Arc<Object>>,
    /// Whether it was removed.
    pub is_deleted: bool,
    /// The time of the event; `None` if the object comes from a list.
    pub time: Option<Timestamp>,
    /// How old this version of the object is at least.
    pub age: Duration,
}

impl<'a> ObjectChange<'a> {
    /// An object of a list.
    pub fn listed(type_name: &'a TypeName, snapshot: &Snapshot, object: &'a Arc<Object>) -> ObjectChange<'a> {
        let age = snapshot.written.age_at_start(object.revision);
        ObjectChange { type_name, object, previous: None, is_deleted: false, time: None, age }
    }
}

/// The key of a work item.
pub trait WorkKey: Clone + Debug + Eq + Hash + Unpin + 'static {}

impl<K: Clone + Debug + Eq + Hash + Unpin + 'static> WorkKey for K {}

/// A controller: it decides which keys to work on after an event, and does the work.
pub trait Controller: 'static {
    /// The key of a work item.
    type Key: WorkKey;

    /// Whether it works only while this server holds the leader election lease. Otherwise it works in every server.
    fn needs_leader_election(&self) -> bool {
        true
    }

    /// The types that it watches.
    fn watched_types(&self) -> WatchedTypes;

    /// The number of keys that it works on concurrently.
    fn workers(&self) -> usize {
        5
    }

    /// The maximum pause between retries of a failing key.
    fn max_retry_delay(&self) -> Duration {
        Duration::from_secs(1_000)
    }

    /// Keys that it works on at the start, whatever exists.
    fn initial_keys(&self) -> Vec<Self::Key> {
        Vec::new()
    }

    /// Handles one event.
    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Self::Key>);

    /// Handles the list of all objects of a type, at the start or after events were missed. Deletions may be among the missed
    /// events: a controller that acts on deletions must queue everything that they may affect.
    fn on_list(&self, type_name: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Self::Key>) {
        self.on_each_object(type_name, snapshot, queue);
    }

    /// Handles each listed object as a change.
    fn on_each_object(&self, type_name: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Self::Key>) {
        for object in snapshot.iter().filter(|object| object.is_readable()) {
            self.on_change(&ObjectChange::listed(type_name, snapshot, object), queue);
        }
    }

    /// Works on one key. After an error the key is retried, with growing pauses.
    fn reconcile(self: Rc<Self>, key: Self::Key) -> LocalBoxFuture<'static, Result<Outcome>>;

    /// Further keys that the work so far has found. Called after each work and each event.
    fn take_follow_ups(&self) -> Vec<Self::Key> {
        Vec::new()
    }
}

/// All objects of a type, as they are now. Answers nothing. The sender waits; on Closed the controller has ended.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct Listed {
    /// The type of the objects.
    pub type_name: TypeName,
    /// The objects.
    pub snapshot: Snapshot,
}

/// The events of a type, in order. Answers nothing. The sender waits; on Closed the controller has ended.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct Changed {
    /// The type of the objects.
    pub type_name: TypeName,
    /// The events in order.
    pub events: Arc<[Arc<Event>]>,
}

/// All events so far were sent. Answers nothing. The sender waits; on Closed the controller has ended.
#[derive(Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct CaughtUp;

/// Ends the controller, because its informer has ended. Answers nothing. On Closed it has ended.
#[derive(Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// Dependencies of every runner besides its controller.
#[derive(Clone)]
pub struct RunnerDeps {
    /// The source of time.
    pub clock: Clock,
    /// Counts the work of the controllers.
    pub metrics: Arc<Metrics>,
    /// Where its actor is known.
    pub activity: ActivityRegistry,
    /// Where it is noted that it has seen all objects.
    pub steps: StartSteps,
    /// Whether this server holds the lease.
    pub leadership: Leadership,
    /// Whether the server is stopping.
    pub stopping: ShutdownFlag,
}

/// Set once, when the server begins to stop: controllers that end afterwards are not restarted. Cheap to clone.
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
    fn is_new(&mut self, type_name: &TypeName, revision: Revision) -> bool {
        match self.0.get(type_name) {
            Some(snapshot) if revision <= *snapshot => false,
            Some(_) => self.0.remove(type_name).is_some(),
            None => true,
        }
    }
}

/// The actor. See the module documentation. It knows its controller as a trait object: one copy of its code serves all
/// controllers with keys of the same type.
pub struct Runner<K: WorkKey> {
    /// The name in flags, health checks and metrics.
    name: &'static str,
    controller: Rc<dyn Controller<Key = K>>,
    queue: Queue<K>,
    /// The number of keys being worked on.
    in_progress: usize,
    /// Whether the informer has caught up.
    is_caught_up: bool,
    /// Whether it ever has.
    is_started: bool,
    last_snapshots: LastSnapshots,
    /// The numbers of added and retried keys at the last update of the metrics.
    counted_totals: (u64, u64),
    /// The only timer, for the next delayed key.
    timer: Option<(Moment, SpawnHandle)>,
    deps: RunnerDeps,
    /// Dropped with the runner: that signals its end.
    _ended: oneshot::Sender<()>,
}

impl<K: WorkKey> Runner<K> {
    /// Starts the actor on this thread. `ended` is dropped when it ends.
    pub fn start_new(
        name: &'static str,
        controller: Rc<dyn Controller<Key = K>>,
        deps: RunnerDeps,
        ended: oneshot::Sender<()>,
    ) -> Addr<Runner<K>> {
        deps.metrics.controllers.begin(name);
        let mut queue = Queue::new(controller.max_retry_delay());
        queue.set_now(deps.clock.moment());
        controller.initial_keys().into_iter().for_each(|key| queue.add(key));
        let runner = Runner {
            name,
            controller,
            queue,
            in_progress: 0,
            is_caught_up: false,
            is_started: false,
            last_snapshots: LastSnapshots::default(),
            counted_totals: (0, 0),
            timer: None,
            deps,
            _ended: ended,
        };
        let activity = runner.deps.activity.clone();
        let address = runner.start();
        activity.add("controller", name, &address);
        address
    }

    /// Gives free workers keys, and sets the timer for delayed ones.
    fn dispatch(&mut self, ctx: &mut Context<Self>) {
        self.queue.set_now(self.deps.clock.moment());
        self.controller.take_follow_ups().into_iter().for_each(|key| self.queue.add(key));
        let may_work = !self.controller.needs_leader_election() || self.deps.leadership.is_leader();
        if !self.is_caught_up || !may_work {
            return;
        }
        let now = self.deps.clock.moment();
        while self.in_progress < self.controller.workers() {
            let Some((key, waited)) = self.queue.next(now) else { break };
            self.deps.metrics.controllers.count_wait(self.name, waited.as_secs_f64());
            self.in_progress += 1;
            let in_progress = self.deps.metrics.controllers.begin_work(self.name, now);
            let work = self.controller.clone().reconcile(key.clone());
            let work = work.into_actor(self).map(move |result, runner, ctx| {
                drop(in_progress);
                let outcome = result.unwrap_or_else(|status| Outcome::Retry(status.to_string()));
                runner.finish_work(key, &outcome, now, ctx);
            });
            ctx.spawn(work);
        }
        self.set_timer(now, ctx);
        self.count();
    }

    fn finish_work(&mut self, key: K, outcome: &Outcome, started: Moment, ctx: &mut Context<Self>) {
        if let Outcome::Retry(error) = outcome {
            tracing::debug!(controller = self.name, ?key, %error, "reconciliation failed; it will be retried");
        }
        self.in_progress -= 1;
        let elapsed = self.deps.clock.elapsed(started);
        self.deps.metrics.controllers.count_work(self.name, elapsed.as_secs_f64());
        self.queue.done(key, outcome, self.deps.clock.moment());
        self.dispatch(ctx);
    }

    fn set_timer(&mut self, now: Moment, ctx: &mut Context<Self>) {
        // A worker that ends calls this again: while all are busy, a timer would fire in vain.
        let due = self.queue.due().filter(|_| self.in_progress < self.controller.workers());
        if self.timer.as_ref().map(|(time, _)| *time) == due {
            return;
        }
        if let Some((_, handle)) = self.timer.take() {
            ctx.cancel_future(handle);
        }
        let Some(due) = due else { return };
        let delay = due.since(now);
        let handle = ctx.run_later(delay, |runner, ctx| {
            runner.timer = None;
            runner.dispatch(ctx);
        });
        self.timer = Some((due, handle));
    }

    fn count(&mut self) {
        let (name, totals) = (self.name, (self.queue.added, self.queue.retries));
        let (added, retried) = std::mem::replace(&mut self.counted_totals, totals);
        self.deps.metrics.controllers.count_queue(
            name,
            self.queue.depth(),
            totals.0 - added,
            totals.1 - retried,
        );
    }
}

impl<K: WorkKey> Actor for Runner<K> {
    type Context = Context<Self>;
}

impl<K: WorkKey> Handler<Describe> for Runner<K> {
    type Result = MessageResult<Describe>;

    fn handle(&mut self, _: Describe, _: &mut Self::Context) -> Self::Result {
        let queues = vec![
            QueueDepth::unbounded("keys", self.queue.depth()),
            QueueDepth::unbounded("delayed", self.queue.delayed()),
            QueueDepth::bounded("in_progress", self.in_progress, self.controller.workers()),
        ];
        let numbers = vec![("added", self.queue.added), ("retries", self.queue.retries)];
        MessageResult(Activity::here(queues, numbers))
    }
}

impl<K: WorkKey> Handler<Listed> for Runner<K> {
    type Result = ();

    fn handle(&mut self, Listed { type_name, snapshot }: Listed, _: &mut Self::Context) {
        self.is_caught_up = false;
        self.queue.set_now(self.deps.clock.moment());
        self.controller.on_list(&type_name, &snapshot, &mut self.queue);
        self.last_snapshots.0.insert(type_name, snapshot.revision);
    }
}

impl<K: WorkKey> Handler<Changed> for Runner<K> {
    type Result = ();

    fn handle(&mut self, Changed { type_name, events }: Changed, _: &mut Self::Context) {
        self.is_caught_up = false;
        self.queue.set_now(self.deps.clock.moment());
        for event in events.iter().filter(|event| self.last_snapshots.is_new(&type_name, event.revision())) {
            let is_deleted = event.change == Change::Removed;
            let (object, previous) = (&event.object, event.previous.as_ref());
            // The contents of a corrupt object are unknown; it must not be taken for an empty one.
            if !is_deleted && !object.is_readable() {
                continue;
            }
            let change = ObjectChange {
                type_name: &type_name,
                object,
                previous,
                is_deleted,
                time: Some(event.accepted_at.wall),
                age: Duration::ZERO,
            };
            self.controller.on_change(&change, &mut self.queue);
        }
    }
}

impl<K: WorkKey> Handler<CaughtUp> for Runner<K> {
    type Result = ();

    fn handle(&mut self, _: CaughtUp, ctx: &mut Self::Context) {
        self.is_caught_up = true;
        if !std::mem::replace(&mut self.is_started, true) {
            self.deps.steps.complete(self.name);
        }
        self.dispatch(ctx);
    }
}

impl<K: WorkKey> Handler<Wake> for Runner<K> {
    type Result = ();

    fn handle(&mut self, _: Wake, ctx: &mut Self::Context) {
        self.dispatch(ctx);
    }
}

impl<K: WorkKey> Handler<Stop> for Runner<K> {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.terminate();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_contained_in_the_snapshot_are_skipped() {
        let (pods, nodes) = (TypeName::new("pods"), TypeName::new("nodes"));
        let mut last_snapshots = LastSnapshots(HashMap::from([(pods.clone(), Revision(5))]));
        assert!(last_snapshots.is_new(&nodes, Revision(2)));
        assert!(!last_snapshots.is_new(&pods, Revision(4)));
        assert!(!last_snapshots.is_new(&pods, Revision(5)));
        assert!(last_snapshots.is_new(&pods, Revision(6)));
        assert!(last_snapshots.is_new(&pods, Revision(7)));
        assert!(last_snapshots.0.is_empty(), "no entry stays after a newer event");
    }
}
