//! Snapshots of a type at older revisions, kept for chunked lists: the next chunk continues without walking back through the
//! history again.
//!
//! A snapshot shares unchanged objects with all others. Changed objects are in the window as long as the window reaches back that
//! far; then the snapshot is dropped. A snapshot built from the archive, or read from a shared log, holds objects of its own: their
//! bytes are counted and bounded.

use pilothouse_types::lock::Lock;
use pilothouse_types::object::Revision;

use crate::limits::{CHECKPOINT_BYTES, CHECKPOINTS, PAST_CHECKPOINTS};
use crate::log_time::LogTime;
use crate::snapshot::Snapshot;

/// The snapshots of one type. See the module documentation.
#[derive(Debug, Default)]
pub struct Checkpoints(Lock<Vec<Checkpoint>>);

#[derive(Debug)]
struct Checkpoint {
    state: Snapshot,
    origin: Origin,
}

/// Where a snapshot has its objects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// All are in the window or in the current snapshot.
    Window,
    /// The archive has so many bytes of others.
    Archive(usize),
    /// It is from before the window.
    SharedLog {
        /// So many bytes are not in the current snapshot.
        bytes: usize,
        /// When it was read.
        read_at: LogTime,
    },
}

impl Origin {
    /// The bytes of objects that are neither in the window nor in the current snapshot.
    fn own_bytes(self) -> usize {
        match self {
            Origin::Window => 0,
            Origin::Archive(bytes) | Origin::SharedLog { bytes, .. } => bytes,
        }
    }
}

impl Checkpoints {
    /// Keeps a snapshot.
    pub fn keep(&self, state: Snapshot, origin: Origin) {
        let mut checkpoints = self.0.lock();
        if checkpoints.iter().any(|checkpoint| checkpoint.state.revision == state.revision) {
            return;
        }
        let total: usize = checkpoints.iter().map(|checkpoint| checkpoint.origin.own_bytes()).sum();
        if origin.own_bytes() > 0 && total + origin.own_bytes() > CHECKPOINT_BYTES {
            return;
        }
        let is_from_log = |checkpoint: &Checkpoint| matches!(checkpoint.origin, Origin::SharedLog { .. });
        // Nothing but their age ends these, and what they share with the current snapshot may leave that meanwhile.
        let from_log = checkpoints.iter().filter(|checkpoint| is_from_log(checkpoint)).count();
        if matches!(origin, Origin::SharedLog { .. }) && from_log >= PAST_CHECKPOINTS {
            let oldest = checkpoints.iter().position(is_from_log);
            oldest.map(|oldest| checkpoints.remove(oldest));
        }
        if checkpoints.len() >= CHECKPOINTS {
            checkpoints.remove(0);
        }
        checkpoints.push(Checkpoint { state, origin });
    }

    /// The snapshot at this revision.
    pub fn at(&self, revision: Revision) -> Option<Snapshot> {
        self.nearest(revision).filter(|state| state.revision == revision)
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

    /// Drops snapshots that the window no longer covers: `floor` is where it begins, and `in_memory` where what memory has of it does.
    pub(crate) fn forget_before(&self, in_memory: Revision, floor: Revision) {
        let mut checkpoints = self.0.lock();
        if !checkpoints.is_empty() {
            checkpoints.retain(|checkpoint| match checkpoint.origin {
                Origin::Window => checkpoint.state.revision >= in_memory,
                Origin::Archive(_) => checkpoint.state.revision >= floor,
                Origin::SharedLog { .. } => true,
            });
        }
    }

    /// Drops snapshots that were read from a shared log before `horizon`.
    pub(crate) fn forget_read_before(&self, horizon: LogTime) {
        let mut checkpoints = self.0.lock();
        if !checkpoints.is_empty() {
            checkpoints.retain(|checkpoint| match checkpoint.origin {
                Origin::Window | Origin::Archive(_) => true,
                Origin::SharedLog { read_at, .. } => read_at >= horizon,
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
            checkpoints.keep(state(revision), Origin::Window);
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
            checkpoints.keep(state(revision), Origin::Window);
        }
        assert_eq!(nearest(&checkpoints, 0), Some(0));
        checkpoints.keep(state(100), Origin::Window);
        assert_eq!(nearest(&checkpoints, 0), Some(0), "recently used");
        assert_eq!(nearest(&checkpoints, 1), Some(2), "1 was evicted");
    }

    #[test]
    fn checkpoints_are_dropped_when_window_or_history_moves_on() {
        let checkpoints = Checkpoints::default();
        checkpoints.keep(state(5), Origin::Window);
        checkpoints.keep(state(4), Origin::Archive(CHECKPOINT_BYTES));
        checkpoints.keep(state(3), Origin::Archive(1));
        assert_eq!(nearest(&checkpoints, 1), Some(4), "archived bytes are bounded");
        checkpoints.forget_before(Revision(6), Revision(4));
        assert_eq!(nearest(&checkpoints, 1), Some(4));
        assert_eq!(nearest(&checkpoints, 5), None);
        checkpoints.forget_before(Revision(6), Revision(5));
        assert_eq!(nearest(&checkpoints, 1), None);
    }

    #[test]
    fn checkpoints_from_a_shared_log_stay_for_as_long_as_the_history() {
        let checkpoints = Checkpoints::default();
        checkpoints.keep(state(3), Origin::SharedLog { bytes: 1, read_at: LogTime(5) });
        checkpoints.keep(state(4), Origin::SharedLog { bytes: CHECKPOINT_BYTES, read_at: LogTime(5) });
        checkpoints.forget_before(Revision(9), Revision(9));
        checkpoints.forget_read_before(LogTime(5));
        assert_eq!(checkpoints.at(Revision(3)).map(|state| state.revision), Some(Revision(3)));
        assert!(checkpoints.at(Revision(4)).is_none(), "their bytes are bounded");
        assert!(checkpoints.at(Revision(2)).is_none());
        checkpoints.forget_read_before(LogTime(6));
        assert!(checkpoints.at(Revision(3)).is_none());
    }

    #[test]
    fn few_checkpoints_from_a_shared_log_are_kept() {
        let checkpoints = Checkpoints::default();
        checkpoints.keep(state(9), Origin::Window);
        for revision in 1..=PAST_CHECKPOINTS as u64 + 1 {
            checkpoints.keep(state(revision), Origin::SharedLog { bytes: 1, read_at: LogTime(5) });
        }
        assert!(checkpoints.at(Revision(1)).is_none() && checkpoints.at(Revision(2)).is_some());
        assert!(checkpoints.at(Revision(9)).is_some(), "others stay");
    }
}
