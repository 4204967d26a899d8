//! Which connection carries a request: an idle one, one stream of an HTTP/2 connection, or a new one.
//!
//! Whether a peer speaks HTTP/2 is known only after the first handshake. So one request makes a connection, and those to the same peer
//! that come meanwhile wait for it. If it turns out to be HTTP/1.1, or cannot be made, each of them makes its own.

use std::sync::Arc;
use std::thread::{self, ThreadId};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::http2::{Http2Connection, StreamSlot};
use super::{Carrier, Connection, Origin, Pool};
use crate::limits::{HTTP2_CONNECTIONS_PER_DESTINATION, HTTP2_WAITING_REQUESTS, IDLE_CONNECTIONS};

/// The connections of one thread to one peer.
pub(super) type SharedKey = (Arc<Origin>, ThreadId);

/// The HTTP/2 connections to a peer.
#[derive(Default)]
pub(super) struct SharedPeer {
    connections: Vec<Arc<Http2Connection>>,
    /// Whether one is being made.
    is_dialing: bool,
    /// How often one could not be made, or turned out to be none that is shared.
    unshareable_dials: u64,
    /// The requests that wait for a stream.
    waiting: usize,
    changed: Arc<Notify>,
}

impl SharedPeer {
    fn is_unused(&self) -> bool {
        self.connections.is_empty() && !self.is_dialing && self.waiting == 0
    }

    /// The connections that carry nothing.
    pub(super) fn idle(&self) -> usize {
        self.connections.iter().filter(|connection| connection.is_idle()).count()
    }
}

/// Too many requests wait for the same peer.
pub(super) struct TooManyRequests;

/// What carries a request.
pub(super) enum Reservation {
    /// A connection that there is.
    Connection(Connection),
    /// A new one.
    Dial(DialPermit),
}

/// The right to make a connection, for which others wait if it has a key. Dropped, they wait no longer.
pub(super) struct DialPermit {
    pool: Arc<Pool>,
    key: Option<SharedKey>,
    is_unshareable: bool,
}

impl DialPermit {
    /// For a connection that nobody waits for.
    pub(super) fn unshared(pool: &Arc<Pool>) -> DialPermit {
        DialPermit { pool: pool.clone(), key: None, is_unshareable: false }
    }

    /// There is no connection that could be shared.
    pub(super) fn note_unshareable(mut self) {
        self.is_unshareable = true;
    }
}

impl Drop for DialPermit {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        self.pool.update(&key, |peer| {
            peer.is_dialing = false;
            peer.unshareable_dials += u64::from(self.is_unshareable);
            peer.changed.notify_waiters();
        });
    }
}

/// A request that waits for a stream.
struct WaitingRequest<'a> {
    pool: &'a Pool,
    key: &'a SharedKey,
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.pool.update(self.key, |peer| peer.waiting -= 1);
    }
}

/// What a request to a peer can do now.
enum Step {
    Use(StreamSlot),
    /// Others wait for the connection.
    DialShared,
    DialAlone,
    Wait(OwnedNotified),
    Refuse,
}

impl Pool {
    /// A connection for a request to this peer, or the right to make one. Waits while all connections have as many requests as they
    /// may.
    pub(super) async fn reserve(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
    ) -> Result<Reservation, TooManyRequests> {
        let permit = |key| DialPermit { pool: self.clone(), key, is_unshareable: false };
        if let Some(connection) = self.take(origin) {
            return Ok(Reservation::Connection(connection));
        }
        if !origin.offers_http2 {
            return Ok(Reservation::Dial(permit(None)));
        }
        let key = (origin.clone(), thread::current().id());
        let mut unshareable_before = None;
        loop {
            match self.next_step(&key, &mut unshareable_before) {
                Step::Use(slot) => {
                    let carrier = Carrier::Http2(slot);
                    let (origin, pool) = (Some(origin.clone()), self.clone());
                    return Ok(Reservation::Connection(Connection { carrier, origin, pool }));
                }
                Step::DialShared => return Ok(Reservation::Dial(permit(Some(key)))),
                Step::DialAlone => return Ok(Reservation::Dial(permit(None))),
                Step::Refuse => return Err(TooManyRequests),
                Step::Wait(changed) => {
                    let _waiting = WaitingRequest { pool: self, key: &key };
                    changed.await;
                }
            }
        }
    }

