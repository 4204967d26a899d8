//! The messages of etcd's API, version 3. The numbers of the fields and the paths of the methods are etcd's.
//!
//! Keys and values are [`bytes::Bytes`]. Those of one response share its buffer, so a value that is kept for long should be copied
//! out of a large response.

mod cluster;
mod key_value;
mod lease;
mod range_end;
mod transaction;
mod watch;

pub use self::cluster::{
    Alarm, AlarmAction, AlarmMember, AlarmRequest, AlarmResponse, Member, MemberListRequest,
    MemberListResponse, SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
};
pub use self::key_value::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, KeyValue, PutRequest,
    PutResponse, RangeRequest, RangeResponse, ResponseHeader, SortOrder, SortTarget,
};
pub use self::lease::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
pub use self::range_end::{FROM_KEY, after, prefix_end};
pub use self::transaction::{
    Compare, CompareResult, CompareTarget, CompareValue, Operation, OperationResponse, RequestOp, ResponseOp,
    TxnRequest, TxnResponse,
};
pub use self::watch::{
    Event, EventType, WatchCancelRequest, WatchCreateRequest, WatchFilter, WatchProgressRequest,
    WatchRequest, WatchRequestKind, WatchResponse,
};

#[cfg(test)]
mod tests;
