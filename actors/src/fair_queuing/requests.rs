//! Who is in a level, for whoever asks; and what has become of those who came.

use std::collections::BTreeMap;

use pilothouse_types::clock::Timestamp;

use super::queues::WorkEstimate;

/// Somebody who is in a level.
#[derive(Clone, Debug)]
pub struct RequestEntry<G> {
    /// What is known of them.
    pub about: G,
    /// What they ask for.
    pub work: WorkEstimate,
    /// When they came.
    pub came: Timestamp,
    /// The queue that they are in or came out of, if the level has any.
    pub queue: Option<u32>,
    /// Since when they are worked on; nothing for whoever waits.
    pub began: Option<Timestamp>,
}

/// Somebody who is in a level, and where.
#[derive(Clone, Debug)]
pub struct RequestPosition<G> {
    /// Who.
    pub entry: RequestEntry<G>,
    /// Which it is in its queue, for whoever waits.
    pub place: Option<usize>,
}

/// What has become of those who came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// They were worked on.
    pub dispatched: u64,
    /// They were refused, at once or after they had waited.
    pub rejected: u64,
    /// They waited and left: their time or their patience was over.
    pub cancelled: u64,
}

/// What is told of a queue that somebody is in, or came out of and is not done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueSnapshot {
    /// Which it is.
    pub index: u32,
    /// How many wait in it.
    pub waiting: usize,
    /// How many are worked on that came out of it.
    pub executing: u32,
    /// The seats of those.
    pub seats: u32,
    /// The reading of the meter at which its next request begins in the ideal world, in seats and microseconds.
    pub next: f64,
    /// Seats that those who wait want at first, and at most.
    pub wanted: [u32; 2],
    /// What those who wait are thought to take, in seats and microseconds.
    pub amount: u64,
}

impl QueueSnapshot {
    /// What is told of a queue that nobody is in.
    pub const EMPTY: QueueSnapshot =
        QueueSnapshot { index: 0, waiting: 0, executing: 0, seats: 0, next: 0.0, wanted: [0, 0], amount: 0 };
}

/// The requests of one level.
pub(super) struct RequestTable<G> {
    requests: BTreeMap<u64, RequestEntry<G>>,
    came: u64,
    pub(super) counts: Counts,
}

impl<G> Default for RequestTable<G> {
    fn default() -> RequestTable<G> {
        RequestTable { requests: BTreeMap::new(), came: 0, counts: Counts::default() }
    }
}

impl<G> RequestTable<G> {
    /// A number for whoever comes.
    pub(super) fn number(&mut self) -> u64 {
        self.came += 1;
        self.came
    }

    pub(super) fn enter(&mut self, number: u64, entry: RequestEntry<G>) {
        self.requests.insert(number, entry);
    }

    /// They have a seat now. Those who hung up before they heard of it are not counted.
    pub(super) fn seat(&mut self, number: u64, now: Timestamp, is_there: bool) {
        self.counts.dispatched += u64::from(is_there);
        if let Some(entry) = self.requests.get_mut(&number) {
            entry.began = Some(now);
        }
    }

    pub(super) fn leave(&mut self, number: u64) -> Option<RequestEntry<G>> {
        self.requests.remove(&number)
    }

    /// They leave without ever having had a seat.
    pub(super) fn give_up(&mut self, number: u64) -> Option<RequestEntry<G>> {
        self.counts.rejected += 1;
        self.counts.cancelled += 1;
        self.leave(number)
    }

    pub(super) fn get(&self, number: u64) -> Option<&RequestEntry<G>> {
        self.requests.get(&number)
    }

    /// Those who are worked on, in the order in which they came.
    pub(super) fn seated(&self) -> impl Iterator<Item = &RequestEntry<G>> {
        self.requests.values().filter(|entry| entry.began.is_some())
    }
}
