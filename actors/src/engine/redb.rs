//! The log in a redb file.
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | `format` | the format of this file |
//! | `meta` | `record_bytes` | the bytes of all records when the server was last idle |
//! | `meta` | `log_time` | the time of the log when the server was last idle |
//! | `meta` | `first_revision` | the revision of types without writes, if the file was restored from a backup |
//! | `about` | `version` | the version of the server that gave the file its format |
//! | `types` | name of a type | its id |
//! | `types_copy` | the same | the same, in another page: without names no record could be read |
//! | `counters` | id | last revision of the type |
//! | `log` | (id, revision) | the record |
//!
//! All changes of a batch are one redb transaction with one sync.

mod backup;
mod database;
#[cfg(feature = "testing")]
mod disk_faults;
mod full_disk;
mod live;
mod new_store;
mod pages;
mod reader;
mod reserve;
mod salvage;
mod stopped;
mod synced_file;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pilothouse_types::object::{Revision, TypeName};
use redb::{
    ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableError, WriteTransaction,
};

pub use self::backup::{RestoreError, Restored, restore};
#[cfg(feature = "testing")]
pub use self::disk_faults::DiskFaults;
pub use self::live::{LiveObject, LiveObjects, LiveType};
pub use self::new_store::{NewEntry, create};
pub use self::salvage::{Finding, FindingKind, Kept, Salvage, SavedType, StoreAbout, repair};
pub use self::stopped::StoppedStore;

use self::backup::Source;
use self::database::{FileFormat, OpenDatabase, catch_panic, fault, read_format, write_format};
use self::reader::Reader;
use self::reserve::Reserve;
use self::synced_file::{OpenFile, system_files};
use super::{Batch, Counters, Disk, Engine, EngineError, Stats, Visitor};
use crate::archive::Archive;
use crate::backup::BackupSource;
use crate::encryption::{Encryption, NoEncryption};
#[cfg(feature = "testing")]
use crate::engine::record::RecordHead;
use crate::engine::record::{Record, RecordDecoder};
use crate::limits::{
    COMPACTION_BYTES_PER_QUIET_SECOND, COMPACTION_MAX_RECORD_BYTES, COMPACTION_MIN_BYTES,
    COMPACTION_MIN_RATIO, LOG_TIME_INTERVAL, LOG_TIME_NOTED_FOR,
};
use crate::log_time::LogTime;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const ABOUT: TableDefinition<&str, &str> = TableDefinition::new("about");
const TYPES: TableDefinition<&str, u32> = TableDefinition::new("types");
const TYPES_COPY: TableDefinition<&str, u32> = TableDefinition::new("types_copy");
const COUNTERS: TableDefinition<u32, u64> = TableDefinition::new("counters");
const LOG: TableDefinition<(u32, u64), &[u8]> = TableDefinition::new("log");

/// The key under which `meta` keeps the format.
const FORMAT_KEY: &str = "format";
/// The key under which `meta` keeps the size of the records.
const RECORD_BYTES_KEY: &str = "record_bytes";
/// The key under which `meta` keeps the time of the log.
const LOG_TIME_KEY: &str = "log_time";
/// The key under which `meta` keeps the revision of types without writes.
const FIRST_REVISION_KEY: &str = "first_revision";
/// The key under which `about` keeps the version.
const VERSION_KEY: &str = "version";
/// The format that this code writes: the tables, and the records in them (`record.rs`).
const FORMAT: u64 = 3;
/// The oldest format that it reads and upgrades. Format 1 has older records and no table `about`.
const OLDEST_FORMAT: u64 = 1;
/// The file format of redb itself, which only redb can check.
const REDB_FORMAT: u64 = 3;
/// The open file.
pub struct Redb {
    path: PathBuf,
    database: OpenDatabase,
    reserve: Reserve,
    /// The ids of all types in the file.
    ids: HashMap<TypeName, u32>,
    counters: Counters,
    records: u64,
    /// The size of all records, without what redb needs around them.
    record_bytes: u64,
    /// The time that the file notes.
    log_time: LogTime,
    /// The time of the last record that was written.
    newest: LogTime,
    /// Whether a crash now would require a walk over the whole file when it is opened.
    unsettled: bool,
    repaired: bool,
    /// Reads encrypted records.
    encryption: Arc<dyn Encryption>,
    /// A buffer for encoding records, kept so that a commit allocates nothing per record.
    scratch: Vec<u8>,
}

