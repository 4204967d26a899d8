//! The actor that owns one resource type: its objects, its history, its counter.
//!
//! Request handlers send it reads and writes, and the committer notifies it what is durable. A write takes the next revision
//! when it is sent to the committer. One that fits the newest state of its key follows it at once, durable or not: the log is
//! written in order, so neither is durable without the other. One that does not fit waits until the state for which it is
//! refused is durable.
//!
//! Order: when a write is durable, the snapshot has it, then the window, then broadcasters are notified, then the writer
//! gets its reply; and writes appear in the order of their revisions. Readers see nothing that is not durable.
//!
//! A store that panics takes its type with it, so it raises [`Fatal`] on its way down: the server ends and starts again
//! from the log.

mod handlers;
mod messages;
mod rollback;
pub mod write_turns;
mod writes;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::dev::SendError;
use actix::{Actor, Addr, AsyncContext, Context, Recipient};
use bytes::Bytes;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{EncryptedDraft, Key, Object, Revision, TypeName};
use tokio::sync::oneshot;

use self::write_turns::{BaseState, WriteTurn, WriteTurns};
use crate::committer::{Commit, Committed, Committer};
use crate::encryption::Encryption;
use crate::engine::Write;
use crate::engine::record::{EncryptedRecord, Operation, Record};
use crate::event::{Change, Event, EventStub};
use crate::fatal::Fatal;
use crate::key_queue::Queued;
use crate::limits::{EXPIRE_PER_TURN, GROWTH_WHEN_FULL, RECORD_BYTES, STORE_MAILBOX};
use crate::log_time::{LogClock, LogTime};
use crate::notifier::ChangeNotifiers;
use crate::permit::Permit;
use crate::recover::State;
use crate::snapshot::Snapshot;
use crate::space::Space;
use crate::trim_queue::{TrimQueue, freed_by};
use crate::window::Window;
use crate::write_limiter::WriteLimiter;

pub use messages::{
    AdvanceRevision, Create, Expire, Get, GetSettled, ObjectResult, OpenWatch, Position, Remove, Replace,
    Retire, Retired, Stop, TakeSnapshot,
};
use writes::{KeyInFlight, NewObject, Pending, Responder, WriteCommand};

/// The dependencies of every store. Cheap to clone.
#[derive(Clone)]
pub struct StoreDeps {
    /// Makes writes durable.
    pub committer: Addr<Committer>,
    /// Bounds the writes that the committer holds.
    pub write_limiter: WriteLimiter,
    /// The queue of records to remove.
    pub trims: TrimQueue,
    /// Notifies the broadcasters of changes.
    pub notifiers: ChangeNotifiers,
    /// Raised when a store dies.
    pub fatal: Fatal,
    /// Hides the keys of encrypted objects.
    pub encryption: Arc<dyn Encryption>,
    /// How much room is left on the disk.
    pub space: Space,
    /// The clock of the log.
    pub clock: LogClock,
    /// How long a superseded version stays readable and watchable.
    pub history: Duration,
    /// How often a store expires old history.
    pub housekeeping_interval: Duration,
}

/// The actor. See the module documentation.
pub struct Store {
    type_name: TypeName,
    /// The durable state.
    snapshot: Snapshot,
    window: Arc<Window>,
    /// The last revision that was given to a write; at least that of the snapshot. Those of rolled back writes are not given again:
    /// a request may still hold an object at one of them.
    last: Revision,
    /// When `last` was given; `None` until the first write after a start.
    last_at: Option<LogTime>,
    /// How often pending writes were rolled back, because the disk was full.
    rollbacks: u64,
    /// Writes that are not durable yet, by revision.
    pending: VecDeque<Pending>,
    /// Every key with a pending write.
    in_flight: HashMap<Key, KeyInFlight>,
    /// The turns of requests that change contended objects.
    turns: WriteTurns,
    /// Whether pending writes have failed: the state on disk is unknown.
    has_failed: bool,
    /// The address of this store, for the committer.
    recipient: Recipient<Committed>,
    deps: StoreDeps,
}

impl Store {
    /// The store of a type, with its recovered state.
    pub fn new(type_name: TypeName, state: State, deps: StoreDeps, ctx: &Context<Store>) -> Store {
        Store {
            type_name,
            last: state.last,
            snapshot: state.snapshot,
            window: state.window,
            last_at: None,
            rollbacks: state.rollbacks,
            pending: VecDeque::new(),
            in_flight: HashMap::new(),
            turns: WriteTurns::default(),
            has_failed: false,
            recipient: ctx.address().recipient(),
            deps,
        }
    }

