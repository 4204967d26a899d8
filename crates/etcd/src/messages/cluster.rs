//! The members of a cluster, and how they are.

use bytes::Bytes;
use prost::{Enumeration, Message};

use super::key_value::ResponseHeader;

/// Asks a member how it is.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct StatusRequest {}

/// How a member is.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StatusResponse {
    /// The member and its cluster.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The release of the member, such as `3.5.1`.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The size of its database file.
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    /// The member that it takes for the leader; 0 for none.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    /// The last entry of Raft that a majority has.
    #[prost(uint64, tag = "5")]
    pub raft_index: u64,
    /// The term of Raft.
    #[prost(uint64, tag = "6")]
    pub raft_term: u64,
    /// The last entry that the member has applied.
    #[prost(uint64, tag = "7")]
    pub raft_applied_index: u64,
    /// What is wrong with it.
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
    /// How much of the database file holds data.
    #[prost(int64, tag = "9")]
    pub db_size_in_use: i64,
    /// Whether it only learns, without a vote.
    #[prost(bool, tag = "10")]
    pub is_learner: bool,
}

/// A reason why a cluster refuses calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Alarm {
    /// None, or any.
    None = 0,
    /// The quota of the database is used up: only reads and deletions succeed.
    NoSpace = 1,
    /// The data of the members differ.
    Corrupt = 2,
}

/// What to do about alarms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum AlarmAction {
    /// List them.
    Get = 0,
    /// Raise one.
    Activate = 1,
    /// End one.
    Deactivate = 2,
}

/// Lists or changes the alarms.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct AlarmRequest {
    /// What to do.
    #[prost(enumeration = "AlarmAction", tag = "1")]
    pub action: i32,
    /// The member; 0 for all.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// The alarm.
    #[prost(enumeration = "Alarm", tag = "3")]
    pub alarm: i32,
}

/// An alarm of a member.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct AlarmMember {
    /// The member.
    #[prost(uint64, tag = "1")]
    pub member_id: u64,
    /// The alarm.
    #[prost(enumeration = "Alarm", tag = "2")]
    pub kind: i32,
}

/// The alarms.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AlarmResponse {
    /// Who answered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The alarms.
    #[prost(message, repeated, tag = "2")]
    pub alarms: Vec<AlarmMember>,
}

/// Lists the members.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MemberListRequest {
    /// Whether the members must agree on the list. Releases before 3.5 do not know this.
    #[prost(bool, tag = "1")]
    pub linearizable: bool,
}

/// A member.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Member {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name; empty until it has started.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Where the other members reach it.
    #[prost(string, repeated, tag = "3")]
    pub peer_urls: Vec<String>,
    /// Where clients reach it.
    #[prost(string, repeated, tag = "4")]
    pub client_urls: Vec<String>,
    /// Whether it only learns, without a vote.
    #[prost(bool, tag = "5")]
    pub is_learner: bool,
}

/// The members.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MemberListResponse {
    /// Who answered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The members.
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<Member>,
}

/// Asks a member for its database.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SnapshotRequest {}

/// A part of the database.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SnapshotResponse {
    /// Who answered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// How many bytes follow after this part.
    #[prost(uint64, tag = "2")]
    pub remaining_bytes: u64,
    /// The part.
    #[prost(bytes = "bytes", tag = "3")]
    pub blob: Bytes,
}
