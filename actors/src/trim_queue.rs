//! Superseded records on their way out of the log.
//!
//! Trimming depends on order. Live objects are the records that no later record supersedes. If a tombstone left the log before
//! the version it removed, the next start would find that version alive; and if one record were skipped and a later one of the
//! same key trimmed, the skipped one would come back to life. So stores push in the order of their history, the committer takes
//! the records of each type in the same order, and no record is ever refused.
//!
//! What keeps the queue short is that stores expire events only while there is room. Two sources push regardless. Recovery
//! pushes the records of the log that nothing needs any more: eight bytes each, a fraction of what a record takes on disk.
//! A full window pushes the events that it lets go of, each of which took more memory there; and a batch removes at least as many
//! records as its writes can push.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use pilothouse_types::lock::Lock;
use pilothouse_types::object::{Revision, TypeName};

use crate::event::EventStub;
use crate::limits::{BATCH_WRITES, TRIM_PER_BATCH, TRIM_PER_WRITE, TRIM_WAITING};

// Guarantees the last sentence of the module documentation: an event frees at most two records.
const _: () = assert!(TRIM_PER_WRITE >= 2 && TRIM_PER_BATCH >= 2 * BATCH_WRITES);

/// The queue between stores and the committer. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TrimQueue(Arc<Lock<Waiting>>);

#[derive(Debug)]
struct Waiting {
    /// The records of each type, in the order of its history. No type without records.
    records: HashMap<TypeName, VecDeque<Revision>>,
    /// Every type with records, once: the backlog of one holds up no other.
    turns: VecDeque<TypeName>,
    /// The number of records of all types.
    len: usize,
    /// The length from which stores stop to expire events.
    capacity: usize,
    /// Whether nothing is kept.
    discards: bool,
}

impl TrimQueue {
    /// A queue with room for `capacity` records.
    pub fn new(capacity: usize) -> TrimQueue {
        let (records, turns) = (HashMap::new(), VecDeque::new());
        let waiting = Waiting { records, turns, len: 0, capacity, discards: false };
        TrimQueue(Arc::new(Lock::new(waiting)))
    }

    /// A queue that keeps nothing, for a log that is not this server's: whoever owns it compacts it.
    pub fn discarding() -> TrimQueue {
        let queue = TrimQueue::new(usize::MAX);
        queue.0.lock().discards = true;
        queue
    }

    /// Adds records of one type that may be removed, in the order of its history. A caller that can wait checks
    /// [`TrimQueue::room`] first.
    pub fn push(&self, type_name: &TypeName, records: impl IntoIterator<Item = Revision>) {
        let mut records = records.into_iter().peekable();
        if records.peek().is_none() {
            return;
        }
        let mut guard = self.0.lock();
        let waiting = &mut *guard;
        if waiting.discards {
            return;
        }
        let of_type = waiting.records.entry(type_name.clone()).or_default();
        if of_type.is_empty() {
            waiting.turns.push_back(type_name.clone());
        }
        let before = of_type.len();
        of_type.extend(records);
        waiting.len += of_type.len() - before;
    }

    /// Takes at most `limit` records, the oldest of each type first, and the types in turns.
    pub fn take(&self, limit: usize) -> Vec<(TypeName, Revision)> {
        let mut guard = self.0.lock();
        let waiting = &mut *guard;
        let mut records = Vec::with_capacity(limit.min(waiting.len));
        while records.len() < limit
            && let Some(type_name) = waiting.turns.pop_front()
        {
            let Some(of_type) = waiting.records.get_mut(&type_name) else { continue };
            let share = of_type.len().min(limit - records.len());
            records.extend(of_type.drain(..share).map(|revision| (type_name.clone(), revision)));
            if of_type.is_empty() {
                // This also frees the capacity of its queue.
                waiting.records.remove(&type_name);
            } else {
                waiting.turns.push_back(type_name);
            }
        }
        waiting.len -= records.len();
        records
    }

