//! What becomes of pending writes when the disk is full, or the store ends.

use std::mem::take;

use pilothouse_types::error::StoreError;

use super::log_order::LogOrder;
use super::type_state::TypeState;
use super::writes::{NewObject, Pending, Responder, WriteCommand};
use crate::event::{Change, Event};
use crate::key_queue::Queued;
use crate::limits::FULL_DISK_REPEATS;

impl LogOrder {
    /// Undoes all pending writes: the disk is full, and none of them was written. What needs no more space, such as a removal, was only
    /// in one batch with what does, or behind it; it begins again.
    pub(super) fn roll_back(&mut self, state: &TypeState) {
        self.rollbacks += 1;
        // Nothing was written, so the type may be advanced for a reader.
        self.last_at = None;
        for (command, mut writer) in self.take_pending(&StoreError::NoSpace) {
            match command.filter(|command| self.may_repeat(state, command, &writer)) {
                Some(command) => {
                    writer.repeats += 1;
                    self.enter(state, command, writer);
                }
                None => writer.answer(Err(StoreError::NoSpace)),
            }
        }
    }

    fn may_repeat(&self, state: &TypeState, command: &WriteCommand, writer: &Responder) -> bool {
        // One that builds on a write that was undone does not fit any more. To its client that is a lack of space, too.
        let fits = command.check(self.newest(state, command.key())).is_ok();
        fits && !self.lets_store_grow(state, command) && writer.repeats < FULL_DISK_REPEATS
    }

    /// Takes all pending and waiting writes, with their commands if they can begin again. Everybody else gets this error.
    pub(super) fn take_pending(&mut self, error: &StoreError) -> Vec<(Option<WriteCommand>, Responder)> {
        let mut writes = Vec::new();
        for pending in take(&mut self.pending) {
            match pending {
                Pending::Write(event, writer) => writes.push((command_for(&event), writer)),
                Pending::AdvanceRevision(.., Some(writer)) => writer.answer(Err(error.clone())),
                Pending::AdvanceRevision(.., None) => {}
            }
        }
        for next in take(&mut self.in_flight).into_values().flat_map(|entry| entry.queue.into_all()) {
            match next {
                Queued::Write((command, writer)) => writes.push((Some(command), writer)),
                Queued::Reader(reader) => reader.answer(Err(error.clone())),
            }
        }
        writes
    }
}

/// The command that this event came from. There is none if it created the object, which always needs space, or if the log gets the
/// object in encrypted form, which the event does not have.
fn command_for(event: &Event) -> Option<WriteCommand> {
    let expected = event.previous.as_ref()?.revision;
    match event.change {
        Change::Created => None,
        Change::Replaced if event.object.encryption_key_id().is_some() => None,
        Change::Replaced => {
            let new = NewObject { draft: event.object.to_draft(), stored: None };
            Some(WriteCommand::Replace(new, expected))
        }
        Change::Removed => Some(WriteCommand::Remove(event.object.key.clone(), expected)),
    }
}
