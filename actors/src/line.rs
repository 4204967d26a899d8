//! Those who wait until the writes of their key that came before are durable, in the order in which they came: writes that
//! do not fit these, and readers who want to see what becomes of them.
//!
//! Writes are bounded here. Readers are not, because one that were sent away could do nothing but come again: each has
//! the permit of its request, and those are few.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::limits::WRITES_WAITING_PER_KEY;
use crate::object::{Object, Revision};
use crate::permit::Permit;

/// What a reader is answered: the object, or that there is none.
pub type Seen = Result<Option<Arc<Object>>, StoreError>;

/// A reader that waits for the writes before it.
pub struct Reader {
    reply: oneshot::Sender<Seen>,
    _permit: Permit,
}

impl Reader {
    /// A reader, and where it hears.
    pub fn new(permit: Permit) -> (Reader, oneshot::Receiver<Seen>) {
        let (reply, seen) = oneshot::channel();
        (Reader { reply, _permit: permit }, seen)
    }

    /// Tells it.
    pub fn answer(self, seen: Seen) {
        // A reader that no longer listens needs no answer.
        let _gone = self.reply.send(seen);
    }
}

/// One that waits.
pub enum Waiting<W> {
    /// A write.
    Write(W),
    /// A reader.
    Reader(Reader),
}

/// The line of one key. Each waits for a revision, and whoever comes later for no earlier one.
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
    /// Lets a write wait until a revision is durable, or gives it back if too many do.
    pub fn push(&mut self, until: Revision, write: W) -> Result<(), W> {
        if self.writes >= WRITES_WAITING_PER_KEY {
            return Err(write);
        }
        self.writes += 1;
        self.waiting.push_back((until, Waiting::Write(write)));
        Ok(())
    }

    /// Lets a write that was next wait on, still before all others.
    pub fn push_front(&mut self, until: Revision, write: W) {
        self.writes += 1;
        self.waiting.push_front((until, Waiting::Write(write)));
    }

    /// Lets all wait until this revision at least: a write that came before them is under way now.
    pub fn delay(&mut self, until: Revision) {
        self.waiting.iter_mut().for_each(|(known, _)| *known = until.max(*known));
    }

    /// Lets a reader wait until a revision is durable.
    pub fn push_reader(&mut self, until: Revision, reader: Reader) {
        self.waiting.push_back((until, Waiting::Reader(reader)));
    }

    /// The next of those who wait for no later revision than this.
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

    /// All of them.
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
