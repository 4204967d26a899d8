//! From the log back to memory: one scan at start rebuilds the objects, the window and the counter of every type.
//!
//! The log may have lost records to trimming: superseded versions and tombstones whose events had left the window. So an
//! event is whole only if every revision after it is there and the version it superseded is too; the window begins after
//! the last event that is not. A version that cannot be read counts as one that is gone, except that its object lives.
//!
//! An encrypted object that cannot be decrypted has a hidden key. Its other versions are found by their revisions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use pilothouse_types::object::{Key, Object, Revision, TypeName, UnreadableReason};

use crate::archive::{Archive, ArchiveReader};
use crate::encryption::Encryption;
use crate::engine::record::{Operation, Record};
use crate::engine::{Engine, EngineError, Visitor};
use crate::event::{Change, Event};
use crate::log_time::LogTime;
use crate::snapshot::Snapshot;
use crate::trim_queue::{TrimQueue, freed_by};
use crate::window::{Window, WindowBounds};
use crate::write_times::WriteTimes;

/// The state from which a store starts.
pub struct State {
    /// The objects and the counter.
    pub snapshot: Snapshot,
    /// The events that are still within the history.
    pub window: Arc<Window>,
    /// The last revision that was given to a write, also if it was rolled back.
    pub last: Revision,
    /// How often writes of the type were rolled back.
    pub rollbacks: u64,
}

impl State {
    /// The state of a type that nothing was ever written to, at this revision. `archive_reader` reads its history back from the log.
    pub fn empty(
        revision: Revision,
        window_bounds: WindowBounds,
        archive_reader: Option<ArchiveReader>,
    ) -> State {
        let snapshot = Snapshot::empty(revision);
        let window = Window::new(snapshot.revision, window_bounds).with_archive(archive_reader);
        State::new(snapshot, Arc::new(window))
    }

    /// The state of a type as the log has it.
    fn new(snapshot: Snapshot, window: Arc<Window>) -> State {
        State { last: snapshot.revision, rollbacks: 0, snapshot, window }
    }
}

/// Everything that a log holds.
pub struct Recovered {
    /// The state of every type that was ever written to.
    pub types: BTreeMap<TypeName, State>,
    /// Records that nothing needs any more.
    pub trims: TrimQueue,
    /// The time at which the log was used last, as far as it is known.
    pub newest: LogTime,
    /// How many live objects cannot be decrypted, by type.
    pub undecryptable: BTreeMap<TypeName, usize>,
}

/// Reads the log once. No more events are kept than those of the last `history` before the newest record, nor more of them in memory
/// than `window_bounds` allows.
pub fn recover(
    engine: &mut dyn Engine,
    history: Duration,
    window_bounds: impl Into<WindowBounds>,
) -> Result<Recovered, EngineError> {
    recover_with(TrimQueue::default(), engine, history, window_bounds.into())
}

fn recover_with(
    trims: TrimQueue,
    engine: &mut dyn Engine,
    history: Duration,
    window_bounds: WindowBounds,
) -> Result<Recovered, EngineError> {
    let recovered = Recovered {
        types: BTreeMap::new(),
        trims,
        newest: engine.log_time(),
        undecryptable: BTreeMap::new(),
    };
    let (archive, encryption) = (engine.archive(), engine.encryption());
    let mut recovery = Recovery { recovered, rebuilding: None, window_bounds, archive, encryption };
    engine.load(&mut recovery)?;
    recovery.finish_type()?;
    recovery.recovered.expire(history);
    recovery.recovered.set_opened();
    Ok(recovery.recovered)
}

impl Recovered {
    /// Tells all types how late it is: the ages of their objects follow from that.
    fn set_opened(&mut self) {
        let newest = self.newest;
        for state in self.types.values_mut() {
            Arc::make_mut(&mut state.snapshot.written).set_opened(newest);
        }
    }

    /// Drops what is older than the history. Only after the last record its time is known.
    fn expire(&mut self, history: Duration) {
        let horizon = self.newest.minus(history);
        for (type_name, state) in &self.types {
            let dropped = state.window.forget_before(horizon, usize::MAX);
            self.trims.push(type_name, dropped.iter().flat_map(freed_by));
        }
    }
}

