//! How many bytes of superseded versions the log keeps for the history.
//!
//! The history is bounded by time and by bytes: a client that rewrites a large object must not fill the disk with the versions of
//! five minutes. Windows count the superseded versions that their events keep in the log, and drop their oldest events when they
//! have too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::limits::{HISTORY_BYTES, HISTORY_LEAST_BYTES, HISTORY_PER_TYPE_DIVISOR};

/// The bounds of all types. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HistoryBounds(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Bytes of all types together.
    limit: u64,
    bytes: AtomicU64,
    /// Whether the disk is short of space: then every type keeps only the least.
    is_scarce: AtomicBool,
}

impl HistoryBounds {
    /// Bounds for `limit` bytes in all types together, of which one type may have an eighth.
    pub fn new(limit: u64) -> HistoryBounds {
        HistoryBounds(Arc::new(Shared { limit, bytes: AtomicU64::new(0), is_scarce: AtomicBool::new(false) }))
    }

    /// Without a bound.
    pub fn unlimited() -> HistoryBounds {
        HistoryBounds::new(u64::MAX)
    }

    /// Lets every type keep only the least while the disk is short of space.
    pub fn set_scarce(&self, is_scarce: bool) {
        self.0.is_scarce.store(is_scarce, Ordering::Relaxed);
    }

    /// Bytes of all types together.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// The bytes of one type, none yet.
    pub(crate) fn empty_share(&self) -> HistoryShare {
        HistoryShare { bounds: self.clone(), bytes: 0 }
    }
}

impl Default for HistoryBounds {
    fn default() -> HistoryBounds {
        HistoryBounds::new(HISTORY_BYTES)
    }
}

/// The bytes of one type. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct HistoryShare {
    bounds: HistoryBounds,
    bytes: u64,
}

impl HistoryShare {
    /// Counts the version that an event keeps in the log.
    pub(crate) fn add(&mut self, bytes: u32) {
        self.bytes += u64::from(bytes);
        self.bounds.0.bytes.fetch_add(bytes.into(), Ordering::Relaxed);
    }

    /// No longer counts it.
    pub(crate) fn remove(&mut self, bytes: u32) {
        let bytes = u64::from(bytes).min(self.bytes);
        self.bytes -= bytes;
        self.bounds.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether the type must drop events. Where all types together have too much, those with more than the least shrink.
    pub(crate) fn is_exceeded(&self) -> bool {
        let Shared { limit, bytes, is_scarce } = &*self.bounds.0;
        let is_scarce = is_scarce.load(Ordering::Relaxed) || bytes.load(Ordering::Relaxed) > *limit;
        self.bytes > limit / HISTORY_PER_TYPE_DIVISOR || (is_scarce && self.bytes > HISTORY_LEAST_BYTES)
    }
}

impl Drop for HistoryShare {
    fn drop(&mut self) {
        self.bounds.0.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_type_may_have_a_part_of_the_history() {
        let bounds = HistoryBounds::new(800);
        let mut share = bounds.empty_share();
        share.add(100);
        assert!(!share.is_exceeded());
        share.add(1);
        assert!(share.is_exceeded());
        share.remove(50);
        assert_eq!((share.is_exceeded(), bounds.bytes()), (false, 51));
        drop(share);
        assert_eq!(bounds.bytes(), 0);
    }

    #[test]
    fn every_type_keeps_the_least_when_the_disk_is_short_of_space() {
        let bounds = HistoryBounds::new(HISTORY_LEAST_BYTES * 80);
        let least = u32::try_from(HISTORY_LEAST_BYTES).unwrap();
        let (mut small, mut large) = (bounds.empty_share(), bounds.empty_share());
        small.add(least);
        large.add(2 * least);
        assert!(!small.is_exceeded() && !large.is_exceeded());
        bounds.set_scarce(true);
        assert!(!small.is_exceeded() && large.is_exceeded());
        bounds.set_scarce(false);
        assert!(!large.is_exceeded());
    }
}