impl Redb {
    /// Opens the file, or creates it.
    pub fn open(path: &Path) -> Result<Redb, EngineError> {
        Redb::open_with(path, system_files())
    }

    /// The same on a disk that fails on demand.
    #[cfg(feature = "testing")]
    pub fn open_on(faults: &DiskFaults, path: &Path) -> Result<Redb, EngineError> {
        Redb::open_with(path, faults.files())
    }

    fn open_with(path: &Path, open_file: OpenFile) -> Result<Redb, EngineError> {
        let (database, repaired) = OpenDatabase::open_with(path, open_file)?;
        let mut engine = Redb {
            path: path.to_owned(),
            database,
            reserve: Reserve::beside(path),
            ids: HashMap::new(),
            counters: Counters::default(),
            records: 0,
            record_bytes: 0,
            log_time: LogTime::ZERO,
            newest: LogTime::ZERO,
            unsettled: repaired,
            repaired,
            encryption: Arc::new(NoEncryption),
            scratch: Vec::new(),
        };
        catch_panic(|| engine.prepare_format())?;
        catch_panic(|| engine.read_counters())?;
        match catch_panic(|| engine.complete_types_copy()) {
            // The next start tries it again.
            Err(EngineError::NoSpace) => {
                engine.recover_from_full_disk(&Batch::default())?;
            }
            outcome => outcome?,
        }
        engine.complete_reserve();
        Ok(engine)
    }

    /// Decrypts records with this.
    #[must_use]
    pub fn with_encryption(self, encryption: Arc<dyn Encryption>) -> Redb {
        Redb { encryption, ..self }
    }

    /// Creates the tables of a new file, and upgrades an older one.
    fn prepare_format(&mut self) -> Result<(), EngineError> {
        match read_format(&self.database, &self.path)? {
            FileFormat::Current => return Ok(()),
            FileFormat::Empty => {}
            FileFormat::Older(from) => {
                let path = self.path.display();
                tracing::info!(%path, from, to = FORMAT, "upgrading the format of the store");
            }
        }
        self.unsettled = true;
        write_format(&self.database, &self.path)
    }

    /// Copies the names of types that an earlier version has written.
    fn complete_types_copy(&mut self) -> Result<(), EngineError> {
        let path = &self.path;
        let transaction = self.database.begin_read().map_err(|error| fault(path, error))?;
        let copied = match transaction.open_table(TYPES_COPY) {
            Ok(copy) => copy.len().map_err(|error| fault(path, error))?,
            Err(TableError::TableDoesNotExist(_)) => 0,
            Err(error) => return Err(fault(path, error)),
        };
        drop(transaction);
        if copied == self.ids.len() as u64 {
            return Ok(());
        }
        let transaction = self.database.begin_write().map_err(|error| fault(path, error))?;
        insert_types(&transaction, path, self.ids.iter())?;
        transaction.commit().map_err(|error| fault(path, error))?;
        self.unsettled = true;
        Ok(())
    }

    /// Gives free pages back to the system, if most of the file is free and no write came for some time: writes wait meanwhile.
    fn compact_if_mostly_free(&mut self, now: LogTime) -> Result<(), EngineError> {
        let Ok(Disk { file_bytes: before, .. }) = self.disk() else { return Ok(()) };
        let record_bytes = self.record_bytes;
        let is_mostly_free = record_bytes.saturating_mul(COMPACTION_MIN_RATIO) < before;
        let quiet = Duration::from_secs(1 + record_bytes / COMPACTION_BYTES_PER_QUIET_SECOND);
        if before < COMPACTION_MIN_BYTES
            || record_bytes > COMPACTION_MAX_RECORD_BYTES
            || !is_mostly_free
            || now.since(self.newest) < quiet
        {
            return Ok(());
        }
        // Somebody reads the history, or makes a backup: later.
        let Some(compacted) = self.database.alone(redb::Database::compact) else { return Ok(()) };
        compacted.map_err(|error| self.fault(error))?;
        let (path, after) = (self.path.display(), self.disk().unwrap_or_default().file_bytes);
        tracing::info!(%path, before, after, record_bytes, "the store file was compacted");
        self.unsettled = true;
        Ok(())
    }

