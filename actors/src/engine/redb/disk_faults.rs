//! A disk that is slow, refuses writes, or has pages that cannot be read, on demand.

use std::io;
use std::ops::Bound;
use std::sync::{Arc, Condvar};

use pilothouse_types::lock::{Lock, wait};
use redb::{BackendError, StorageBackend};

use super::synced_file::{OpenFile, system_files};

/// Controls the disk below [`Redb::open_on`](super::Redb::open_on). Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct DiskFaults(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    plan: Lock<Plan>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Plan {
    refuses_writes: bool,
    refuses_syncs: bool,
    holds_syncs: bool,
    /// Syncs that wait.
    held: usize,
    /// Where the page begins that cannot be read.
    unreadable: Option<u64>,
    /// Where the pages began that were read.
    reads: Vec<u64>,
}

impl DiskFaults {
    /// Refuses writes, until it is called with `false`.
    pub fn refuse_writes(&self, refuses: bool) {
        self.0.plan.lock().refuses_writes = refuses;
    }

    /// Refuses syncs, until it is called with `false`.
    pub fn refuse_syncs(&self, refuses: bool) {
        self.0.plan.lock().refuses_syncs = refuses;
    }

    /// Blocks all syncs from now on, until [`DiskFaults::release_syncs`].
    pub fn hold_syncs(&self) {
        self.0.plan.lock().holds_syncs = true;
    }

    /// Blocks this thread until a sync is blocked.
    pub fn wait_for_held_sync(&self) {
        let mut plan = self.0.plan.lock();
        while plan.held == 0 {
            plan = wait(&self.0.changed, plan);
        }
    }

    /// Lets blocked syncs go on.
    pub fn release_syncs(&self) {
        self.0.plan.lock().holds_syncs = false;
        self.0.changed.notify_all();
    }

    /// Makes the page at this offset unreadable, or all of them readable.
    pub fn set_unreadable(&self, offset: Option<u64>) {
        self.0.plan.lock().unreadable = offset;
    }

    /// The offsets of the pages that were read since the last call.
    pub fn take_reads(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.plan.lock().reads)
    }

    pub(super) fn files(&self) -> OpenFile {
        let (faults, system) = (self.clone(), system_files());
        Arc::new(move |path| Ok(Box::new(FaultyFile { file: system(path)?, faults: faults.clone() })))
    }

    fn read(&self, offset: u64) -> io::Result<()> {
        let mut plan = self.0.plan.lock();
        plan.reads.push(offset);
        fail_if(plan.unreadable == Some(offset), "a page cannot be read")
    }

    fn write(&self) -> io::Result<()> {
        fail_if(self.0.plan.lock().refuses_writes, "a page cannot be written")
    }

    fn sync(&self) -> io::Result<()> {
        let mut plan = self.0.plan.lock();
        plan.held += 1;
        self.0.changed.notify_all();
        while plan.holds_syncs {
            plan = wait(&self.0.changed, plan);
        }
        plan.held -= 1;
        fail_if(plan.refuses_syncs, "the disk does not answer")
    }
}

fn fail_if(fails: bool, reason: &'static str) -> io::Result<()> {
    if fails { Err(io::Error::other(reason)) } else { Ok(()) }
}

/// A file on such a disk.
#[derive(Debug)]
struct FaultyFile {
    file: Box<dyn StorageBackend>,
    faults: DiskFaults,
}

impl StorageBackend for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.faults.read(offset)?;
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.write()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.faults.sync()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.faults.write()?;
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }
}
