//! The queue of one key: writes and readers that wait, in order of arrival, until earlier writes of the key are durable. These are
//! writes that conflict with pending ones, and readers of their result.
//!
//! The number of writes is bounded here. Readers are not: a refused reader could only retry, and each holds the permit of its
//! request, whose number is limited.

use std::collections::VecDeque;
use std::sync::Arc;

use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Object, Revision};
use tokio::sync::oneshot;

use crate::limits::WRITES_WAITING_PER_KEY;
use crate::permit::Permit;

/// The answer to a reader: the object, or `None` if there is none.
pub type ReadResult = Result<Option<Arc<Object>>, StoreError>;

/// A reader that waits for earlier writes.
pub struct QueuedReader {
    reply: oneshot::Sender<ReadResult>,
    _permit: Permit,
}

impl QueuedReader {
    /// A reader, and its receiver.
    pub fn new(permit: Permit) -> (QueuedReader, oneshot::Receiver<ReadResult>) {
        let (reply, receiver) = oneshot::channel();
        (QueuedReader { reply, _permit: permit }, receiver)
    }

    /// Sends the answer.
    pub fn answer(self, result: ReadResult) {
        // The reader may have gone.
        let _gone = self.reply.send(result);
    }
}

/// A waiting write or reader.
pub enum Queued<W> {
    /// A write.
    Write(W),
    /// A reader.
    Reader(QueuedReader),
}

/// The queue of one key. Each entry waits for a revision, and later entries never for an earlier one.
pub struct KeyQueue<W> {
    waiting: VecDeque<(Revision, Queued<W>)>,
    writes: usize,
}

impl<W> Default for KeyQueue<W> {
    fn default() -> KeyQueue<W> {
        KeyQueue { waiting: VecDeque::new(), writes: 0 }
    }
}

impl<W> KeyQueue<W> {
    /// Lets a write wait until a revision is durable. Returns it if the queue is full.
    pub fn push(&mut self, until: Revision, write: W) -> Result<(), W> {
        if self.writes >= WRITES_WAITING_PER_KEY {
            return Err(write);
        }
        self.writes += 1;
        self.waiting.push_back((until, Queued::Write(write)));
        Ok(())
    }

    /// Puts a write that was next back to the front.
    pub fn push_front(&mut self, until: Revision, write: W) {
        self.writes += 1;
        self.waiting.push_front((until, Queued::Write(write)));
    }

    /// Lets all wait for at least this revision: a write before them is now pending.
    pub fn delay(&mut self, until: Revision) {
        self.waiting.iter_mut().for_each(|(known, _)| *known = until.max(*known));
    }

    /// Lets a reader wait until a revision is durable.
    pub fn push_reader(&mut self, until: Revision, reader: QueuedReader) {
        self.waiting.push_back((until, Queued::Reader(reader)));
    }

    /// The next entry that waits for no later revision than this.
    pub fn pop(&mut self, through: Revision) -> Option<Queued<W>> {
        if self.waiting.front().is_none_or(|(until, _)| *until > through) {
            return None;
        }
        let (_, next) = self.waiting.pop_front()?;
        if matches!(next, Queued::Write(_)) {
            self.writes -= 1;
        }
        Some(next)
    }

    /// All entries in order.
    pub fn into_all(self) -> impl Iterator<Item = Queued<W>> {
        self.waiting.into_iter().map(|(_, waiting)| waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REVISION: Revision = Revision(7);

    #[test]
    fn readers_stay_in_order_and_are_not_bounded() {
        let mut queue = KeyQueue::default();
        for write in 0..WRITES_WAITING_PER_KEY {
            assert_eq!(queue.push(REVISION, write), Ok(()));
        }
        let (reader, mut receiver) = QueuedReader::new(Permit::none());
        queue.push_reader(REVISION, reader);
        assert_eq!(queue.push(REVISION, 1_000), Err(1_000), "the queue is full");
        assert!(matches!(queue.pop(REVISION), Some(Queued::Write(0))));
        assert_eq!(queue.push(REVISION, 1_001), Ok(()), "one has left");
        for write in 1..WRITES_WAITING_PER_KEY {
            assert!(matches!(queue.pop(REVISION), Some(Queued::Write(popped)) if popped == write));
        }
        assert!(receiver.try_recv().is_err());
        let Some(Queued::Reader(reader)) = queue.pop(REVISION) else { panic!("the reader comes next") };
        reader.answer(Ok(None));
        assert!(matches!(receiver.try_recv(), Ok(Ok(None))));
        assert!(matches!(queue.pop(REVISION), Some(Queued::Write(1_001))));
        assert!(queue.pop(REVISION).is_none());
    }

    #[test]
    fn delayed_entries_wait_for_the_write_before_them() {
        let mut queue = KeyQueue::default();
        assert_eq!((queue.push(REVISION, 1), queue.push(REVISION, 2)), (Ok(()), Ok(())));
        assert!(matches!(queue.pop(REVISION), Some(Queued::Write(1))));
        queue.delay(REVISION.next());
        assert!(queue.pop(REVISION).is_none());
        queue.push_front(REVISION.next(), 1);
        assert!(matches!(queue.pop(REVISION.next()), Some(Queued::Write(1))));
        assert!(matches!(queue.pop(REVISION.next()), Some(Queued::Write(2))));
    }

    #[test]
    fn entry_waits_for_its_revision() {
        let mut queue = KeyQueue::default();
        assert_eq!((queue.push(REVISION, 1), queue.push(REVISION.next(), 2)), (Ok(()), Ok(())));
        assert!(queue.pop(Revision(6)).is_none());
        assert!(matches!(queue.pop(REVISION), Some(Queued::Write(1))));
        assert!(queue.pop(REVISION).is_none());
        assert!(matches!(queue.pop(Revision(9)), Some(Queued::Write(2))));
    }
}
