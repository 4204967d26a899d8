//! How large a disk is, and how much of it is free.

use std::io;
use std::path::Path;

use nix::sys::statvfs::statvfs;

use crate::limits::{SPACE_LOW_FACTOR, full_mark};

/// The bytes of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskBytes {
    /// All of them.
    pub total: u64,
    /// Those that can be written.
    pub free: u64,
}

impl DiskBytes {
    /// Asks the system about the disk that has this path.
    pub fn measure(path: &Path) -> io::Result<DiskBytes> {
        let system = statvfs(path)?;
        let block = system.fragment_size();
        let [total, free] =
            [system.blocks(), system.blocks_available()].map(|blocks| blocks.saturating_mul(block));
        Ok(DiskBytes { total, free })
    }

    /// Whether a store on this disk would call its room low.
    pub fn is_low(self) -> bool {
        self.free < full_mark(self.total) * SPACE_LOW_FACTOR
    }
}
