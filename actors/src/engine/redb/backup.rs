//! Backups of a redb log, and their restoration into a new file.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use pilothouse_types::object::{Revision, TypeName};
use redb::{Database, ReadableDatabase as _, ReadableTable as _};

use super::database::{OpenDatabase, ReadableHandle, fault, sync_folder, write_format};
use super::pages::{Owner, PageFile, owner};
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
        let database = self.database.database();
        let database = database.ok_or_else(|| BackupError::Source("it is closed".to_owned()))?;
        let mut written = Ok(Totals::default());
        let read = read_apart(|| {
            written = self.write_all(&database, BackupWriter::begin(out, about)?)?;
            Ok(())
        });
        read.map_err(|error| BackupError::Source(error.to_string()))?;
        written
    }
}

impl Source {
    /// Writes everything. The outer error is one of the log, the inner one of the output.
    fn write_all<W: Write>(
        &self,
        database: &Database,
        mut writer: BackupWriter<W>,
    ) -> Result<Result<Totals, BackupError>, EngineError> {
        let path = &self.path;
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
                self.database.check_open()?;
                let (place, bytes) = entry.map_err(|error| fault(path, error))?;
                if let Err(error) = writer.record(Revision(place.value().1), bytes.value()) {
                    return Ok(Err(error.into()));
                }
            }
        }
        Ok(writer.finish().map(|(_, totals)| totals).map_err(BackupError::from))
    }
}

/// What a restoration has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// What the backup held.
    pub totals: Totals,
    /// The revision from which all types go on.
    pub first_revision: Revision,
    /// What has failed after the new store got its name, and needs the attention of a person.
    pub warnings: Vec<String>,
    /// Whether the new store is still there after a failure of power, as far as the system says.
    pub is_durable: bool,
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
    /// The store that was to be replaced is not there any more, or is another one.
    #[error("{} is not the store any more that was there at first: nothing was replaced", .0.display())]
    Changed(PathBuf),
    /// The content cannot be that of a log.
    #[error("the content is not that of a log: {0}")]
    Invalid(&'static str),
    /// What the store was to be made of cannot be had.
    #[error("{0}")]
    Source(String),
}

/// Revisions and times above this are not from a log, and would leave no room for later ones.
const HIGHEST: u64 = 1 << 62;

/// Writes a backup into a new file at `path`. All types go on above `first_revision`, also those that the backup does not know: no
/// revision that was given since the backup is ever given again, and whoever continues from one learns that it has expired.
///
/// A store that is there already is kept under the name `aside`, or is an error; nobody else can open it meanwhile. Nothing is there
/// under `path` but the old store or the whole new one, whatever happens.
pub fn restore<R: Read>(
    path: &Path,
    aside: Option<&Path>,
    mut backup: BackupReader<R>,
    first_revision: impl FnOnce(Revision) -> Revision,
) -> Result<Restored, RestoreError> {
    // Until it is replaced: a server must not begin to write what would be put aside.
    let old = aside.map(|aside| Ok((open_old(path)?, aside))).transpose().map_err(RestoreError::Engine)?;
    let old = old.as_ref().and_then(|(file, aside)| Some(OldStore { file: file.as_ref()?, aside }));
    let owner = old.as_ref().map(|old| old.file.owner());
    restore_entries(&NewPlace { path, old, owner }, &mut backup, first_revision)
}

/// The store at this place, if there is one.
fn open_old(path: &Path) -> Result<Option<PageFile>, EngineError> {
    match PageFile::open_alone(path) {
        Ok(file) => Ok(Some(file)),
        Err(EngineError::Io(error)) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A store that is to be replaced. Nobody else can open it, so that nobody replaces it or writes to it meanwhile.
pub(super) struct OldStore<'a> {
    /// The open file.
    pub(super) file: &'a PageFile,
    /// The name that it keeps.
    pub(super) aside: &'a Path,
}

/// Where a new store is made.
pub(super) struct NewPlace<'a> {
    pub(super) path: &'a Path,
    pub(super) old: Option<OldStore<'a>>,
    /// Whose store it shall be; otherwise that of whoever has the directory.
    pub(super) owner: Option<Owner>,
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
    place: &NewPlace<'_>,
    entries: &mut impl Entries,
    first_revision: impl FnOnce(Revision) -> Revision,
) -> Result<Restored, RestoreError> {
    let path = place.path;
    if place.old.is_none() && path.exists() {
        return Err(RestoreError::Exists(path.to_owned()));
    }
    remove_remains(path);
    // A restoration that was cut short must not look like a store, and two at a time must not write into each other. In a container the
    // process id is the same one each time.
    let number = RandomState::new().hash_one(std::process::id());
    let unfinished = path.with_extension(format!("{number:016x}.restoring"));
    let restored = write_unfinished(&unfinished, place, entries, first_revision).and_then(|mut restored| {
        publish(&unfinished, place)?;
        if let Err(error) = sync_folder(path) {
            restored.is_durable = false;
            restored.warnings.push(format!("the new store may be gone after a failure of power: {error}"));
        }
        Ok(restored)
    });
    let _published = fs::remove_file(&unfinished);
    restored
}

