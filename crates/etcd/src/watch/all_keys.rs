//! A watch of all keys, which catches up fast.
//!
//! etcd hands 1,000 revisions to a watch that is behind, ten times a second. Watches that begin 1,000 revisions apart get as many each
//! at the same time. So whoever is far behind has several of them, and reads one after the other.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::resumable::{ResumableWatch, WatchItem};
use crate::client::Client;
use crate::error::Error;
use crate::limits::{CATCH_UP_REVISIONS, CATCH_UP_WATCHES};
use crate::messages::WatchCreateRequest;

/// A watch of all keys. It goes on at another member as a [`ResumableWatch`] does, and ends with the same errors.
///
/// Every revision of etcd changes some key. So each of the watches that it consists of comes to its end, and nobody has to ask how far it
/// is.
pub struct AllKeysWatch {
    client: Client,
    /// That of all its watches, once one of them is connected.
    cluster_id: Arc<OnceLock<u64>>,
    current: Leg,
    /// Those that come after it. All but the last one have an end.
    ahead: VecDeque<Leg>,
    /// The first revision that was not returned yet.
    next: i64,
    /// The newest revision when it was last seen how far the watch is behind.
    newest: i64,
    /// Whether the reader was told last that a member is connected.
    is_connected: bool,
}

/// A watch of some revisions.
struct Leg {
    watch: ResumableWatch,
    /// The last one; `None` if it has no end.
    last: Option<i64>,
}

impl Client {
    /// Begins a watch of all keys at a revision.
    pub fn watch_all_keys(&self, first: i64) -> AllKeysWatch {
        let (client, cluster_id) = (self.clone(), Arc::default());
        let current = Leg::open(self, &cluster_id, first, None);
        let (ahead, newest) = (VecDeque::new(), 0);
        AllKeysWatch { client, cluster_id, current, ahead, next: first, newest, is_connected: false }
    }
}

impl AllKeysWatch {
    /// The next item. It may be dropped while it waits, and be called again. After an error, the watch has ended, and the error is
    /// returned again.
    pub async fn next(&mut self) -> Result<WatchItem, Error> {
        loop {
            let item = self.current.watch.next().await?;
            if let Some(item) = self.accept(item) {
                return Ok(item);
            }
        }
    }

    /// What the reader gets of an item of the current watch.
    fn accept(&mut self, item: WatchItem) -> Option<WatchItem> {
        match &item {
            WatchItem::Connected { revision, .. } => {
                self.split(*revision);
                if std::mem::replace(&mut self.is_connected, true) {
                    return None;
                }
            }
            WatchItem::Disconnected(_) => self.is_connected = false,
            WatchItem::Revision(events) => {
                let revision = events.revision;
                let is_of_next = self.current.last.is_some_and(|last| revision > last);
                self.advance(revision);
                if is_of_next {
                    return None;
                }
            }
            WatchItem::Progress(revision) => {
                let reached = self.current.last.map_or(*revision, |last| last.min(*revision));
                self.advance(reached);
                return Some(WatchItem::Progress(reached));
            }
        }
        Some(item)
    }

    /// Parts the revisions that are missing, if the current watch is far behind this one.
    fn split(&mut self, newest: i64) {
        if self.current.last.is_none() {
            self.newest = newest;
            self.current.last = last_of_leg(self.next, newest);
            self.open_ahead();
        }
    }

    /// Everything up to this revision has come from the current watch.
    fn advance(&mut self, revision: i64) {
        let last = self.current.last.filter(|last| revision >= *last);
        self.next = last.unwrap_or(revision) + 1;
        if last.is_some()
            && let Some(next) = self.ahead.pop_front()
        {
            self.current = next;
            self.open_ahead();
        }
    }

    fn open_ahead(&mut self) {
        while self.ahead.len() + 1 < CATCH_UP_WATCHES
            && let Some(last) = self.ahead.back().unwrap_or(&self.current).last
        {
            let (first, cluster_id) = (last + 1, &self.cluster_id);
            let leg = Leg::open(&self.client, cluster_id, first, last_of_leg(first, self.newest));
            self.ahead.push_back(leg);
        }
    }
}

impl Leg {
    fn open(client: &Client, cluster_id: &Arc<OnceLock<u64>>, first: i64, last: Option<i64>) -> Leg {
        // From the first possible key to the end: an empty range end would be one key, and a zero byte stands for all.
        let request = WatchCreateRequest {
            range_end: Bytes::from_static(b"\0"),
            ..WatchCreateRequest::key(Bytes::from_static(b"\0"), first)
        };
        Leg { watch: client.resumable_watch_until(request, last, Arc::clone(cluster_id)), last }
    }
}

/// The last revision of a watch that begins here; `None` if it is not far behind the newest one, so that it needs no end.
fn last_of_leg(first: i64, newest: i64) -> Option<i64> {
    let last = first.saturating_add(CATCH_UP_REVISIONS - 1);
    (last < newest).then_some(last)
}