    /// Whether opening had to walk the whole file, because the last process neither closed nor settled it.
    pub fn repaired(&self) -> bool {
        self.repaired
    }

    fn read_counters(&mut self) -> Result<(), EngineError> {
        let path = &self.path;
        let transaction = self.database.begin_read().map_err(|error| fault(path, error))?;
        let types = transaction.open_table(TYPES).map_err(|error| fault(path, error))?;
        let counters = transaction.open_table(COUNTERS).map_err(|error| fault(path, error))?;
        for entry in types.iter().map_err(|error| fault(path, error))? {
            let (name, id) = entry.map_err(|error| fault(path, error))?;
            let (name, id) = (TypeName::new(name.value()), id.value());
            let Some(last) = counters.get(id).map_err(|error| fault(path, error))? else {
                return Err(EngineError::Damaged(format!("{} has no counter for {name}", path.display())));
            };
            self.counters.last.insert(name.clone(), Revision(last.value()));
            self.ids.insert(name, id);
        }
        let log = transaction.open_table(LOG).map_err(|error| fault(path, error))?;
        self.records = log.len().map_err(|error| fault(path, error))?;
        let meta = transaction.open_table(META).map_err(|error| fault(path, error))?;
        let log_time = meta.get(LOG_TIME_KEY).map_err(|error| fault(path, error))?;
        self.log_time = log_time.map_or(LogTime::ZERO, |entry| LogTime(entry.value()));
        // Until something is written, this is the best that is known.
        self.newest = self.newest.max(self.log_time);
        let first = meta.get(FIRST_REVISION_KEY).map_err(|error| fault(path, error))?;
        self.counters.first = first.map_or(Revision::FIRST, |first| Revision(first.value()));
        let record_bytes = meta.get(RECORD_BYTES_KEY).map_err(|error| fault(path, error))?;
        // Without this entry nothing is known to be free.
        self.record_bytes = record_bytes.map_or(u64::MAX, |entry| entry.value());
        Ok(())
    }