    /// Accepts a write, or refuses it at once.
    fn submit(&mut self, command: WriteCommand, permit: Permit) -> oneshot::Receiver<ObjectResult> {
        let (reply, receiver) = oneshot::channel();
        let command = self.with_present_key(command);
        let error = if self.deps.fatal.is_raised() {
            StoreError::Unavailable
        } else if command.bytes() > RECORD_BYTES {
            StoreError::TooLarge
        } else if self.deps.space.is_full() && self.lets_store_grow(&command) {
            StoreError::NoSpace
        } else if let Some(slot) = self.deps.write_limiter.take(command.bytes()) {
            self.enter(command, Responder::new(reply, permit, slot));
            return receiver;
        } else {
            StoreError::Busy
        };
        let _gone = reply.send(Err(error));
        receiver
    }

    /// An object that cannot be decrypted is in the snapshot under its hidden key, and is removed under that.
    fn with_present_key(&self, command: WriteCommand) -> WriteCommand {
        match command {
            WriteCommand::Remove(key, expected) => {
                let hidden = self.undecryptable(&key).map(|object| object.key.clone());
                WriteCommand::Remove(hidden.unwrap_or(key), expected)
            }
            other => other,
        }
    }

    /// Whether a write needs more than what a full store still accepts.
    fn lets_store_grow(&self, command: &WriteCommand) -> bool {
        let present = self.newest(command.key()).map_or(0, |object| object.bytes.len() + GROWTH_WHEN_FULL);
        command.bytes() > present
    }

    /// The state of a key once all its pending writes are durable.
    fn newest(&self, key: &Key) -> Option<&Arc<Object>> {
        match self.in_flight.get(key) {
            Some(entry) => entry.newest.as_ref(),
            None => self.snapshot.get(key.as_str()).or_else(|| self.undecryptable(key)),
        }
    }

    /// Begins a write that fits the newest state. One that does not is refused, or waits until the state that refuses it is
    /// durable.
    fn enter(&mut self, command: WriteCommand, writer: Responder) {
        let Err(error) = command.check(self.newest(command.key())) else {
            return self.begin(command, writer);
        };
        match self.in_flight.get_mut(command.key()) {
            None => writer.answer(Err(error)),
            Some(entry) => {
                if let Err((_, writer)) = entry.queue.push(entry.last, (command, writer)) {
                    writer.answer(Err(StoreError::Busy));
                }
            }
        }
    }

    /// Sends the committer a write that fits the newest state of its key.
    fn begin(&mut self, command: WriteCommand, writer: Responder) {
        if let Err(error) = self.skip_rolled_back_revisions() {
            return writer.answer(Err(error));
        }
        let sent = self.plan(command).and_then(|(record, event)| {
            self.send_to_committer(event.revision(), record)?;
            Ok(event)
        });
        let event = match sent {
            Ok(event) => event,
            Err(error) => return writer.answer(Err(error)),
        };
        (self.last, self.last_at) = (event.revision(), Some(event.accepted_at.log));
        let entry = self.in_flight.entry(event.object.key.clone()).or_default();
        entry.newest = (event.change != Change::Removed).then(|| Arc::clone(&event.object));
        entry.last = self.last;
        entry.writes += 1;
        self.pending.push_back(Pending::Write(event, writer));
    }

    /// Advances the type to a revision above this one, unless it is there already.
    fn advance_revision(&mut self, above: Revision, writer: Responder<()>) {
        let is_quiet = self.last_at.is_none_or(|last| last < self.deps.clock.now().minus(self.deps.history));
        if self.newest_revision() > above || !is_quiet {
            return writer.answer(Ok(()));
        }
        if let Err((error, Some(writer))) = self.begin_revision(Some(writer)) {
            writer.answer(Err(error));
        }
    }

    /// The revision of the type once all pending writes are durable.
    fn newest_revision(&self) -> Revision {
        self.pending.back().map_or(self.snapshot.revision, Pending::revision)
    }

    /// Before the first write after a rollback: a record says that nothing is missing where the rolled back writes would be.
    fn skip_rolled_back_revisions(&mut self) -> Result<(), StoreError> {
        if self.newest_revision() == self.last {
            return Ok(());
        }
        self.begin_revision(None).map_err(|(error, _)| error)
    }

