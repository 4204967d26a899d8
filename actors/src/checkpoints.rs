//! Snapshots of a type at older revisions, kept for chunked lists: the next chunk continues without walking back through the
//! history again.
//!
//! A snapshot shares unchanged objects with all others. Changed objects are in the window as long as the window reaches back that
//! far; then the snapshot is dropped. A snapshot built from the archive holds objects of its own: their bytes are counted and
//! bounded.

use pilothouse_types::lock::Lock;
use pilothouse_types::object::Revision;

use crate::limits::{CHECKPOINT_BYTES, CHECKPOINTS};
use crate::snapshot::Snapshot;

/// The snapshots of one type. See the module documentation.
#[derive(Debug, Default)]
pub struct Checkpoints(Lock<Vec<Checkpoint>>);

#[derive(Debug)]
struct Checkpoint {
    state: Snapshot,
    /// Bytes of objects from the archive; `None` if all objects are in the window or in the current snapshot.
    archived_bytes: Option<usize>,
}

impl Checkpoints {
    /// Keeps a snapshot. `archived_bytes`: bytes of objects that are neither in the window nor in the current snapshot.
    pub fn keep(&self, state: Snapshot, archived_bytes: Option<usize>) {
        let mut checkpoints = self.0.lock();
        if checkpoints.iter().any(|checkpoint| checkpoint.state.revision == state.revision) {
            return;
        }
        let total: usize = checkpoints.iter().filter_map(|checkpoint| checkpoint.archived_bytes).sum();
        if archived_bytes.is_some_and(|bytes| total + bytes > CHECKPOINT_BYTES) {
            return;
        }
        if checkpoints.len() >= CHECKPOINTS {
            checkpoints.remove(0);
        }
        checkpoints.push(Checkpoint { state, archived_bytes });
    }

    /// The oldest snapshot at or after this revision.
    pub fn nearest(&self, revision: Revision) -> Option<Snapshot> {
        let mut checkpoints = self.0.lock();
        let candidates = checkpoints.iter().enumerate().filter(|(_, entry)| entry.state.revision >= revision);
        let (index, _) = candidates.min_by_key(|(_, entry)| entry.state.revision)?;
        // A used snapshot moves to the end, so the first one is the least recently used.
        checkpoints.get_mut(index..)?.rotate_left(1);
        checkpoints.last().map(|checkpoint| checkpoint.state.clone())
    }

    /// Drops snapshots older than the history, and those without archived objects that the window no longer covers.
    pub(crate) fn forget_before(&self, in_memory: Revision, floor: Revision) {
        let mut checkpoints = self.0.lock();
        if !checkpoints.is_empty() {
            checkpoints.retain(|checkpoint| {
                let oldest = if checkpoint.archived_bytes.is_some() { floor } else { in_memory };
                checkpoint.state.revision >= oldest
            });
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn state(revision: u64) -> Snapshot {
        Snapshot::empty(Revision(revision))
    }

    fn nearest(checkpoints: &Checkpoints, revision: u64) -> Option<u64> {
        checkpoints.nearest(Revision(revision)).map(|state| state.revision.0)
    }

    #[test]
    fn nearest_returns_oldest_checkpoint_at_or_after_revision() {
        let checkpoints = Checkpoints::default();
        for revision in [9, 5, 7] {
            checkpoints.keep(state(revision), None);
        }
        let actual = [4, 5, 6, 8, 9, 10].map(|revision| nearest(&checkpoints, revision));
        assert_eq!(actual, [5, 5, 7, 9, 9, 0].map(some));
    }

    fn some(revision: u64) -> Option<u64> {
        (revision > 0).then_some(revision)
    }

    #[test]
    fn least_recently_used_checkpoint_is_evicted() {
        let checkpoints = Checkpoints::default();
        for revision in 0..CHECKPOINTS as u64 {
            checkpoints.keep(state(revision), None);
        }
        assert_eq!(nearest(&checkpoints, 0), Some(0));
        checkpoints.keep(state(100), None);
        assert_eq!(nearest(&checkpoints, 0), Some(0), "recently used");
        assert_eq!(nearest(&checkpoints, 1), Some(2), "1 was evicted");
    }

    #[test]
    fn checkpoints_are_dropped_when_window_or_history_moves_on() {
        let checkpoints = Checkpoints::default();
        checkpoints.keep(state(5), None);
        checkpoints.keep(state(4), Some(CHECKPOINT_BYTES));
        checkpoints.keep(state(3), Some(1));
        assert_eq!(nearest(&checkpoints, 1), Some(4), "archived bytes are bounded");
        checkpoints.forget_before(Revision(6), Revision(4));
        assert_eq!(nearest(&checkpoints, 1), Some(4));
        assert_eq!(nearest(&checkpoints, 5), None);
        checkpoints.forget_before(Revision(6), Revision(5));
        assert_eq!(nearest(&checkpoints, 1), None);
    }
}
