//! The log: one record per version of an object. Every batch is written as a whole or not at all.
//!
//! The log is the only storage. Live objects are the records that no later record supersedes; memory is rebuilt from one scan at
//! start. `docs/durability.md` says what is promised and what is assumed of the disk.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pilothouse_types::object::{Revision, TypeName};

use crate::archive::Archive;
use crate::backup::BackupSource;
use crate::encryption::Encryption;
use crate::engine::record::Record;
use crate::log_time::LogTime;

#[cfg(feature = "testing")]
pub mod faulty;
#[cfg(any(test, feature = "testing"))]
pub mod masking;
pub mod memory;
pub mod record;
pub mod redb;

/// One record and its place in the log.
#[derive(Clone, Debug)]
pub struct Write {
    /// The type of the object. A type is created with its first write.
    pub type_name: TypeName,
    /// The revision, directly after the last of its type ([`Record::predecessor`]): the counter moves with the record.
    pub revision: Revision,
    /// The record itself.
    pub record: Record,
}

/// Changes that become durable together.
#[derive(Debug, Default)]
pub struct Batch {
    /// New records, in the order of their revisions within each type.
    pub writes: Vec<Write>,
    /// Records to remove; they may be gone already.
    pub trims: Vec<(TypeName, Revision)>,
}

impl Batch {
    /// The size of its records, about.
    pub fn weight(&self) -> usize {
        self.writes.iter().map(|write| write.record.weight()).sum()
    }
}

/// Statistics of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records in the log.
    pub records: u64,
    /// The size of the file, zero without a file.
    pub file_bytes: u64,
    /// The bytes of all records, without what the file needs around them. Zero without a file.
    pub record_bytes: u64,
    /// The disk of the file; `None` without a file.
    pub disk: Option<Disk>,
}

/// The space on the disk of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Bytes that this process may still use.
    pub free_bytes: u64,
    /// The size of the file system.
    pub total_bytes: u64,
    /// Bytes that the file takes on it: fewer than its size if it has holes.
    pub file_bytes: u64,
    /// Bytes of the free ones that are kept for what frees space, such as deletions.
    pub kept_bytes: u64,
}

/// Receives the output of [`Engine::load`]: each type once, followed by its records.
pub trait Visitor {
    /// A type and its counter.
    fn begin_type(&mut self, type_name: TypeName, last: Revision) -> Result<(), EngineError>;
    /// The next record of that type; revisions rise.
    fn record(&mut self, revision: Revision, record: Record) -> Result<(), EngineError>;
}

/// A log. It belongs to one thread at a time.
pub trait Engine: Send {
    /// Reads everything, once and in order.
    fn load(&mut self, visitor: &mut dyn Visitor) -> Result<(), EngineError>;

    /// Makes the batch durable in one transaction with one sync. After [`EngineError::NoSpace`] nothing of the batch is in the log, and
    /// the caller may go on. After any other error the state of the disk is unknown: the caller must not commit anything more.
    fn commit(&mut self, batch: &Batch) -> Result<(), EngineError>;

    /// Called after some time without commits: prepares the log for a fast start after a crash, and notes the time.
    fn settle(&mut self, now: LogTime) -> Result<(), EngineError>;

    /// Called before writes may let the log grow again that was full: takes back what is kept for deletions, as far as there is space.
    fn restore_reserve(&mut self) {}

    /// The time that was noted last.
    fn log_time(&self) -> LogTime;

    /// Reads records while another thread writes; `None` for a log in memory, where it gains nothing.
    fn archive(&self) -> Option<Arc<dyn Archive>> {
        None
    }

    /// Writes backups while another thread writes the log; `None` for a log in memory, which has nothing that would outlive it.
    fn backup_source(&self) -> Option<Arc<dyn BackupSource>> {
        None
    }

    /// The revision of types without writes: higher than usual after a restoration, so that none is given twice.
    fn first_revision(&self) -> Revision {
        Revision::FIRST
    }

    /// What encrypts and decrypts its records. There is no default: what forgot it would write clear text.
    fn encryption(&self) -> Arc<dyn Encryption>;

    /// The size of the log.
    fn stats(&self) -> Result<Stats, EngineError>;

    /// Notes the time and closes the log, so that it can be opened again.
    fn close(self: Box<Self>, now: LogTime) -> Result<(), EngineError>;
}

