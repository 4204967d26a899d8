//! The actor around one loop: hears what happened to the types that the loop follows, keeps its queue, and lets a bounded
//! number of workers work on it.
//!
//! The informer talks to it. Work begins only when the informer has told all it knew: a loop that acts on an owner must
//! have heard of the dependents that were acknowledged before. A loop that panics takes its actor with it; the drop tells
//! the supervisor, who starts another.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::prelude::*;
use futures::future::LocalBoxFuture;
use pilothouse_actors::clock::{Clock, Timestamp};
use pilothouse_actors::object::{Object, Revision, TypeName};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::window::{Change, Event};
use tokio::sync::oneshot;

use crate::metrics::Metrics;

use super::lease::{Lead, Wake};
use super::queue::{Outcome, Queue};

/// Which types a loop hears of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// All of them.
    Every,
    /// Those with these names.
    These(&'static [&'static str]),
}

impl Follows {
    /// Whether this type is among them.
    pub fn includes(self, name: &TypeName) -> bool {
        match self {
            Follows::Every => true,
            Follows::These(names) => names.contains(&name.as_str()),
        }
    }
}

/// One thing that a loop hears.
pub struct News<'a> {
    /// The type of the object.
    pub of: &'a TypeName,
    /// Its state now, or its last.
    pub object: &'a Arc<Object>,
    /// Its state before, if the loop heard of it.
    pub previous: Option<&'a Arc<Object>>,
    /// Whether it is gone.
    pub gone: bool,
    /// When that happened; `None` if it was there before the loop began.
    pub at: Option<Timestamp>,
}

/// A control loop: it says what it wants to look at when something happened, and looks at it.
pub trait Loop: 'static {
    /// What it works on.
    type Key: Clone + Debug + Eq + Hash + Unpin + 'static;

    /// The types that it hears of.
    fn follows(&self) -> Follows;

    /// How many keys it works on at the same time.
    fn workers(&self) -> usize {
        5
    }

    /// How long a key that fails again and again waits at most.
    fn longest_retry(&self) -> Duration {
        Duration::from_secs(1_000)
    }

    /// What it wants to look at from its first moment, whatever there is.
    fn begins_with(&self) -> Vec<Self::Key> {
        Vec::new()
    }

    /// Hears of one object.
    fn hear(&self, news: &News<'_>, queue: &mut Queue<Self::Key>);

    /// Hears of all objects of a type, when it begins or when it has missed something. Nothing says what has gone unheard: a loop
    /// that acts on what goes looks at all that this may concern.
    fn hear_all(&self, of: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Self::Key>) {
        self.hear_each(of, snapshot, queue);
    }

    /// Hears of the objects of a type one by one.
    fn hear_each(&self, of: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Self::Key>) {
        for object in snapshot.iter().filter(|object| object.is_readable()) {
            self.hear(&News { of, object, previous: None, gone: false, at: None }, queue);
        }
    }

    /// Looks at one key.
    fn work(self: Rc<Self>, key: Self::Key) -> LocalBoxFuture<'static, Outcome>;

    /// What the work so far makes worth looking at. Asked after each work and each hearing.
    fn more(&self) -> Vec<Self::Key> {
        Vec::new()
    }
}

/// All objects of a type, as they are now. Answers nothing. The sender waits; on Closed the loop has ended.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct Listed {
    /// The type.
    pub of: TypeName,
    /// Its objects.
    pub snapshot: Snapshot,
}

/// What happened to the objects of a type, in order. Answers nothing. The sender waits; on Closed the loop has ended.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct Heard {
    /// The type.
    pub of: TypeName,
    /// The events.
    pub events: Arc<[Arc<Event>]>,
}

/// All that could be heard has been told. Answers nothing. The sender waits; on Closed the loop has ended.
#[derive(Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct CaughtUp;

/// End where you stand: there is nobody to hear from any more. Answers nothing. On Closed it has ended.
#[derive(Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// What every runner is given besides its loop.
#[derive(Clone)]
pub struct Surroundings {
    /// The time.
    pub clock: Clock,
    /// Where loops are counted.
    pub metrics: Arc<Metrics>,
    /// Whether this server is the one whose loops work.
    pub lead: Lead,
    /// Whether the server is leaving.
    pub leaving: Leaving,
}

/// Turns once, when the server begins to leave: loops that end from then on are not missed. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Leaving(Arc<AtomicBool>);

