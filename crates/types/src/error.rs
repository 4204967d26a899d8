//! The error type of the stores.

use std::sync::Arc;

use crate::object::Object;

/// Why a store refused a command.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// No object has this key.
    #[error("no object has this key")]
    NotFound,
    /// An object with this key already exists.
    #[error("an object with this key exists")]
    Exists,
    /// The object is not at the expected revision. The caller may read it again and retry.
    #[error("the object has changed")]
    Conflict(Arc<Object>),
    /// The object exists but its record is corrupt: only key and revision are known.
    #[error("the record of the object is damaged")]
    Unreadable(Arc<Object>),
    /// The object is larger than a record may be.
    #[error("the object is too large")]
    TooLarge,
    /// The store has no space left. Nothing was written; deletions still work.
    #[error("the store has no space left")]
    NoSpace,
    /// The resource is encrypted at rest, and the object cannot be encrypted. Nothing was written.
    #[error("the object cannot be encrypted: {0}")]
    NotEncrypted(String),
    /// The log that several servers share does not answer. Nothing was written.
    #[error("the shared log does not answer")]
    Unreachable,
    /// Nobody knows whether the write happened: the connection to the shared log broke while it was on its way.
    #[error("it is unknown whether the object was written")]
    UnknownOutcome,
    /// A queue is full. The same command may succeed a moment later.
    #[error("too many writes are waiting")]
    Busy,
    /// The store accepts no more writes: the server is stopping, or a sync failed and it is unknown whether this write is on
    /// disk.
    #[error("the store is not available")]
    Unavailable,
}
