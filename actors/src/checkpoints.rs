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
    besides: Option<usize>,
}

impl Checkpoints {
    /// Keeps a snapshot. `besides`: bytes of objects that are neither in the window nor in the current snapshot.
    pub fn keep(&self, state: Snapshot, besides: Option<usize>) {
        let mut kept = self.0.lock();
        if kept.iter().any(|one| one.state.revision == state.revision) {
            return;
        }
        let held: usize = kept.iter().filter_map(|one| one.besides).sum();
        if besides.is_some_and(|bytes| held + bytes > CHECKPOINT_BYTES) {
            return;
        }
        if kept.len() >= CHECKPOINTS {
            kept.remove(0);
        }
        kept.push(Checkpoint { state, besides });
    }

    /// The oldest snapshot at or after this revision.
    pub fn nearest(&self, revision: Revision) -> Option<Snapshot> {
        let mut kept = self.0.lock();
        let found = kept.iter().enumerate().filter(|(_, one)| one.state.revision >= revision);
        let (at, _) = found.min_by_key(|(_, one)| one.state.revision)?;
        // A used snapshot moves to the end, so the first one is the least recently used.
        kept.get_mut(at..)?.rotate_left(1);
        kept.last().map(|one| one.state.clone())
    }

    /// Drops snapshots older than the history, and those without archived objects that the window no longer covers.
    pub(crate) fn forget_before(&self, in_memory: Revision, floor: Revision) {
        let mut kept = self.0.lock();
        if !kept.is_empty() {
            kept.retain(|one| one.state.revision >= if one.besides.is_some() { floor } else { in_memory });
        }
    }
}

#[cfg(test)]
mod tests {
    use imbl::OrdMap;

    use super::*;

    fn state(revision: u64) -> Snapshot {
        Snapshot { revision: Revision(revision), objects: OrdMap::new() }
    }

    fn nearest(kept: &Checkpoints, revision: u64) -> Option<u64> {
        kept.nearest(Revision(revision)).map(|state| state.revision.0)
    }

    #[test]
    fn the_nearest_state_that_is_not_older_is_found() {
        let kept = Checkpoints::default();
        for revision in [9, 5, 7] {
            kept.keep(state(revision), None);
        }
        assert_eq!([4, 5, 6, 8, 9, 10].map(|at| nearest(&kept, at)), [5, 5, 7, 9, 9, 0].map(some));
    }

    fn some(revision: u64) -> Option<u64> {
        (revision > 0).then_some(revision)
    }

    #[test]
    fn the_one_that_nobody_asks_for_makes_room() {
        let kept = Checkpoints::default();
        for revision in 0..CHECKPOINTS as u64 {
            kept.keep(state(revision), None);
        }
        assert_eq!(nearest(&kept, 0), Some(0));
        kept.keep(state(100), None);
        assert_eq!(nearest(&kept, 0), Some(0), "it was used");
        assert_eq!(nearest(&kept, 1), Some(2), "it was not");
    }

    #[test]
    fn states_go_with_what_holds_their_objects() {
        let kept = Checkpoints::default();
        kept.keep(state(5), None);
        kept.keep(state(4), Some(CHECKPOINT_BYTES));
        kept.keep(state(3), Some(1));
        assert_eq!(nearest(&kept, 1), Some(4), "no more than the bound came from the archive");
        kept.forget_before(Revision(6), Revision(4));
        assert_eq!(nearest(&kept, 1), Some(4));
        assert_eq!(nearest(&kept, 5), None);
        kept.forget_before(Revision(6), Revision(5));
        assert_eq!(nearest(&kept, 1), None);
    }
}
