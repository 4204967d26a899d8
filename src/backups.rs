//! Backups of everything that is stored: who may make one now, and the schedule by which the server makes them itself.

pub(crate) mod paced_writer;
pub mod schedule;

use std::sync::Arc;

use pilothouse_actors::backup::{About, BackupSource};
use pilothouse_types::clock::Clock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The backups of a server.
pub struct Backups {
    source: Result<Arc<dyn BackupSource>, NoBackup>,
    /// One at a time: each keeps the pages of its moment in the file, and reads the whole disk.
    slot: Arc<Semaphore>,
    version: String,
}

/// A backup that is about to be made.
pub struct PendingBackup {
    /// Writes it.
    pub source: Arc<dyn BackupSource>,
    /// What it says about itself.
    pub about: About,
    /// Held until it is written.
    pub slot: OwnedSemaphorePermit,
}

/// Why no backup can be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoBackup {
    /// There is nothing that would outlive the process.
    #[error("this server keeps its objects in memory: there is nothing to back up")]
    InMemory,
    /// Its own tool makes them.
    #[error("this server keeps its objects in etcd: use `etcdctl snapshot save` for backups")]
    InEtcd,
    /// Another one is being made.
    #[error("another backup is in progress")]
    Busy,
}

impl Backups {
    /// Backups of this log, or why there are none. They name the version of the server.
    pub fn new(source: Result<Arc<dyn BackupSource>, NoBackup>, version: String) -> Backups {
        Backups { source, slot: Arc::new(Semaphore::new(1)), version }
    }

    /// A backup of the moment in which it is written, unless another one is in progress.
    pub fn begin(&self, clock: &Clock) -> Result<PendingBackup, NoBackup> {
        let source = self.source.clone()?;
        let slot = Arc::clone(&self.slot).try_acquire_owned().map_err(|_| NoBackup::Busy)?;
        Ok(PendingBackup {
            source,
            about: About { version: self.version.clone(), created: clock.now() },
            slot,
        })
    }
}
