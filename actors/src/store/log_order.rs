//! Order by the log of this server: the store gives the revisions, and the committer makes the writes durable.
//!
//! A write takes the next revision when it is sent to the committer. One that fits the newest state of its key follows it at once,
//! durable or not: the log is written in order, so neither is durable without the other. One that does not fit waits until the state
//! for which it is refused is durable.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use actix::dev::SendError;
use actix::{Addr, Recipient};
use bytes::Bytes;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object, Revision, StoredDraft};
use tokio::sync::oneshot;

use super::messages::ObjectResult;
use super::type_state::TypeState;
use super::write_turns::{BaseState, WriteTurn};
use super::writes::{KeyInFlight, NewObject, Pending, Responder, WriteCommand};
use crate::committer::{Commit, Committed, Committer};
use crate::engine::Write;
use crate::engine::record::{EncryptedRecord, Operation, Record};
use crate::event::{Change, Event};
use crate::key_queue::{Queued, QueuedReader};
use crate::limits::{GROWTH_WHEN_FULL, RECORD_BYTES};
use crate::log_time::LogTime;
use crate::permit::Permit;

/// The writes of a type on their way into the log.
pub(super) struct LogOrder {
    /// The last revision that was given to a write; at least that of the snapshot. Those of rolled back writes are not given again:
    /// a request may still hold an object at one of them.
    pub(super) last: Revision,
    /// When `last` was given; `None` until the first write after a start.
    pub(super) last_at: Option<LogTime>,
    /// How often pending writes were rolled back, because the disk was full.
    pub(super) rollbacks: u64,
    /// Writes that are not durable yet, by revision.
    pub(super) pending: VecDeque<Pending>,
    /// Every key with a pending write.
    pub(super) in_flight: HashMap<Key, KeyInFlight>,
    /// Whether pending writes have failed: the state on disk is unknown.
    has_failed: bool,
    /// Makes writes durable.
    committer: Addr<Committer>,
    /// The address of the store, for the committer.
    recipient: Recipient<Committed>,
}

impl LogOrder {
    /// The order of a type whose last revision this is, after so many rollbacks.
    pub(super) fn new(
        last: Revision,
        rollbacks: u64,
        committer: Addr<Committer>,
        recipient: Recipient<Committed>,
    ) -> LogOrder {
        LogOrder {
            last,
            last_at: None,
            rollbacks,
            pending: VecDeque::new(),
            in_flight: HashMap::new(),
            has_failed: false,
            committer,
            recipient,
        }
    }

    /// Whether writes are on their way.
    pub(super) fn is_busy(&self) -> bool {
        !self.pending.is_empty() || !self.in_flight.is_empty()
    }

    /// Whether no write can succeed any more.
    pub(super) fn is_unavailable(&self, state: &TypeState) -> bool {
        self.has_failed || state.deps.fatal.is_raised()
    }

    /// The committer tells how far the log is durable.
    pub(super) fn handle_committed(&mut self, state: &mut TypeState, event: &Committed) {
        match event.through {
            Ok(revision) => self.publish(state, revision),
            // Every batch with writes of that time reports it; the first report has undone all of them.
            Err(StoreError::NoSpace) if event.rollbacks < self.rollbacks => {}
            Err(StoreError::NoSpace) => self.roll_back(state),
            Err(_) => self.fail_pending(),
        }
    }

    /// Answers a reader when the writes of the key that came before are durable.
    pub(super) fn read_settled(
        &mut self,
        state: &TypeState,
        key: &Key,
        rollbacks: Option<u64>,
        reader: QueuedReader,
    ) {
        let is_unavailable = self.is_unavailable(state);
        match self.in_flight.get_mut(key) {
            _ if is_unavailable => reader.answer(Err(StoreError::Unavailable)),
            _ if rollbacks.is_some_and(|rollbacks| rollbacks != self.rollbacks) => {
                reader.answer(Err(StoreError::NoSpace));
            }
            Some(entry) => entry.queue.push_reader(entry.last, reader),
            None => reader.answer(Ok(state.lookup(key))),
        }
    }

    /// Accepts a write, or refuses it at once.
    pub(super) fn submit(
        &mut self,
        state: &TypeState,
        command: WriteCommand,
        permit: Permit,
    ) -> oneshot::Receiver<ObjectResult> {
        let (reply, receiver) = oneshot::channel();
        let command = self.with_present_key(state, command);
        let error = if state.deps.fatal.is_raised() {
            StoreError::Unavailable
        } else if command.bytes() > RECORD_BYTES {
            StoreError::TooLarge
        } else if state.deps.space.is_full() && self.lets_store_grow(state, &command) {
            StoreError::NoSpace
        } else if let Some(slot) = state.deps.write_limiter.take(command.bytes()) {
            self.enter(state, command, Responder::new(reply, permit, slot));
            return receiver;
        } else {
            StoreError::Busy
        };
        let _gone = reply.send(Err(error));
        receiver
    }

