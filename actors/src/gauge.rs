//! Bounds the writes in stores and committer, so that a slow disk makes clients wait and not memory grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits::{COMMITTER_BYTES, COMMITTER_WRITES};

/// Counts writes from acceptance by a store until they are answered. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<Level>);

#[derive(Debug, Default)]
struct Level {
    writes: AtomicUsize,
    bytes: AtomicUsize,
}

impl Gauge {
    /// A place for a write of this size, or `None` at the bound. A write larger than the whole bound is accepted if it is alone.
    pub fn take(&self, bytes: usize) -> Option<Place> {
        let place = Place { level: Arc::clone(&self.0), bytes };
        // Counted first and checked afterwards: on failure the drop of `place` gives the count back.
        let writes = self.0.writes.fetch_add(1, Ordering::SeqCst);
        let held = self.0.bytes.fetch_add(bytes, Ordering::SeqCst);
        let fits = writes < COMMITTER_WRITES && (held == 0 || held.saturating_add(bytes) <= COMMITTER_BYTES);
        fits.then_some(place)
    }

    /// The number of pending writes.
    pub fn writes(&self) -> usize {
        self.0.writes.load(Ordering::SeqCst)
    }

    /// The bytes of pending writes.
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::SeqCst)
    }
}

/// The place of one write, given back on drop.
#[derive(Debug)]
pub struct Place {
    level: Arc<Level>,
    bytes: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.level.writes.fetch_sub(1, Ordering::SeqCst);
        self.level.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_and_bytes_are_bounded_and_given_back() {
        let gauge = Gauge::default();
        let places: Vec<Place> = std::iter::from_fn(|| gauge.take(1)).collect();
        assert_eq!(places.len(), COMMITTER_WRITES);
        assert_eq!((gauge.writes(), gauge.bytes()), (COMMITTER_WRITES, COMMITTER_WRITES));
        drop(places);
        assert_eq!((gauge.writes(), gauge.bytes()), (0, 0));

        let large = gauge.take(COMMITTER_BYTES + 1);
        assert!(large.is_some(), "a write larger than the bound gets in when it is alone");
        assert!(gauge.take(1).is_none());
        drop(large);
        assert!(gauge.take(1).is_some());
    }
}
