//! The store of a stopped server, for commands that read it.

use std::io;
use std::path::{Path, PathBuf};

use pilothouse_types::object::Revision;
use redb::{Database, ReadableDatabase as _, ReadableTable as _};

use super::backup::Source;
use super::database::{FileFormat, OpenDatabase, catch_panic, fault, read_format};
use super::{COUNTERS, FIRST_REVISION_KEY, META};
use crate::backup::BackupSource;
use crate::engine::EngineError;

/// An open store that nobody writes. It keeps its format, so that the version of the server that wrote it can go on with it. redb itself
/// completes what a crash has left behind, and notes in the header that the file was open.
pub struct StoppedStore {
    path: PathBuf,
    database: OpenDatabase,
    highest_revision: Revision,
}

impl StoppedStore {
    /// Opens a file. Fails if a server uses it.
    pub fn open(path: &Path) -> Result<StoppedStore, EngineError> {
        if !path.try_exists()? {
            let missing = format!("{} does not exist", path.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, missing).into());
        }
        let (database, _) = OpenDatabase::open(path)?;
        let highest_revision = catch_panic(|| read_highest(&database, path))?;
        Ok(StoppedStore { path: path.to_owned(), database, highest_revision })
    }

    /// The highest revision of any type.
    pub fn highest_revision(&self) -> Revision {
        self.highest_revision
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn database(&self) -> &Database {
        &self.database
    }

    /// Writes backups of it, as long as it is open.
    pub fn backup_source(&self) -> impl BackupSource + use<> {
        Source::new(self.path.clone(), self.database.readable())
    }
}

fn read_highest(database: &OpenDatabase, path: &Path) -> Result<Revision, EngineError> {
    if read_format(database, path)? == FileFormat::Empty {
        return Err(EngineError::Damaged(format!("{} is not a store", path.display())));
    }
    let transaction = database.begin_read().map_err(|error| fault(path, error))?;
    let meta = transaction.open_table(META).map_err(|error| fault(path, error))?;
    let first = meta.get(FIRST_REVISION_KEY).map_err(|error| fault(path, error))?;
    let mut highest = first.map_or(Revision::FIRST, |first| Revision(first.value()));
    let counters = transaction.open_table(COUNTERS).map_err(|error| fault(path, error))?;
    for counter in counters.iter().map_err(|error| fault(path, error))? {
        let (_, last) = counter.map_err(|error| fault(path, error))?;
        highest = highest.max(Revision(last.value()));
    }
    Ok(highest)
}
