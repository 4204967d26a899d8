//! Bounds the writes in stores and committer, so that a slow disk makes clients wait and not memory grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits::{COMMITTER_BYTES, COMMITTER_WRITES};

/// Counts writes from acceptance by a store until they are answered. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct WriteLimiter(Arc<InFlight>);

#[derive(Debug, Default)]
struct InFlight {
    writes: AtomicUsize,
    bytes: AtomicUsize,
}

impl WriteLimiter {
    /// Returns a slot for a write of this size, or `None` at the bound. A write larger than the whole bound is accepted if it is
    /// alone.
    pub fn take(&self, bytes: usize) -> Option<WriteSlot> {
        let slot = WriteSlot { in_flight: Arc::clone(&self.0), bytes };
        // Counted first and checked afterwards: on failure the drop of `slot` releases the count.
        let writes = self.0.writes.fetch_add(1, Ordering::SeqCst);
        let pending = self.0.bytes.fetch_add(bytes, Ordering::SeqCst);
        let fits =
            writes < COMMITTER_WRITES && (pending == 0 || pending.saturating_add(bytes) <= COMMITTER_BYTES);
        fits.then_some(slot)
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

/// The slot of one write, released on drop.
#[derive(Debug)]
pub struct WriteSlot {
    in_flight: Arc<InFlight>,
    bytes: usize,
}

impl Drop for WriteSlot {
    fn drop(&mut self) {
        self.in_flight.writes.fetch_sub(1, Ordering::SeqCst);
        self.in_flight.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_limiter_bounds_writes_and_bytes_and_releases_on_drop() {
        let write_limiter = WriteLimiter::default();
        let slots: Vec<WriteSlot> = std::iter::from_fn(|| write_limiter.take(1)).collect();
        assert_eq!(slots.len(), COMMITTER_WRITES);
        assert_eq!((write_limiter.writes(), write_limiter.bytes()), (COMMITTER_WRITES, COMMITTER_WRITES));
        drop(slots);
        assert_eq!((write_limiter.writes(), write_limiter.bytes()), (0, 0));

        let large = write_limiter.take(COMMITTER_BYTES + 1);
        assert!(large.is_some(), "a write larger than the bound gets in when it is alone");
        assert!(write_limiter.take(1).is_none());
        drop(large);
        assert!(write_limiter.take(1).is_some());
    }
}
