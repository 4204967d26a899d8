//! The file of the store, as redb uses it.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io;
use std::ops::Bound;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};

use super::database::catch_panic;
use crate::engine::EngineError;

/// How the file of a store is opened. Tests put faults between redb and the file.
pub(super) type OpenFile = Arc<dyn Fn(&Path) -> Result<Box<dyn StorageBackend>, DatabaseError> + Send + Sync>;

/// Opens a file of the system, or creates it.
pub(super) fn system_files() -> OpenFile {
    Arc::new(|path| {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Box::new(FileBackend::new(file)?))
    })
}

thread_local! {
    /// Whether this thread runs [`read_apart`].
    static READS_APART: Cell<bool> = const { Cell::new(false) };
}

/// What unwinds [`read_apart`].
pub(super) struct UnreadablePage(pub(super) io::Error);

/// Runs work that only reads, and on which no write depends: the history, or a backup. An error of the disk fails that work and
/// nothing else.
///
/// redb refuses everything after any error of its file, so such an error must not reach it. A panic does not concern it: a read
/// transaction changes nothing and holds no lock while it reads the file.
pub(super) fn read_apart<T>(work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    READS_APART.set(true);
    let output = catch_panic(work);
    READS_APART.set(false);
    output
}

/// The file, whose syncs never fail for lack of space. A write that finds the disk full has changed nothing that counts; but after a
/// failed sync the pages may be in memory and not on disk, whatever the reason, so the state is unknown.
#[derive(Debug)]
pub(super) struct SyncedFile(pub(super) Box<dyn StorageBackend>);

impl StorageBackend for SyncedFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.0.read(offset, out) {
            // Not `panic`: that would report a bug.
            Err(error) if READS_APART.get() => resume_unwind(Box::new(UnreadablePage(error))),
            read => read,
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data().map_err(|error| io::Error::other(format!("a sync failed: {error}")))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}
