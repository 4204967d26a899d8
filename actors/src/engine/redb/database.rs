//! The open redb file: opening it, its format, and closing it.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use pilothouse_types::lock::Lock;
use redb::{Database, ReadableDatabase as _, TableHandle as _};

use super::synced_file::{OpenFile, SyncedFile, UnreadablePage, system_files};
use super::{ABOUT, COUNTERS, FORMAT, FORMAT_KEY, LOG, META, OLDEST_FORMAT, REDB_FORMAT, TYPES, VERSION_KEY};
use crate::engine::EngineError;
use crate::limits::REDB_CACHE_BYTES;

/// How long closing waits until readers have noticed it, and in how many steps: longer than a backup waits for its client.
const CLOSING_STEPS: u32 = 3_000;
const CLOSING_STEP: Duration = Duration::from_millis(5);

/// The version of this program, which the file names: if its format is too new for another version, that one can say what reads it.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// An open database. Closing writes to the file and may panic on damage that was never read before; this catches the panic.
///
/// Readers of the archive hold it as well, for the time of one read.
pub(super) struct OpenDatabase {
    database: Option<Arc<Database>>,
    /// The same database for readers, also after it was opened again.
    readable: ReadableHandle,
    open_file: OpenFile,
}

/// How readers reach the database.
pub(super) type ReadableHandle = Arc<ReadAccess>;

/// The database for readers, as long as it is open.
pub(super) struct ReadAccess {
    database: Lock<Weak<Database>>,
    is_closing: AtomicBool,
}

impl ReadAccess {
    fn new(database: &Arc<Database>) -> ReadAccess {
        ReadAccess { database: Lock::new(Arc::downgrade(database)), is_closing: AtomicBool::new(false) }
    }

    /// The database, for one read. Waits while it is opened again; `None` once it is closed.
    pub(super) fn database(&self) -> Option<Arc<Database>> {
        self.database.lock().upgrade()
    }

    /// Fails if the database is to be closed, or opened again: that waits for all reads. A read of many records asks before each.
    pub(super) fn check_open(&self) -> Result<(), EngineError> {
        match self.is_closing.load(Ordering::Relaxed) {
            true => Err(io::Error::new(io::ErrorKind::Interrupted, "the file is being closed").into()),
            false => Ok(()),
        }
    }
}

impl Deref for OpenDatabase {
    type Target = Database;

    #[expect(
        clippy::expect_used,
        reason = "only closing takes it out, and reopening fails the engine if it cannot put one back"
    )]
    fn deref(&self) -> &Database {
        self.database.as_ref().expect("an open database")
    }
}

impl Drop for OpenDatabase {
    fn drop(&mut self) {
        self.close();
    }
}

impl OpenDatabase {
    /// Opens the file, or creates it. Returns also whether it had to be repaired.
    pub(super) fn open(path: &Path) -> Result<(OpenDatabase, bool), EngineError> {
        OpenDatabase::open_with(path, system_files())
    }

    /// The same with another way to open the file.
    pub(super) fn open_with(path: &Path, open_file: OpenFile) -> Result<(OpenDatabase, bool), EngineError> {
        let is_new = !path.exists();
        if is_new {
            // Regardless of the umask: the file contains Secrets.
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        }
        let (database, is_repaired) = open_database(path, &open_file)?;
        let readable = Arc::new(ReadAccess::new(&database));
        let database = OpenDatabase { database: Some(database), readable, open_file };
        // Also for an existing file: the process that created it may have died before this.
        sync_folder(path)?;
        if is_repaired {
            tracing::info!(path = %path.display(), "the store was not closed cleanly; it has been checked and is sound");
        }
        Ok((database, is_repaired))
    }

    /// Closes the file and opens it again, because redb refuses to go on after an error of the system.
    pub(super) fn reopen(&mut self, path: &Path) -> Result<(), EngineError> {
        // Whoever wants to read meanwhile waits for the lock.
        let readable = Arc::clone(&self.readable);
        let mut for_readers = readable.database.lock();
        self.close();
        let (database, _) = open_database(path, &self.open_file).map_err(unknown_state)?;
        *for_readers = Arc::downgrade(&database);
        readable.is_closing.store(false, Ordering::Relaxed);
        self.database = Some(database);
        Ok(())
    }

    /// How readers reach it.
    pub(super) fn readable(&self) -> ReadableHandle {
        Arc::clone(&self.readable)
    }

    /// Runs work that needs sole access; `None` if somebody reads. Whoever wants to read meanwhile waits for the lock.
    pub(super) fn alone<T>(&mut self, work: impl FnOnce(&mut Database) -> T) -> Option<T> {
        let mut readable = self.readable.database.lock();
        *readable = Weak::new();
        let database = self.database.as_mut()?;
        let output = Arc::get_mut(database).map(work);
        *readable = Arc::downgrade(database);
        output
    }

