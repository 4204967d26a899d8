//! Keys and their values, and the calls that read and write them one at a time.

use bytes::Bytes;
use prost::{Enumeration, Message};

use super::range_end::prefix_end;

/// Who answered, and when.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ResponseHeader {
    /// The cluster of the member.
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    /// The member that answered.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// The revision of the store when the call was applied; of a notice of progress, the revision up to which all events were sent.
    #[prost(int64, tag = "3")]
    pub revision: i64,
    /// The term of Raft, which rises with every election.
    #[prost(uint64, tag = "4")]
    pub raft_term: u64,
}

/// One version of one key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyValue {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The revision in which the key was created.
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    /// The revision in which this version was written.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// How often the key was written since its creation.
    #[prost(int64, tag = "4")]
    pub version: i64,
    /// The value.
    #[prost(bytes = "bytes", tag = "5")]
    pub value: Bytes,
    /// The lease whose end deletes the key; 0 for none.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// The direction in which the keys of a range are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum SortOrder {
    /// By key, ascending, which is the order of the store.
    None = 0,
    /// The lowest first.
    Ascend = 1,
    /// The highest first.
    Descend = 2,
}

/// What the keys of a range are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum SortTarget {
    /// The key.
    Key = 0,
    /// The number of writes since the creation.
    Version = 1,
    /// The revision of the creation.
    Create = 2,
    /// The revision of the last write.
    Mod = 3,
    /// The value.
    Value = 4,
}

/// Reads one key or a range of keys.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeRequest {
    /// The first key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Where the range ends; empty for one key.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// The maximum number of keys; 0 for all.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// The revision to read at; 0 for the newest one.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    /// The direction of sorting.
    #[prost(enumeration = "SortOrder", tag = "5")]
    pub sort_order: i32,
    /// What to sort by.
    #[prost(enumeration = "SortTarget", tag = "6")]
    pub sort_target: i32,
    /// Whether the member may answer from its own state, which may be behind, without asking the others.
    #[prost(bool, tag = "7")]
    pub serializable: bool,
    /// Leaves out the values.
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
    /// Returns nothing but the number of keys.
    #[prost(bool, tag = "9")]
    pub count_only: bool,
    /// Leaves out keys that were last written before this revision.
    #[prost(int64, tag = "10")]
    pub min_mod_revision: i64,
    /// Leaves out keys that were last written after this revision, unless it is 0.
    #[prost(int64, tag = "11")]
    pub max_mod_revision: i64,
    /// Leaves out keys that were created before this revision.
    #[prost(int64, tag = "12")]
    pub min_create_revision: i64,
    /// Leaves out keys that were created after this revision, unless it is 0.
    #[prost(int64, tag = "13")]
    pub max_create_revision: i64,
}

impl RangeRequest {
    /// Reads one key.
    pub fn key(key: impl Into<Bytes>) -> RangeRequest {
        RangeRequest { key: key.into(), ..RangeRequest::default() }
    }

    /// Reads all keys with this prefix.
    pub fn prefix(prefix: impl Into<Bytes>) -> RangeRequest {
        let key: Bytes = prefix.into();
        RangeRequest { range_end: prefix_end(&key), key, ..RangeRequest::default() }
    }
}

/// The keys of a range.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The keys and their values.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// Whether the limit has left keys out.
    #[prost(bool, tag = "3")]
    pub more: bool,
    /// The number of keys in the range, whatever the limit.
    #[prost(int64, tag = "4")]
    pub count: i64,
}

/// Writes one key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PutRequest {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// The lease whose end deletes the key; 0 for none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
    /// Whether to return what was replaced.
    #[prost(bool, tag = "4")]
    pub prev_kv: bool,
    /// Keeps the value, and fails if there is none.
    #[prost(bool, tag = "5")]
    pub ignore_value: bool,
    /// Keeps the lease, and fails if there is no such key.
    #[prost(bool, tag = "6")]
    pub ignore_lease: bool,
}

impl PutRequest {
    /// Writes a key that belongs to no lease.
    pub fn new(key: impl Into<Bytes>, value: impl Into<Bytes>) -> PutRequest {
        PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() }
    }
}

/// The key is written.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PutResponse {
    /// Who answered, and the revision of the write.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// What was replaced, if the request wanted it.
    #[prost(message, optional, tag = "2")]
    pub prev_kv: Option<KeyValue>,
}

/// Deletes one key or a range of keys.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeleteRangeRequest {
    /// The first key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Where the range ends; empty for one key.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// Whether to return what was deleted.
    #[prost(bool, tag = "3")]
    pub prev_kv: bool,
}

impl DeleteRangeRequest {
    /// Deletes one key.
    pub fn key(key: impl Into<Bytes>) -> DeleteRangeRequest {
        DeleteRangeRequest { key: key.into(), ..DeleteRangeRequest::default() }
    }

    /// Deletes all keys with this prefix.
    pub fn prefix(prefix: impl Into<Bytes>) -> DeleteRangeRequest {
        let key: Bytes = prefix.into();
        DeleteRangeRequest { range_end: prefix_end(&key), key, prev_kv: false }
    }
}

/// The keys are deleted.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeleteRangeResponse {
    /// Who answered, and the revision of the deletion.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// How many keys there were.
    #[prost(int64, tag = "2")]
    pub deleted: i64,
    /// What was deleted, if the request wanted it.
    #[prost(message, repeated, tag = "3")]
    pub prev_kvs: Vec<KeyValue>,
}

/// Forgets what was replaced before a revision.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CompactionRequest {
    /// The oldest revision that stays readable.
    #[prost(int64, tag = "1")]
    pub revision: i64,
    /// Whether to answer only when the space is free.
    #[prost(bool, tag = "2")]
    pub physical: bool,
}

/// Older revisions are forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CompactionResponse {
    /// Who answered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}