    fn next_step(&self, key: &SharedKey, unshareable_before: &mut Option<u64>) -> Step {
        let mut state = self.state.lock();
        let is_http1 = state.http1_peers.get(&key.0) == Some(&true);
        let peer = state.shared.entry(key.clone()).or_default();
        if let Some(slot) = peer.connections.iter().find_map(Http2Connection::reserve) {
            return Step::Use(slot);
        }
        let failed = *unshareable_before.get_or_insert(peer.unshareable_dials);
        if is_http1 || failed != peer.unshareable_dials {
            if peer.is_unused() {
                state.shared.remove(key);
            }
            return Step::DialAlone;
        }
        let open = || peer.connections.iter().filter(|connection| !connection.is_closed());
        let is_opening = peer.is_dialing || open().any(|connection| connection.is_opening());
        if !is_opening && open().count() < HTTP2_CONNECTIONS_PER_DESTINATION {
            peer.is_dialing = true;
            return Step::DialShared;
        }
        if peer.waiting >= HTTP2_WAITING_REQUESTS {
            return Step::Refuse;
        }
        peer.waiting += 1;
        // Made under the lock, so that no change is missed.
        Step::Wait(peer.changed.clone().notified_owned())
    }

    /// Changes what is known of a peer, and forgets it if nothing is left.
    fn update(&self, key: &SharedKey, change: impl FnOnce(&mut SharedPeer)) {
        let mut state = self.state.lock();
        let Some(peer) = state.shared.get_mut(key) else { return };
        change(peer);
        if peer.is_unused() {
            state.shared.remove(key);
        }
    }

    /// Lets other requests use a connection.
    pub(super) fn share(&self, origin: &Arc<Origin>, connection: &Arc<Http2Connection>) {
        let key = (origin.clone(), thread::current().id());
        // Closed after the lock is released.
        let _evicted = {
            let mut state = self.state.lock();
            if connection.is_closed() || !state.is_wanted(origin) {
                return;
            }
            let count = state.shared.get(&key).map_or(0, |peer| peer.connections.len());
            if count >= HTTP2_CONNECTIONS_PER_DESTINATION {
                return;
            }
            let evicted = match state.idle_count() < IDLE_CONNECTIONS {
                true => None,
                false => state.remove_idle_http2(),
            };
            let known = state.http1_peers.insert(origin.clone(), false);
            let peer = state.shared.entry(key).or_default();
            connection.notify(&peer.changed);
            peer.connections.push(connection.clone());
            (evicted, known)
        };
    }

    /// Remembers that a peer speaks HTTP/1.1: requests to it do not wait for each other's connections.
    pub(super) fn note_http1(&self, origin: &Arc<Origin>) {
        let evicted = self.state.lock().http1_peers.insert(origin.clone(), true);
        drop(evicted);
    }

    /// Forgets a connection that has ended, and lets those who wait for it make another.
    pub(super) fn forget_http2(&self, origin: &Arc<Origin>, number: u64, thread: ThreadId) {
        let mut ended = Vec::new();
        self.update(&(origin.clone(), thread), |peer| {
            let (removed, left) = peer.connections.drain(..).partition(|other| other.number == number);
            (ended, peer.connections) = (removed, left);
            peer.changed.notify_waiters();
        });
        drop(ended);
    }
}

impl super::PoolState {
    /// Removes the HTTP/2 connection that is idle for the longest time.
    fn remove_idle_http2(&mut self) -> Option<Arc<Http2Connection>> {
        let all = self.shared.values().flat_map(|peer| &peer.connections);
        let idle = all.filter(|connection| connection.is_idle());
        let number = idle.max_by_key(|connection| connection.idle_time())?.number;
        self.shared.values_mut().find_map(|peer| {
            let index = peer.connections.iter().position(|connection| connection.number == number)?;
            Some(peer.connections.swap_remove(index))
        })
    }

    /// Removes the HTTP/2 connections to peers that no object names any more. Requests in flight keep theirs to their end.
    pub(super) fn remove_unwanted_http2(&mut self) -> Vec<Arc<Http2Connection>> {
        let keys: Vec<SharedKey> =
            self.shared.keys().filter(|(origin, _)| !self.is_wanted(origin)).cloned().collect();
        let mut removed = Vec::new();
        for key in keys {
            if let Some(peer) = self.shared.get_mut(&key) {
                removed.append(&mut peer.connections);
                peer.changed.notify_waiters();
                if peer.is_unused() {
                    self.shared.remove(&key);
                }
            }
        }
        removed
    }
}