    /// Passes all records to the visitor and returns their size.
    fn scan(&self, visitor: &mut dyn Visitor) -> Result<u64, EngineError> {
        let mut types: Vec<(u32, &TypeName)> = self.ids.iter().map(|(name, id)| (*id, name)).collect();
        types.sort_unstable();
        let mut types = types.into_iter().peekable();
        let mut current: Option<(u32, RecordDecoder<'_>)> = None;
        let (mut records, mut record_bytes) = (0, 0);
        let transaction = self.database.begin_read().map_err(|error| self.fault(error))?;
        let log = transaction.open_table(LOG).map_err(|error| self.fault(error))?;
        for entry in log.iter().map_err(|error| self.fault(error))? {
            let (place, bytes) = entry.map_err(|error| self.fault(error))?;
            let (id, revision) = place.value();
            while let Some((next, name)) = types.next_if(|(next, _)| *next <= id) {
                current = Some((next, RecordDecoder::new(next, name, &*self.encryption)));
                visitor.begin_type(name.clone(), self.last(name))?;
            }
            let Some((_, decoder)) = current.as_ref().filter(|(current, _)| *current == id) else {
                return Err(EngineError::Damaged(format!("the log has a record of the unknown type {id}")));
            };
            let revision = Revision(revision);
            visitor.record(revision, self.decode_patiently(decoder, revision, bytes.value())?)?;
            records += 1;
            record_bytes += bytes.value().len() as u64;
        }
        for (_, name) in types {
            visitor.begin_type(name.clone(), self.last(name))?;
        }
        // A damaged inner page can hide whole leaves, while all remaining records look correct.
        if records != self.records {
            let expected = self.records;
            return Err(EngineError::Damaged(format!(
                "the log has {records} records and should have {expected}"
            )));
        }
        Ok(record_bytes)
    }

    /// Decodes a record, and waits for the service that has its key if need be: without its objects a server could not start.
    fn decode_patiently(
        &self,
        decoder: &RecordDecoder<'_>,
        revision: Revision,
        bytes: &[u8],
    ) -> Result<Record, EngineError> {
        loop {
            match decoder.decode(revision, bytes) {
                Err(EngineError::DecryptionUnavailable(reason)) => self.encryption.wait(&reason),
                decoded => return decoded,
            }
        }
    }

    /// What is done while no writes come.
    fn tidy(&mut self, now: LogTime) -> Result<(), EngineError> {
        self.compact_if_mostly_free(now)?;
        // Without the time, a start would take everything for as young as it was at the last write. After an hour nothing is young.
        let is_late = now.since(self.log_time) >= LOG_TIME_INTERVAL
            && self.log_time < self.newest.plus(LOG_TIME_NOTED_FOR);
        if self.unsettled || is_late { self.write_free_list(now) } else { Ok(()) }
    }

    /// Writes redb's list of free pages, the time, and how large the records are.
    fn write_free_list(&mut self, now: LogTime) -> Result<(), EngineError> {
        // A plain commit costs half as much, but drops redb's list of free pages; after a crash that list must be rebuilt by a
        // walk over the file. So the list is written while the server is idle.
        let mut transaction = self.database.begin_write().map_err(|error| self.fault(error))?;
        transaction.set_quick_repair(true);
        {
            let mut meta = transaction.open_table(META).map_err(|error| self.fault(error))?;
            meta.insert(RECORD_BYTES_KEY, self.record_bytes).map_err(|error| self.fault(error))?;
            meta.insert(LOG_TIME_KEY, now.0).map_err(|error| self.fault(error))?;
        }
        transaction.commit().map_err(|error| self.fault(error))?;
        (self.unsettled, self.log_time) = (false, now);
        Ok(())
    }

    fn write(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let advanced = self.counters.check_order(batch)?;
        let path = &self.path;
        let new_types: Vec<&TypeName> = advanced.keys().filter(|name| !self.ids.contains_key(name)).collect();
        let first_free = self.ids.values().max().map_or(1, |id| id + 1);
        let new_ids: HashMap<TypeName, u32> = new_types.into_iter().cloned().zip(first_free..).collect();
        let find_id = |name: &TypeName| self.ids.get(name).or_else(|| new_ids.get(name)).copied();
        // Acknowledging a write that was skipped would lose it.
        let require_id =
            |name: &TypeName| find_id(name).ok_or_else(|| EngineError::Damaged(format!("{name} has no id")));

        let transaction = self.database.begin_write().map_err(|error| fault(path, error))?;
        let (mut records, mut record_bytes) = (self.records, self.record_bytes);
        {
            insert_types(&transaction, path, new_ids.iter())?;
            let mut counters = transaction.open_table(COUNTERS).map_err(|error| fault(path, error))?;
            for (name, last) in &advanced {
                counters.insert(require_id(name)?, last.0).map_err(|error| fault(path, error))?;
            }
            let mut log = transaction.open_table(LOG).map_err(|error| fault(path, error))?;
            for write in &batch.writes {
                let id = require_id(&write.type_name)?;
                write.record.encode(id, write.revision, &mut self.scratch);
                log.insert((id, write.revision.0), self.scratch.as_slice())
                    .map_err(|error| fault(path, error))?;
                records += 1;
                record_bytes = record_bytes.saturating_add(self.scratch.len() as u64);
            }
            for (name, revision) in &batch.trims {
                let Some(id) = find_id(name) else { continue };
                if let Some(removed) = log.remove((id, revision.0)).map_err(|error| fault(path, error))? {
                    records -= 1;
                    record_bytes = record_bytes.saturating_sub(removed.value().len() as u64);
                }
            }
        }
        transaction.commit().map_err(|error| fault(path, error))?;
        // Update memory only after the commit.
        self.unsettled = true;
        if let Some(last) = batch.writes.last() {
            self.newest = last.record.accepted_at.log;
        }
        (self.records, self.record_bytes) = (records, record_bytes);
        self.counters.advance(advanced);
        self.ids.extend(new_ids);
        Ok(())
    }

    /// Corrupts the newest record of an object by changing the last byte of its body, for tests of corrupt objects. Returns
    /// whether there was such a record.
    #[cfg(feature = "testing")]
    pub fn damage(&mut self, type_name: &TypeName, key: &str) -> Result<bool, EngineError> {
        let Some(id) = self.ids.get(type_name).copied() else { return Ok(false) };
        let transaction = self.database.begin_write().map_err(|error| self.fault(error))?;
        let mut newest = None;
        {
            let mut log = transaction.open_table(LOG).map_err(|error| self.fault(error))?;
            let all = log.range((id, 0)..=(id, u64::MAX)).map_err(|error| self.fault(error))?;
            for entry in all {
                let (place, bytes) = entry.map_err(|error| self.fault(error))?;
                let (_, revision) = place.value();
                let (head, _) = RecordHead::split(id, Revision(revision), bytes.value())?;
                if head.key.as_str() == key {
                    newest = Some((revision, bytes.value().to_vec()));
                }
            }
            if let Some((revision, bytes)) = &mut newest {
                if let Some(last) = bytes.last_mut() {
                    *last ^= 0xff;
                }
                log.insert((id, *revision), bytes.as_slice()).map_err(|error| self.fault(error))?;
            }
        }
        transaction.commit().map_err(|error| self.fault(error))?;
        Ok(newest.is_some())
    }

    fn last(&self, name: &TypeName) -> Revision {
        self.counters.last(name)
    }

    fn fault(&self, error: impl Into<redb::Error>) -> EngineError {
        fault(&self.path, error)
    }
}

/// Writes the names of types, twice.
fn insert_types<'a>(
    transaction: &WriteTransaction,
    path: &Path,
    types: impl Iterator<Item = (&'a TypeName, &'a u32)>,
) -> Result<(), EngineError> {
    let mut types = types.peekable();
    if types.peek().is_none() {
        return Ok(());
    }
    let mut names = transaction.open_table(TYPES).map_err(|error| fault(path, error))?;
    let mut copy = transaction.open_table(TYPES_COPY).map_err(|error| fault(path, error))?;
    for (name, id) in types {
        names.insert(name.as_str(), id).map_err(|error| fault(path, error))?;
        copy.insert(name.as_str(), id).map_err(|error| fault(path, error))?;
    }
    Ok(())
}

