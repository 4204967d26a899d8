//! The sessions that watch one type, and which of them an event concerns.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::SubscriptionId;
use crate::interest::{Index, Interest};
use crate::object::{Revision, TypeName};
use crate::summons::Summons;
use crate::telling;
use crate::window::{Event, Read, Window};

/// Work for later turns, in order.
pub(super) type Calls = VecDeque<Call>;

/// One item of that work.
pub(super) enum Call {
    /// A session has events.
    Session(Arc<Summons>),
    /// All concerned sessions of this type were called, and it may rest.
    Rest(TypeName, Duration),
}

/// The sessions that watch one type. Dropped when the last of them leaves.
pub(super) struct Audience {
    pub(super) window: Arc<Window>,
    /// All events up to here have been looked up.
    pub(super) cursor: Revision,
    pub(super) index: Index<Arc<Summons>>,
    pub(super) members: HashMap<SubscriptionId, Member>,
    /// Whether the type rests or its sessions are being called: new events wait.
    pub(super) is_resting: bool,
    /// Whether new events wait.
    pub(super) is_rung: bool,
}

/// One session.
pub(super) struct Member {
    pub(super) interest: Interest,
    pub(super) summons: Arc<Summons>,
    pub(super) bookmarks: bool,
}

impl Audience {
    /// Starts at the newest event: a session that joins reads earlier events itself.
    pub(super) fn new(window: Arc<Window>) -> Audience {
        let cursor = window.head();
        let index = Index::default();
        Audience { window, cursor, index, members: HashMap::new(), is_resting: false, is_rung: false }
    }

    pub(super) fn each(&self, act: impl FnMut(&Member)) {
        self.members.values().for_each(act);
    }

    /// Looks up at most `most` events and queues calls to the concerned sessions. Answers whether these were all events.
    pub(super) fn advance(&mut self, most: usize, calls: &mut Calls) -> bool {
        // Before the read: the read returns every event up to this head.
        let head = self.window.head();
        let Read::Events(events) = self.window.read(self.cursor, most) else {
            // The events are lost, so it is unknown which sessions they concerned. Each session reads from their beginning and
            // finds out whether it missed something.
            self.each(|member| note_news(&member.summons, self.cursor, calls));
            self.cursor = head;
            return true;
        };
        for event in &events {
            self.announce(event, calls);
            self.cursor = event.revision();
        }
        let all = events.len() < most;
        if all {
            self.cursor = self.cursor.max(head);
        }
        all
    }

    fn announce(&self, event: &Event, calls: &mut Calls) {
        let after = Revision(event.revision().0.saturating_sub(1));
        let (was, is) = (telling::before(event), telling::after(event));
        let mut note = |summons: &Arc<Summons>| note_news(summons, after, calls);
        if let Some(object) = is {
            self.index.find(object, &mut note);
        }
        // The key stays the same, so only a changed field can match other sessions.
        if let Some(object) = was.filter(|was| is.is_none_or(|is| is.fields != was.fields)) {
            self.index.find(object, &mut note);
        }
    }
}

fn note_news(summons: &Arc<Summons>, after: Revision, calls: &mut Calls) {
    if summons.note_news(after) {
        calls.push_back(Call::Session(Arc::clone(summons)));
    }
}
