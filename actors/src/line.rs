//! The line of one key: writes and readers that wait, in order of arrival, until earlier writes of the key are durable. These are
//! writes that conflict with pending ones, and readers of their result.
//!
//! The number of writes is bounded here. Readers are not: a refused reader could only retry, and each holds the permit of its
//! request, whose number is limited.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::limits::WRITES_WAITING_PER_KEY;
use crate::object::{Object, Revision};
use crate::permit::Permit;

/// The answer to a reader: the object, or `None` if there is none.
pub type Seen = Result<Option<Arc<Object>>, StoreError>;

/// A reader that waits for earlier writes.
pub struct Reader {
    reply: oneshot::Sender<Seen>,
    _permit: Permit,
}

impl Reader {
    /// A reader, and its receiver.
    pub fn new(permit: Permit) -> (Reader, oneshot::Receiver<Seen>) {
        let (reply, seen) = oneshot::channel();
        (Reader { reply, _permit: permit }, seen)
    }

    /// Sends the answer.
    pub fn answer(self, seen: Seen) {
        // The reader may have gone.
        let _gone = self.reply.send(seen);
    }
}

/// A waiting write or reader.
pub enum Waiting<W> {
    /// A write.
    Write(W),
    /// A reader.
    Reader(Reader),
}

/// The line of one key. Each entry waits for a revision, and later entries never for an earlier one.
pub struct Line<W> {
    waiting: VecDeque<(Revision, Waiting<W>)>,
    writes: usize,
}

impl<W> Default for Line<W> {
    fn default() -> Line<W> {
        Line { waiting: VecDeque::new(), writes: 0 }
    }
}

impl<W> Line<W> {
    /// Lets a write wait until a revision is durable. Returns it if the line is full.
    pub fn push(&mut self, until: Revision, write: W) -> Result<(), W> {
        if self.writes >= WRITES_WAITING_PER_KEY {
            return Err(write);
        }
        self.writes += 1;
        self.waiting.push_back((until, Waiting::Write(write)));
        Ok(())
    }

    /// Puts a write that was next back to the front.
    pub fn push_front(&mut self, until: Revision, write: W) {
        self.writes += 1;
        self.waiting.push_front((until, Waiting::Write(write)));
    }

    /// Lets all wait for at least this revision: a write before them is now pending.
    pub fn delay(&mut self, until: Revision) {
        self.waiting.iter_mut().for_each(|(known, _)| *known = until.max(*known));
    }

    /// Lets a reader wait until a revision is durable.
    pub fn push_reader(&mut self, until: Revision, reader: Reader) {
        self.waiting.push_back((until, Waiting::Reader(reader)));
    }

    /// The next entry that waits for no later revision than this.
    pub fn pop(&mut self, through: Revision) -> Option<Waiting<W>> {
        if self.waiting.front().is_none_or(|(until, _)| *until > through) {
            return None;
        }
        let (_, next) = self.waiting.pop_front()?;
        if matches!(next, Waiting::Write(_)) {
            self.writes -= 1;
        }
        Some(next)
    }

    /// All entries in order.
    pub fn into_all(self) -> impl Iterator<Item = Waiting<W>> {
        self.waiting.into_iter().map(|(_, waiting)| waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Revision = Revision(7);

    #[test]
    fn readers_keep_their_turn_and_need_no_place() {
        let mut line = Line::default();
        for write in 0..WRITES_WAITING_PER_KEY {
            assert_eq!(line.push(AT, write), Ok(()));
        }
        let (reader, mut seen) = Reader::new(Permit::none());
        line.push_reader(AT, reader);
        assert_eq!(line.push(AT, 1_000), Err(1_000), "a write more than may wait");
        assert!(matches!(line.pop(AT), Some(Waiting::Write(0))));
        assert_eq!(line.push(AT, 1_001), Ok(()), "one has left");
        for write in 1..WRITES_WAITING_PER_KEY {
            assert!(matches!(line.pop(AT), Some(Waiting::Write(found)) if found == write));
        }
        assert!(seen.try_recv().is_err());
        let Some(Waiting::Reader(reader)) = line.pop(AT) else { panic!("the reader comes next") };
        reader.answer(Ok(None));
        assert!(matches!(seen.try_recv(), Ok(Ok(None))));
        assert!(matches!(line.pop(AT), Some(Waiting::Write(1_001))));
        assert!(line.pop(AT).is_none());
    }

    #[test]
    fn who_came_later_waits_for_who_came_before() {
        let mut line = Line::default();
        assert_eq!((line.push(AT, 1), line.push(AT, 2)), (Ok(()), Ok(())));
        assert!(matches!(line.pop(AT), Some(Waiting::Write(1))));
        line.delay(AT.next());
        assert!(line.pop(AT).is_none());
        line.push_front(AT.next(), 1);
        assert!(matches!(line.pop(AT.next()), Some(Waiting::Write(1))));
        assert!(matches!(line.pop(AT.next()), Some(Waiting::Write(2))));
    }

    #[test]
    fn nobody_leaves_before_what_they_wait_for() {
        let mut line = Line::default();
        assert_eq!((line.push(AT, 1), line.push(AT.next(), 2)), (Ok(()), Ok(())));
        assert!(line.pop(Revision(6)).is_none());
        assert!(matches!(line.pop(AT), Some(Waiting::Write(1))));
        assert!(line.pop(AT).is_none());
        assert!(matches!(line.pop(Revision(9)), Some(Waiting::Write(2))));
    }
}