struct Recovery {
    recovered: Recovered,
    rebuilding: Option<Rebuilding>,
    window_bounds: WindowBounds,
    archive: Option<Arc<dyn Archive>>,
    encryption: Arc<dyn Encryption>,
}

/// The type whose records are being read.
struct Rebuilding {
    type_name: TypeName,
    counter: Revision,
    /// The revision of the last record.
    last_read: Revision,
    objects: OrdMap<Key, Arc<Object>>,
    /// The keys of all objects by revision, once a record of the type is encrypted: the record after it, or before it, may have
    /// another key, the hidden or the real one.
    keys_by_revision: Option<HashMap<Revision, Key>>,
    /// The newest event that is not whole or not kept.
    floor: Revision,
    /// The events after `floor`; none yet if there is no window.
    window: Option<Window>,
    archive_reader: Option<ArchiveReader>,
    trims: Vec<Revision>,
    written: WriteTimes,
}

impl Visitor for Recovery {
    fn begin_type(&mut self, type_name: TypeName, last: Revision) -> Result<(), EngineError> {
        self.finish_type()?;
        let archive_reader =
            self.archive.as_ref().map(|archive| ArchiveReader::new(Arc::clone(archive), type_name.clone()));
        self.rebuilding = Some(Rebuilding {
            archive_reader,
            type_name,
            counter: last,
            last_read: Revision::FIRST,
            objects: OrdMap::new(),
            keys_by_revision: None,
            floor: Revision::FIRST,
            window: None,
            trims: Vec::new(),
            written: WriteTimes::default(),
        });
        Ok(())
    }

    fn record(&mut self, revision: Revision, record: Record) -> Result<(), EngineError> {
        let Some(rebuilding) = &mut self.rebuilding else {
            return Err(EngineError::Damaged(format!("the record at revision {revision} has no type")));
        };
        self.recovered.newest = self.recovered.newest.max(record.accepted_at.log);
        rebuilding.add(revision, record, &self.window_bounds)
    }
}

impl Recovery {
    fn finish_type(&mut self) -> Result<(), EngineError> {
        if let Some(rebuilding) = self.rebuilding.take() {
            let undecryptable = rebuilding.undecryptable().count();
            if undecryptable > 0 {
                if !self.encryption.may_be_unreadable(&rebuilding.type_name) {
                    return Err(rebuilding.undecryptable_error());
                }
                self.recovered.undecryptable.insert(rebuilding.type_name.clone(), undecryptable);
            }
            let (type_name, state, trims) = rebuilding.finish(&self.window_bounds);
            self.recovered.trims.push(&type_name, trims);
            self.recovered.types.insert(type_name, state);
        }
        Ok(())
    }
}

impl Rebuilding {
    fn add(
        &mut self,
        revision: Revision,
        record: Record,
        window_bounds: &WindowBounds,
    ) -> Result<(), EngineError> {
        if revision <= self.last_read || revision > self.counter {
            return Err(self.damaged(revision, "lies outside the order of the log"));
        }
        let predecessor = record.predecessor(revision);
        if predecessor != self.last_read {
            self.cut(predecessor);
        }
        self.last_read = revision;
        let accepted_at = record.accepted_at;
        self.written.add(revision, accepted_at.log);
        let previous = self.apply(revision, &record)?;
        let change = match record.operation {
            Operation::Create(_) => Change::Created,
            Operation::Replace(..) => Change::Replaced,
            Operation::Remove(..) => Change::Removed,
            Operation::AdvanceRevision(_) => {
                // A watch may resume from a revision before it.
                self.window(window_bounds).advance_revision(revision, accepted_at.log);
                return Ok(());
            }
        };
        let unreadable_reason = match &record.operation {
            Operation::Create(object) | Operation::Replace(object, _) => object.unreadable_reason(),
            Operation::Remove(..) | Operation::AdvanceRevision(_) => None,
        };
        if let Some(reason) = unreadable_reason {
            let (type_name, key) = (&self.type_name, record.key());
            tracing::error!(%type_name, key, %revision, %reason, "this version of the object cannot be read");
        }
        let is_readable = unreadable_reason.is_none();
        let is_previous_readable = previous.as_ref().map(|previous| previous.is_readable());
        let is_whole = is_readable && is_previous_readable.unwrap_or(change == Change::Created);
        if !is_whole {
            self.cut(revision);
            self.trims.extend(previous.map(|previous| previous.revision));
            self.trims.extend((change == Change::Removed).then_some(revision));
            return Ok(());
        }
        let object = match (record.operation, &previous) {
            (Operation::Create(object) | Operation::Replace(object, _), _) => object,
            (Operation::Remove(..), Some(last)) => Arc::new(last.at_revision(revision)),
            (Operation::Remove(..), None) | (Operation::AdvanceRevision(_), _) => return Ok(()),
        };
        let event = Event::new(change, object, previous, accepted_at);
        for stub in self.window(window_bounds).append(Arc::new(event)) {
            self.trims.extend(freed_by(&stub));
        }
        Ok(())
    }

