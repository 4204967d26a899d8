//! How a session is woken: by a mailbox of one entry ([`WakeReasons`]), in which the broadcaster notes everything that the session has to
//! do, and by the futures that it waits for. Both wake the task of the response body, which runs what is due.
//!
//! Invariant: while there are reasons, either the task was woken, or a caller has promised to wake it. A task that does not come,
//! because its client does not read, is not woken again; nothing is lost, because it takes all reasons when it runs.

use std::sync::Arc;
use std::task::{Wake, Waker};

use pilothouse_types::lock::Lock;
use pilothouse_types::object::Revision;

use crate::limits::STALLED_AFTER_EVENTS;
use crate::live_sessions::LiveSessions;

/// What a session has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeReasons {
    /// Events may concern the session. All newly announced events are after this revision.
    pub events_after: Option<Revision>,
    /// A bookmark is due. All events up to this revision that concern the session have been announced.
    pub bookmark: Option<Revision>,
    /// The watch ends.
    pub close: Option<Close>,
}

/// How a watch ends. If there are several requests, the later variant wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Close {
    /// Once its client has been sent everything that happened: the type is gone, so there is nothing to come back to.
    WhenCaughtUp,
    /// Where it stands: the client resumes at another time or server.
    AtOnce,
}

/// What a session has to do when its task runs.
pub(crate) struct Due {
    pub(crate) has_ready_future: bool,
    pub(crate) reasons: Option<WakeReasons>,
}

/// The wake state of a session. Shared by the session and its broadcaster.
pub struct SessionWaker {
    /// A plain lock: nearly all callers run on the session's thread. Only futures that another thread completes wake the
    /// session from there.
    state: Lock<WakeState>,
    live: LiveSessions,
}

#[derive(Default)]
struct WakeState {
    reasons: WakeReasons,
    /// The task that runs the session.
    task: Option<Waker>,
    /// Whether there are reasons.
    has_reasons: bool,
    /// Whether a caller has promised to wake the task.
    is_promised: bool,
    /// Whether the task was woken for its reasons and has not taken them yet.
    is_called: bool,
    /// Whether a future that the session waits for has woken it.
    has_ready_future: bool,
    /// Events that were announced since the task was woken for them.
    unread: usize,
    /// Whether the session is gone. Its broadcaster may not know yet.
    is_gone: bool,
}

impl SessionWaker {
    /// The wake state of a session that has nothing to do.
    pub fn new(live: LiveSessions) -> Arc<SessionWaker> {
        // A new session has to start.
        let state = WakeState { has_ready_future: true, ..WakeState::default() };
        Arc::new(SessionWaker { state: Lock::new(state), live })
    }

    /// Announces an event after `after`, and wakes the session.
    pub fn announce(&self, after: Revision) {
        if self.mark_events(after) {
            self.wake_session();
        }
    }

    /// Like [`SessionWaker::announce`], but the caller wakes the session later. Returns whether it must: not if the session is woken
    /// already.
    #[must_use]
    pub fn mark_events(&self, after: Revision) -> bool {
        let mut state = self.state.lock();
        if state.is_gone {
            return false;
        }
        let known = state.reasons.events_after;
        state.reasons.events_after = Some(known.map_or(after, |known| known.min(after)));
        state.has_reasons = true;
        if state.is_called {
            state.unread += 1;
            if state.unread == STALLED_AFTER_EVENTS {
                self.live.add_stalled();
            }
            return false;
        }
        !std::mem::replace(&mut state.is_promised, true)
    }

    /// Wakes the session for its reasons, unless it has taken them in the meantime.
    pub fn wake_session(&self) {
        let mut state = self.state.lock();
        state.is_promised = false;
        if state.has_reasons {
            state.call_task();
        }
    }

    /// Takes what is due. This task is woken when there is more.
    pub(crate) fn take_due(&self, task: &Waker) -> Due {
        let mut state = self.state.lock();
        if !state.task.as_ref().is_some_and(|known| known.will_wake(task)) {
            state.task = Some(task.clone());
        }
        Due {
            has_ready_future: std::mem::take(&mut state.has_ready_future),
            reasons: state.take_reasons(&self.live),
        }
    }