impl Leaving {
    /// The server leaves from now on.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it does.
    pub fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The actor. See the module text.
pub struct Runner<L: Loop> {
    /// By which flags, health and metrics know the loop.
    name: &'static str,
    inner: Rc<L>,
    queue: Queue<L::Key>,
    /// How many keys are worked on.
    working: usize,
    /// Whether the informer has told everything.
    caught_up: bool,
    /// What a snapshot has told already, by type.
    listed: HashMap<TypeName, Revision>,
    /// How many keys were added and tried again when that was last counted.
    counted: (u64, u64),
    /// The one timer, for what is due next.
    timer: Option<(Timestamp, SpawnHandle)>,
    around: Surroundings,
    /// Dropped with the runner: that is how its end is known.
    _ended: oneshot::Sender<()>,
}

impl<L: Loop> Runner<L> {
    /// Starts the actor on this thread. `ended` is dropped when it ends.
    pub fn begin(
        name: &'static str,
        inner: L,
        around: Surroundings,
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
            listed: HashMap::new(),
            counted: (0, 0),
            timer: None,
            around,
            _ended: ended,
        };
        runner.start()
    }

    /// Gives free workers something to do, and sets the timer for what is not due yet.
    fn go_on(&mut self, ctx: &mut Context<Self>) {
        self.inner.more().into_iter().for_each(|key| self.queue.add(key));
        // What it acts for others on, it acts on only while nobody else does.
        if !self.caught_up || !self.around.lead.allows(self.name) {
            return;
        }
        let now = self.around.clock.now();
        while self.working < self.inner.workers() {
            let Some(key) = self.queue.next(now) else { break };
            self.working += 1;
            let work = self.inner.clone().work(key.clone());
            let work =
                work.into_actor(self).map(move |outcome, runner, ctx| runner.worked(key, &outcome, now, ctx));
            ctx.spawn(work);
        }
        self.set_timer(now, ctx);
        self.count();
    }

    fn worked(&mut self, key: L::Key, outcome: &Outcome, begun: Timestamp, ctx: &mut Context<Self>) {
        if let Outcome::Again(why) = outcome {
            tracing::debug!(controller = self.name, ?key, %why, "will be tried again");
        }
        self.working -= 1;
        let now = self.around.clock.now();
        let took = now.since(begun);
        self.around.metrics.loops.count_work(self.name, took.as_secs_f64());
        self.queue.done(key, outcome, now);
        self.go_on(ctx);
    }

    fn set_timer(&mut self, now: Timestamp, ctx: &mut Context<Self>) {
        // A worker that ends goes on by itself: until one does, a key that is due could only be looked at in vain.
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
        self.around.metrics.loops.count_queue(name, self.queue.depth(), all.0 - added, all.1 - retried);
    }
}

impl<L: Loop> Actor for Runner<L> {
    type Context = Context<Self>;
}

impl<L: Loop> Handler<Listed> for Runner<L> {
    type Result = ();

    fn handle(&mut self, Listed { of, snapshot }: Listed, _: &mut Self::Context) {
        self.caught_up = false;
        self.inner.hear_all(&of, &snapshot, &mut self.queue);
        self.listed.insert(of, snapshot.revision);
    }
}

impl<L: Loop> Handler<Heard> for Runner<L> {
    type Result = ();

    fn handle(&mut self, Heard { of, events }: Heard, _: &mut Self::Context) {
        self.caught_up = false;
        let listed = self.listed.get(&of).copied().unwrap_or_default();
        for event in events.iter().filter(|event| event.revision() > listed) {
            let gone = event.change == Change::Removed;
            let (object, previous) = (&event.object, event.previous.as_ref());
            // Nothing is known of an object whose record is damaged; it is not an empty one.
            if !gone && !object.is_readable() {
                continue;
            }
            let news = News { of: &of, object, previous, gone, at: Some(event.at) };
            self.inner.hear(&news, &mut self.queue);
        }
    }
}

impl<L: Loop> Handler<CaughtUp> for Runner<L> {
    type Result = ();

    fn handle(&mut self, _: CaughtUp, ctx: &mut Self::Context) {
        self.caught_up = true;
        self.go_on(ctx);
    }
}

impl<L: Loop> Handler<Wake> for Runner<L> {
    type Result = ();

    fn handle(&mut self, _: Wake, ctx: &mut Self::Context) {
        self.go_on(ctx);
    }
}

impl<L: Loop> Handler<Stop> for Runner<L> {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.terminate();
    }
}
