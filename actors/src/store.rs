//! The actor that owns one resource type: its objects, its history, its counter.
//!
//! Verbs talk to it, and the committer tells it what is durable. A write takes the next revision when it is passed to the
//! committer. One that fits the newest state of its key follows it at once, durable or not: the log is written in order, so
//! neither is durable without the other. One that does not fit waits until what it is refused for is durable.
//!
//! Order: when a write is durable, the snapshot has it, then the window, then broadcasters hear of it, then the writer
//! is answered; and writes appear in the order of their revisions. Readers see nothing that is not durable.
//!
//! A store that panics takes its type with it, so it raises [`Fatal`] on its way down: the server ends and starts again
//! from the log.

mod handlers;
mod messages;
pub mod write_turns;
mod writes;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::dev::SendError;
use actix::{Actor, Addr, AsyncContext, Context, Recipient};
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object, Revision, TypeName};
use tokio::sync::oneshot;

use self::write_turns::{BaseState, WriteTurn, WriteTurns};
use crate::committer::{Commit, Committed, Committer};
use crate::engine::Write;
use crate::engine::record::{Operation, Record};
use crate::event::{Change, Event, EventStub};
use crate::fatal::Fatal;
use crate::key_queue::Queued;
use crate::limits::{EXPIRE_PER_TURN, RECORD_BYTES, STORE_MAILBOX};
use crate::notifier::ChangeNotifiers;
use crate::permit::Permit;
use crate::recover::State;
use crate::snapshot::Snapshot;
use crate::trim_queue::{TrimQueue, freed_by};
use crate::window::Window;
use crate::write_limiter::WriteLimiter;

pub use messages::{
    AdvanceRevision, Create, Expire, Get, GetSettled, ObjectResult, OpenWatch, Position, Remove, Replace,
    Retire, Retired, Stop, TakeSnapshot,
};
use writes::{KeyInFlight, Pending, Responder, WriteCommand};

/// What every store shares with the rest. Cheap to clone.
#[derive(Clone)]
pub struct StoreDeps {
    /// Who makes writes durable.
    pub committer: Addr<Committer>,
    /// How much it may hold.
    pub write_limiter: WriteLimiter,
    /// Where records go that nothing needs.
    pub trims: TrimQueue,
    /// Who hears of news.
    pub notifiers: ChangeNotifiers,
    /// Raised when a store dies.
    pub fatal: Fatal,
    /// The time.
    pub clock: Clock,
    /// How long a superseded version stays.
    pub history: Duration,
    /// How often a store looks for what is older.
    pub housekeeping_every: Duration,
}

/// The actor. See the module text.
pub struct Store {
    type_name: TypeName,
    /// What is durable.
    snapshot: Snapshot,
    window: Arc<Window>,
    /// The last revision that was given to a write; at least that of the snapshot.
    last: Revision,
    /// When that was; unknown until something happens after a start.
    last_at: Option<Timestamp>,
    /// Writes under way, by revision.
    pending: VecDeque<Pending>,
    /// Every key with a write under way.
    in_flight: HashMap<Key, KeyInFlight>,
    /// Who changes an object next.
    turns: WriteTurns,
    /// Whether writes that were under way were given up.
    gave_up: bool,
    /// This store, for the committer.
    me: Recipient<Committed>,
    deps: StoreDeps,
}

impl Store {
    /// The store of a type that starts from `state`.
    pub fn new(type_name: TypeName, state: State, deps: StoreDeps, ctx: &Context<Store>) -> Store {
        Store {
            type_name,
            last: state.snapshot.revision,
            snapshot: state.snapshot,
            window: state.window,
            last_at: None,
            pending: VecDeque::new(),
            in_flight: HashMap::new(),
            turns: WriteTurns::default(),
            gave_up: false,
            me: ctx.address().recipient(),
            deps,
        }
    }

    /// Takes a write in, or answers at once why not.
    fn submit(&mut self, command: WriteCommand, permit: Permit) -> oneshot::Receiver<ObjectResult> {
        let (reply, answer) = oneshot::channel();
        let refused = if self.deps.fatal.is_raised() {
            StoreError::Unavailable
        } else if command.bytes() > RECORD_BYTES {
            StoreError::TooLarge
        } else if let Some(slot) = self.deps.write_limiter.take(command.bytes()) {
            self.enter(command, Responder { reply, _permit: permit, _slot: slot });
            return answer;
        } else {
            StoreError::Busy
        };
        let _listening = reply.send(Err(refused));
        answer
    }

