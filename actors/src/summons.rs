//! How a session is called: by a note with its tasks, and one call that announces the note. The call wakes the task of the
//! response body if that waits for something to read. Otherwise it is a message to the session.
//!
//! Invariants: for a nonempty note, either a call was made, or a caller has promised one, or the session waits for its client and
//! continues when that reads. Nothing on the note is lost when the session's mailbox is full, because the session reads the note
//! with every message. If a body was called but does not come, because its client does not read, the next task goes to the
//! session instead.

use std::sync::Arc;
use std::task::Waker;

use actix::prelude::*;

use crate::lock::Lock;
use crate::object::Revision;

/// The note of the session's [`Summons`] has tasks.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Wake;

/// The tasks of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errands {
    /// Events may concern the session. All newly announced events are after this revision.
    pub news_after: Option<Revision>,
    /// A bookmark is due. All events up to this revision that concern the session have been announced.
    pub bookmark: Option<Revision>,
    /// The session may have stopped in the middle, and can continue now.
    pub resume: bool,
    /// The watch ends.
    pub close: bool,
}

/// The note and the ways to call the session. Shared by the session, its broadcaster and its feed.
pub struct Summons {
    session: Recipient<Wake>,
    /// A plain lock: everybody who takes it runs on the session's thread, so it is never contended.
    note: Lock<Note>,
}

#[derive(Default)]
struct Note {
    errands: Errands,
    /// Wakes the task of the body.
    body: Option<Waker>,
    /// Whether the body has nothing to read: then it is called, and runs the session's turn.
    body_waits: bool,
    /// Whether somebody has promised to make a call.
    is_promised: bool,
    /// Whether the session was called and has not read the note yet.
    is_session_called: bool,
    /// Whether the session already has events that its client leaves no room for: further events need no call.
    is_stalled: bool,
}

impl Summons {
    /// An empty note.
    pub fn new(session: Recipient<Wake>) -> Arc<Summons> {
        Arc::new(Summons { session, note: Lock::default() })
    }

    /// Announces an event after `after`, and calls the session.
    pub fn announce(&self, after: Revision) {
        if self.note_news(after) {
            self.call();
        }
    }

    /// Like [`Summons::announce`], but the caller calls the session later. Answers whether it must: not if a call is made or
    /// promised already.
    #[must_use]
    pub fn note_news(&self, after: Revision) -> bool {
        let mut note = self.note.lock();
        let known = note.errands.news_after;
        note.errands.news_after = Some(known.map_or(after, |known| known.min(after)));
        !note.is_stalled && note.promise()
    }

    /// Sets whether events are withheld from the session, because its client does not read.
    pub(crate) fn stall(&self, is_stalled: bool) {
        self.note.lock().is_stalled = is_stalled;
    }

    /// Announces the note: to the body if it waits, else to the session.
    pub fn call(&self) {
        let mut note = self.note.lock();
        note.is_promised = false;
        if note.errands == Errands::default() {
            return;
        }
        if note.wake_body() {
            return;
        }
        // A body that was called before and did not come belongs to a client that does not read.
        note.is_session_called = true;
        drop(note);
        self.call_session();
    }

    /// Sends the session a message.
    pub(crate) fn call_session(&self) {
        // If the mailbox is full, the session reads the note with the message that fills it. If it is closed, the session has
        // ended.
        let _ = self.session.try_send(Wake);
    }

    /// Asks for a bookmark; all events up to `announced` have been announced.
    pub fn ask_for_bookmark(&self, announced: Revision) {
        self.write(|errands| errands.bookmark = Some(announced));
    }

    /// Asks the session to continue where it stopped.
    pub fn resume(&self) {
        self.write(|errands| errands.resume = true);
    }

    /// Asks the session to end the watch. Never left to the body, whose client may not read.
    pub fn close(&self) {
        self.note.lock().errands.close = true;
        self.call_session();
    }

    /// Takes the tasks. Called before the session reads its window: an event that comes during the read is a new task.
    pub fn answer(&self) -> Errands {
        let mut note = self.note.lock();
        note.is_session_called = false;
        std::mem::take(&mut note.errands)
    }

    /// Whether there are tasks. If not, the body's task is woken in the session's place at the next one, once.
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

    /// Wakes the body: there is something to read.
    pub(crate) fn call_body(&self) {
        self.note.lock().wake_body();
    }

    /// Forgets the body, which is gone.
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
    /// Answers whether a call is needed for what was written. Then the caller has promised it.
    fn promise(&mut self) -> bool {
        let call = !self.is_promised && !self.is_session_called;
        self.is_promised |= call;
        call
    }

    /// Wakes the body if it waits; answers whether it did.
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

    /// An actor that counts its wakes and never reads the note.
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
