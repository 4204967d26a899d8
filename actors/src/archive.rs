//! The part of the history that only the log holds: read again from disk for those who are that far behind.
//!
//! A window is bounded by bytes, the history by time. Between the two lie events whose records are still in the log: a
//! watch that stalled, or one that comes back after minutes, gets them from there and goes on in memory. Reading is
//! slow and nobody else may wait for it, so it happens on threads that may block, few at a time.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::limits::{SHELF_BYTES, SHELF_READERS};
use crate::object::{Revision, TypeName};
use crate::window::Event;

/// Which events a read asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Those after this revision,
    pub after: Revision,
    /// up to this one,
    pub through: Revision,
    /// at most so many of them,
    pub most: usize,
    /// and no more once their objects have so many bytes.
    pub bytes: usize,
}

/// Why there are no events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// They were trimmed meanwhile.
    #[error("the history does not reach back that far")]
    Gone,
    /// The log cannot be read.
    #[error("the log cannot be read: {0}")]
    Broken(String),
}

/// A log that can be read beside the one who writes it.
pub trait Archive: Send + Sync {
    /// Events of a type, whole, in order and without a gap; at least one if there are any. Blocks.
    fn read(&self, type_name: &TypeName, span: Span) -> Result<Vec<Event>, ArchiveError>;
}

/// The part of an archive that belongs to one type. Cheap to clone.
#[derive(Clone)]
pub struct Shelf {
    archive: Arc<dyn Archive>,
    type_name: TypeName,
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shelf").field(&self.type_name).finish()
    }
}

impl PartialEq for Shelf {
    fn eq(&self, other: &Shelf) -> bool {
        Arc::ptr_eq(&self.archive, &other.archive) && self.type_name == other.type_name
    }
}

/// One bound for all types and servers of the process: they share its disks and threads.
static READERS: Semaphore = Semaphore::const_new(SHELF_READERS);

impl Shelf {
    /// The shelf of a type.
    pub fn new(archive: Arc<dyn Archive>, type_name: TypeName) -> Shelf {
        Shelf { archive, type_name }
    }

    /// Some events after a cursor, up to `through`: at least one.
    pub async fn read(
        &self,
        after: Revision,
        through: Revision,
        most: usize,
    ) -> Result<Vec<Event>, ArchiveError> {
        let span = Span { after, through, most, bytes: SHELF_BYTES };
        let _turn = READERS.acquire().await.map_err(|_| ArchiveError::Gone)?;
        let shelf = self.clone();
        let read = tokio::task::spawn_blocking(move || shelf.archive.read(&shelf.type_name, span)).await;
        let events = read.map_err(|error| ArchiveError::Broken(error.to_string()))??;
        if events.is_empty() { Err(ArchiveError::Gone) } else { Ok(events) }
    }
}
