//! Order by a log that several servers share: it gives the revisions, and a write is visible when its change has come back from it.
//!
//! At most one write of a key is proposed at a time; those behind it wait for it to become visible. A proposal is refused by the log
//! if the key is not at the expected revision. That another server has changed it may not have arrived here yet, so the writer gets
//! its refusal from the state that refuses it, once that has arrived.
//!
//! A reader who wants the latest state waits until this server has seen every change that the log had when the reader came.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use actix::Addr;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object, Revision};
use tokio::sync::{oneshot, watch};

use super::Store;
use super::messages::ObjectResult;
use super::shared_messages::ProposalEnded;
use super::type_state::TypeState;
use super::write_turns::WriteTurn;
use super::writes::{Responder, WriteCommand};
use crate::event::{Change, Event};
use crate::limits::{PROPOSAL_ATTEMPTS, READERS_WAITING, RECORD_BYTES, WRITES_WAITING_PER_KEY};
use crate::permit::Permit;
use crate::shared_log::decoding::DecodedValues;
use crate::shared_log::messages::{
    Adopt, ApplyChanges, BarrierRequest, Barriers, FollowStatus, Resynchronize,
};
use crate::shared_log::{
    Proposal, ProposalOutcome, ProposedChange, SharedChange, SharedEntry, SharedLog, SharedLogError,
};
use crate::snapshot::Snapshot;
use crate::space::{Space, SpaceLevel};

/// What a reader does once the state is recent enough, or why it never will be.
pub(super) type Reader = Box<dyn FnOnce(Result<&TypeState, StoreError>) + Send>;

/// A shared log, as its stores need it. Cheap to clone.
#[derive(Clone)]
pub struct SharedOrderSource {
    pub(crate) log: Arc<dyn SharedLog>,
    pub(crate) barriers: Barriers,
    /// How far the log was followed.
    pub(crate) status: watch::Receiver<FollowStatus>,
    /// Whether the log has refused the latest write for lack of space. It decides by itself, so stores refuse nothing for it.
    pub(crate) space: Space,
}

impl SharedOrderSource {
    /// Learns from the outcome of a write whether the log has space.
    fn note_space(&self, command: &WriteCommand, outcome: &ProposalOutcome) {
        match outcome {
            ProposalOutcome::Failed(SharedLogError::NoSpace(reason)) if !self.space.is_full() => {
                self.space.set(SpaceLevel::Full);
                tracing::error!(%reason, "writes are refused, except removals");
            }
            ProposalOutcome::Accepted(_) if command.new_object().is_some() && self.space.is_full() => {
                self.space.set(SpaceLevel::Ample);
                tracing::info!("writes are accepted again");
            }
            _ => {}
        }
    }
}

/// The writes of a type on their way into a shared log, and the readers that wait for it.
pub(super) struct SharedOrder {
    source: SharedOrderSource,
    in_flight: HashMap<Key, KeyProposal>,
    /// Readers for whom the log was not asked yet, because an earlier question is on its way. Each holds the permit of its request.
    next_readers: Vec<Reader>,
    /// Readers who wait for the answer that is on its way.
    readers: Vec<Reader>,
    /// Whether a write was refused for a state that no event may announce.
    needs_barrier: bool,
    /// Whether the log was asked and has not answered yet.
    is_asking: bool,
    /// The address of the store, for answers.
    address: Addr<Store>,
}

/// A write and who waits for it.
struct Write {
    command: WriteCommand,
    writer: Responder,
    /// Held until the write is visible: whoever has the next turn has to see it.
    _turn: Option<WriteTurn>,
    /// How often it was proposed.
    attempts: u32,
    /// Readers who want to see what has become of it.
    readers: Vec<Reader>,
}

/// The proposal of a key.
struct KeyProposal {
    write: Write,
    phase: Phase,
    /// For a removal, its event, if that has arrived already.
    removal: Option<Arc<Object>>,
    waiting: VecDeque<Write>,
}

/// How far a proposal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It was sent to the log.
    Proposed,
    /// It was accepted at this revision, whose change has not arrived yet.
    Accepted(Revision),
    /// It was refused because of another state, which has not arrived yet.
    Refused {
        /// Where the object was; `None` if it did not exist.
        current: Option<Revision>,
        /// The revision of the log then.
        at: Revision,
    },
}