    /// Sends the committer a revision at which nothing changes.
    fn begin_revision(
        &mut self,
        writer: Option<Responder<()>>,
    ) -> Result<(), (StoreError, Option<Responder<()>>)> {
        let (revision, accepted_at) = (self.last.next(), self.deps.clock.write_time());
        let operation = Operation::AdvanceRevision(self.newest_revision());
        if let Err(error) = self.send_to_committer(revision, Record::clear(operation, accepted_at)) {
            return Err((error, writer));
        }
        (self.last, self.last_at) = (revision, Some(accepted_at.log));
        self.pending.push_back(Pending::AdvanceRevision(revision, accepted_at.log, writer));
        Ok(())
    }

    /// The record and the event of a write at the next revision, or why the newest state of its key refuses it.
    fn plan(&self, command: WriteCommand) -> Result<(Record, Event), StoreError> {
        let previous = command.check(self.newest(command.key()))?;
        let revision = self.last.next();
        let accepted_at = self.deps.clock.write_time();
        Ok(match command {
            WriteCommand::Create(new) => {
                let (object, encrypted) = self.new_object(new, revision);
                let event = Event::new(Change::Created, Arc::clone(&object), None, accepted_at);
                (Record { operation: Operation::Create(object), accepted_at, encrypted }, event)
            }
            WriteCommand::Replace(new, expected) => {
                let (object, encrypted) = self.new_object(new, revision);
                let event = Event::new(Change::Replaced, Arc::clone(&object), previous, accepted_at);
                (Record { operation: Operation::Replace(object, expected), accepted_at, encrypted }, event)
            }
            WriteCommand::Remove(key, expected) => {
                let previous = previous.ok_or(StoreError::NotFound)?;
                let object = Arc::new(previous.at_revision(revision));
                // Its key is as secret as it was while the object lived.
                let encrypted = (previous.encryption_key_id().is_some() || key.is_hidden())
                    .then(|| EncryptedRecord { hidden_key: self.hidden_key(&key), content: Bytes::new() });
                let event = Event::new(Change::Removed, object, Some(previous), accepted_at);
                (Record { operation: Operation::Remove(key, expected), accepted_at, encrypted }, event)
            }
        })
    }

    /// An object at its revision, and what the log gets instead of it.
    fn new_object(&self, new: NewObject, revision: Revision) -> (Arc<Object>, Option<EncryptedRecord>) {
        let NewObject { draft, encrypted } = new;
        let Some(EncryptedDraft { bytes, key_id }) = encrypted else {
            return (Arc::new(Object::new(draft, revision)), None);
        };
        let record = EncryptedRecord { hidden_key: self.hidden_key(&draft.key), content: bytes };
        (Arc::new(Object::new(draft, revision).encrypted_with(key_id)), Some(record))
    }

    /// What stands for a key in the log.
    fn hidden_key(&self, key: &Key) -> Key {
        if key.is_hidden() { key.clone() } else { self.deps.encryption.hidden_key(&self.type_name, key) }
    }

    /// The hidden key of an object that cannot be decrypted, if it is the one with this key.
    fn undecryptable(&self, key: &Key) -> Option<&Arc<Object>> {
        self.snapshot.hidden().next()?;
        self.snapshot.get(self.hidden_key(key).as_str())
    }

    /// The durable state of a key. Of an object that cannot be decrypted, the caller is the one who knows the key.
    fn lookup(&self, key: &Key) -> Option<Arc<Object>> {
        let known = self.snapshot.get(key.as_str()).cloned();
        known.or_else(|| {
            let object = self.undecryptable(key)?;
            let reason = object.unreadable_reason()?.clone();
            Some(Arc::new(Object::unreadable(key.clone(), object.revision, reason)))
        })
    }

    fn base_state(&self, key: &Key, turn: Option<WriteTurn>) -> BaseState {
        let is_durable = !self.in_flight.contains_key(key);
        let object = if is_durable { self.lookup(key) } else { self.newest(key).cloned() };
        BaseState { object, is_durable, rollbacks: self.rollbacks, turn }
    }

    fn give_turn(&self, key: &Key, waiter: write_turns::TurnWaiter, ctx: &Context<Store>) {
        let turn = WriteTurn::new(ctx.address(), key.clone());
        // If the receiver is gone, the turn is dropped here and ends by itself.
        waiter.answer(Ok(self.base_state(key, Some(turn))));
    }