    /// What the writes of a key leave once all of them are durable.
    fn newest(&self, key: &Key) -> Option<&Arc<Object>> {
        match self.in_flight.get(key) {
            Some(entry) => entry.newest.as_ref(),
            None => self.snapshot.get(key.as_str()),
        }
    }

    /// Begins a write that fits the newest state. One that does not is refused, or waits until it can be said why.
    fn enter(&mut self, command: WriteCommand, writer: Responder) {
        let Err(refused) = command.check(self.newest(command.key())) else {
            return self.begin(command, writer);
        };
        match self.in_flight.get_mut(command.key()) {
            None => writer.answer(Err(refused)),
            Some(entry) => {
                if let Err((_, writer)) = entry.queue.push(entry.last, (command, writer)) {
                    writer.answer(Err(StoreError::Busy));
                }
            }
        }
    }

    /// Passes on a write that fits the newest state of its key.
    fn begin(&mut self, command: WriteCommand, writer: Responder) {
        let passed = self.plan(command).and_then(|(operation, event)| {
            self.send_to_committer(event.revision(), Record { operation, at: event.at })?;
            Ok(event)
        });
        let event = match passed {
            Ok(event) => event,
            Err(refused) => return writer.answer(Err(refused)),
        };
        (self.last, self.last_at) = (event.revision(), Some(event.at));
        let entry = self.in_flight.entry(event.object.key.clone()).or_default();
        entry.newest = (event.change != Change::Removed).then(|| Arc::clone(&event.object));
        entry.last = self.last;
        entry.writes += 1;
        self.pending.push_back(Pending::Write(event, writer));
    }

    /// Goes on to a revision above this one, unless that is there.
    fn step(&mut self, above: Revision, writer: Responder<()>) {
        let now = self.deps.clock.now();
        let is_quiet = self.last_at.is_none_or(|last| last < now.minus(self.deps.history));
        if self.last > above || !is_quiet {
            return writer.answer(Ok(()));
        }
        let revision = self.last.next();
        if let Err(refused) = self.send_to_committer(revision, Record { operation: Operation::Step, at: now })
        {
            return writer.answer(Err(refused));
        }
        (self.last, self.last_at) = (revision, Some(now));
        self.pending.push_back(Pending::Step(revision, now, writer));
    }

    /// What a write does to the newest state of its key, at the next revision, or why it may not.
    fn plan(&self, command: WriteCommand) -> Result<(Operation, Event), StoreError> {
        let previous = command.check(self.newest(command.key()))?;
        let revision = self.last.next();
        let at = self.deps.clock.now();
        Ok(match command {
            WriteCommand::Create(draft) => {
                let object = Arc::new(Object::new(draft, revision));
                let event = Event::new(Change::Created, Arc::clone(&object), None, at);
                (Operation::Create(object), event)
            }
            WriteCommand::Replace(draft, expected) => {
                let object = Arc::new(Object::new(draft, revision));
                let event = Event::new(Change::Replaced, Arc::clone(&object), previous, at);
                (Operation::Replace(object, expected), event)
            }
            WriteCommand::Remove(key, expected) => {
                let previous = previous.ok_or(StoreError::NotFound)?;
                let object = Arc::new(previous.at_revision(revision));
                let event = Event::new(Change::Removed, object, Some(previous), at);
                (Operation::Remove(key, expected), event)
            }
        })
    }

    fn basis(&self, key: &Key, turn: Option<WriteTurn>) -> BaseState {
        let is_durable = !self.in_flight.contains_key(key);
        BaseState { object: self.newest(key).cloned(), is_durable, turn }
    }

    fn give_turn(&self, key: &Key, to: write_turns::TurnWaiter, ctx: &Context<Store>) {
        let turn = WriteTurn::new(ctx.address(), key.clone());
        // Where nobody listens any more the turn is dropped here, and ends by itself.
        to.answer(Ok(self.basis(key, Some(turn))));
    }

    fn send_to_committer(&self, revision: Revision, record: Record) -> Result<(), StoreError> {
        let write = Write { type_name: self.type_name.clone(), revision, record };
        let commit = Commit { write, store: self.me.clone() };
        self.deps.committer.try_send(commit).map_err(|error| match error {
            SendError::Full(_) => StoreError::Busy,
            SendError::Closed(_) => StoreError::Unavailable,
        })
    }

