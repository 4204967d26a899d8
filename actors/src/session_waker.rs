//! How a session is called: by a wake state with its tasks, and one call that announces it. The call wakes the task of the
//! response body if that waits for something to read. Otherwise it is a message to the session.
//!
//! Invariants: for a nonempty wake state, either a call was made, or a caller has promised one, or the session waits for its client
//! and continues when that reads. Nothing on the wake state is lost when the session's mailbox is full, because the session reads
//! the wake state with every message. If a body was called but does not come, because its client does not read, the next task goes
//! to the session instead.

use std::sync::Arc;
use std::task::Waker;

use actix::prelude::*;
use pilothouse_types::lock::Lock;
use pilothouse_types::object::Revision;

/// The wake state of the session's [`SessionWaker`] has tasks.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Wake;

/// The tasks of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeReasons {
    /// Events may concern the session. All newly announced events are after this revision.
    pub news_after: Option<Revision>,
    /// A bookmark is due. All events up to this revision that concern the session have been announced.
    pub bookmark: Option<Revision>,
    /// The session may have stopped in the middle, and can continue now.
    pub resume: bool,
    /// The watch ends.
    pub close: Option<Close>,
}

/// How a watch ends. The later variant wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Close {
    /// Once its client has been sent everything that happened: the type is gone, so there is nothing to come back to.
    WhenCaughtUp,
    /// Where it stands: the client resumes at another time or server.
    AtOnce,
}

/// The wake state and the ways to call the session. Shared by the session, its broadcaster and its feed.
pub struct SessionWaker {
    session: Recipient<Wake>,
    /// A plain lock: everybody who takes it runs on the session's thread, so it is never contended.
    state: Lock<WakeState>,
}

#[derive(Default)]
struct WakeState {
    reasons: WakeReasons,
    /// Wakes the task of the body.
    body: Option<Waker>,
    /// Whether the body has nothing to read: then it is called, and runs the session's turn.
    body_waits: bool,
    /// Whether somebody has promised to make a call.
    is_promised: bool,
    /// Whether the session was called and has not read the wake state yet.
    is_session_woken: bool,
    /// Whether the session already has events that its client leaves no room for: further events need no call.
    is_stalled: bool,
}

impl SessionWaker {
    /// An empty wake state.
    pub fn new(session: Recipient<Wake>) -> Arc<SessionWaker> {
        Arc::new(SessionWaker { session, state: Lock::default() })
    }

    /// Announces an event after `after`, and calls the session.
    pub fn announce(&self, after: Revision) {
        if self.mark_news(after) {
            self.wake();
        }
    }

    /// Like [`SessionWaker::announce`], but the caller calls the session later. Answers whether it must: not if a call is made or
    /// promised already.
    #[must_use]
    pub fn mark_news(&self, after: Revision) -> bool {
        let mut state = self.state.lock();
        let known = state.reasons.news_after;
        state.reasons.news_after = Some(known.map_or(after, |known| known.min(after)));
        !state.is_stalled && state.promise()
    }

    /// Sets whether events are withheld from the session, because its client does not read.
    pub(crate) fn stall(&self, is_stalled: bool) {
        self.state.lock().is_stalled = is_stalled;
    }

    /// Announces the wake state: to the body if it waits, else to the session.
    pub fn wake(&self) {
        let mut state = self.state.lock();
        state.is_promised = false;
        if state.reasons == WakeReasons::default() {
            return;
        }
        if state.wake_body() {
            return;
        }
        // A body that was called before and did not come belongs to a client that does not read.
        state.is_session_woken = true;
        drop(state);
        self.wake_session();
    }

    /// Sends the session a message.
    pub(crate) fn wake_session(&self) {
        // If the mailbox is full, the session reads the wake state with the message that fills it. If it is closed, the session has
        // ended.
        let _ = self.session.try_send(Wake);
    }

    /// Asks for a bookmark; all events up to `announced` have been announced.
    pub fn ask_for_bookmark(&self, announced: Revision) {
        self.write(|reasons| reasons.bookmark = Some(announced));
    }

    /// Asks the session to continue where it stopped.
    pub fn resume(&self) {
        self.write(|reasons| reasons.resume = true);
    }

    /// Asks the session to end the watch. Never left to the body, whose client may not read.
    pub fn close(&self, how: Close) {
        let mut state = self.state.lock();
        state.reasons.close = state.reasons.close.max(Some(how));
        drop(state);
        self.wake_session();
    }

    /// Takes the tasks. Called before the session reads its window: an event that comes during the read is a new task.
    pub fn take_reasons(&self) -> WakeReasons {
        let mut state = self.state.lock();
        state.is_session_woken = false;
        std::mem::take(&mut state.reasons)
    }

    /// Whether there are tasks. If not, the body's task is woken in the session's place at the next one, once.
    pub(crate) fn has_reasons_or_parks(&self, body: &Waker) -> bool {
        let mut state = self.state.lock();
        if state.reasons != WakeReasons::default() {
            return true;
        }
        if !state.body.as_ref().is_some_and(|known| known.will_wake(body)) {
            state.body = Some(body.clone());
        }
        state.body_waits = true;
        false
    }

    /// Wakes the body: there is something to read.
    pub(crate) fn wake_waiting_body(&self) {
        self.state.lock().wake_body();
    }

    /// Forgets the body, which is gone.
    pub(crate) fn forget_body(&self) {
        let mut state = self.state.lock();
        (state.body, state.body_waits) = (None, false);
    }

    fn write(&self, entry: impl FnOnce(&mut WakeReasons)) {
        let mut state = self.state.lock();
        entry(&mut state.reasons);
        let must_wake = state.promise();
        drop(state);
        if must_wake {
            self.wake();
        }
    }
}

impl WakeState {
    /// Answers whether a call is needed for what was written. Then the caller has promised it.
    fn promise(&mut self) -> bool {
        let wake = !self.is_promised && !self.is_session_woken;
        self.is_promised |= wake;
        wake
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

    /// An actor that counts its wakes and never reads the wake state.
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
        let waker = SessionWaker::new(Counter(Rc::clone(&woken)).start().recipient());
        for revision in [9, 7, 8] {
            waker.announce(Revision(revision));
            settle().await;
        }
        waker.ask_for_bookmark(Revision(3));
        settle().await;
        assert_eq!(woken.get(), 1);
        let reasons = waker.take_reasons();
        assert_eq!((reasons.news_after, reasons.bookmark), (Some(Revision(7)), Some(Revision(3))));
        assert_eq!(waker.take_reasons(), WakeReasons::default());
        waker.close(Close::AtOnce);
        settle().await;
        assert_eq!(woken.get(), 2);
        waker.close(Close::WhenCaughtUp);
        assert_eq!(waker.take_reasons().close, Some(Close::AtOnce));
    }

    #[actix::test]
    async fn a_full_mailbox_loses_nothing() {
        let woken = Rc::new(Cell::new(0));
        let recipient: Recipient<Wake> = Counter(Rc::clone(&woken)).start().recipient();
        while recipient.try_send(Wake).is_ok() {}
        let before = woken.get();
        let waker = SessionWaker::new(recipient);
        waker.announce(Revision(4));
        settle().await;
        assert!(woken.get() > before, "what filled the mailbox is handled, and then the note is read");
        assert_eq!(waker.take_reasons().news_after, Some(Revision(4)));
    }
}