    fn close(&mut self) {
        let Some(database) = self.database.take() else { return };
        // The file may be opened again when this returns, so a read in progress is waited for. It may be a backup that takes minutes.
        self.readable.is_closing.store(true, Ordering::Relaxed);
        for _ in 0..CLOSING_STEPS {
            if Arc::strong_count(&database) == 1 {
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

/// Opens the file, and says whether it had to be repaired.
fn open_database(path: &Path, open_file: &OpenFile) -> Result<(Arc<Database>, bool), EngineError> {
    let repaired = Arc::new(AtomicBool::new(false));
    let database = catch_panic(|| {
        let was_repaired = Arc::clone(&repaired);
        let mut builder = Database::builder();
        builder.set_cache_size(REDB_CACHE_BYTES);
        builder.set_repair_callback(move |_| was_repaired.store(true, Ordering::SeqCst));
        let file = open_file(path).map_err(|error| fault(path, error))?;
        builder.create_with_backend(SyncedFile(file)).map_err(|error| fault(path, error))
    })?;
    Ok((Arc::new(database), repaired.load(Ordering::SeqCst)))
}

/// The error of opening the file again: nobody knows what is in it, also if the disk is full.
pub(super) fn unknown_state(error: EngineError) -> EngineError {
    match error {
        EngineError::NoSpace => {
            EngineError::Io(io::Error::other("the disk is full, and the store cannot be opened again"))
        }
        error => error,
    }
}

/// The state of the format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileFormat {
    /// The file has no tables yet.
    Empty,
    /// The format that this code writes.
    Current,
    /// An older one, which [`write_format`] upgrades.
    Older(u64),
}

/// Reads the format of a file, and refuses one that this code cannot read.
pub(super) fn read_format(database: &Database, path: &Path) -> Result<FileFormat, EngineError> {
    let transaction = database.begin_read().map_err(|error| fault(path, error))?;
    let tables: Vec<String> = transaction
        .list_tables()
        .map_err(|error| fault(path, error))?
        .map(|table| table.name().to_owned())
        .collect();
    if tables.is_empty() {
        return Ok(FileFormat::Empty);
    }
    let meta = transaction.open_table(META).map_err(|error| fault(path, error))?;
    match meta.get(FORMAT_KEY).map_err(|error| fault(path, error))?.map(|format| format.value()) {
        Some(FORMAT) => Ok(FileFormat::Current),
        Some(older) if (OLDEST_FORMAT..FORMAT).contains(&older) => Ok(FileFormat::Older(older)),
        Some(actual) => {
            let is_named = tables.iter().any(|name| name == ABOUT.name());
            let about = is_named.then(|| transaction.open_table(ABOUT)).transpose();
            let about = about.map_err(|error| fault(path, error))?;
            let version = about.as_ref().map(|about| about.get(VERSION_KEY)).transpose();
            let version = version.map_err(|error| fault(path, error))?.flatten();
            let written_by = version.map(|version| version.value().to_owned());
            Err(EngineError::Format { actual, oldest: OLDEST_FORMAT, newest: FORMAT, written_by })
        }
        None => Err(EngineError::Damaged(format!("{} does not name its format", path.display()))),
    }
}

/// Creates the tables that are missing, and writes the present format and version.
pub(super) fn write_format(database: &Database, path: &Path) -> Result<(), EngineError> {
    let transaction = database.begin_write().map_err(|error| fault(path, error))?;
    {
        let mut meta = transaction.open_table(META).map_err(|error| fault(path, error))?;
        meta.insert(FORMAT_KEY, FORMAT).map_err(|error| fault(path, error))?;
        let mut about = transaction.open_table(ABOUT).map_err(|error| fault(path, error))?;
        about.insert(VERSION_KEY, VERSION).map_err(|error| fault(path, error))?;
        transaction.open_table(TYPES).map_err(|error| fault(path, error))?;
        transaction.open_table(COUNTERS).map_err(|error| fault(path, error))?;
        transaction.open_table(LOG).map_err(|error| fault(path, error))?;
    }
    transaction.commit().map_err(|error| fault(path, error))
}

/// Runs work and turns a panic into an error. redb trusts pages that it did not have to repair, and may panic on damaged ones:
/// at start and shutdown the server must not crash for that.
pub(super) fn catch_panic<T>(work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let panic = match panic.downcast::<UnreadablePage>() {
            Ok(unreadable) if is_corrupt_content(&unreadable.0) => {
                return Err(EngineError::Damaged(unreadable.0.to_string()));
            }
            Ok(unreadable) => return Err(EngineError::Io(unreadable.0)),
            Err(panic) => panic,
        };
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("inconsistent pages");
        Err(EngineError::Damaged(text.to_owned()))
    })
}

/// The error of the engine for an error of redb.
pub(super) fn fault(path: &Path, error: impl Into<redb::Error>) -> EngineError {
    match error.into() {
        redb::Error::DatabaseAlreadyOpen => EngineError::Locked(path.to_owned()),
        redb::Error::UpgradeRequired(actual) => EngineError::Format {
            actual: actual.into(),
            oldest: REDB_FORMAT,
            newest: REDB_FORMAT,
            written_by: None,
        },
        redb::Error::Io(error) if is_full_disk(&error) => EngineError::NoSpace,
        redb::Error::Io(error) if !is_corrupt_content(&error) => EngineError::Io(error),
        error @ (redb::Error::PreviousIo | redb::Error::DatabaseClosed) => {
            EngineError::Io(io::Error::other(error.to_string()))
        }
        error => EngineError::Damaged(format!("{}: {error}", path.display())),
    }
}

/// Whether an error means that the disk, or the part of it that this user may have, is used up.
fn is_full_disk(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether an error means corrupt content: an invalid value, or an unexpected end.
fn is_corrupt_content(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// A new file is durable only after its directory entry is synced.
pub(super) fn sync_folder(path: &Path) -> Result<(), EngineError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(File::open(folder)?.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_content_is_damage_and_full_disk_is_no_space() {
        let engine_error = |kind: io::ErrorKind| fault(Path::new("log"), redb::Error::Io(kind.into()));
        assert!(matches!(engine_error(io::ErrorKind::UnexpectedEof), EngineError::Damaged(_)));
        assert!(matches!(engine_error(io::ErrorKind::InvalidData), EngineError::Damaged(_)));
        assert!(matches!(engine_error(io::ErrorKind::StorageFull), EngineError::NoSpace));
        assert!(matches!(engine_error(io::ErrorKind::QuotaExceeded), EngineError::NoSpace));
        assert!(matches!(engine_error(io::ErrorKind::TimedOut), EngineError::Io(_)));
    }
}