    /// Puts records back that could not be removed, before all others of their types.
    pub fn put_back(&self, records: Vec<(TypeName, Revision)>) {
        let mut guard = self.0.lock();
        let waiting = &mut *guard;
        waiting.len += records.len();
        for (type_name, revision) in records.into_iter().rev() {
            match waiting.records.get_mut(&type_name) {
                Some(queue) => queue.push_front(revision),
                None => {
                    waiting.turns.push_back(type_name.clone());
                    waiting.records.insert(type_name, VecDeque::from([revision]));
                }
            }
        }
    }

    /// The number of records that still fit.
    pub fn room(&self) -> usize {
        let waiting = self.0.lock();
        waiting.capacity.saturating_sub(waiting.len)
    }

    /// The number of waiting records.
    pub fn len(&self) -> usize {
        self.0.lock().len
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

/// The records that become unnecessary once this event has left its window: the superseded version, and then its own
/// record if that holds no state (a tombstone, or a revision without an event). In this order, see the module documentation.
pub fn freed_by(event: &EventStub) -> impl Iterator<Item = Revision> + use<> {
    let own_record = event.frees_own_record.then_some(event.revision);
    event.superseded.into_iter().chain(own_record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_time::LogTime;

    #[test]
    fn superseded_version_is_trimmed_before_its_tombstone() {
        let freed = |superseded: Option<u64>, frees_own_record| {
            let superseded = superseded.map(Revision);
            let (revision, accepted_at) = (Revision(9), LogTime::ZERO);
            let stub = EventStub { revision, accepted_at, superseded, superseded_bytes: 0, frees_own_record };
            freed_by(&stub).map(|revision| revision.0).collect::<Vec<_>>()
        };
        assert_eq!(freed(None, false), [0; 0]);
        assert_eq!(freed(Some(4), false), [4]);
        assert_eq!(freed(Some(4), true), [4, 9]);
    }

    #[test]
    fn full_trim_queue_skips_no_record() {
        let trims = TrimQueue::new(2);
        let pods = TypeName::new("pods");
        trims.push(&pods, [2, 3, 4].map(Revision));
        assert_eq!((trims.len(), trims.room()), (3, 0));
        assert_eq!(trims.take(2), [2, 3].map(|revision| (pods.clone(), Revision(revision))));
        trims.push(&pods, [Revision(5)]);
        assert_eq!(trims.take(9), [4, 5].map(|revision| (pods.clone(), Revision(revision))));
        assert_eq!((trims.len(), trims.room()), (0, 2));
    }

    #[test]
    fn records_that_were_put_back_come_first_again() {
        let trims = TrimQueue::new(9);
        let (pods, nodes) = (TypeName::new("pods"), TypeName::new("nodes"));
        trims.push(&pods, [2, 3, 4].map(Revision));
        trims.push(&nodes, [Revision(2)]);
        let taken = trims.take(3);
        trims.put_back(taken);
        assert_eq!(trims.len(), 4);
        let taken = trims.take(9);
        let revisions_of = |name: &TypeName| {
            let records = taken.iter().filter(|(type_name, _)| type_name == name);
            records.map(|(_, revision)| revision.0).collect::<Vec<_>>()
        };
        assert_eq!((revisions_of(&pods), revisions_of(&nodes)), (vec![2, 3, 4], vec![2]));
        assert!(trims.is_empty());
    }

    #[test]
    fn trim_queue_takes_types_in_turns() {
        let trims = TrimQueue::new(2);
        let (pods, nodes) = (TypeName::new("pods"), TypeName::new("nodes"));
        trims.push(&pods, (2..100).map(Revision));
        trims.push(&nodes, [Revision(7)]);
        trims.push(&nodes, []);
        assert_eq!(trims.take(1), [(pods.clone(), Revision(2))]);
        assert_eq!(trims.take(2), [(nodes, Revision(7)), (pods.clone(), Revision(3))]);
        assert_eq!(trims.take(1), [(pods, Revision(4))]);
    }
}
