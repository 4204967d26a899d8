//! Backups of a redb log, and their restoration into a new file.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use pilothouse_types::object::{Revision, TypeName};
use redb::{Database, ReadableDatabase as _, ReadableTable as _};

use super::database::{OpenDatabase, ReadableHandle, fault, sync_folder, write_format};
use super::synced_file::read_apart;
use super::{COUNTERS, FIRST_REVISION_KEY, LOG, META, RECORD_BYTES_KEY, TYPES, insert_types};
use crate::backup::{
    About, BackedUpType, BackupError, BackupReader, BackupSource, BackupWriter, Entry, Totals,
};
use crate::engine::EngineError;
use crate::engine::record::RecordHead;
use crate::limits::BATCH_BYTES;

/// Writes backups of an open database, each from a read transaction of its own: the engine goes on writing.
pub(super) struct Source {
    path: PathBuf,
    database: ReadableHandle,
}

impl Source {
    /// Backs up an open database, which it does not keep open.
    pub(super) fn new(path: PathBuf, database: ReadableHandle) -> Source {
        Source { path, database }
    }
}

impl BackupSource for Source {
    fn write_to(&self, about: &About, out: &mut dyn Write) -> Result<Totals, BackupError> {
        let database = self.database.lock().upgrade();
        let database = database.ok_or_else(|| BackupError::Source("it is closed".to_owned()))?;
        let mut written = Ok(Totals::default());
        let read = read_apart(|| {
            written = write_all(&database, &self.path, BackupWriter::begin(out, about)?)?;
            Ok(())
        });
        read.map_err(|error| BackupError::Source(error.to_string()))?;
        written
    }
}

/// Writes everything. The outer error is one of the log, the inner one of the output.
fn write_all<W: Write>(
    database: &Database,
    path: &Path,
    mut writer: BackupWriter<W>,
) -> Result<Result<Totals, BackupError>, EngineError> {
    let transaction = database.begin_read().map_err(|error| fault(path, error))?;
    let types = transaction.open_table(TYPES).map_err(|error| fault(path, error))?;
    let counters = transaction.open_table(COUNTERS).map_err(|error| fault(path, error))?;
    let log = transaction.open_table(LOG).map_err(|error| fault(path, error))?;
    let mut backed_up = Vec::new();
    for entry in types.iter().map_err(|error| fault(path, error))? {
        let (name, id) = entry.map_err(|error| fault(path, error))?;
        let (name, id) = (TypeName::new(name.value()), id.value());
        let last = counters.get(id).map_err(|error| fault(path, error))?;
        let last = last.map_or(Revision::FIRST, |last| Revision(last.value()));
        backed_up.push(BackedUpType { id, name, last });
    }
    backed_up.sort_by_key(|backed_up| backed_up.id);
    for backed_up in &backed_up {
        if let Err(error) = writer.begin_type(backed_up) {
            return Ok(Err(error.into()));
        }
        let id = backed_up.id;
        for entry in log.range((id, 0)..=(id, u64::MAX)).map_err(|error| fault(path, error))? {
            let (place, bytes) = entry.map_err(|error| fault(path, error))?;
            if let Err(error) = writer.record(Revision(place.value().1), bytes.value()) {
                return Ok(Err(error.into()));
            }
        }
    }
    Ok(writer.finish().map(|(_, totals)| totals).map_err(BackupError::from))
}

/// What a restoration has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// What the backup held.
    pub totals: Totals,
    /// The revision from which all types go on.
    pub first_revision: Revision,
}

/// Why a backup was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The backup cannot be read.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The new file cannot be written.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// There is a store already.
    #[error("{} exists: move it away, or restore into another directory", .0.display())]
    Exists(PathBuf),
    /// The content of the backup cannot be that of a log.
    #[error("the backup is not one of a log: {0}")]
    Invalid(&'static str),
}

/// Revisions and times above this are not from a log, and would leave no room for later ones.
const HIGHEST: u64 = 1 << 62;

/// Writes a backup into a new file at `path`. All types go on above `first_revision`, also those that the backup does not know: no
/// revision that was given since the backup is ever given again, and whoever continues from one learns that it has expired.
///
/// A store that is there already is kept under the name `aside`, or is an error. Nothing is there under `path` but the old store or the
/// whole new one, whatever happens.
pub fn restore<R: Read>(
    path: &Path,
    aside: Option<&Path>,
    backup: BackupReader<R>,
    first_revision: impl FnOnce(Revision) -> Revision,
) -> Result<Restored, RestoreError> {
    restore_entries(path, aside, backup, first_revision)
}

/// What a store is restored from.
pub(super) trait Entries {
    /// The next entry. After [`Entry::End`] there is none.
    fn next(&mut self) -> Result<Entry<'_>, RestoreError>;
}

impl<R: Read> Entries for BackupReader<R> {
    fn next(&mut self) -> Result<Entry<'_>, RestoreError> {
        Ok(BackupReader::next(self)?)
    }
}