impl SharedOrder {
    /// The order of a type of this log.
    pub(super) fn new(source: SharedOrderSource, address: Addr<Store>) -> SharedOrder {
        let (next_readers, readers) = (Vec::new(), Vec::new());
        SharedOrder {
            source,
            in_flight: HashMap::new(),
            next_readers,
            readers,
            needs_barrier: false,
            is_asking: false,
            address,
        }
    }

    /// Whether writes or readers are on their way.
    pub(super) fn is_busy(&self) -> bool {
        !self.in_flight.is_empty() || self.is_asking || !self.next_readers.is_empty()
    }

    /// Whether a write of this key is on its way.
    pub(super) fn has_write(&self, key: &Key) -> bool {
        self.in_flight.contains_key(key)
    }

    /// How many writes were proposed, or wait for a proposal of their key.
    pub(super) fn pending_writes(&self) -> usize {
        self.in_flight.values().map(|proposal| 1 + proposal.waiting.len()).sum()
    }

    /// Accepts a write, or refuses it at once.
    pub(super) fn submit(
        &mut self,
        state: &TypeState,
        command: WriteCommand,
        permit: Permit,
        turn: Option<WriteTurn>,
    ) -> oneshot::Receiver<ObjectResult> {
        let (reply, receiver) = oneshot::channel();
        let error = if state.deps.fatal.is_raised() {
            StoreError::Unavailable
        } else if command.bytes() > RECORD_BYTES {
            StoreError::TooLarge
        } else if command.new_object().is_some_and(|new| new.stored_bytes().is_none()) {
            // Nobody else could read it.
            StoreError::Unavailable
        } else if let Some(slot) = state.deps.write_limiter.take(command.bytes()) {
            let writer = Responder::new(reply, permit, slot);
            self.enter(state, Write { command, writer, _turn: turn, attempts: 0, readers: Vec::new() });
            return receiver;
        } else {
            StoreError::Busy
        };
        let _gone = reply.send(Err(error));
        receiver
    }

    fn enter(&mut self, state: &TypeState, write: Write) {
        match self.in_flight.get_mut(write.command.key()) {
            Some(proposal) if proposal.waiting.len() < WRITES_WAITING_PER_KEY => {
                proposal.waiting.push_back(write);
            }
            Some(_) => write.writer.answer(Err(StoreError::Busy)),
            None => {
                // Nobody can have come yet to see what has become of it.
                if let Ok(write) = refuse_if_certain(state, write) {
                    self.propose(state, write, VecDeque::new());
                }
            }
        }
    }

    /// Sends a write to the log. The answer comes as [`ProposalEnded`].
    fn propose(&mut self, state: &TypeState, mut write: Write, waiting: VecDeque<Write>) {
        write.attempts += 1;
        let key = write.command.key().clone();
        let change = match write.command.new_object() {
            Some(new) => ProposedChange::Put(new.stored_bytes().cloned().unwrap_or_default()),
            None => ProposedChange::Remove,
        };
        let proposal = Proposal {
            type_name: state.type_name.clone(),
            key: key.clone(),
            expected: write.command.expected(),
            change,
        };
        let outcome = self.source.log.propose(proposal);
        let address = self.address.clone();
        actix::spawn({
            let key = key.clone();
            async move {
                // A fresh handle always has a free place in the mailbox: only a store that has ended refuses this.
                let _ended = address.try_send(ProposalEnded { key, outcome: outcome.await });
            }
        });
        self.in_flight.insert(key, KeyProposal { write, phase: Phase::Proposed, removal: None, waiting });
    }

    /// The log has answered a proposal.
    pub(super) fn end_proposal(&mut self, state: &TypeState, ended: ProposalEnded) {
        let Some(proposal) = self.in_flight.get_mut(&ended.key) else { return };
        self.source.note_space(&proposal.write.command, &ended.outcome);
        match ended.outcome {
            ProposalOutcome::Accepted(revision) => proposal.phase = Phase::Accepted(revision),
            ProposalOutcome::Refused { current, at } => proposal.phase = Phase::Refused { current, at },
            ProposalOutcome::Failed(error) => return self.finish(state, &ended.key, Err(error.into())),
            ProposalOutcome::Unknown => {
                return self.finish(state, &ended.key, Err(StoreError::UnknownOutcome));
            }
        }
        self.advance(state, &ended.key);
        if self
            .in_flight
            .get(&ended.key)
            .is_some_and(|proposal| matches!(proposal.phase, Phase::Refused { .. }))
        {
            // The change may be one that no event tells of, such as that of a type which was added meanwhile.
            self.needs_barrier = true;
            self.ask_barrier(state);
        }
    }

