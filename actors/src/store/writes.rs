//! Writes inside the store: what they want, whom they answer, and which of them are not durable yet.

use std::sync::Arc;

use pilothouse_types::clock::Timestamp;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Key, Object, Revision};
use tokio::sync::oneshot;

use crate::event::Event;
use crate::key_queue::KeyQueue;
use crate::permit::Permit;
use crate::write_limiter::WriteSlot;

/// What a writer wants.
pub(super) enum WriteCommand {
    Create(Draft),
    Replace(Draft, Revision),
    Remove(Key, Revision),
}

impl WriteCommand {
    pub(super) fn key(&self) -> &Key {
        match self {
            WriteCommand::Create(draft) | WriteCommand::Replace(draft, _) => &draft.key,
            WriteCommand::Remove(key, _) => key,
        }
    }

    /// Whether it fits this state of its key: why not, or what it takes the place of.
    pub(super) fn check(&self, current: Option<&Arc<Object>>) -> Result<Option<Arc<Object>>, StoreError> {
        match (self, current) {
            (WriteCommand::Create(_), None) => Ok(None),
            (WriteCommand::Create(_), Some(_)) => Err(StoreError::Exists),
            (WriteCommand::Replace(..) | WriteCommand::Remove(..), None) => Err(StoreError::NotFound),
            (WriteCommand::Replace(_, expected) | WriteCommand::Remove(_, expected), Some(current)) => {
                let current = Arc::clone(current);
                if current.revision == *expected {
                    Ok(Some(current))
                } else {
                    Err(StoreError::Conflict(current))
                }
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            WriteCommand::Create(draft) | WriteCommand::Replace(draft, _) => draft.bytes.len(),
            WriteCommand::Remove(..) => 0,
        }
    }
}

/// A writer and the places it holds, given back when it is answered.
pub(super) struct Responder<T = Arc<Object>> {
    pub(super) reply: oneshot::Sender<Result<T, StoreError>>,
    pub(super) _permit: Permit,
    pub(super) _slot: WriteSlot,
}

impl<T> Responder<T> {
    pub(super) fn answer(self, answer: Result<T, StoreError>) {
        // A writer that no longer listens needs no answer.
        let _gone = self.reply.send(answer);
    }
}

/// What was passed to the committer.
pub(super) enum Pending {
    /// A change of an object.
    Write(Event, Responder),
    /// A revision at which nothing changes.
    Step(Revision, Timestamp, Responder<()>),
}

impl Pending {
    pub(super) fn revision(&self) -> Revision {
        match self {
            Pending::Write(event, _) => event.revision(),
            Pending::Step(revision, ..) => *revision,
        }
    }
}

/// A key with writes under way.
#[derive(Default)]
pub(super) struct KeyInFlight {
    /// What they leave.
    pub(super) newest: Option<Arc<Object>>,
    /// The last of them.
    pub(super) last: Revision,
    /// How many they are.
    pub(super) writes: usize,
    /// Who waits for them.
    pub(super) queue: KeyQueue<(WriteCommand, Responder)>,
}
