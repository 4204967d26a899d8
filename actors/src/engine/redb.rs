//! The log in a redb file.
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | `format` | the format of this file |
//! | `meta` | `record_bytes` | the bytes of all records when the server was last idle |
//! | `types` | name of a type | its id |
//! | `counters` | id | last revision of the type |
//! | `log` | (id, revision) | the record |
//!
//! All changes of a batch are one redb transaction with one sync.

mod reader;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pilothouse_types::object::{Revision, TypeName};
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableHandle};

use self::reader::Reader;
use super::{Batch, Counters, Engine, EngineError, Stats, Visitor};
use crate::archive::Archive;
use crate::engine::record::Record;
use crate::limits::{COMPACTION_MIN_BYTES, COMPACTION_MIN_RATIO, REDB_CACHE_BYTES};

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const TYPES: TableDefinition<&str, u32> = TableDefinition::new("types");
const COUNTERS: TableDefinition<u32, u64> = TableDefinition::new("counters");
const LOG: TableDefinition<(u32, u64), &[u8]> = TableDefinition::new("log");

/// The key under which `meta` keeps the format.
const FORMAT_KEY: &str = "format";
/// The key under which `meta` keeps the size of the records.
const RECORD_BYTES_KEY: &str = "record_bytes";
/// The table layout that this code writes, and the only one that it reads.
const FORMAT: u64 = 1;
/// The file format of redb itself, which only redb can check.
const REDB_FORMAT: u64 = 3;

/// How long closing waits for a reader of the archive, and in how many steps.
const CLOSING_STEPS: u32 = 400;
const CLOSING_STEP: Duration = Duration::from_millis(5);

/// The open file.
pub struct Redb {
    path: PathBuf,
    database: OpenDatabase,
    /// The ids of all types in the file.
    ids: HashMap<TypeName, u32>,
    counters: Counters,
    records: u64,
    /// The size of all records, without what redb needs around them.
    record_bytes: u64,
    /// Whether a crash now would require a walk over the whole file when it is opened.
    unsettled: bool,
    repaired: bool,
    /// A buffer for encoding records, kept so that a commit allocates nothing per record.
    scratch: Vec<u8>,
}

/// An open database. Closing writes to the file and may panic on damage that was never read before; this catches the panic.
///
/// Readers of the archive hold it as well, for the time of one read.
struct OpenDatabase(Option<Arc<Database>>);

impl Deref for OpenDatabase {
    type Target = Database;

    #[expect(clippy::expect_used, reason = "only drop takes it out")]
    fn deref(&self) -> &Database {
        self.0.as_ref().expect("an open database")
    }
}

impl Drop for OpenDatabase {
    fn drop(&mut self) {
        let database = self.0.take();
        // The file may be reopened when this returns, so a read in progress is waited for.
        for _ in 0..CLOSING_STEPS {
            if database.as_ref().is_none_or(|database| Arc::strong_count(database) == 1) {
                break;
            }
            std::thread::sleep(CLOSING_STEP);
        }
        if let Err(error) = catch_panic(|| {
            drop(database);
            Ok(())
        }) {
            tracing::error!(%error, "the store was not closed cleanly");
        }
    }
}

impl Redb {
    /// Opens the file, or creates it. A large file that is mostly free is compacted.
    pub fn open(path: &Path) -> Result<Redb, EngineError> {
        Redb::open_and_compact(path, COMPACTION_MIN_BYTES)
    }

    fn open_and_compact(path: &Path, from_bytes: u64) -> Result<Redb, EngineError> {
        let is_new = !path.exists();
        if is_new {
            // Regardless of the umask: the file contains Secrets.
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        }
        let repaired = Arc::new(AtomicBool::new(false));
        let database = catch_panic(|| {
            let was_repaired = Arc::clone(&repaired);
            let mut builder = Database::builder();
            builder.set_cache_size(REDB_CACHE_BYTES);
            builder.set_repair_callback(move |_| was_repaired.store(true, Ordering::SeqCst));
            builder.create(path).map_err(|error| fault(path, error))
        })?;
        let database = OpenDatabase(Some(Arc::new(database)));
        // Also for an existing file: the process that created it may have died before this.
        sync_folder(path)?;
        let repaired = repaired.load(Ordering::SeqCst);
        if repaired {
            tracing::info!(path = %path.display(), "the store was not closed cleanly; it has been checked and is sound");
        }
        let mut engine = Redb {
            path: path.to_owned(),
            database,
            ids: HashMap::new(),
            counters: Counters::default(),
            records: 0,
            record_bytes: 0,
            unsettled: repaired,
            repaired,
            scratch: Vec::new(),
        };
        catch_panic(|| engine.check_format())?;
        catch_panic(|| engine.read_counters())?;
        catch_panic(|| engine.compact(from_bytes))?;
        Ok(engine)
    }

