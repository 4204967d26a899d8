//! Writes inside the store: their commands, their reply channels, and those that are not durable yet.

use std::sync::Arc;

use bytes::Bytes;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Key, Object, Revision, StoredDraft};
use pilothouse_types::trace::OpenSpan;
use tokio::sync::oneshot;

use crate::event::Event;
use crate::key_queue::KeyQueue;
use crate::log_time::LogTime;
use crate::permit::Permit;
use crate::write_limiter::WriteSlot;

/// The command of a writer.
pub(super) enum WriteCommand {
    Create(NewObject),
    Replace(NewObject, Revision),
    Remove(Key, Revision),
}

/// What is to be stored.
pub(super) struct NewObject {
    pub(super) draft: Draft,
    /// What the log gets instead, if it does not get the draft itself.
    pub(super) stored: Option<StoredDraft>,
}

impl NewObject {
    /// What a shared log gets.
    pub(super) fn stored_bytes(&self) -> Option<&Bytes> {
        self.stored.as_ref().map(|stored| &stored.bytes)
    }

    /// The object once it has a revision.
    pub(super) fn object_at(&self, revision: Revision) -> Object {
        let key_id = self.stored.as_ref().and_then(|stored| stored.key_id);
        Object::new(self.draft.clone(), revision).with_encryption(key_id)
    }
}

impl WriteCommand {
    /// The revision at which the object must be; `None` if it must not exist.
    pub(super) fn expected(&self) -> Option<Revision> {
        match self {
            WriteCommand::Create(_) => None,
            WriteCommand::Replace(_, expected) | WriteCommand::Remove(_, expected) => Some(*expected),
        }
    }

    /// The new object, unless it is to be removed.
    pub(super) fn new_object(&self) -> Option<&NewObject> {
        match self {
            WriteCommand::Create(new) | WriteCommand::Replace(new, _) => Some(new),
            WriteCommand::Remove(..) => None,
        }
    }

    pub(super) fn key(&self) -> &Key {
        match self {
            WriteCommand::Create(new) | WriteCommand::Replace(new, _) => &new.draft.key,
            WriteCommand::Remove(key, _) => key,
        }
    }

    /// Checks the command against this state of its key. Returns the object that it supersedes.
    pub(super) fn check(&self, current: Option<&Arc<Object>>) -> Result<Option<Arc<Object>>, StoreError> {
        match (self, current) {
            (WriteCommand::Create(_), None) => Ok(None),
            (WriteCommand::Create(_), Some(_)) => Err(StoreError::Exists),
            (WriteCommand::Replace(..) | WriteCommand::Remove(..), None) => Err(StoreError::NotFound),
            (WriteCommand::Replace(_, expected) | WriteCommand::Remove(_, expected), Some(current)) => {
                let current = Arc::clone(current);
                if current.key != *self.key() {
                    // It cannot be decrypted: nobody can say what this would replace.
                    Err(StoreError::Unreadable(current))
                } else if current.revision == *expected {
                    Ok(Some(current))
                } else {
                    Err(StoreError::Conflict(current))
                }
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            WriteCommand::Create(new) | WriteCommand::Replace(new, _) => new.draft.bytes.len(),
            WriteCommand::Remove(..) => 0,
        }
    }
}

/// The reply channel of a writer, and the permit and slot that it holds until the reply.
pub(super) struct Responder<T = Arc<Object>> {
    reply: oneshot::Sender<Result<T, StoreError>>,
    /// How often the write has begun again because the disk was full.
    pub(super) repeats: u32,
    /// The wait until the write is durable, and visible.
    commit: OpenSpan,
    _permit: Permit,
    _slot: WriteSlot,
}

impl<T> Responder<T> {
    pub(super) fn new(
        reply: oneshot::Sender<Result<T, StoreError>>,
        permit: Permit,
        slot: WriteSlot,
    ) -> Responder<T> {
        let commit = permit.trace().open("commit");
        Responder { reply, repeats: 0, commit, _permit: permit, _slot: slot }
    }

    pub(super) fn answer(self, result: Result<T, StoreError>) {
        // Before the writer goes on, who may end the trace.
        self.commit.end();
        // The writer may be gone.
        let _gone = self.reply.send(result);
    }
}

/// A write that was sent to the committer and is not durable yet.
pub(super) enum Pending {
    /// A change of an object.
    Write(Event, Responder),
    /// A revision at which nothing changes, and who asked for it.
    AdvanceRevision(Revision, LogTime, Option<Responder<()>>),
}

impl Pending {
    pub(super) fn revision(&self) -> Revision {
        match self {
            Pending::Write(event, _) => event.revision(),
            Pending::AdvanceRevision(revision, ..) => *revision,
        }
    }
}

/// A key with pending writes.
#[derive(Default)]
pub(super) struct KeyInFlight {
    /// The object after them; `None` if they remove it.
    pub(super) newest: Option<Arc<Object>>,
    /// The revision of the last of them.
    pub(super) last: Revision,
    /// Their number.
    pub(super) writes: usize,
    /// Writes and readers that wait for them.
    pub(super) queue: KeyQueue<(WriteCommand, Responder)>,
}
