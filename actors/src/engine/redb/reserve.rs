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

    /// Takes the space again if the disk has much more than that. Without a reserve the server works, too, so an error is only logged.
    pub(super) fn restore(&self, disk: &Disk) {
        let bytes = full_mark(disk.total_bytes);
        let is_there = fs::metadata(&self.0).is_ok_and(|file| file.len() >= bytes);
        if is_there || disk.free_bytes < bytes.saturating_mul(RESERVE_MIN_FREE_FACTOR) {
            return;
        }
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
        let disk = |free_bytes| Disk { free_bytes, total_bytes: 16 << 20, file_bytes: 0 };
        reserve.restore(&disk(2 << 20));
        assert!(!file.exists(), "there is too little space");
        reserve.restore(&disk(8 << 20));
        assert_eq!(fs::metadata(&file).unwrap().len(), 1 << 20);
        reserve.release();
        assert!(!file.exists());
        reserve.release();
    }
}