impl Engine for Redb {
    fn load(&mut self, visitor: &mut dyn Visitor) -> Result<(), EngineError> {
        self.record_bytes = catch_panic(|| self.scan(visitor))?;
        Ok(())
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        match self.write(batch) {
            Err(EngineError::NoSpace) => self.write_to_full_disk(batch),
            outcome => outcome,
        }
    }

    fn settle(&mut self, now: LogTime) -> Result<(), EngineError> {
        match self.tidy(now) {
            Err(EngineError::NoSpace) => {
                self.recover_from_full_disk(&Batch::default())?;
                return Err(EngineError::NoSpace);
            }
            outcome => outcome?,
        }
        self.complete_reserve();
        Ok(())
    }

    fn restore_reserve(&mut self) {
        self.take_back_reserve();
    }

    fn log_time(&self) -> LogTime {
        self.log_time
    }

    fn archive(&self) -> Option<Arc<dyn Archive>> {
        let encryption = Arc::clone(&self.encryption);
        Some(Arc::new(Reader::new(self.path.clone(), self.database.readable(), encryption)))
    }

    fn backup_source(&self) -> Option<Arc<dyn BackupSource>> {
        Some(Arc::new(Source::new(self.path.clone(), self.database.readable())))
    }

    fn encryption(&self) -> Arc<dyn Encryption> {
        Arc::clone(&self.encryption)
    }

    fn first_revision(&self) -> Revision {
        self.counters.first
    }

