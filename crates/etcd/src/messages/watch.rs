//! Watches. One stream can carry several; this client gives each a stream of its own.

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

use super::key_value::{KeyValue, ResponseHeader};
use super::range_end::prefix_end;

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum EventType {
    /// It was written.
    Put = 0,
    /// It was deleted, or its lease ended.
    Delete = 1,
}

/// A change of one key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Event {
    /// What happened.
    #[prost(enumeration = "EventType", tag = "1")]
    pub kind: i32,
    /// The key as it is now; of a deletion only its name and the revision of the deletion.
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
    /// The key as it was before, if the watch wanted it and the revision was not compacted yet.
    #[prost(message, optional, tag = "3")]
    pub prev_kv: Option<KeyValue>,
}

/// Events that a watch does not want.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum WatchFilter {
    /// Leaves out writes.
    NoPut = 0,
    /// Leaves out deletions.
    NoDelete = 1,
}

/// Begins a watch.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchCreateRequest {
    /// The first key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Where the range ends; empty for one key.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// The first revision; 0 for the next one.
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    /// Whether etcd says from time to time (every 10 minutes by default) how far a quiet watch has come.
    #[prost(bool, tag = "4")]
    pub progress_notify: bool,
    /// Events that are left out.
    #[prost(enumeration = "WatchFilter", repeated, tag = "5")]
    pub filters: Vec<i32>,
    /// Whether events carry the key as it was before.
    #[prost(bool, tag = "6")]
    pub prev_kv: bool,
    /// The id of the watch on its stream; 0 lets etcd choose one.
    #[prost(int64, tag = "7")]
    pub watch_id: i64,
    /// Whether etcd may send large responses in parts, which this client puts together.
    #[prost(bool, tag = "8")]
    pub fragment: bool,
}

impl WatchCreateRequest {
    /// A watch of all keys with this prefix from this revision on, with notices of progress and with responses in parts.
    pub fn prefix(prefix: impl Into<Bytes>, start_revision: i64) -> WatchCreateRequest {
        let key: Bytes = prefix.into();
        let range_end = prefix_end(&key);
        WatchCreateRequest { range_end, ..WatchCreateRequest::key(key, start_revision) }
    }

    /// A watch of one key.
    pub fn key(key: impl Into<Bytes>, start_revision: i64) -> WatchCreateRequest {
        WatchCreateRequest {
            key: key.into(),
            start_revision,
            progress_notify: true,
            fragment: true,
            ..WatchCreateRequest::default()
        }
    }
}

/// Ends a watch.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WatchCancelRequest {
    /// The id of the watch on its stream.
    #[prost(int64, tag = "1")]
    pub watch_id: i64,
}

/// Asks how far the watches of the stream have come.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WatchProgressRequest {}

/// What a client asks on a stream of watches.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum WatchRequestKind {
    /// Begins a watch.
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    /// Ends one.
    #[prost(message, tag = "2")]
    Cancel(WatchCancelRequest),
    /// Asks for progress.
    #[prost(message, tag = "3")]
    Progress(WatchProgressRequest),
}

/// What a client asks on a stream of watches, as it is sent.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchRequest {
    /// The request.
    #[prost(oneof = "WatchRequestKind", tags = "1, 2, 3")]
    pub request: Option<WatchRequestKind>,
}

impl From<WatchRequestKind> for WatchRequest {
    fn from(request: WatchRequestKind) -> WatchRequest {
        WatchRequest { request: Some(request) }
    }
}

/// Events, or news of the watch itself.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The watch; -1 for all of the stream.
    #[prost(int64, tag = "2")]
    pub watch_id: i64,
    /// Whether the watch has begun.
    #[prost(bool, tag = "3")]
    pub created: bool,
    /// Whether the watch has ended.
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// The oldest readable revision, if the watch wanted an older one.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    /// Why the watch has ended.
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    /// Whether further parts of this response follow.
    #[prost(bool, tag = "7")]
    pub fragment: bool,
    /// The events, ordered by revision.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}
