//! Leases: keys that are deleted unless somebody says in time that they are still wanted.

use bytes::Bytes;
use prost::Message;

use super::key_value::ResponseHeader;

/// Makes a lease.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseGrantRequest {
    /// How long the lease lasts, in seconds. etcd may make it longer.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
    /// The id of the lease; 0 lets etcd choose one.
    #[prost(int64, tag = "2")]
    pub id: i64,
}

/// The new lease.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LeaseGrantResponse {
    /// Who answered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The id of the lease.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// How long it lasts, in seconds.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
    /// What is wrong; empty for nothing.
    #[prost(string, tag = "4")]
    pub error: String,
}

/// Ends a lease and deletes its keys.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseRevokeRequest {
    /// The lease.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The lease has ended.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseRevokeResponse {
    /// Who answered, and the revision in which the keys were deleted.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// Lets a lease begin anew.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseKeepAliveRequest {
    /// The lease.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The lease has begun anew, or is no more.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseKeepAliveResponse {
    /// Who answered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The lease.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// How long it lasts from now on, in seconds; 0 or less if there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// Asks how long a lease still lasts.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseTimeToLiveRequest {
    /// The lease.
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// Whether to return the keys of the lease.
    #[prost(bool, tag = "2")]
    pub keys: bool,
}

/// How long a lease still lasts.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LeaseTimeToLiveResponse {
    /// Who answered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The lease.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// How long it still lasts, in seconds; -1 if there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
    /// How long it lasts after each renewal.
    #[prost(int64, tag = "4")]
    pub granted_ttl: i64,
    /// Its keys, if the request wanted them.
    #[prost(bytes = "bytes", repeated, tag = "5")]
    pub keys: Vec<Bytes>,
}
