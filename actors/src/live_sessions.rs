//! The number of watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many sessions live, on all threads together.
#[derive(Clone, Debug, Default)]
pub struct LiveSessions(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    live: AtomicUsize,
    stalled: AtomicUsize,
}

impl LiveSessions {
    /// The number at this moment.
    pub fn count(&self) -> usize {
        self.0.live.load(Ordering::Relaxed)
    }

    /// How many of them have clients that left many announced events unread.
    pub fn stalled(&self) -> usize {
        self.0.stalled.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self) {
        self.0.live.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self) {
        self.0.live.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn add_stalled(&self) {
        self.0.stalled.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_stalled(&self) {
        self.0.stalled.fetch_sub(1, Ordering::Relaxed);
    }
}
