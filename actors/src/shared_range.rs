//! A record of which items of a range are taken, such as node ports, that several servers share. It is changed by compare-and-swap, and
//! does not say who has an item.
//!
//! [`range_allocator`](crate::range_allocator) allocates by such a record.

#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod own;

use std::sync::Arc;

use futures::future::BoxFuture;
use pilothouse_types::bitmap::Bitmap;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Revision;

use crate::shared_log::SharedLogError;

/// The record.
pub trait SharedRange: Send + Sync + 'static {
    /// Reads it. The answer is not older than any write that was answered before the call. `None` if there is none.
    fn read(&self) -> BoxFuture<'static, Result<Option<RangeRecord>, RangeError>>;

    /// Writes it if it is still at the expected revision; `None`: if there is none.
    fn write(&self, expected: Option<Revision>, content: RangeContent) -> BoxFuture<'static, RangeWrite>;
}

/// The record at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRecord {
    /// When it was written.
    pub revision: Revision,
    /// What it says.
    pub content: RangeContent,
}

/// What a record says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeContent {
    /// The text of the range. A server whose flags say something else must not allocate by the record.
    pub range: String,
    /// The items that are taken.
    pub allocated: Bitmap,
}

/// What became of a write.
#[derive(Clone, Debug)]
pub enum RangeWrite {
    /// The record was written, at this revision.
    Written(Revision),
    /// It was at another revision, and nothing was written. This is what it says; `None` if there is none.
    Changed(Option<RangeRecord>),
    /// Nothing was written.
    Failed(RangeError),
    /// Nobody knows whether it was written.
    Unknown,
}

/// Why a record cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RangeError {
    /// Nobody has made it yet, or it was deleted. The next repair makes it.
    #[error("the record of what is allocated does not exist yet")]
    Missing,
    /// It is of another range than that of the flags.
    #[error("the provided range does not match the current range")]
    OtherRange,
    /// Its value is not one that can be read.
    #[error("the record of what is allocated cannot be read: {0}")]
    Unreadable(Arc<str>),
    /// What it shall say cannot be encoded.
    #[error("the record of what is allocated cannot be encoded: {0}")]
    Unencodable(Arc<str>),
    /// It cannot be reached, or not be written now.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<SharedLogError> for RangeError {
    fn from(error: SharedLogError) -> RangeError {
        RangeError::Store(error.into())
    }
}
