//! How a session is called: a note of what it is asked to do, and one call that says there is a note. The call goes to the
//! task of the body if that waits for something to read, else it is a message to the session.
//!
//! Invariants: a note that is not empty has been called for, or somebody has promised to, or the session waits for its client
//! and goes on anyway when that reads; nothing written on it is lost when the session's mailbox is full, because the session
//! reads it whenever it handles a message; and a body that was called but cannot come, because its client does not read, is
//! given up for the session at the next errand.

use std::sync::Arc;
use std::task::Waker;

use actix::prelude::*;

use crate::lock::Lock;
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

/// The note and the ways to the session. Shared by the session, its broadcaster and its feed.
pub struct Summons {
    session: Recipient<Wake>,
    /// A plain lock, because all who take it run on the thread of the session: it is never contended.
    note: Lock<Note>,
}

#[derive(Default)]
struct Note {
    errands: Errands,
    /// The task of the body.
    body: Option<Waker>,
    /// Whether the body has nothing to read: then it is called, and takes the session's turn.
    body_waits: bool,
    /// Whether a call is under way that somebody has promised to make.
    is_promised: bool,
    /// Whether the session was called and has not read the note yet.
    is_session_called: bool,
    /// Whether the session knows of news that its client leaves no room for: more of them are nothing new.
    is_stalled: bool,
}

impl Summons {
    /// An empty note.
    pub fn new(session: Recipient<Wake>) -> Arc<Summons> {
        Arc::new(Summons { session, note: Lock::default() })
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
        let mut note = self.note.lock();
        let known = note.errands.news_after;
        note.errands.news_after = Some(known.map_or(after, |known| known.min(after)));
        !note.is_stalled && note.promise()
    }

    /// Whether news are to be kept from the session, because its client does not read what it has.
    pub(crate) fn stall(&self, is_stalled: bool) {
        self.note.lock().is_stalled = is_stalled;
    }

    /// Tells that there is something on the note: the body if it waits, else the session.
    pub fn call(&self) {
        let mut note = self.note.lock();
        note.is_promised = false;
        if note.errands == Errands::default() {
            return;
        }
        if note.wake_body() {
            return;
        }
        // A body that was called before and has not come stands behind a client that does not read.
        note.is_session_called = true;
        drop(note);
        self.call_session();
    }

    /// Tells the session to take a turn.
    pub(crate) fn call_session(&self) {
        // Full: the session reads the note when it handles what fills its mailbox. Closed: it has ended.
        let _ = self.session.try_send(Wake);
    }

    /// A bookmark is due, and everything of interest up to `announced` has been announced.
    pub fn ask_for_bookmark(&self, announced: Revision) {
        self.write(|errands| errands.bookmark = Some(announced));
    }

    /// Go on where you stopped.
    pub fn resume(&self) {
        self.write(|errands| errands.resume = true);
    }

    /// End the watch. That is never left to the body, which may stand behind a client that does not read.
    pub fn close(&self) {
        self.note.lock().errands.close = true;
        self.call_session();
    }

    /// What there is to do. Taken before the session reads its window: what comes while it reads is a new errand.
    pub fn answer(&self) -> Errands {
        let mut note = self.note.lock();
        note.is_session_called = false;
        std::mem::take(&mut note.errands)
    }

    /// Whether there is something to do. If not, this task is called in the session's place when there is, once.
    pub(crate) fn has_errands_or_calls(&self, body: &Waker) -> bool {
        let mut note = self.note.lock();
        if note.errands != Errands::default() {
            return true;
        }
        if !note.body.as_ref().is_some_and(|known| known.will_wake(body)) {
            note.body = Some(body.clone());
        }
        note.body_waits = true;
        false
    }

    /// There is something to read.
    pub(crate) fn call_body(&self) {
        self.note.lock().wake_body();
    }

    /// The body is gone.
    pub(crate) fn forget_body(&self) {
        let mut note = self.note.lock();
        (note.body, note.body_waits) = (None, false);
    }

    fn write(&self, entry: impl FnOnce(&mut Errands)) {
        let mut note = self.note.lock();
        entry(&mut note.errands);
        let is_to_call = note.promise();
        drop(note);
        if is_to_call {
            self.call();
        }
    }
}

impl Note {
    /// Answers whether somebody is to be called for what was written, which is a promise to do so.
    fn promise(&mut self) -> bool {
        let call = !self.is_promised && !self.is_session_called;
        self.is_promised |= call;
        call
    }

    /// Whether the body waited.
    fn wake_body(&mut self) -> bool {
        let waited = std::mem::take(&mut self.body_waits);
        if let Some(body) = self.body.as_ref().filter(|_| waited) {
            body.wake_by_ref();
        }
        waited
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