    /// An object that cannot be decrypted is in the snapshot under its hidden key, and is removed under that.
    fn with_present_key(&self, state: &TypeState, command: WriteCommand) -> WriteCommand {
        match command {
            WriteCommand::Remove(key, expected) => {
                let hidden = state.undecryptable(&key).map(|object| object.key.clone());
                WriteCommand::Remove(hidden.unwrap_or(key), expected)
            }
            other => other,
        }
    }

    /// Whether a write needs more than what a full store still accepts.
    pub(super) fn lets_store_grow(&self, state: &TypeState, command: &WriteCommand) -> bool {
        let present =
            self.newest(state, command.key()).map_or(0, |object| object.bytes.len() + GROWTH_WHEN_FULL);
        command.bytes() > present
    }

    /// The state of a key once all its pending writes are durable.
    pub(super) fn newest<'a>(&'a self, state: &'a TypeState, key: &Key) -> Option<&'a Arc<Object>> {
        match self.in_flight.get(key) {
            Some(entry) => entry.newest.as_ref(),
            None => state.snapshot.get(key.as_str()).or_else(|| state.undecryptable(key)),
        }
    }

    /// Begins a write that fits the newest state. One that does not is refused, or waits until the state that refuses it is
    /// durable.
    pub(super) fn enter(&mut self, state: &TypeState, command: WriteCommand, writer: Responder) {
        let Err(error) = command.check(self.newest(state, command.key())) else {
            return self.begin(state, command, writer);
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
    fn begin(&mut self, state: &TypeState, command: WriteCommand, writer: Responder) {
        if let Err(error) = self.skip_rolled_back_revisions(state) {
            return writer.answer(Err(error));
        }
        let sent = self.plan(state, command).and_then(|(record, event)| {
            self.send_to_committer(state, event.revision(), record)?;
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
    pub(super) fn advance_revision(&mut self, state: &TypeState, above: Revision, writer: Responder<()>) {
        let is_quiet =
            self.last_at.is_none_or(|last| last < state.deps.clock.now().minus(state.deps.history));
        if self.newest_revision(state) > above || !is_quiet {
            return writer.answer(Ok(()));
        }
        if let Err((error, Some(writer))) = self.begin_revision(state, Some(writer)) {
            writer.answer(Err(error));
        }
    }

    /// The revision of the type once all pending writes are durable.
    fn newest_revision(&self, state: &TypeState) -> Revision {
        self.pending.back().map_or(state.snapshot.revision, Pending::revision)
    }

    /// Before the first write after a rollback: a record says that nothing is missing where the rolled back writes would be.
    fn skip_rolled_back_revisions(&mut self, state: &TypeState) -> Result<(), StoreError> {
        if self.newest_revision(state) == self.last {
            return Ok(());
        }
        self.begin_revision(state, None).map_err(|(error, _)| error)
    }

    /// Sends the committer a revision at which nothing changes.
    fn begin_revision(
        &mut self,
        state: &TypeState,
        writer: Option<Responder<()>>,
    ) -> Result<(), (StoreError, Option<Responder<()>>)> {
        let (revision, accepted_at) = (self.last.next(), state.deps.clock.write_time());
        let operation = Operation::AdvanceRevision(self.newest_revision(state));
        if let Err(error) = self.send_to_committer(state, revision, Record::clear(operation, accepted_at)) {
            return Err((error, writer));
        }
        (self.last, self.last_at) = (revision, Some(accepted_at.log));
        self.pending.push_back(Pending::AdvanceRevision(revision, accepted_at.log, writer));
        Ok(())
    }

    /// The record and the event of a write at the next revision, or why the newest state of its key refuses it.
    fn plan(&self, state: &TypeState, command: WriteCommand) -> Result<(Record, Event), StoreError> {
        let previous = command.check(self.newest(state, command.key()))?;
        let revision = self.last.next();
        let accepted_at = state.deps.clock.write_time();
        Ok(match command {
            WriteCommand::Create(new) => {
                let (object, encrypted) = self.new_object(state, new, revision);
                let event = Event::new(Change::Created, Arc::clone(&object), None, accepted_at);
                (Record { operation: Operation::Create(object), accepted_at, encrypted }, event)
            }
            WriteCommand::Replace(new, expected) => {
                let (object, encrypted) = self.new_object(state, new, revision);
                let event = Event::new(Change::Replaced, Arc::clone(&object), previous, accepted_at);
                (Record { operation: Operation::Replace(object, expected), accepted_at, encrypted }, event)
            }
            WriteCommand::Remove(key, expected) => {
                let previous = previous.ok_or(StoreError::NotFound)?;
                let object = Arc::new(previous.at_revision(revision));
                // Its key is as secret as it was while the object lived.
                let encrypted = (previous.encryption_key_id().is_some() || key.is_hidden())
                    .then(|| EncryptedRecord { hidden_key: state.hidden_key(&key), content: Bytes::new() });
                let event = Event::new(Change::Removed, object, Some(previous), accepted_at);
                (Record { operation: Operation::Remove(key, expected), accepted_at, encrypted }, event)
            }
        })
    }

    /// An object at its revision, and what the log gets instead of it.
    fn new_object(
        &self,
        state: &TypeState,
        new: NewObject,
        revision: Revision,
    ) -> (Arc<Object>, Option<EncryptedRecord>) {
        let NewObject { draft, stored } = new;
        let Some(StoredDraft { bytes, key_id: Some(key_id) }) = stored else {
            return (Arc::new(Object::new(draft, revision)), None);
        };
        let record = EncryptedRecord { hidden_key: state.hidden_key(&draft.key), content: bytes };
        (Arc::new(Object::new(draft, revision).with_encryption(Some(key_id))), Some(record))
    }

    pub(super) fn base_state(&self, state: &TypeState, key: &Key, turn: Option<WriteTurn>) -> BaseState {
        let is_durable = !self.in_flight.contains_key(key);
        let object = if is_durable { state.lookup(key) } else { self.newest(state, key).cloned() };
        BaseState { object, is_durable, rollbacks: self.rollbacks, turn }
    }

    fn send_to_committer(
        &self,
        state: &TypeState,
        revision: Revision,
        record: Record,
    ) -> Result<(), StoreError> {
        let write = Write { type_name: state.type_name.clone(), revision, record };
        let commit = Commit { write, store: self.recipient.clone(), rollbacks: self.rollbacks };
        self.committer.try_send(commit).map_err(|error| match error {
            SendError::Full(_) => StoreError::Busy,
            SendError::Closed(_) => StoreError::Unavailable,
        })
    }

    /// Publishes durable writes, in the order that the module documentation promises.
    fn publish(&mut self, state: &mut TypeState, through: Revision) {
        let mut published = Vec::new();
        while self.pending.front().is_some_and(|pending| pending.revision() <= through) {
            let (event, writer) = match self.pending.pop_front() {
                Some(Pending::Write(event, writer)) => (event, writer),
                Some(Pending::AdvanceRevision(revision, at, writer)) => {
                    state.snapshot.revision = revision;
                    state.window.advance_revision(revision, at);
                    if let Some(writer) = writer {
                        writer.answer(Ok(()));
                    }
                    continue;
                }
                None => break,
            };
            let object = Arc::clone(&event.object);
            state.apply([event]);
            if let Some(entry) = self.in_flight.get_mut(&object.key) {
                entry.writes -= 1;
            }
            published.push((object, writer));
        }
        if published.is_empty() {
            return;
        }
        state.deps.notifiers.notify(&state.type_name);
        let mut keys = Vec::with_capacity(published.len());
        for (object, writer) in published {
            keys.push(object.key.clone());
            writer.answer(Ok(object));
        }
        for key in keys {
            self.resume_queue(state, &key);
        }
    }

    /// Some writes of the key are durable: continues the writes and readers that waited for them.
    fn resume_queue(&mut self, state: &TypeState, key: &Key) {
        while let Some(entry) = self.in_flight.get_mut(key) {
            match entry.queue.pop(state.snapshot.revision) {
                Some(Queued::Reader(reader)) => {
                    reader.answer(Ok(state.lookup(key)));
                }
                Some(Queued::Write((command, writer))) => {
                    if command.check(entry.newest.as_ref()).is_ok() {
                        self.begin(state, command, writer);
                        // Entries behind it wait for its result.
                        if let Some(entry) = self.in_flight.get_mut(key) {
                            entry.queue.delay(entry.last);
                        }
                        continue;
                    }
                    match command.check(state.snapshot.get(key.as_str())) {
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

    /// Fails all pending and waiting requests: the state on disk is unknown, or the store ends.
    pub(super) fn fail_pending(&mut self) {
        self.has_failed = true;
        for (_, writer) in self.take_pending(&StoreError::Unavailable) {
            writer.answer(Err(StoreError::Unavailable));
        }
    }
}