    /// Gives free pages back to the system, if the file is large and most of it is free. redb itself only reuses them.
    fn compact(&mut self, from_bytes: u64) -> Result<(), EngineError> {
        let before = std::fs::metadata(&self.path)?.len();
        let is_mostly_free = self.record_bytes.saturating_mul(COMPACTION_MIN_RATIO) < before;
        // After a crash the size of the records is that of an earlier time.
        if self.repaired || before < from_bytes || !is_mostly_free {
            return Ok(());
        }
        let Some(database) = self.database.0.as_mut().and_then(Arc::get_mut) else { return Ok(()) };
        let (path, record_bytes) = (self.path.display(), self.record_bytes);
        tracing::info!(%path, file_bytes = before, record_bytes, "compacting the store file");
        database.compact().map_err(|error| fault(&self.path, error))?;
        self.unsettled = true;
        let after = std::fs::metadata(&self.path)?.len();
        tracing::info!(%path, file_bytes = after, "compacted the store file");
        Ok(())
    }

    /// Whether opening had to walk the whole file, because the last process neither closed nor settled it.
    pub fn repaired(&self) -> bool {
        self.repaired
    }

    fn check_format(&mut self) -> Result<(), EngineError> {
        let transaction = self.database.begin_read().map_err(|error| self.fault(error))?;
        let tables: Vec<String> = transaction
            .list_tables()
            .map_err(|error| self.fault(error))?
            .map(|table| table.name().to_owned())
            .collect();
        if tables.is_empty() {
            return self.create_tables();
        }
        let meta = transaction.open_table(META).map_err(|error| self.fault(error))?;
        match meta.get(FORMAT_KEY).map_err(|error| self.fault(error))?.map(|format| format.value()) {
            Some(FORMAT) => Ok(()),
            Some(actual) => Err(EngineError::Format { actual, supported: FORMAT }),
            None => Err(EngineError::Damaged(format!("{} does not name its format", self.path.display()))),
        }
    }

    fn create_tables(&mut self) -> Result<(), EngineError> {
        let transaction = self.database.begin_write().map_err(|error| self.fault(error))?;
        {
            let mut meta = transaction.open_table(META).map_err(|error| self.fault(error))?;
            meta.insert(FORMAT_KEY, FORMAT).map_err(|error| self.fault(error))?;
            transaction.open_table(TYPES).map_err(|error| self.fault(error))?;
            transaction.open_table(COUNTERS).map_err(|error| self.fault(error))?;
            transaction.open_table(LOG).map_err(|error| self.fault(error))?;
        }
        self.unsettled = true;
        transaction.commit().map_err(|error| self.fault(error))
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
            self.counters.0.insert(name.clone(), Revision(last.value()));
            self.ids.insert(name, id);
        }
        let log = transaction.open_table(LOG).map_err(|error| fault(path, error))?;
        self.records = log.len().map_err(|error| fault(path, error))?;
        let meta = transaction.open_table(META).map_err(|error| fault(path, error))?;
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
        let mut current = None;
        let (mut records, mut record_bytes) = (0, 0);
        let transaction = self.database.begin_read().map_err(|error| self.fault(error))?;
        let log = transaction.open_table(LOG).map_err(|error| self.fault(error))?;
        for entry in log.iter().map_err(|error| self.fault(error))? {
            let (place, bytes) = entry.map_err(|error| self.fault(error))?;
            let (id, revision) = place.value();
            while let Some((next, name)) = types.next_if(|(next, _)| *next <= id) {
                current = Some(next);
                visitor.begin_type(name.clone(), self.last(name))?;
            }
            if current != Some(id) {
                return Err(EngineError::Damaged(format!("the log has a record of the unknown type {id}")));
            }
            let revision = Revision(revision);
            visitor.record(revision, Record::decode(id, revision, bytes.value())?)?;
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
            let mut types = transaction.open_table(TYPES).map_err(|error| fault(path, error))?;
            for (name, id) in &new_ids {
                types.insert(name.as_str(), id).map_err(|error| fault(path, error))?;
            }
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
                let record = Record::decode(id, Revision(revision), bytes.value())?;
                if record.key() == key {
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
        self.counters.0.get(name).copied().unwrap_or(Revision::FIRST)
    }

    fn fault(&self, error: impl Into<redb::Error>) -> EngineError {
        fault(&self.path, error)
    }
}

impl Engine for Redb {
    fn load(&mut self, visitor: &mut dyn Visitor) -> Result<(), EngineError> {
        self.record_bytes = catch_panic(|| self.scan(visitor))?;
        Ok(())
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        self.write(batch)
    }

