//! Those who follow one type, and whom an event of it concerns.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::SubscriptionId;
use crate::interest::{Index, Interest};
use crate::object::{Revision, TypeName};
use crate::summons::Summons;
use crate::telling;
use crate::window::{Event, Read, Window};

/// What is to be done, in the order in which the news came.
pub(super) type Calls = VecDeque<Call>;

/// One entry of the calls.
pub(super) enum Call {
    /// A session has news.
    Session(Arc<Summons>),
    /// All whom the news of this type concerned were called, and it may rest.
    Rest(TypeName, Duration),
}

/// The sessions that follow one type. It goes when the last of them leaves.
pub(super) struct Audience {
    pub(super) window: Arc<Window>,
    /// All events up to here have been looked up.
    pub(super) cursor: Revision,
    pub(super) index: Index<Arc<Summons>>,
    pub(super) members: HashMap<SubscriptionId, Member>,
    /// Whether a crowd is being called, or was a moment ago: news wait.
    pub(super) is_resting: bool,
    /// Whether there are such news.
    pub(super) is_rung: bool,
}

/// One session.
pub(super) struct Member {
    pub(super) interest: Interest,
    pub(super) summons: Arc<Summons>,
    pub(super) bookmarks: bool,
}

impl Audience {
    /// Begins at the newest event: a session that joins reads what came before it on its own.
    pub(super) fn new(window: Arc<Window>) -> Audience {
        let cursor = window.head();
        let index = Index::default();
        Audience { window, cursor, index, members: HashMap::new(), is_resting: false, is_rung: false }
    }

    pub(super) fn each(&self, act: impl FnMut(&Member)) {
        self.members.values().for_each(act);
    }

    /// Looks up at most `most` events, and adds those who have news to the calls; whether that were all events there are.
    pub(super) fn advance(&mut self, most: usize, calls: &mut Calls) -> bool {
        // Before the read: every event up to this head is in what the read returns.
        let head = self.window.head();
        let Read::Events(events) = self.window.read(self.cursor, most) else {
            // Nobody can tell any more whom the lost events concerned. Each session reads from where they began and
            // finds out whether it has missed something.
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
        // The key stays, so only a changed field can lead to anyone else.
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
