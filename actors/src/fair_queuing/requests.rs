//! The requests that execute or wait in a level, for debugging endpoints, and counters of those that left it.

use std::collections::BTreeMap;

use pilothouse_types::clock::Timestamp;

use super::queues::WorkEstimate;

/// A request that executes or waits in a level.
#[derive(Clone, Debug)]
pub struct RequestEntry<G> {
    /// The caller's record of the request.
    pub record: G,
    /// Its estimated cost.
    pub work: WorkEstimate,
    /// The time of its arrival.
    pub arrival: Timestamp,
    /// The index of the queue that it waits in or came from, if the level has queues.
    pub queue: Option<u32>,
    /// The start of its execution; `None` while it waits.
    pub start: Option<Timestamp>,
}

/// A request and its position in its queue.
#[derive(Clone, Debug)]
pub struct RequestPosition<G> {
    /// The request.
    pub entry: RequestEntry<G>,
    /// The position in its queue; `None` for an executing request.
    pub position: Option<usize>,
}

/// Counters of the requests of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were executed.
    pub dispatched: u64,
    /// Requests that were rejected, at once or after they had waited.
    pub rejected: u64,
    /// Requests that left their queue, because of their time limit or because the client disconnected. They count as rejected too.
    pub cancelled: u64,
}

/// A queue with waiting or executing requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueSnapshot {
    /// The index of the queue in its level.
    pub index: u32,
    /// The number of waiting requests.
    pub waiting: usize,
    /// The number of executing requests that came from it.
    pub executing: u32,
    /// The seats of the executing requests, including lingering ones.
    pub seats: u32,
    /// The virtual time at which its next request starts, in seat-microseconds.
    pub next_start: f64,
    /// The seats of the waiting requests: initially, and at most.
    pub waiting_seats: [u32; 2],
    /// The estimated work of the waiting requests, in seat-microseconds.
    pub queued_work: u64,
}

impl QueueSnapshot {
    /// A queue without requests.
    pub const EMPTY: QueueSnapshot = QueueSnapshot {
        index: 0,
        waiting: 0,
        executing: 0,
        seats: 0,
        next_start: 0.0,
        waiting_seats: [0, 0],
        queued_work: 0,
    };
}

/// The requests of one level.
pub(super) struct RequestTable<G> {
    requests: BTreeMap<u64, RequestEntry<G>>,
    /// The last number that was given to a request.
    last_number: u64,
    pub(super) counts: Counts,
}

impl<G> Default for RequestTable<G> {
    fn default() -> RequestTable<G> {
        RequestTable { requests: BTreeMap::new(), last_number: 0, counts: Counts::default() }
    }
}

impl<G> RequestTable<G> {
    /// The number of a new request.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(super) fn insert(&mut self, number: u64, entry: RequestEntry<G>) {
        self.requests.insert(number, entry);
    }

    /// A request has got its seats. It is not counted if its client disconnected before it was woken.
    pub(super) fn start(&mut self, number: u64, now: Timestamp, is_connected: bool) {
        self.counts.dispatched += u64::from(is_connected);
        if let Some(entry) = self.requests.get_mut(&number) {
            entry.start = Some(now);
        }
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<RequestEntry<G>> {
        self.requests.remove(&number)
    }

    /// A waiting request leaves without having had a seat.
    pub(super) fn cancel(&mut self, number: u64) -> Option<RequestEntry<G>> {
        self.counts.rejected += 1;
        self.counts.cancelled += 1;
        self.remove(number)
    }

    pub(super) fn get(&self, number: u64) -> Option<&RequestEntry<G>> {
        self.requests.get(&number)
    }

    /// The executing requests, in the order of their arrival.
    pub(super) fn executing(&self) -> impl Iterator<Item = &RequestEntry<G>> {
        self.requests.values().filter(|entry| entry.start.is_some())
    }
}
