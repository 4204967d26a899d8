//! The only error of the stores.

use std::sync::Arc;

use crate::object::Object;

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// No object has this key.
    #[error("no object has this key")]
    NotFound,
    /// An object with this key is there already.
    #[error("an object with this key exists")]
    Exists,
    /// The object is not at the revision the caller expected. Reading it again and retrying makes sense.
    #[error("the object has changed")]
    Conflict(Arc<Object>),
    /// The object is there but its record is damaged: all that is known of it is its key and revision.
    #[error("the record of the object is damaged")]
    Unreadable(Arc<Object>),
    /// The object is larger than a record may be.
    #[error("the object is too large")]
    TooLarge,
    /// A queue is full. The same call may succeed a moment later.
    #[error("too many writes are waiting")]
    Busy,
    /// The store takes no writes any more: the server is stopping, or a sync failed and nobody knows whether this write
    /// is on disk.
    #[error("the store is not available")]
    Unavailable,
}
