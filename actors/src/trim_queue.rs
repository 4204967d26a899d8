//! Superseded records on their way out of the log.
//!
//! Trimming depends on order. Live objects are the records that no later record supersedes. If a tombstone left the log before
//! the version it removed, the next start would find that version alive. Stores push in the order of their history, and the
//! committer takes in the same order. A type that once found the queue full is not trimmed until the next start: if one record
//! were skipped and a later one of the same key trimmed, the skipped one could come back to life.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::limits::TRIM_WAITING;
use crate::lock::Lock;
use crate::object::{Revision, TypeName};
use crate::window::EventStub;

/// The queue between stores and the committer. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TrimQueue(Arc<Lock<Waiting>>);

#[derive(Debug)]
struct Waiting {
    records: VecDeque<(TypeName, Revision)>,
    /// Types that found the queue full: see the module documentation.
    halted: HashSet<TypeName>,
    most: usize,
}

impl TrimQueue {
    /// A queue of at most `most` records.
    pub fn new(most: usize) -> TrimQueue {
        let waiting = Waiting { records: VecDeque::new(), halted: HashSet::new(), most };
        TrimQueue(Arc::new(Lock::new(waiting)))
    }

    /// Adds records of one type that may be removed, in the order of its history.
    pub fn push(&self, type_name: &TypeName, records: impl IntoIterator<Item = Revision>) {
        let mut waiting = self.0.lock();
        for revision in records {
            if waiting.halted.contains(type_name) {
                return;
            }
            if waiting.records.len() >= waiting.most {
                tracing::warn!(%type_name, "too many records wait for removal: the next start goes on with this type");
                waiting.halted.insert(type_name.clone());
                return;
            }
            waiting.records.push_back((type_name.clone(), revision));
        }
    }

    /// Takes at most `most` records, the oldest first.
    pub fn take(&self, most: usize) -> Vec<(TypeName, Revision)> {
        let mut waiting = self.0.lock();
        let most = most.min(waiting.records.len());
        waiting.records.drain(..most).collect()
    }

    /// The number of records that still fit.
    pub fn room(&self) -> usize {
        let waiting = self.0.lock();
        waiting.most.saturating_sub(waiting.records.len())
    }

    /// The number of waiting records.
    pub fn len(&self) -> usize {
        self.0.lock().records.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for TrimQueue {
    fn default() -> TrimQueue {
        TrimQueue::new(TRIM_WAITING)
    }
}

/// The records that become unnecessary once this event has left its window: the superseded version, and then, for a removal, the
/// tombstone itself. In this order, see the module documentation.
pub fn freed_by(event: &EventStub) -> impl Iterator<Item = Revision> + use<> {
    let tombstone = event.removed.then_some(event.revision);
    event.superseded.into_iter().chain(tombstone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    #[test]
    fn a_version_goes_before_the_tombstone_that_hides_it() {
        let freed = |superseded: Option<u64>, removed| {
            let superseded = superseded.map(Revision);
            let stub = EventStub { revision: Revision(9), at: Timestamp(0), superseded, removed };
            freed_by(&stub).map(|revision| revision.0).collect::<Vec<_>>()
        };
        assert_eq!(freed(None, false), [0; 0]);
        assert_eq!(freed(Some(4), false), [4]);
        assert_eq!(freed(Some(4), true), [4, 9]);
    }

    #[test]
    fn a_type_that_found_no_room_is_left_alone() {
        let trims = TrimQueue::new(2);
        let (pods, nodes) = (TypeName::new("pods"), TypeName::new("nodes"));
        trims.push(&pods, [Revision(2), Revision(3), Revision(4)]);
        assert_eq!(trims.room(), 0);
        assert_eq!(trims.take(9), [(pods.clone(), Revision(2)), (pods.clone(), Revision(3))]);
        trims.push(&pods, [Revision(5)]);
        assert!(trims.is_empty(), "4 was skipped, so 5 must stay");
        trims.push(&nodes, [Revision(7)]);
        assert_eq!(trims.take(9), [(nodes, Revision(7))]);
    }
}