    /// Makes visible what is durable, in the order that the module text promises.
    fn publish(&mut self, through: Revision) {
        let mut done = Vec::new();
        while self.pending.front().is_some_and(|pending| pending.revision() <= through) {
            let (event, writer) = match self.pending.pop_front() {
                Some(Pending::Write(event, writer)) => (event, writer),
                Some(Pending::Step(revision, at, writer)) => {
                    self.snapshot.revision = revision;
                    self.window.step(revision, at);
                    writer.answer(Ok(()));
                    continue;
                }
                None => break,
            };
            let object = Arc::clone(&event.object);
            match event.change {
                Change::Removed => self.snapshot.objects.remove(&object.key),
                Change::Created | Change::Replaced => {
                    self.snapshot.objects.insert(object.key.clone(), Arc::clone(&object))
                }
            };
            self.snapshot.revision = object.revision;
            if let Some(entry) = self.in_flight.get_mut(&object.key) {
                entry.writes -= 1;
            }
            let gone = self.window.append(Arc::new(event));
            self.trim(&gone);
            done.push((object, writer));
        }
        if done.is_empty() {
            return;
        }
        self.deps.notifiers.notify(&self.type_name);
        let mut keys = Vec::with_capacity(done.len());
        for (object, writer) in done {
            keys.push(object.key.clone());
            writer.answer(Ok(object));
        }
        for key in keys {
            self.resume_queue(&key);
        }
    }

    /// Some writes of the key are durable: who waited for these can go on.
    fn resume_queue(&mut self, key: &Key) {
        while let Some(entry) = self.in_flight.get_mut(key) {
            match entry.queue.pop(self.snapshot.revision) {
                Some(Queued::Reader(reader)) => {
                    reader.answer(Ok(self.snapshot.get(key.as_str()).cloned()));
                }
                Some(Queued::Write((command, writer))) => {
                    if command.check(entry.newest.as_ref()).is_ok() {
                        self.begin(command, writer);
                        // Those behind it want to know what becomes of it.
                        if let Some(entry) = self.in_flight.get_mut(key) {
                            entry.queue.delay(entry.last);
                        }
                        continue;
                    }
                    match command.check(self.snapshot.get(key.as_str())) {
                        Err(refused) => writer.answer(Err(refused)),
                        // It is refused for something that is still under way.
                        Ok(_) => entry.queue.push_front(entry.last, (command, writer)),
                    }
                }
                None if entry.writes == 0 => drop(self.in_flight.remove(key)),
                None => return,
            }
        }
    }

    /// Whether nobody knows what is on disk, or nobody will write any more.
    fn is_over(&self) -> bool {
        self.gave_up || self.deps.fatal.is_raised()
    }

    /// Nobody knows what is on disk, or nobody will write any more.
    fn give_up(&mut self) {
        self.gave_up = true;
        for pending in self.pending.drain(..) {
            match pending {
                Pending::Write(_, writer) => writer.answer(Err(StoreError::Unavailable)),
                Pending::Step(.., writer) => writer.answer(Err(StoreError::Unavailable)),
            }
        }
        for next in self.in_flight.drain().flat_map(|(_, entry)| entry.queue.into_all()) {
            match next {
                Queued::Write((_, writer)) => writer.answer(Err(StoreError::Unavailable)),
                Queued::Reader(reader) => reader.answer(Err(StoreError::Unavailable)),
            }
        }
    }

    /// Lets go of a bounded number of events that are older than the history, and of the records only they needed.
    fn expire(&mut self, now: Timestamp) -> usize {
        let gone = self.window.forget_before(now.minus(self.deps.history), self.most_to_expire());
        self.trim(&gone);
        gone.len()
    }

    /// How many events may go in one turn. An event frees at most two records. Without room for them it stays, and the queue short:
    /// see `TrimQueue`.
    fn most_to_expire(&self) -> usize {
        EXPIRE_PER_TURN.min(self.deps.trims.room() / 2)
    }

    fn trim(&self, gone: &[EventStub]) {
        if !gone.is_empty() {
            self.deps.trims.push(&self.type_name, gone.iter().flat_map(freed_by));
        }
    }
}

impl Actor for Store {
    type Context = Context<Store>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(STORE_MAILBOX);
        ctx.run_interval(self.deps.housekeeping_every, |store, _| {
            store.expire(store.deps.clock.now());
            let most = store.most_to_expire();
            store.trim(&store.window.shrink(most));
        });
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.give_up();
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.deps.fatal.raise(format!("the store of {} panicked", self.type_name));
        }
    }
}