/// The reason why an engine failed to open, load or commit. Retrying does not help with any of these.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The disk is full. Nothing was written, and the log is as it was before.
    #[error("no space is left on the disk of the store")]
    NoSpace,
    /// Another process uses the file.
    #[error("{} is in use by another process", .0.display())]
    Locked(PathBuf),
    /// The data read differs from the data written.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// A record cannot be decrypted now, because the service that has the key does not answer.
    #[error("the store cannot be decrypted now: {0}")]
    DecryptionUnavailable(String),
    /// An object that the server cannot do without cannot be decrypted.
    #[error(
        "the {type_name} at revision {revision} cannot be decrypted: {reason}; use the encryption configuration that has its key"
    )]
    Undecryptable {
        /// The type of the object.
        type_name: TypeName,
        /// Its revision. Its key is encrypted as well.
        revision: Revision,
        /// Why.
        reason: String,
    },
    /// The format of the file is not one that this version reads.
    #[error("{}", format_problem(*.actual, *.oldest, *.newest, .written_by.as_deref()))]
    Format {
        /// The format of the file.
        actual: u64,
        /// The oldest format that this code reads.
        oldest: u64,
        /// The newest format that it reads.
        newest: u64,
        /// The version of the server that wrote the file, if the file says so.
        written_by: Option<String>,
    },
    /// The operating system refused.
    #[error("the store cannot be used: {0}")]
    Io(#[from] io::Error),
    /// A write whose revision does not follow the last one of its type. Nothing of its batch was written, because that would
    /// break the order of the log.
    #[error("revision {revision} of {type_name} does not follow {last}")]
    Order {
        /// The type of the write.
        type_name: TypeName,
        /// The last revision of the type.
        last: Revision,
        /// The revision of the refused write.
        revision: Revision,
    },
}

fn format_problem(actual: u64, oldest: u64, newest: u64, written_by: Option<&str>) -> String {
    let reads = match oldest == newest {
        true => format!("format {newest}"),
        false => format!("formats {oldest} to {newest}"),
    };
    let problem = format!("the store is in format {actual}, this server reads {reads}");
    match written_by {
        Some(version) => format!("{problem}: use version {version}, which wrote it, or a newer one"),
        None if actual > newest => format!("{problem}: use the version that wrote it, or a newer one"),
        None => format!("{problem}: open it once with an older version that reads both"),
    }
}

/// The last revision of each type, for the order check before every write.
#[derive(Debug)]
struct Counters {
    last: HashMap<TypeName, Revision>,
    /// The revision of types without writes.
    first: Revision,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters { last: HashMap::new(), first: Revision::FIRST }
    }
}

impl Counters {
    /// The last revision of a type.
    fn last(&self, name: &TypeName) -> Revision {
        self.last.get(name).copied().unwrap_or(self.first)
    }

    /// The last revision of each type after the batch, or the write that breaks the order.
    fn check_order(&self, batch: &Batch) -> Result<HashMap<TypeName, Revision>, EngineError> {
        let mut advanced: HashMap<TypeName, Revision> = HashMap::new();
        for write in &batch.writes {
            let last = advanced.get(&write.type_name).copied().unwrap_or_else(|| self.last(&write.type_name));
            if write.revision <= last || write.record.predecessor(write.revision) != last {
                let type_name = write.type_name.clone();
                return Err(EngineError::Order { type_name, last, revision: write.revision });
            }
            match advanced.get_mut(&write.type_name) {
                Some(last) => *last = write.revision,
                None => {
                    advanced.insert(write.type_name.clone(), write.revision);
                }
            }
        }
        Ok(advanced)
    }

    fn advance(&mut self, advanced: HashMap<TypeName, Revision>) {
        self.last.extend(advanced);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_types::object::Key;

    use super::*;
    use crate::engine::record::Operation;
    use crate::log_time::WriteTime;

    fn write(type_name: &str, revision: u64) -> Write {
        let operation = Operation::Remove(Key::cluster("a"), Revision(1));
        let record = Record::clear(operation, WriteTime::default());
        Write { type_name: TypeName::new(type_name), revision: Revision(revision), record }
    }

    #[test]
    fn counters_refuse_revisions_out_of_order() {
        let mut counters = Counters::default();
        let mut commit = |writes: &[(&str, u64)]| {
            let writes = writes.iter().map(|(name, revision)| write(name, *revision)).collect();
            let advanced = counters.check_order(&Batch { writes, trims: Vec::new() })?;
            counters.advance(advanced);
            Ok::<_, EngineError>(())
        };
        assert!(commit(&[("pods", 2), ("nodes", 2), ("pods", 3)]).is_ok());
        assert!(commit(&[("pods", 3)]).is_err());
        assert!(commit(&[("pods", 4), ("pods", 6)]).is_err());
        assert!(commit(&[("pods", 4), ("nodes", 3)]).is_ok());
        let error = commit(&[("new", 1)]).unwrap_err();
        assert_eq!(error.to_string(), "revision 1 of new does not follow 1");
    }
}
