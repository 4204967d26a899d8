//! A file that only takes space. A full disk becomes a little less full by its removal, so that deletions can be written.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::posix_fallocate;

use crate::engine::Disk;
use crate::limits::{RESERVE_MIN_FREE_FACTOR, full_mark};

/// The extension of the file beside the store.
const EXTENSION: &str = "reserve";

/// One part in so many of what is free is left to the file system when the rest becomes the reserve.
const TAKE_BACK_MARGIN_DIVISOR: u64 = 8;

/// The reserve of one store.
pub(super) struct Reserve(PathBuf);

impl Reserve {
    /// The reserve of the store in this file.
    pub(super) fn beside(store: &Path) -> Reserve {
        Reserve(store.with_extension(EXTENSION))
    }

    /// Gives the space back to the disk.
    pub(super) fn release(&self) {
        match fs::remove_file(&self.0) {
            Ok(()) => {
                tracing::warn!(
                    "the disk is full: the reserve was released, so that deletions can be written"
                );
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::error!(%error, "the disk is full and the reserve cannot be released"),
        }
    }

    /// How many bytes it has less than it should have.
    pub(super) fn missing_bytes(&self, disk_bytes: u64) -> u64 {
        full_mark(disk_bytes).saturating_sub(self.bytes())
    }

    fn bytes(&self) -> u64 {
        fs::metadata(&self.0).map_or(0, |file| file.len())
    }

    /// Takes the space again if the disk has much more than that.
    pub(super) fn complete(&self, disk: &Disk) {
        let bytes = full_mark(disk.total_bytes);
        if self.bytes() < bytes && disk.free_bytes >= bytes.saturating_mul(RESERVE_MIN_FREE_FACTOR) {
            self.make(bytes);
        }
    }

    /// Takes the space again, or as much of it as the disk has. The file system needs some for itself.
    pub(super) fn take_back(&self, disk: &Disk) {
        let possible = disk.free_bytes - disk.free_bytes / TAKE_BACK_MARGIN_DIVISOR;
        let bytes = full_mark(disk.total_bytes).min(self.bytes() + possible);
        if bytes > self.bytes() {
            self.make(bytes);
        }
    }

    /// Without a reserve the server works, too, so an error is only logged.
    fn make(&self, bytes: u64) {
        if let Err(error) = self.create(bytes) {
            tracing::warn!(%error, "cannot reserve space on the disk of the store");
            let _absent = fs::remove_file(&self.0);
        }
    }

    fn create(&self, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.0)?;
        let bytes = i64::try_from(bytes).map_err(io::Error::other)?;
        posix_fallocate(&file, 0, bytes)?;
        file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_takes_and_returns_space() {
        let directory = tempfile::tempdir().unwrap();
        let reserve = Reserve::beside(&directory.path().join("log.redb"));
        let file = directory.path().join("log.reserve");
        let total_bytes = 16 << 20;
        let disk = |free_bytes| Disk { free_bytes, total_bytes, ..Disk::default() };
        reserve.complete(&disk(2 << 20));
        assert!(!file.exists(), "there is too little space");
        reserve.complete(&disk(8 << 20));
        assert_eq!((reserve.bytes(), reserve.missing_bytes(total_bytes)), (1 << 20, 0));
        reserve.release();
        assert!(!file.exists());
        reserve.release();
        reserve.take_back(&disk(80 << 10));
        assert_eq!((reserve.bytes(), reserve.missing_bytes(total_bytes)), (70 << 10, (1 << 20) - (70 << 10)));
        reserve.take_back(&disk(2 << 20));
        assert_eq!(reserve.bytes(), 1 << 20);
    }
}
