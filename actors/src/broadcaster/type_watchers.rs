//! The sessions that watch one type, and which of them an event concerns.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pilothouse_types::object::{Object, Revision, TypeName};

use super::SubscriptionId;
use crate::event::Event;
use crate::session_waker::SessionWaker;
use crate::watch_event;
use crate::watch_index::{IndexKey, WatchIndex};
use crate::window::{Read, Window};

/// Work for later turns, in order.
pub(super) type WakeQueue = VecDeque<WakeTask>;

/// One item of that work.
pub(super) enum WakeTask {
    /// A session has events.
    Session(Arc<SessionWaker>),
    /// All concerned sessions of this type were woken, and it pauses.
    Pause(TypeName, Duration),
}

/// The sessions that watch one type. Dropped when the last of them unsubscribes.
pub(super) struct TypeWatchers {
    pub(super) window: Arc<Window>,
    /// All events up to here have been looked up.
    pub(super) cursor: Revision,
    pub(super) index: WatchIndex<Arc<SessionWaker>>,
    pub(super) members: HashMap<SubscriptionId, Watcher>,
    /// Whether the type pauses or its sessions are being woken: new events wait.
    pub(super) is_paused: bool,
    /// Whether new events wait.
    pub(super) is_notified: bool,
}

/// One session.
pub(super) struct Watcher {
    pub(super) interest: IndexKey,
    pub(super) waker: Arc<SessionWaker>,
    pub(super) bookmarks: bool,
}

impl TypeWatchers {
    /// Starts after everything that was seen: a session that joins reads earlier events itself.
    pub(super) fn new(window: Arc<Window>) -> TypeWatchers {
        let cursor = window.seen();
        let index = WatchIndex::default();
        TypeWatchers { window, cursor, index, members: HashMap::new(), is_paused: false, is_notified: false }
    }

    pub(super) fn for_each(&self, visit: impl FnMut(&Watcher)) {
        self.members.values().for_each(visit);
    }

    /// Looks up at most `limit` events and queues wakes of the concerned sessions. Returns whether these were all events.
    pub(super) fn advance(&mut self, limit: usize, wakes: &mut WakeQueue) -> bool {
        // Before the read: the read returns every event up to this revision.
        let seen = self.window.seen();
        let Read::Events(events) = self.window.read(self.cursor, limit) else {
            // The events are lost, so it is unknown which sessions they concerned. Each session reads from their beginning and
            // finds out whether it missed something.
            self.for_each(|watcher| mark_events(&watcher.waker, self.cursor, wakes));
            self.cursor = seen;
            return true;
        };
        for event in &events {
            self.announce(event, wakes);
            self.cursor = event.revision();
        }
        let is_complete = events.len() < limit;
        if is_complete {
            self.cursor = self.cursor.max(seen);
        }
        is_complete
    }

    /// Moves the cursor past revisions at which only other types have changed, of which nobody is notified.
    pub(super) fn skip_quiet(&mut self) {
        // In this order: an event that comes in between is newer than what is seen.
        let seen = self.window.seen();
        if self.window.head() <= self.cursor {
            self.cursor = self.cursor.max(seen);
        }
    }

    fn announce(&self, event: &Event, wakes: &mut WakeQueue) {
        let cursor = Revision(event.revision().0.saturating_sub(1));
        let (before, after) = (watch_event::before(event), watch_event::after(event));
        let mut mark = |waker: &Arc<SessionWaker>| mark_events(waker, cursor, wakes);
        if let Some(object) = after {
            self.index.find(object, &mut mark);
        }
        // The key stays the same, so only a changed field can match other sessions.
        let differs = |before: &&Arc<Object>| after.is_none_or(|after| after.fields != before.fields);
        if let Some(object) = before.filter(differs) {
            self.index.find(object, &mut mark);
        }
    }
}

fn mark_events(waker: &Arc<SessionWaker>, after: Revision, wakes: &mut WakeQueue) {
    if waker.mark_events(after) {
        wakes.push_back(WakeTask::Session(Arc::clone(waker)));
    }
}