/// The same as [`restore`], from any source.
pub(super) fn restore_entries(
    path: &Path,
    aside: Option<&Path>,
    entries: impl Entries,
    first_revision: impl FnOnce(Revision) -> Revision,
) -> Result<Restored, RestoreError> {
    if aside.is_none() && path.exists() {
        return Err(RestoreError::Exists(path.to_owned()));
    }
    // A restoration that was cut short must not look like a store, and two at a time must not write into each other.
    let unfinished = path.with_extension(format!("{}.restoring", std::process::id()));
    let restored = write_unfinished(&unfinished, entries, first_revision).and_then(|restored| {
        publish(&unfinished, path, aside)?;
        Ok(restored)
    });
    let _published = fs::remove_file(&unfinished);
    restored
}

fn write_unfinished(
    unfinished: &Path,
    mut entries: impl Entries,
    first_revision: impl FnOnce(Revision) -> Revision,
) -> Result<Restored, RestoreError> {
    let _absent = fs::remove_file(unfinished);
    let options = OpenOptions::new().write(true).create_new(true).mode(0o600).clone();
    options.open(unfinished).map_err(EngineError::from)?;
    let (database, _) = OpenDatabase::open(unfinished)?;
    let mut restoration = Restoration { database: &database, path: unfinished, record_bytes: 0 };
    let (types, totals) = restoration.copy_records(&mut entries)?;
    let highest = types.iter().map(|backed_up| backed_up.last).max().unwrap_or(Revision::FIRST);
    let first_revision = first_revision(highest).max(highest);
    restoration.finish(&types, first_revision)?;
    Ok(Restored { totals, first_revision })
}

/// Gives the new store its name.
fn publish(unfinished: &Path, path: &Path, aside: Option<&Path>) -> Result<(), RestoreError> {
    let published = match aside.filter(|_| path.exists()) {
        Some(aside) => fs::hard_link(path, aside).and_then(|()| fs::rename(unfinished, path)),
        // Unlike a rename, this fails if a server has made a store meanwhile.
        None => fs::hard_link(unfinished, path),
    };
    published.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => RestoreError::Exists(path.to_owned()),
        _ => RestoreError::Engine(error.into()),
    })?;
    Ok(sync_folder(path)?)
}

fn check_type(backed_up: &BackedUpType, before: Option<&BackedUpType>) -> Result<(), RestoreError> {
    let follows = before.is_none_or(|before| before.id < backed_up.id);
    if !follows || backed_up.id == u32::MAX || backed_up.last.0 > HIGHEST {
        return Err(RestoreError::Invalid("its types have impossible numbers"));
    }
    Ok(())
}

/// A restoration in progress.
struct Restoration<'a> {
    database: &'a Database,
    path: &'a Path,
    record_bytes: u64,
}

impl Restoration<'_> {
    /// Copies all records, and returns the types.
    fn copy_records(
        &mut self,
        entries: &mut impl Entries,
    ) -> Result<(Vec<BackedUpType>, Totals), RestoreError> {
        let mut types: Vec<BackedUpType> = Vec::new();
        loop {
            // One transaction for everything would hold all of it in memory.
            let path = self.path;
            let transaction = self.database.begin_write().map_err(|error| fault(path, error))?;
            let mut bytes_in_batch = 0;
            let totals = {
                let mut log = transaction.open_table(LOG).map_err(|error| fault(path, error))?;
                loop {
                    match entries.next()? {
                        Entry::Type(backed_up) => {
                            check_type(&backed_up, types.last())?;
                            types.push(backed_up);
                        }
                        Entry::Record(revision, bytes) => {
                            let Some(BackedUpType { id, last, .. }) = types.last() else {
                                return Err(RestoreError::Invalid("a record has no type"));
                            };
                            let (id, (head, _)) = (*id, RecordHead::split(*id, revision, bytes)?);
                            if revision > *last || head.accepted_at.log.0 > HIGHEST {
                                return Err(RestoreError::Invalid("a record is later than the backup"));
                            }
                            log.insert((id, revision.0), bytes).map_err(|error| fault(path, error))?;
                            bytes_in_batch += bytes.len();
                        }
                        Entry::End(totals) => break Some(totals),
                    }
                    if bytes_in_batch > BATCH_BYTES {
                        break None;
                    }
                }
            };
            transaction.commit().map_err(|error| fault(path, error))?;
            self.record_bytes += bytes_in_batch as u64;
            if let Some(totals) = totals {
                return Ok((types, totals));
            }
        }
    }

    /// Writes everything that makes the file a store.
    fn finish(&self, types: &[BackedUpType], first_revision: Revision) -> Result<(), EngineError> {
        let path = self.path;
        let transaction = self.database.begin_write().map_err(|error| fault(path, error))?;
        {
            insert_types(&transaction, path, types.iter().map(|backed_up| (&backed_up.name, &backed_up.id)))?;
            let mut counters = transaction.open_table(COUNTERS).map_err(|error| fault(path, error))?;
            for BackedUpType { id, .. } in types {
                counters.insert(id, first_revision.0).map_err(|error| fault(path, error))?;
            }
            let mut meta = transaction.open_table(META).map_err(|error| fault(path, error))?;
            meta.insert(FIRST_REVISION_KEY, first_revision.0).map_err(|error| fault(path, error))?;
            meta.insert(RECORD_BYTES_KEY, self.record_bytes).map_err(|error| fault(path, error))?;
        }
        transaction.commit().map_err(|error| fault(path, error))?;
        write_format(self.database, path)
    }
}