/// Removes the unfinished files of runs that were killed: they have copies of all objects, Secrets among them. Those of runs that go on
/// are locked. For a moment at its beginning and at its end one is not; another run that begins just then makes it fail, as both want
/// the same place.
fn remove_remains(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let is_unfinished = |name: &str| {
        name.strip_prefix(&*stem).is_some_and(|rest| rest.starts_with('.')) && name.ends_with(".restoring")
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !is_unfinished(&entry.file_name().to_string_lossy()) {
            continue;
        }
        // What cannot be removed is in nobody's way.
        if PageFile::open_alone(&entry.path()).is_ok_and(|file| file.is_locked()) {
            let _in_use = fs::remove_file(entry.path());
        }
    }
}

fn write_unfinished(
    unfinished: &Path,
    place: &NewPlace<'_>,
    entries: &mut impl Entries,
    first_revision: impl FnOnce(Revision) -> Revision,
) -> Result<Restored, RestoreError> {
    let options = OpenOptions::new().write(true).create_new(true).mode(0o600).clone();
    let file = options.open(unfinished).map_err(EngineError::from)?;
    let warnings: Vec<String> = give_away(&file, place).err().into_iter().collect();
    drop(file);
    let (database, _) = OpenDatabase::open(unfinished)?;
    let mut restoration = Restoration { database: &database, path: unfinished, record_bytes: 0 };
    let (types, totals) = restoration.copy_records(entries)?;
    let highest = types.iter().map(|backed_up| backed_up.last).max().unwrap_or(Revision::FIRST);
    let first_revision = first_revision(highest).max(highest);
    restoration.finish(&types, first_revision)?;
    Ok(Restored { totals, first_revision, warnings, is_durable: true })
}

/// Gives the new file of an administrator to the user of the server, who alone will have to read it.
fn give_away(file: &File, place: &NewPlace<'_>) -> Result<(), String> {
    let folder = || {
        let folder = place.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Ok::<Owner, io::Error>(owner(&fs::metadata(folder.unwrap_or(Path::new(".")))?))
    };
    let give = || {
        let (user, group) = place.owner.map_or_else(folder, Ok)?;
        // Only the administrator can give files away.
        let (own_user, own_group) = owner(&file.metadata()?);
        match own_user == 0 && (own_user, own_group) != (user, group) {
            true => fchown(file, Some(user), Some(group)),
            false => Ok(()),
        }
    };
    give().map_err(|error| {
        format!("the new store belongs to root, and the server may not be allowed to read it: {error}")
    })
}

/// Gives the new store its name.
fn publish(unfinished: &Path, place: &NewPlace<'_>) -> Result<(), RestoreError> {
    let path = place.path;
    match &place.old {
        Some(old) => replace(unfinished, path, old),
        // Unlike a rename, this fails if a server has made a store meanwhile.
        None => fs::hard_link(unfinished, path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => RestoreError::Exists(path.to_owned()),
            _ => RestoreError::Engine(error.into()),
        }),
    }
}

/// Gives the new store the name of the old one, which keeps another.
fn replace(unfinished: &Path, path: &Path, old: &OldStore<'_>) -> Result<(), RestoreError> {
    let is_there = || old.file.is_at(path).map_err(EngineError::from);
    if !is_there()? {
        return Err(RestoreError::Changed(path.to_owned()));
    }
    fs::hard_link(path, old.aside).map_err(EngineError::from)?;
    let swap = || {
        // Otherwise a failure of power could leave the old store without a name.
        sync_folder(old.aside)?;
        match is_there()? {
            true => Ok(fs::rename(unfinished, path).map_err(EngineError::from)?),
            false => Err(RestoreError::Changed(path.to_owned())),
        }
    };
    let swapped = swap();
    // Whatever has failed: the last name of the old store is not removed.
    if swapped.is_err() && is_there().unwrap_or_default() {
        let _kept = fs::remove_file(old.aside);
    }
    swapped
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
                            let replaced =
                                log.insert((id, revision.0), bytes).map_err(|error| fault(path, error))?;
                            if replaced.is_some() {
                                return Err(RestoreError::Invalid("two records have one revision"));
                            }
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
