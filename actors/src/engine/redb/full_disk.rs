//! What the engine does when the disk is full, and how much of it is left.

use std::os::unix::fs::MetadataExt as _;

use super::Redb;
use super::database::{catch_panic, unknown_state};
use crate::disk_bytes::DiskBytes;
use crate::engine::{Batch, Counters, Disk, EngineError, Write};
use crate::limits::RESERVED_BATCH_BYTES;

/// The unit in which the system counts the blocks of a file, whatever the file system uses.
const STAT_BLOCK_BYTES: u64 = 512;

impl Redb {
    /// What becomes of a batch for which there was no space.
    pub(super) fn write_to_full_disk(&mut self, batch: &Batch) -> Result<(), EngineError> {
        if self.recover_from_full_disk(batch)? {
            return Ok(());
        }
        // The reserve is for deletions and what leads to them.
        if batch.weight() > RESERVED_BATCH_BYTES {
            self.take_back_reserve();
            return Err(EngineError::NoSpace);
        }
        match self.write(batch) {
            Err(EngineError::NoSpace) => match self.recover_from_full_disk(batch)? {
                true => Ok(()),
                false => Err(EngineError::NoSpace),
            },
            outcome => outcome,
        }
    }

    /// Opens the file again after the disk was full, and returns whether the batch was written nevertheless.
    pub(super) fn recover_from_full_disk(&mut self, batch: &Batch) -> Result<bool, EngineError> {
        self.reserve.release();
        self.database.reopen(&self.path)?;
        let known_bytes = self.record_bytes;
        self.ids.clear();
        self.counters = Counters::default();
        catch_panic(|| self.read_counters()).map_err(unknown_state)?;
        // The file has the size of an earlier time. What this batch may have changed of it does not matter.
        self.record_bytes = known_bytes;
        self.unsettled = true;
        let is_written = |write: &Write| self.counters.last(&write.type_name) >= write.revision;
        Ok(!batch.writes.is_empty() && batch.writes.iter().all(is_written))
    }

    /// The space on the disk.
    pub(super) fn disk(&self) -> Result<Disk, EngineError> {
        let DiskBytes { total, free } = DiskBytes::measure(&self.path)?;
        let file = std::fs::metadata(&self.path)?;
        Ok(Disk {
            free_bytes: free,
            total_bytes: total,
            file_bytes: file.blocks().saturating_mul(STAT_BLOCK_BYTES),
            kept_bytes: self.reserve.missing_bytes(total),
        })
    }

    /// Makes the reserve, if the disk has much more space than that.
    pub(super) fn complete_reserve(&self) {
        if let Ok(disk) = self.disk() {
            self.reserve.complete(&disk);
        }
    }

    /// Makes the reserve as large as the disk has space, before something else takes that.
    pub(super) fn take_back_reserve(&self) {
        if let Ok(disk) = self.disk() {
            self.reserve.take_back(&disk);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Sender, channel};
    use std::thread;
    use std::time::Duration;

    use pilothouse_types::clock::Timestamp;

    use super::super::database::ReadableHandle;
    use super::*;
    use crate::backup::About;
    use crate::engine::Engine as _;

    /// A client that says when a backup comes, and reads nothing of it until the store is to be opened again.
    struct SlowClient(Sender<()>, ReadableHandle);

    impl io::Write for SlowClient {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(()).map_err(io::Error::other)?;
            while self.1.check_open().is_ok() {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn backup_ends_when_the_file_must_be_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        super::super::tests::fill_file(&path, 8);
        let mut engine = Redb::open(&path).unwrap();
        let source = engine.backup_source().unwrap();
        let (sender, begun) = channel();
        let mut client = SlowClient(sender, engine.database.readable());
        let about = About { version: "1".to_owned(), created: Timestamp(0) };
        let backup = thread::spawn(move || source.write_to(&about, &mut client));
        begun.recv().unwrap();
        assert!(!engine.recover_from_full_disk(&Batch::default()).unwrap());
        let error = backup.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("the file is being closed"), "{error}");
        let about = About { version: "1".to_owned(), created: Timestamp(0) };
        let again = engine.backup_source().unwrap().write_to(&about, &mut io::sink()).unwrap();
        assert!(again.records > 0);
    }
}