    /// The window, which begins after the floor.
    fn window(&mut self, window_bounds: &WindowBounds) -> &Window {
        let Rebuilding { type_name, floor, counter, archive_reader, window, .. } = self;
        window.get_or_insert_with(|| {
            let bounds = window_bounds.for_type(type_name);
            Window::restored(*floor, *counter, bounds).with_archive(archive_reader.clone())
        })
    }

    /// Applies one record to the objects and returns the version it superseded, if the log still has it.
    fn apply(&mut self, revision: Revision, record: &Record) -> Result<Option<Arc<Object>>, EngineError> {
        let (object, superseded) = match &record.operation {
            Operation::Create(object) => (Some(object), None),
            Operation::Replace(object, superseded) => (Some(object), Some(*superseded)),
            Operation::Remove(_, superseded) => (None, Some(*superseded)),
            Operation::AdvanceRevision(_) => return Ok(None),
        };
        let is_encrypted = object.is_some_and(|object| object.encryption_key_id().is_some());
        if is_encrypted || record.key().starts_with(Key::HIDDEN.start) {
            let keys = || self.objects.values().map(|object| (object.revision, object.key.clone())).collect();
            self.keys_by_revision.get_or_insert_with(keys);
        }
        let previous_key = match (&mut self.keys_by_revision, superseded) {
            (Some(keys), Some(superseded)) => keys.remove(&superseded),
            _ => None,
        };
        let removed = match &previous_key {
            Some(key) => self.objects.remove(key),
            None => self.objects.remove(record.key()),
        };
        if let Some(object) = object {
            let key = &object.key;
            if let Some(keys) = &mut self.keys_by_revision {
                keys.insert(revision, key.clone());
            }
            let displaced = self.objects.insert(key.clone(), Arc::clone(object));
            if displaced.is_some() {
                return Err(self.damaged(revision, "does not follow from the version before it"));
            }
        }
        // A superseded version may have been trimmed; another one in its place means that the log is inconsistent.
        match &removed {
            Some(previous) if Some(previous.revision) != superseded => {
                Err(self.damaged(revision, "does not follow from the version before it"))
            }
            _ => Ok(removed),
        }
    }

    /// The revisions of live objects that cannot be decrypted, and why.
    fn undecryptable(&self) -> impl Iterator<Item = (Revision, &str)> {
        self.objects.values().filter_map(|object| match object.unreadable_reason()? {
            UnreadableReason::Undecryptable(reason) => Some((object.revision, reason.as_str())),
            UnreadableReason::Damaged => None,
        })
    }

    fn undecryptable_error(&self) -> EngineError {
        let (revision, reason) = self.undecryptable().min().unwrap_or_default();
        EngineError::Undecryptable { type_name: self.type_name.clone(), revision, reason: reason.to_owned() }
    }

    /// Drops every event up to this revision.
    fn cut(&mut self, floor: Revision) {
        if let Some(window) = self.window.take() {
            for stub in window.forget_before(LogTime::MAX, usize::MAX) {
                self.trims.extend(freed_by(&stub));
            }
        }
        self.floor = floor;
    }