    fn send_to_committer(&self, revision: Revision, record: Record) -> Result<(), StoreError> {
        let write = Write { type_name: self.type_name.clone(), revision, record };
        let commit = Commit { write, store: self.recipient.clone(), rollbacks: self.rollbacks };
        self.deps.committer.try_send(commit).map_err(|error| match error {
            SendError::Full(_) => StoreError::Busy,
            SendError::Closed(_) => StoreError::Unavailable,
        })
    }

    /// Publishes durable writes, in the order that the module documentation promises.
    fn publish(&mut self, through: Revision) {
        let mut published = Vec::new();
        while self.pending.front().is_some_and(|pending| pending.revision() <= through) {
            let (event, writer) = match self.pending.pop_front() {
                Some(Pending::Write(event, writer)) => (event, writer),
                Some(Pending::AdvanceRevision(revision, at, writer)) => {
                    self.snapshot.revision = revision;
                    self.window.advance_revision(revision, at);
                    if let Some(writer) = writer {
                        writer.answer(Ok(()));
                    }
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
            let dropped = self.window.append(Arc::new(event));
            self.trim(&dropped);
            published.push((object, writer));
        }
        if published.is_empty() {
            return;
        }
        self.deps.notifiers.notify(&self.type_name);
        let mut keys = Vec::with_capacity(published.len());
        for (object, writer) in published {
            keys.push(object.key.clone());
            writer.answer(Ok(object));
        }
        for key in keys {
            self.resume_queue(&key);
        }
    }

    /// Some writes of the key are durable: continues the writes and readers that waited for them.
    fn resume_queue(&mut self, key: &Key) {
        while let Some(entry) = self.in_flight.get_mut(key) {
            match entry.queue.pop(self.snapshot.revision) {
                Some(Queued::Reader(reader)) => {
                    reader.answer(Ok(self.lookup(key)));
                }
                Some(Queued::Write((command, writer))) => {
                    if command.check(entry.newest.as_ref()).is_ok() {
                        self.begin(command, writer);
                        // Entries behind it wait for its result.
                        if let Some(entry) = self.in_flight.get_mut(key) {
                            entry.queue.delay(entry.last);
                        }
                        continue;
                    }
                    match command.check(self.snapshot.get(key.as_str())) {
                        Err(error) => writer.answer(Err(error)),
                        // A write that is not durable yet refuses it.
                        Ok(_) => entry.queue.push_front(entry.last, (command, writer)),
                    }
                }
                None if entry.writes == 0 => drop(self.in_flight.remove(key)),
                None => return,
            }
        }
    }

    /// Whether no write can succeed any more.
    fn is_unavailable(&self) -> bool {
        self.has_failed || self.deps.fatal.is_raised()
    }

    /// Fails all pending and waiting requests: the state on disk is unknown, or the store ends.
    fn fail_pending(&mut self) {
        self.has_failed = true;
        for (_, writer) in self.take_pending(&StoreError::Unavailable) {
            writer.answer(Err(StoreError::Unavailable));
        }
    }

    /// Drops a bounded number of events that are older than the history, and trims the records that only they needed.
    fn expire(&mut self, now: LogTime) -> usize {
        let dropped = self.window.forget_before(now.minus(self.deps.history), self.expiration_limit());
        self.trim(&dropped);
        dropped.len()
    }

    /// How many events may expire in one turn. An event frees at most two records. Without room for them in the trim queue it
    /// stays: see `TrimQueue`.
    fn expiration_limit(&self) -> usize {
        EXPIRE_PER_TURN.min(self.deps.trims.room() / 2)
    }

    fn trim(&self, dropped: &[EventStub]) {
        if !dropped.is_empty() {
            self.deps.trims.push(&self.type_name, dropped.iter().flat_map(freed_by));
        }
    }
}

impl Actor for Store {
    type Context = Context<Store>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(STORE_MAILBOX);
        ctx.run_interval(self.deps.housekeeping_interval, |store, _| {
            store.expire(store.deps.clock.now());
            let limit = store.expiration_limit();
            store.trim(&store.window.shrink(limit));
        });
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.fail_pending();
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.deps.fatal.raise(format!("the store of {} panicked", self.type_name));
        }
    }
}