    fn stats(&self) -> Result<Stats, EngineError> {
        let file_bytes = std::fs::metadata(&self.path)?.len();
        let (records, record_bytes) = (self.records, self.record_bytes);
        Ok(Stats { records, file_bytes, record_bytes, disk: Some(self.disk()?) })
    }

    fn close(mut self: Box<Self>, now: LogTime) -> Result<(), EngineError> {
        // Dropping the database writes the same list, but reports no errors.
        match catch_panic(|| self.write_free_list(now)) {
            // Only the next start takes longer.
            Err(EngineError::NoSpace) => Ok(()),
            outcome => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes records into a file until it has about 16 MiB, and trims all but every n-th of them.
    pub(super) fn fill_file(path: &Path, keep_every: u64) {
        use pilothouse_types::object::{Draft, Key, Object, Pairs};

        use crate::engine::Write;
        use crate::engine::record::Operation;
        use crate::log_time::WriteTime;

        let pods = TypeName::new("pods");
        let mut engine = Box::new(Redb::open(path).unwrap());
        engine.load(&mut Counted::default()).unwrap();
        let body = bytes::Bytes::from(format!(r#"{{"resourceVersion":"","x":"{}"}}"#, "x".repeat(4_000)));
        for batch in 0..16 {
            let revisions = (2 + 256 * batch)..(2 + 256 * (batch + 1));
            let writes = revisions.map(|revision| {
                let draft = Draft {
                    key: Key::cluster(&format!("k{revision}")),
                    bytes: body.clone(),
                    revision_offset: 20,
                    item_offset: 1,
                    labels: Pairs::default(),
                    fields: Pairs::default(),
                };
                let operation = Operation::Create(Arc::new(Object::new(draft, Revision(revision))));
                let record = Record::clear(operation, WriteTime::default());
                Write { type_name: pods.clone(), revision: Revision(revision), record }
            });
            engine.commit(&Batch { writes: writes.collect(), trims: Vec::new() }).unwrap();
        }
        let trimmed = (2..4_098).filter(|revision| revision % keep_every != 0);
        let trims = trimmed.map(|revision| (pods.clone(), Revision(revision))).collect();
        engine.commit(&Batch { writes: Vec::new(), trims }).unwrap();
        engine.close(LogTime::ZERO).unwrap();
    }

    /// The number of records that a scan finds.
    #[derive(Default)]
    struct Counted(u64);

    impl Visitor for Counted {
        fn begin_type(&mut self, _: TypeName, _: Revision) -> Result<(), EngineError> {
            Ok(())
        }

        fn record(&mut self, _: Revision, _: Record) -> Result<(), EngineError> {
            self.0 += 1;
            Ok(())
        }
    }

    #[test]
    fn quiet_file_that_is_mostly_free_becomes_smaller() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let size = || std::fs::metadata(&path).unwrap().len();
        let count = |engine: &mut Redb| {
            let mut counted = Counted::default();
            engine.load(&mut counted).unwrap();
            counted.0
        };
        fill_file(&path, 64);
        let full = size();
        assert!(full > COMPACTION_MIN_BYTES, "{full}");
        let mut engine = Redb::open(&path).unwrap();
        assert_eq!(count(&mut engine), 64);
        engine.settle(LogTime(999_999)).unwrap();
        assert!(size() > full / 2, "the last write is too recent");
        let reader = engine.database.readable().database();
        engine.settle(LogTime(2_000_000)).unwrap();
        assert!(size() > full / 2, "somebody reads");
        drop(reader);
        engine.settle(LogTime(2_000_000)).unwrap();
        assert!(size() < full / 8, "{} of {full}", size());
        assert_eq!(count(&mut engine), 64, "all records are still there");
        assert!(engine.database.readable().database().is_some(), "it can be read again");
        drop(engine);

        std::fs::remove_file(&path).unwrap();
        fill_file(&path, 1);
        let full = size();
        let mut engine = Redb::open(&path).unwrap();
        engine.load(&mut Counted::default()).unwrap();
        engine.settle(LogTime(9_000_000_000)).unwrap();
        assert!(size() > full / 2, "it is not mostly free");
    }
}