    fn settle(&mut self) -> Result<(), EngineError> {
        if !self.unsettled {
            return Ok(());
        }
        // A plain commit costs half as much, but drops redb's list of free pages; after a crash that list must be rebuilt by a
        // walk over the file. So the list is written while the server is idle.
        let mut transaction = self.database.begin_write().map_err(|error| self.fault(error))?;
        transaction.set_quick_repair(true);
        {
            let mut meta = transaction.open_table(META).map_err(|error| self.fault(error))?;
            meta.insert(RECORD_BYTES_KEY, self.record_bytes).map_err(|error| self.fault(error))?;
        }
        transaction.commit().map_err(|error| self.fault(error))?;
        self.unsettled = false;
        Ok(())
    }

    fn archive(&self) -> Option<Arc<dyn Archive>> {
        let database = self.database.0.as_ref().map(Arc::downgrade)?;
        Some(Arc::new(Reader::new(self.path.clone(), database)))
    }

    fn stats(&self) -> Result<Stats, EngineError> {
        let file_bytes = std::fs::metadata(&self.path)?.len();
        Ok(Stats { records: self.records, file_bytes })
    }

    fn close(mut self: Box<Self>) -> Result<(), EngineError> {
        // Dropping the database writes the same list, but reports no errors.
        catch_panic(|| self.settle())
    }
}

/// Runs work and turns a panic into an error. redb trusts pages that it did not have to repair, and may panic on damaged ones:
/// at start and shutdown the server must not crash for that.
fn catch_panic<T>(work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("inconsistent pages");
        Err(EngineError::Damaged(text.to_owned()))
    })
}

fn fault(path: &Path, error: impl Into<redb::Error>) -> EngineError {
    match error.into() {
        redb::Error::DatabaseAlreadyOpen => EngineError::Locked(path.to_owned()),
        redb::Error::UpgradeRequired(actual) => {
            EngineError::Format { actual: actual.into(), supported: REDB_FORMAT }
        }
        redb::Error::Io(error) if !is_corrupt_content(&error) => EngineError::Io(error),
        error @ (redb::Error::PreviousIo | redb::Error::DatabaseClosed) => {
            EngineError::Io(io::Error::other(error.to_string()))
        }
        error => EngineError::Damaged(format!("{}: {error}", path.display())),
    }
}

/// Whether an error means corrupt content: an invalid value, or an unexpected end.
fn is_corrupt_content(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// A new file is durable only after its directory entry is synced.
fn sync_folder(path: &Path) -> Result<(), EngineError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(File::open(folder)?.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes records into a file until it has about 8 MiB, and trims all but every n-th of them.
    fn fill_file(path: &Path, keep_every: u64) {
        use pilothouse_types::clock::Timestamp;
        use pilothouse_types::object::{Draft, Key, Object, Pairs};

        use crate::engine::Write;
        use crate::engine::record::Operation;

        let pods = TypeName::new("pods");
        let mut engine = Box::new(Redb::open(path).unwrap());
        engine.load(&mut Counted::default()).unwrap();
        let body = bytes::Bytes::from(format!(r#"{{"resourceVersion":"","x":"{}"}}"#, "x".repeat(4_000)));
        for batch in 0..8 {
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
                let record = Record { operation, accepted_at: Timestamp(0) };
                Write { type_name: pods.clone(), revision: Revision(revision), record }
            });
            engine.commit(&Batch { writes: writes.collect(), trims: Vec::new() }).unwrap();
        }
        let trimmed = (2..2_050).filter(|revision| revision % keep_every != 0);
        let trims = trimmed.map(|revision| (pods.clone(), Revision(revision))).collect();
        engine.commit(&Batch { writes: Vec::new(), trims }).unwrap();
        engine.close().unwrap();
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
    fn open_compacts_large_mostly_free_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let size = || std::fs::metadata(&path).unwrap().len();
        let reopen = |from_bytes| {
            let mut engine = Box::new(Redb::open_and_compact(&path, from_bytes).unwrap());
            let mut counted = Counted::default();
            engine.load(&mut counted).unwrap();
            engine.close().unwrap();
            counted.0
        };
        fill_file(&path, 64);
        let full = size();
        assert!(full > 8 << 20, "{full}");
        assert_eq!((reopen(full + 1), size()), (32, full), "not large enough to be worth it");
        assert_eq!(reopen(full), 32);
        assert!(size() < full / 4, "{} of {full}", size());
        assert_eq!(reopen(full), 32, "all records are still there");

        std::fs::remove_file(&path).unwrap();
        fill_file(&path, 1);
        let full = size();
        assert_eq!((reopen(1), size()), (2_048, full), "not mostly free");
    }

    #[test]
    fn invalid_content_is_damage_and_full_disk_is_io_error() {
        let engine_error = |kind: io::ErrorKind| fault(Path::new("log"), redb::Error::Io(kind.into()));
        assert!(matches!(engine_error(io::ErrorKind::UnexpectedEof), EngineError::Damaged(_)));
        assert!(matches!(engine_error(io::ErrorKind::InvalidData), EngineError::Damaged(_)));
        assert!(matches!(engine_error(io::ErrorKind::StorageFull), EngineError::Io(_)));
    }
}
