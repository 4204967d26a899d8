//! How a session is called: a note of what it is asked to do, and one message that says there is a note.
//!
//! Invariants: at most one [`Wake`] of a summons waits in the session's mailbox, and nothing written on the note is lost
//! when that mailbox is full, because the session reads the note whenever it handles a message.

use std::sync::{Arc, Mutex, PoisonError};

use actix::prelude::*;

use crate::object::Revision;

/// There is something on the note of the session's [`Summons`].
#[derive(Message)]
#[rtype(result = "()")]
pub struct Wake;

/// What a session is asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errands {
    /// Events of interest have come. None of those that were not announced before stands at or before this revision.
    pub news_after: Option<Revision>,
    /// A bookmark is due. All events of interest up to this revision have been announced.
    pub bookmark: Option<Revision>,
    /// The session may have stopped in the middle, and can go on now.
    pub resume: bool,
    /// The watch is over.
    pub close: bool,
}

/// The note and the way to the session. Shared by the session, its broadcaster and its feed.
pub struct Summons {
    session: Recipient<Wake>,
    /// A plain lock, because all who take it run on the thread of the session: it is never contended.
    note: Mutex<Errands>,
}

impl Summons {
    /// An empty note.
    pub fn new(session: Recipient<Wake>) -> Arc<Summons> {
        Arc::new(Summons { session, note: Mutex::default() })
    }

    /// An event of interest has come, the next one after `after`.
    pub fn announce(&self, after: Revision) {
        if self.note_news(after) {
            self.call();
        }
    }

    /// As [`Summons::announce`], but whoever notes it calls the session later. Answers whether that is to be done: not if
    /// the session is called for something else already.
    #[must_use]
    pub fn note_news(&self, after: Revision) -> bool {
        self.note(|note| note.news_after = Some(note.news_after.map_or(after, |known| known.min(after))))
    }

    /// Tells the session that there is something on its note.
    pub fn call(&self) {
        // Full: the session reads the note when it handles what fills its mailbox. Closed: it has ended.
        let _ = self.session.try_send(Wake);
    }

    /// A bookmark is due, and everything of interest up to `announced` has been announced.
    pub fn ask_for_bookmark(&self, announced: Revision) {
        self.write(|note| note.bookmark = Some(announced));
    }

    /// Go on where you stopped.
    pub fn resume(&self) {
        self.write(|note| note.resume = true);
    }

    /// End the watch.
    pub fn close(&self) {
        self.write(|note| note.close = true);
    }

    /// What there is to do. Taken before the session reads its window: what comes while it reads is a new errand.
    pub fn answer(&self) -> Errands {
        std::mem::take(&mut *self.note.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, entry: impl FnOnce(&mut Errands)) {
        if self.note(entry) {
            self.call();
        }
    }

    /// Writes on the note. Answers whether it was empty.
    fn note(&self, entry: impl FnOnce(&mut Errands)) -> bool {
        let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        let first = *note == Errands::default();
        entry(&mut note);
        first
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// An actor that counts how often it is woken and leaves the note alone.
    pub(crate) struct Counter(pub(crate) Rc<Cell<usize>>);

    impl Actor for Counter {
        type Context = Context<Self>;
    }

    impl Handler<Wake> for Counter {
        type Result = ();

        fn handle(&mut self, _: Wake, _: &mut Self::Context) {
            self.0.set(self.0.get() + 1);
        }
    }

    async fn settle() {
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }

    #[actix::test]
    async fn many_errands_are_one_wake() {
        let woken = Rc::new(Cell::new(0));
        let summons = Summons::new(Counter(Rc::clone(&woken)).start().recipient());
        for revision in [9, 7, 8] {
            summons.announce(Revision(revision));
            settle().await;
        }
        summons.ask_for_bookmark(Revision(3));
        settle().await;
        assert_eq!(woken.get(), 1);
        let errands = summons.answer();
        assert_eq!((errands.news_after, errands.bookmark), (Some(Revision(7)), Some(Revision(3))));
        assert_eq!(summons.answer(), Errands::default());
        summons.close();
        settle().await;
        assert_eq!(woken.get(), 2);
        assert!(summons.answer().close);
    }

    #[actix::test]
    async fn a_full_mailbox_loses_nothing() {
        let woken = Rc::new(Cell::new(0));
        let recipient: Recipient<Wake> = Counter(Rc::clone(&woken)).start().recipient();
        while recipient.try_send(Wake).is_ok() {}
        let before = woken.get();
        let summons = Summons::new(recipient);
        summons.announce(Revision(4));
        settle().await;
        assert!(woken.get() > before, "what filled the mailbox is handled, and then the note is read");
        assert_eq!(summons.answer().news_after, Some(Revision(4)));
    }
}