    /// The session has ended. Its broadcaster may not know yet.
    pub(crate) fn close_mailbox(&self) {
        let mut state = self.state.lock();
        (state.task, state.is_gone) = (None, true);
        state.forget_unread(&self.live);
    }

    /// Requests a bookmark; all events up to `announced` have been announced.
    pub fn request_bookmark(&self, announced: Revision) {
        self.add_reason(|reasons| reasons.bookmark = Some(announced));
    }

    /// Asks the session to end the watch.
    pub fn close(&self, how: Close) {
        self.add_reason(|reasons| reasons.close = reasons.close.max(Some(how)));
    }

    fn add_reason(&self, change: impl FnOnce(&mut WakeReasons)) {
        let mut state = self.state.lock();
        change(&mut state.reasons);
        state.has_reasons = true;
        if !state.is_promised && !state.is_called {
            state.call_task();
        }
    }

    /// How many events were announced to a session whose client has left earlier ones unread.
    pub fn unread(&self) -> usize {
        self.state.lock().unread
    }

    /// Takes the reasons, if there are any. The session reads its window after this: an event that comes during the read is a new
    /// reason.
    pub fn take_reasons(&self) -> Option<WakeReasons> {
        self.state.lock().take_reasons(&self.live)
    }
}

/// For the futures that a session waits for.
impl Wake for SessionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.has_ready_future = true;
        state.wake_task();
    }
}

impl WakeState {
    fn call_task(&mut self) {
        self.is_called = true;
        self.wake_task();
    }

    fn wake_task(&self) {
        if let Some(task) = &self.task {
            task.wake_by_ref();
        }
    }

    fn take_reasons(&mut self, live: &LiveSessions) -> Option<WakeReasons> {
        if !std::mem::take(&mut self.has_reasons) {
            return None;
        }
        self.is_called = false;
        self.forget_unread(live);
        Some(std::mem::take(&mut self.reasons))
    }

    fn forget_unread(&mut self, live: &LiveSessions) {
        if std::mem::take(&mut self.unread) >= STALLED_AFTER_EVENTS {
            live.remove_stalled();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts how often a task is woken.
    #[derive(Default)]
    pub(crate) struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl WakeCounter {
        pub(crate) fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }

        /// Lets this task wait for a session.
        pub(crate) fn wait_for(self: &Arc<Self>, session: &SessionWaker) {
            let task = Waker::from(Arc::clone(self));
            session.take_due(&task);
        }
    }

    #[test]
    fn wake_reasons_accumulate_and_wake_the_task_once() {
        let waker = SessionWaker::new(LiveSessions::default());
        let task = Arc::new(WakeCounter::default());
        task.wait_for(&waker);
        for revision in [9, 7, 8] {
            waker.announce(Revision(revision));
        }
        waker.request_bookmark(Revision(3));
        assert_eq!(task.count(), 1);
        let reasons = waker.take_reasons().unwrap();
        assert_eq!((reasons.events_after, reasons.bookmark), (Some(Revision(7)), Some(Revision(3))));
        assert_eq!(waker.take_reasons(), None);
        waker.close(Close::AtOnce);
        assert_eq!(task.count(), 2);
        waker.close(Close::WhenCaughtUp);
        assert_eq!(waker.take_reasons().unwrap().close, Some(Close::AtOnce));
    }

    #[test]
    fn wake_after_reasons_were_taken_is_ignored() {
        let waker = SessionWaker::new(LiveSessions::default());
        let task = Arc::new(WakeCounter::default());
        task.wait_for(&waker);
        assert!(waker.mark_events(Revision(4)));
        assert!(waker.take_reasons().is_some());
        waker.wake_session();
        assert_eq!(task.count(), 0);
    }

    #[test]
    fn session_counts_as_stalled_until_it_takes_its_events_or_ends() {
        let live = LiveSessions::default();
        let waker = SessionWaker::new(live.clone());
        let announce = || (0..=STALLED_AFTER_EVENTS as u64).for_each(|after| waker.announce(Revision(after)));
        announce();
        assert_eq!(live.stalled(), 1);
        waker.take_reasons();
        assert_eq!(live.stalled(), 0);
        announce();
        waker.close_mailbox();
        announce();
        assert_eq!(live.stalled(), 0);
    }
}