    /// Goes on with the proposal of a key, if what it waits for has arrived.
    fn advance(&mut self, state: &TypeState, key: &Key) {
        let Some(proposal) = self.in_flight.get_mut(key) else { return };
        match proposal.phase {
            Phase::Accepted(revision) if state.snapshot.revision >= revision => {
                let result = proposal.result(state, revision);
                self.finish(state, key, result);
            }
            Phase::Refused { current, at } if has_arrived(state, key, current, at) => {
                match proposal.write.command.check(state.snapshot.get(key.as_str())) {
                    Err(error) => self.finish(state, key, Err(error)),
                    // It was changed once more, and fits now.
                    Ok(_) if proposal.write.attempts < PROPOSAL_ATTEMPTS => {
                        if let Some(KeyProposal { write, waiting, .. }) = self.in_flight.remove(key) {
                            self.propose(state, write, waiting);
                        }
                    }
                    Ok(_) => self.finish(state, key, Err(StoreError::Busy)),
                }
            }
            Phase::Proposed | Phase::Accepted(_) | Phase::Refused { .. } => {}
        }
    }

    /// Answers the writer of a key and begins the next write.
    fn finish(&mut self, state: &TypeState, key: &Key, result: ObjectResult) {
        let Some(KeyProposal { write, mut waiting, .. }) = self.in_flight.remove(key) else { return };
        let is_unknown = matches!(result, Err(StoreError::UnknownOutcome));
        write.writer.answer(result);
        let mut readers = write.readers;
        if is_unknown {
            // It may come to be stored yet, after all that wait, too.
            readers.extend(waiting.iter_mut().flat_map(|write| std::mem::take(&mut write.readers)));
            readers.drain(..).for_each(|reader| reader(Err(StoreError::UnknownOutcome)));
        }
        while let Some(next) = waiting.pop_front() {
            match refuse_if_certain(state, next) {
                Ok(next) => {
                    self.propose(state, next, waiting);
                    break;
                }
                Err(its_readers) => readers.extend(its_readers),
            }
        }
        readers.into_iter().for_each(|reader| self.read_latest(state, reader));
    }

    /// Makes changes visible that have arrived in order.
    pub(super) fn apply(
        &mut self,
        state: &mut TypeState,
        revision: Revision,
        changes: Vec<SharedChange>,
        mut decoded: DecodedValues,
    ) {
        let seen = state.snapshot.revision;
        let keys: Vec<Key> = changes.iter().map(|change| change.key.clone()).collect();
        // What came while the objects were read, and is among them.
        let changes = changes.into_iter().filter(|change| change.revision > seen);
        // One change of a key after another: the event of each needs the state before it.
        let mut changes = changes.peekable();
        while let Some(first) = changes.next() {
            let revision = first.revision;
            let mut events: Vec<Event> = self.event(state, first, &mut decoded).into_iter().collect();
            while let Some(next) = changes.next_if(|next| next.revision == revision) {
                events.extend(self.event(state, next, &mut decoded));
            }
            events.iter().for_each(|event| self.note_removal(event));
            state.apply(events);
        }
        self.advance_revision(state, revision);
        state.deps.notifiers.notify(&state.type_name);
        for key in keys {
            self.advance(state, &key);
        }
    }

    /// Keeps what a removal of this server has removed, for its answer.
    fn note_removal(&mut self, event: &Event) {
        let previous = event.previous.as_ref().map(|previous| previous.revision);
        if event.change == Change::Removed
            && let Some(proposal) = self.in_flight.get_mut(&event.object.key)
            && proposal.write.command.expected() == previous
        {
            proposal.removal = Some(Arc::clone(&event.object));
        }
    }

    /// Begins with the state of a type that is known from now on.
    pub(super) fn adopt(&mut self, state: &mut TypeState, arrived: Adopt) {
        let Adopt { revision, entries, changes, mut decoded } = arrived;
        state.snapshot = Snapshot::empty(revision);
        for SharedEntry { key, revision, value, .. } in entries {
            let object = decoded.object(&*self.source.log, &state.type_name, (key, revision), &value);
            state.snapshot.objects.insert(object.key.clone(), Arc::new(object));
        }
        state.window.restart(revision);
        state.deps.notifiers.notify(&state.type_name);
        self.advance_all(state);
        self.apply(state, revision, changes, decoded);
    }

