//! The pages of a redb file, read without redb: which of them are as they were written, and what the others still hold.
//!
//! redb gives up at the first page that is wrong, and while it serves reads it does not compare checksums at all: a damaged inner page
//! may lead it to pages that were current long ago. Every reference to a page has the checksum of that page beside it, so a walk from
//! the root proves each page, one by one. The format is that of `docs/design.md` in redb, file format 3. Nothing here writes.

mod header;
mod layout;
mod tables;
mod walk;

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::ops::{Bound, Range};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend as _};

pub use self::header::{Header, Slot, read_header};
pub use self::layout::{Leaf, Widths};
pub use self::tables::{TableDefinition, read_definitions};
pub use self::walk::{Bounds, PageSet, Step, Trust, is_root_proven, walk};
use super::database::fault;
use crate::engine::EngineError;
use crate::limits::SALVAGE_PAGE_BYTES;

/// The size of the smallest page. redb opens no file with another one.
pub const PAGE_BYTES: u64 = 4_096;
/// The pages of one region. redb has no other regions in files that it created in this format.
const REGION_PAGES: u64 = 1 << 20;

/// Where a page is and how large it is, as references to pages say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageNumber(u64);

impl PageNumber {
    fn read(bytes: &[u8]) -> Option<PageNumber> {
        Some(PageNumber(u64::from_le_bytes(bytes.try_into().ok()?)))
    }

    /// The bytes of the file that the page takes. `None` for a page that no file can have.
    fn range(self) -> Option<Range<u64>> {
        let order = self.0 >> 59;
        let index = self.0 & (0xf_ffff >> order);
        let region = (self.0 >> 20) & 0xf_ffff;
        let bytes = PAGE_BYTES << order;
        if bytes > SALVAGE_PAGE_BYTES {
            return None;
        }
        // The first page of the file is its header, and is in no region.
        let start = PAGE_BYTES + region * REGION_PAGES * PAGE_BYTES + index * bytes;
        Some(start..start + bytes)
    }
}

/// A reference to the root of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    root: PageNumber,
    checksum: u128,
    /// The number of its pairs.
    pub length: u64,
}

impl Tree {
    const BYTES: usize = 32;

    fn read(bytes: &[u8]) -> Option<Tree> {
        let root = PageNumber::read(bytes.get(..8)?)?;
        let checksum = u128::from_le_bytes(bytes.get(8..24)?.try_into().ok()?);
        Some(Tree { root, checksum, length: u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?) })
    }
}

/// The checksum that redb has of pages and of its header.
fn checksum(bytes: &[u8]) -> u128 {
    twox_hash::XxHash3_128::oneshot(bytes)
}

/// A file that nobody writes as long as this exists.
pub struct PageFile {
    backend: FileBackend,
    len: u64,
    identity: Identity,
    owner: Owner,
    is_locked: bool,
}

/// The device and the number of a file, which no other file has as long as this one is open.
type Identity = (u64, u64);

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// A user and a group.
pub type Owner = (u32, u32);

/// The user and the group of a file or directory.
pub fn owner(metadata: &Metadata) -> Owner {
    (metadata.uid(), metadata.gid())
}

impl PageFile {
    /// Opens the file for reading. It fails if another process has it open for writing.
    pub fn open(path: &Path) -> Result<PageFile, EngineError> {
        let whole = (Bound::Unbounded, Bound::Unbounded);
        PageFile::open_with(path, File::open(path)?, |file| file.try_lock_shared_range(whole.0, whole.1))
    }

    /// The same, and no other process can open it, not even for reading as this does.
    pub fn open_alone(path: &Path) -> Result<PageFile, EngineError> {
        // Such a lock is only for those who may write, although nothing is written.
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        PageFile::open_with(path, file, |file| file.try_lock_range(Bound::Unbounded, Bound::Unbounded))
    }

    fn open_with(
        path: &Path,
        file: File,
        lock: impl FnOnce(&FileBackend) -> Result<bool, BackendError>,
    ) -> Result<PageFile, EngineError> {
        let metadata = file.metadata()?;
        let backend = FileBackend::new(file).map_err(|error| fault(path, error))?;
        let is_locked = match lock(&backend) {
            Ok(true) => true,
            // redb goes on as well on a file system without locks.
            Err(BackendError::Unsupported) => false,
            Ok(false) => return Err(EngineError::Locked(path.to_owned())),
            Err(error) => return Err(EngineError::Io(error.into())),
        };
        let (identity, owner) = (identity(&metadata), owner(&metadata));
        // It may have got longer before it was locked.
        let len = backend.len()?;
        Ok(PageFile { backend, len, identity, owner, is_locked })
    }

    /// Whether the file system has locks, so that this one keeps others away.
    pub fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// The user and the group of the file.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Whether this file still has this name.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        match fs::metadata(path) {
            Ok(metadata) => Ok(identity(&metadata) == self.identity),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The size of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Reads bytes of the file, as far as it has them. What the disk does not return is zero, so that one bad sector costs no more
    /// than what is in it: checksums tell.
    pub fn read(&self, range: Range<u64>) -> Vec<u8> {
        let end = range.end.min(self.len);
        let length = usize::try_from(end.saturating_sub(range.start)).unwrap_or_default();
        let mut bytes = vec![0; length];
        if self.backend.read(range.start, &mut bytes).is_err() {
            let pieces = (range.start..).step_by(PAGE_BYTES as usize);
            for (offset, piece) in pieces.zip(bytes.chunks_mut(PAGE_BYTES as usize)) {
                let read: io::Result<()> = self.backend.read(offset, piece);
                if read.is_err() {
                    piece.fill(0);
                }
            }
        }
        bytes
    }

    /// Reads a page and says where it begins; `None` if the file has no such page.
    fn page(&self, number: PageNumber) -> Option<(u64, Vec<u8>)> {
        let range = number.range().filter(|range| range.end <= self.len)?;
        Some((range.start, self.read(range)))
    }
}