    fn finish(mut self, window_bounds: &WindowBounds) -> (TypeName, State, Vec<Revision>) {
        if self.last_read != self.counter {
            self.cut(self.counter);
        }
        let window = match self.window {
            Some(window) => window,
            None => {
                let bounds = window_bounds.for_type(&self.type_name);
                Window::restored(self.floor, self.counter, bounds).with_archive(self.archive_reader)
            }
        };
        let written = Arc::new(self.written);
        let snapshot = Snapshot { revision: self.counter, objects: self.objects, written };
        (self.type_name, State::new(snapshot, Arc::new(window)), self.trims)
    }

    fn damaged(&self, revision: Revision, problem: &str) -> EngineError {
        let type_name = &self.type_name;
        EngineError::Damaged(format!("the record at revision {revision} of {type_name} {problem}"))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pilothouse_types::object::{Draft, Pairs};
    use proptest::prelude::*;

    use super::*;
    use crate::engine::memory::Memory;
    use crate::engine::{Batch, Write};
    use crate::log_time::WriteTime;
    use crate::window::Read;

    fn object(name: &str, revision: u64) -> Arc<Object> {
        let draft = Draft {
            key: Key::cluster(name),
            bytes: Bytes::from_static(br#"{"resourceVersion":""}"#),
            revision_offset: 20,
            item_offset: 1,
            labels: Pairs::default(),
            fields: Pairs::default(),
        };
        Arc::new(Object::new(draft, Revision(revision)))
    }

    fn create(name: &str, revision: u64) -> Operation {
        Operation::Create(object(name, revision))
    }

    fn replace(name: &str, revision: u64, superseded: u64) -> Operation {
        Operation::Replace(object(name, revision), Revision(superseded))
    }

    fn remove(name: &str, superseded: u64) -> Operation {
        Operation::Remove(Key::cluster(name), Revision(superseded))
    }

    fn accepted_at(second: u64) -> WriteTime {
        WriteTime { log: LogTime(second * 1_000_000), ..WriteTime::default() }
    }

    /// A log whose record at revision n was accepted at second n, without what was trimmed.
    fn log(operations: Vec<Operation>, trimmed: &[u64]) -> Memory {
        let pods = TypeName::new("pods");
        let mut engine = Memory::new();
        let writes = operations.into_iter().zip(2..).map(|(operation, revision)| {
            let record = Record::clear(operation, accepted_at(revision));
            Write { type_name: pods.clone(), revision: Revision(revision), record }
        });
        engine.commit(&Batch { writes: writes.collect(), trims: Vec::new() }).unwrap();
        let trims = trimmed.iter().map(|revision| (pods.clone(), Revision(*revision))).collect();
        engine.commit(&Batch { writes: Vec::new(), trims }).unwrap();
        engine
    }

    /// Live objects, floor, events after the floor, records to trim.
    type Summary = (Vec<(String, u64)>, u64, Vec<u64>, Vec<u64>);

    fn recovered(mut engine: Memory, history_seconds: u64) -> Result<Summary, EngineError> {
        let mut recovered = recover(&mut engine, Duration::from_secs(history_seconds), 1 << 20)?;
        let state = recovered.types.remove(&TypeName::new("pods")).unwrap();
        let live = state.snapshot.iter().map(|object| (object.key.as_str().to_owned(), object.revision.0));
        let Read::Events(events) = state.window.read(state.window.floor(), usize::MAX) else { panic!() };
        let events = events.iter().map(|event| event.revision().0).collect();
        let trims = recovered.trims.take(usize::MAX).into_iter().map(|(_, revision)| revision.0).collect();
        assert_eq!(state.window.head(), state.snapshot.revision);
        Ok((live.collect(), state.window.floor().0, events, trims))
    }

    fn names(live: &[(&str, u64)]) -> Vec<(String, u64)> {
        live.iter().map(|(name, revision)| ((*name).to_owned(), *revision)).collect()
    }

    #[test]
    fn recovery_restores_objects_and_recent_events() {
        let log = log(vec![create("a", 2), create("b", 3), replace("a", 4, 2), remove("b", 3)], &[]);
        let (live, floor, events, trims) = recovered(log, 99).unwrap();
        assert_eq!((live, floor), (names(&[("a", 4)]), 1));
        assert_eq!((events, trims), (vec![2, 3, 4, 5], vec![]));
    }

    /// `accepted_at` says nothing of the wall clock: it may have been set to anything.
    #[test]
    fn recovery_tells_how_old_objects_are_by_log_time() {
        let operations = (2..500).map(|revision| create(&revision.to_string(), revision)).collect();
        let mut recovered = recover(&mut log(operations, &[]), Duration::ZERO, 1 << 20).unwrap();
        let snapshot = recovered.types.remove(&TypeName::new("pods")).unwrap().snapshot;
        let age = |revision| snapshot.written.age_at_start(Revision(revision)).as_secs();
        assert_eq!((age(2), age(440), age(499)), (497, 17, 0));
        assert_eq!(age(500), 0, "written since");
    }

    #[test]
    fn recovery_trims_expired_records_in_order() {
        let log = log(vec![create("a", 2), replace("a", 3, 2), remove("a", 3), create("b", 5)], &[]);
        let (live, floor, events, trims) = recovered(log, 0).unwrap();
        assert_eq!((live, floor), (names(&[("b", 5)]), 4));
        assert_eq!((events, trims), (vec![5], vec![2, 3, 4]));
    }

    #[test]
    fn recovered_window_starts_after_last_missing_record() {
        let operations = || vec![create("a", 2), create("b", 3), replace("a", 4, 2), create("c", 5)];
        // 2 was superseded by 4, whose event had left the window before 2 could be trimmed.
        let (live, floor, events, trims) = recovered(log(operations(), &[2]), 99).unwrap();
        assert_eq!((live, floor), (names(&[("a", 4), ("b", 3), ("c", 5)]), 4));
        assert_eq!((events, trims), (vec![5], vec![]));
    }

    #[test]
    fn recovery_trims_tombstone_without_its_version() {
        let log = log(vec![create("a", 2), remove("a", 2)], &[2]);
        let (live, floor, events, trims) = recovered(log, 99).unwrap();
        assert_eq!((live, floor), (vec![], 3));
        assert_eq!((events, trims), (vec![], vec![3]));
    }

    #[test]
    fn recovery_keeps_counter_of_empty_log() {
        let log = log(vec![create("a", 2), remove("a", 2)], &[2, 3]);
        let (live, floor, events, trims) = recovered(log, 99).unwrap();
        assert_eq!((live, floor), (vec![], 3));
        assert_eq!((events, trims), (vec![], vec![]));
    }

    #[test]
    fn recovery_keeps_unreadable_object_without_its_event() {
        let damaged = |name: &str, revision| {
            Arc::new(Object::unreadable(Key::cluster(name), Revision(revision), UnreadableReason::Damaged))
        };
        let operations = vec![
            create("a", 2),
            Operation::Create(damaged("b", 3)),
            create("c", 4),
            Operation::Replace(damaged("a", 5), Revision(2)),
            create("d", 6),
        ];
        let (live, floor, events, trims) = recovered(log(operations, &[]), 99).unwrap();
        assert_eq!((live, floor), (names(&[("a", 5), ("b", 3), ("c", 4), ("d", 6)]), 5));
        assert_eq!((events, trims), (vec![6], vec![2]));

        let operations = vec![
            Operation::Create(damaged("a", 2)),
            remove("a", 2),
            Operation::Create(damaged("b", 4)),
            replace("b", 5, 4),
        ];
        let (live, floor, events, trims) = recovered(log(operations, &[]), 99).unwrap();
        assert_eq!((live, floor), (names(&[("b", 5)]), 5), "removed and replaced versions are not needed");
        assert_eq!((events, trims), (vec![], vec![2, 3, 4]));
    }

    #[test]
    fn recovery_refuses_inconsistent_log() {
        for operations in [
            vec![create("a", 2), create("a", 3)],
            vec![create("a", 2), replace("a", 3, 2), replace("a", 4, 2)],
            vec![create("a", 2), replace("a", 3, 2), remove("a", 2)],
        ] {
            let error = recovered(log(operations, &[]), 99).unwrap_err();
            assert!(matches!(error, EngineError::Damaged(_)), "{error}");
        }
    }

    #[test]
    fn recovery_respects_window_bytes() {
        let mut engine = log(vec![create("a", 2), replace("a", 3, 2), replace("a", 4, 3)], &[]);
        let recovered = recover(&mut engine, Duration::from_secs(99), 300).unwrap();
        assert_eq!(recovered.types[&TypeName::new("pods")].window.floor(), Revision(3));
        assert_eq!(recovered.trims.take(9), [(TypeName::new("pods"), Revision(2))]);
    }

    /// If a start dropped the trims that do not fit, later ones of that type could not be trimmed until the next start, which would
    /// find even more.
    #[test]
    fn recovery_queues_all_trims_beyond_queue_capacity() {
        let (pods, nodes) = (TypeName::new("pods"), TypeName::new("nodes"));
        let mut engine = Memory::new();
        let write = |type_name: &TypeName, revision, operation| {
            let record = Record::clear(operation, accepted_at(revision));
            Write { type_name: type_name.clone(), revision: Revision(revision), record }
        };
        let mut writes = vec![write(&pods, 2, create("a", 2)), write(&nodes, 2, create("a", 2))];
        let record = Record::clear(create("a", 2), accepted_at(99));
        writes.push(Write { type_name: TypeName::new("leases"), revision: Revision(2), record });
        writes.extend((3..20).map(|revision| write(&pods, revision, replace("a", revision, revision - 1))));
        writes.push(write(&nodes, 3, replace("a", 3, 2)));
        engine.commit(&Batch { writes, trims: Vec::new() }).unwrap();
        let start = |engine: &mut Memory| {
            recover_with(TrimQueue::new(4), engine, Duration::ZERO, (1 << 20).into()).unwrap().trims
        };
        let trims = start(&mut engine);
        assert_eq!((trims.len(), trims.room()), (18, 0));
        let first = trims.take(5);
        engine.commit(&Batch { writes: Vec::new(), trims: first }).unwrap();
        let trims = start(&mut engine);
        assert_eq!(trims.len(), 13, "the next start finds the rest");
        engine.commit(&Batch { writes: Vec::new(), trims: trims.take(usize::MAX) }).unwrap();
        assert_eq!((start(&mut engine).len(), engine.stats().unwrap().records), (0, 3));
    }

    /// Writes that follow from each other: each toggles or replaces one of three objects.
    fn history(choices: &[(usize, bool)]) -> Vec<Operation> {
        let mut live: [Option<u64>; 3] = [None; 3];
        let mut operations = Vec::new();
        for ((index, removes), revision) in choices.iter().zip(2..) {
            let name = ["a", "b", "c"][*index];
            let (operation, now) = match live[*index] {
                None => (create(name, revision), Some(revision)),
                Some(last) if *removes => (remove(name, last), None),
                Some(last) => (replace(name, revision, last), Some(revision)),
            };
            live[*index] = now;
            operations.push(operation);
        }
        operations
    }

    proptest! {
        /// A crash may come between any two steps of trimming: the live objects are the same, whatever was trimmed.
        #[test]
        fn recovery_after_partial_trim_finds_the_same_objects(
            choices in prop::collection::vec((0usize..3, any::<bool>()), 1..30),
            seconds in 0u64..40,
        ) {
            let (live, _, _, trims) = recovered(log(history(&choices), &[]), seconds).unwrap();
            for done in 0..=trims.len() {
                let (after, floor, events, rest) =
                    recovered(log(history(&choices), &trims[..done]), seconds).unwrap();
                prop_assert_eq!(&after, &live);
                prop_assert_eq!(&rest[..], &trims[done..], "the next start finds the remaining trims");
                prop_assert_eq!(floor as usize + events.len(), choices.len() + 1);
            }
        }
    }
}