    /// Makes the difference visible between what is here and everything that the log has of the type at a revision. When a change
    /// was made is no longer known of removals. They come before everything else: a client that has seen a later write here, and goes on
    /// from it at another server, must not miss them. There it may see them twice.
    pub(super) fn resynchronize(&mut self, state: &mut TypeState, arrived: Resynchronize) {
        let Resynchronize { revision, entries, decoded } = arrived;
        let seen = state.snapshot.revision;
        let first = seen.next();
        let present: HashSet<&Key> = entries.iter().map(|entry| &entry.key).collect();
        let removed = state.snapshot.objects.keys().filter(|key| !present.contains(key));
        let removed = removed.map(|key| (first, key.clone(), None)).collect::<Vec<_>>();
        // Another object has its name now. It was removed after what is seen, and before the new one was created.
        let is_another =
            |entry: &&SharedEntry| entry.created > seen && state.snapshot.get(entry.key.as_str()).is_some();
        let replaced = entries.iter().filter(is_another);
        let replaced = replaced.map(|entry| (first, entry.key.clone(), None));
        let is_news = |entry: &SharedEntry| {
            state.snapshot.get(entry.key.as_str()).is_none_or(|object| object.revision < entry.revision)
        };
        let written = entries.iter().filter(|entry| is_news(entry));
        let written = written.map(|entry| (entry.revision, entry.key.clone(), Some(entry.value.clone())));
        let mut changes: Vec<SharedChange> = replaced
            .chain(written)
            .chain(removed)
            .map(|(revision, key, value)| SharedChange {
                type_name: state.type_name.clone(),
                key,
                revision,
                value,
            })
            .collect();
        // It is stable: a removal comes before what follows it at the same revision.
        changes.sort_by_key(|change| change.revision);
        state.window.mark_gap(seen, revision);
        self.apply(state, revision, changes, decoded);
        // What a proposal waits for may have come and gone unseen.
        self.advance_all(state);
    }

    fn advance_all(&mut self, state: &TypeState) {
        for key in self.in_flight.keys().cloned().collect::<Vec<_>>() {
            self.advance(state, &key);
        }
    }

    /// Every change of the type up to this revision has arrived.
    fn advance_revision(&mut self, state: &mut TypeState, revision: Revision) {
        if revision > state.snapshot.revision {
            state.snapshot.revision = revision;
            state.window.advance_seen(revision);
        }
    }

    /// The event of a change; `None` if it removes what is not there.
    fn event(&self, state: &TypeState, change: SharedChange, decoded: &mut DecodedValues) -> Option<Event> {
        let SharedChange { key, revision, value, .. } = change;
        let previous = state.snapshot.get(key.as_str()).cloned();
        let accepted_at = state.deps.clock.write_time();
        let Some(value) = value else {
            let previous = previous?;
            let object = Arc::new(previous.at_revision(revision));
            return Some(Event::new(Change::Removed, object, Some(previous), accepted_at));
        };
        let command = self.in_flight.get(&key).map(|proposal| &proposal.write.command);
        let own = command.and_then(WriteCommand::new_object).filter(|new| new.stored_bytes() == Some(&value));
        let object = match own {
            // What was proposed here need not be decoded.
            Some(new) => new.object_at(revision),
            None => decoded.object(&*self.source.log, &state.type_name, (key, revision), &value),
        };
        let change = if previous.is_some() { Change::Replaced } else { Change::Created };
        Some(Event::new(change, Arc::new(object), previous, accepted_at))
    }

    /// Reads the state once it is not older than what the log has now.
    pub(super) fn read_latest(&mut self, state: &TypeState, reader: Reader) {
        if self.next_readers.len() >= READERS_WAITING {
            return reader(Err(StoreError::Busy));
        }
        self.next_readers.push(reader);
        self.ask_barrier(state);
    }

    /// The same, after the writes of a key that came before. If nobody knows how one of them has ended, the answer is UnknownOutcome.
    pub(super) fn read_settled(&mut self, state: &TypeState, key: &Key, reader: Reader) {
        match self.in_flight.get_mut(key) {
            None => self.read_latest(state, reader),
            Some(KeyProposal { write, waiting, .. }) => {
                waiting.back_mut().unwrap_or(write).readers.push(reader);
            }
        }
    }

