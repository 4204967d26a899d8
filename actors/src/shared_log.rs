//! A log that several servers share, such as an etcd cluster: it gives the revisions, and everybody's changes come back from it in one
//! order.
//!
//! A store proposes a write. The log accepts it if the key is still at the expected revision. The write becomes visible when its change
//! arrives in order, like the changes of all other servers. `store/shared_order.rs` is what a store makes of that, and
//! `shared_storage.rs` starts stores over such a log.

pub mod decoding;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod messages;
pub mod past;
pub mod scope;
pub mod type_changes;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::BoxStream;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, EncryptionKeyId, Key, Revision, TypeName, UnreadableReason};
use tokio::time::timeout;

/// The log. Its revisions count the changes of all types and of foreign keys, so those of one type have holes.
pub trait SharedLog: Send + Sync + 'static {
    /// Reads all objects at one revision from which the log can be followed.
    fn load(&self) -> BoxFuture<'static, Result<Loaded, SharedLogError>>;

    /// Reads all objects at an older revision from which the log can still be followed: what came after it is the history that servers
    /// have from their first moment on.
    fn load_past(&self) -> BoxFuture<'static, Result<Loaded, SharedLogError>>;

    /// Reads all objects of one type at one revision.
    fn load_type(&self, type_name: &TypeName) -> BoxFuture<'static, Result<Loaded, SharedLogError>>;

    /// Reads all objects of one type as they were at a revision that this server has seen, in parts of bounded size.
    fn load_type_at(
        &self,
        type_name: &TypeName,
        revision: Revision,
    ) -> BoxStream<'static, Result<Vec<SharedEntry>, PastError>>;

    /// The changes after a revision, in order, without a gap or a repetition. The stream ends after an error. What can be repaired by
    /// connecting again, perhaps to another member, is no error.
    fn follow(&self, after: Revision) -> BoxStream<'static, Result<Followed, FollowError>>;

    /// The revision of the log at some moment of this call: no write that was answered before the call is newer.
    fn current_revision(&self) -> BoxFuture<'static, Result<Revision, SharedLogError>>;

    /// The same for a health check, which waits no longer than this, however long other questions wait.
    fn probe(&self, max_wait: Duration) -> BoxFuture<'static, Result<Revision, SharedLogError>> {
        let revision = self.current_revision();
        async move {
            let silent = || SharedLogError::Unavailable(format!("no answer within {max_wait:?}").into());
            timeout(max_wait, revision).await.unwrap_or_else(|_| Err(silent()))
        }
        .boxed()
    }

    /// Tries to write.
    fn propose(&self, proposal: Proposal) -> BoxFuture<'static, ProposalOutcome>;

    /// What a value of the log means. The thread of the caller decodes it.
    fn decode(&self, type_name: &TypeName, key: &Key, value: &Bytes) -> Result<Decoded, UnreadableReason>;

    /// Whether decoding a value may have to wait for a service, such as the KMS plugin that has its key.
    fn may_wait(&self, value: &[u8]) -> bool;

    /// What values of a type mean, in their order. Other threads decode them. Where a service does not answer, it is asked until it does.
    fn decode_all(
        &self,
        type_name: &TypeName,
        values: Vec<(Key, Bytes)>,
    ) -> BoxFuture<'static, Vec<Result<Decoded, UnreadableReason>>>;
}

/// All objects of a log at one revision.
#[derive(Debug, Default)]
pub struct Loaded {
    /// That revision.
    pub revision: Revision,
    /// The objects.
    pub entries: Vec<SharedEntry>,
}

/// An object as the log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedEntry {
    /// Its type.
    pub type_name: TypeName,
    /// Its key.
    pub key: Key,
    /// When it was written last.
    pub revision: Revision,
    /// When it was created.
    pub created: Revision,
    /// Its stored form.
    pub value: Bytes,
}

/// What is learned by following a log.
#[derive(Clone, Debug)]
pub enum Followed {
    /// These changes.
    Changes(ChangeBatch),
    /// It is being followed again.
    Connected,
    /// It cannot be followed for now. Nothing is missed: the changes come later.
    Disconnected(SharedLogError),
}

/// Changes that follow each other.
#[derive(Clone, Debug, Default)]
pub struct ChangeBatch {
    /// Every change up to this revision is in this batch or came before.
    pub revision: Revision,
    /// The changes, in order. Those of foreign keys are left out.
    pub changes: Vec<SharedChange>,
}

/// One change of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedChange {
    /// Its type.
    pub type_name: TypeName,
    /// Its key.
    pub key: Key,
    /// The revision of the change.
    pub revision: Revision,
    /// The new stored form; `None` if the object was removed.
    pub value: Option<Bytes>,
}

/// The meaning of a value.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// The object.
    pub draft: Draft,
    /// The key that it is encrypted with, if it is.
    pub key_id: Option<EncryptionKeyId>,
}

impl SharedChange {
    /// The memory that it takes, about.
    pub fn weight(&self) -> usize {
        const OVERHEAD: usize = 256;
        self.value.as_ref().map_or(0, Bytes::len) + OVERHEAD
    }
}

/// A write that a store proposes.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// The type of the object.
    pub type_name: TypeName,
    /// Its key.
    pub key: Key,
    /// The revision at which it must be; `None` if it must not exist.
    pub expected: Option<Revision>,
    /// What is to become of it.
    pub change: ProposedChange,
}

/// What is to become of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProposedChange {
    /// It gets this stored form.
    Put(Bytes),
    /// It is removed.
    Remove,
}

/// What became of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProposalOutcome {
    /// It was written, at this revision.
    Accepted(Revision),
    /// The object was not at the expected revision. Nothing was written.
    Refused {
        /// Where it was instead; `None` if it did not exist.
        current: Option<Revision>,
        /// The revision of the log when that was so.
        at: Revision,
    },
    /// It was not written.
    Failed(SharedLogError),
    /// Nobody knows whether it was written. If it was, its change arrives.
    Unknown,
}

/// Why a log cannot be used, for now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharedLogError {
    /// It cannot be reached, or does not answer.
    #[error("{0}")]
    Unavailable(Arc<str>),
    /// It has no space left, and what can be done about it. Removals still succeed.
    #[error("{0}")]
    NoSpace(Arc<str>),
    /// The object is larger than it accepts.
    #[error("the object is larger than the shared log accepts")]
    TooLarge,
}

/// Why a log does not tell how something was at a revision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PastError {
    /// It does not know any more.
    #[error("the revision was compacted")]
    Compacted,
    /// It does not answer.
    #[error(transparent)]
    Log(#[from] SharedLogError),
}

/// Why a log cannot be followed any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// The changes after the last batch are no longer known.
    #[error("the changes after the last known revision were compacted")]
    Compacted,
    /// The log is older than it was: it was restored from a backup.
    #[error("the revision of the shared log went back to {0}")]
    WentBack(Revision),
}

impl From<SharedLogError> for StoreError {
    fn from(error: SharedLogError) -> StoreError {
        match error {
            SharedLogError::Unavailable(_) => StoreError::Unreachable,
            SharedLogError::NoSpace(_) => StoreError::NoSpace,
            SharedLogError::TooLarge => StoreError::TooLarge,
        }
    }
}