    /// Learns that nothing has happened to the type, if nothing has. Whatever the follower has handed over is in the mailbox already, so
    /// a message that comes after it may say so.
    pub(super) fn ask_for_progress(&self, state: &TypeState) {
        let revision = self.source.status.borrow().seen_of(&state.type_name);
        // A fresh handle always has a free place in the mailbox.
        let (changes, decoded) = (Vec::new(), DecodedValues::default());
        let progress = ApplyChanges { revision, changes, decoded, credit: None };
        let _ended = self.address.clone().try_send(progress);
    }

    fn ask_barrier(&mut self, state: &TypeState) {
        if !self.is_asking && (self.needs_barrier || !self.next_readers.is_empty()) {
            (self.is_asking, self.needs_barrier) = (true, false);
            self.readers = std::mem::take(&mut self.next_readers);
            let (type_name, store) = (state.type_name.clone(), self.address.clone().recipient());
            self.source.barriers.ask(BarrierRequest { type_name, store });
        }
    }

    /// Everything has arrived that the log had when the barrier was asked for, or nobody knows.
    pub(super) fn pass_barrier(&mut self, state: &mut TypeState, passed: &Result<Revision, StoreError>) {
        self.is_asking = false;
        match passed {
            Ok(revision) => {
                self.advance_revision(state, *revision);
                self.advance_all(state);
            }
            Err(error) => {
                self.fail_refused(state, error);
                self.needs_barrier = false;
                // Who came meanwhile would wait as long again for the same answer.
                self.readers.append(&mut self.next_readers);
            }
        }
        for reader in std::mem::take(&mut self.readers) {
            reader(passed.as_ref().map(|_| &*state).map_err(StoreError::clone));
        }
        self.ask_barrier(state);
    }

    /// Answers those writers whose write was refused for a state that nobody can wait for.
    fn fail_refused(&mut self, state: &TypeState, error: &StoreError) {
        let is_refused = |proposal: &KeyProposal| matches!(proposal.phase, Phase::Refused { .. });
        let refused = self.in_flight.iter().filter(|(_, proposal)| is_refused(proposal));
        for key in refused.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.finish(state, &key, Err(error.clone()));
        }
    }

    /// Fails all who wait: the store ends.
    pub(super) fn fail_all(&mut self) {
        for proposal in std::mem::take(&mut self.in_flight).into_values() {
            for write in std::iter::once(proposal.write).chain(proposal.waiting) {
                write.writer.answer(Err(StoreError::Unavailable));
                write.readers.into_iter().for_each(|reader| reader(Err(StoreError::Unavailable)));
            }
        }
        let readers = std::mem::take(&mut self.readers).into_iter();
        for reader in readers.chain(std::mem::take(&mut self.next_readers)) {
            reader(Err(StoreError::Unavailable));
        }
    }
}

impl KeyProposal {
    /// The result of a write that was accepted at a revision, whose change has arrived.
    fn result(&mut self, state: &TypeState, revision: Revision) -> ObjectResult {
        let command = &self.write.command;
        let present = state.snapshot.get(command.key().as_str());
        match (present.filter(|object| object.revision == revision), command.new_object()) {
            (Some(object), _) => Ok(Arc::clone(object)),
            // Somebody has changed it since.
            (None, Some(new)) => Ok(Arc::new(new.object_at(revision))),
            (None, None) => match self.removal.take() {
                Some(removed) if removed.revision == revision => Ok(removed),
                // The difference after a gap does not tell when it was removed, but the log has told this server.
                Some(removed) => Ok(Arc::new(removed.at_revision(revision))),
                // Without its event nobody knows what was removed: it came and went in such a gap.
                None => Err(StoreError::UnknownOutcome),
            },
        }
    }
}

/// Answers a write that cannot fit any more, whatever other servers do: revisions never go back. Returns its readers then.
fn refuse_if_certain(state: &TypeState, write: Write) -> Result<Write, Vec<Reader>> {
    let present = state.snapshot.get(write.command.key().as_str());
    match (write.command.expected(), present) {
        (Some(expected), Some(current)) if current.revision > expected => {
            let current = Arc::clone(current);
            write.writer.answer(Err(StoreError::Conflict(current)));
            Err(write.readers)
        }
        _ => Ok(write),
    }
}

/// Whether the state has arrived for which a proposal was refused.
fn has_arrived(state: &TypeState, key: &Key, current: Option<Revision>, at: Revision) -> bool {
    let present = state.snapshot.get(key.as_str()).map(|object| object.revision);
    state.snapshot.revision >= at || (current.is_some() && present >= current)
}
