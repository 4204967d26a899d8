//! The methods of etcd's API, and what may be done when one is not answered.

/// A method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Its path.
    pub path: &'static str,
    /// Its name in errors.
    pub name: &'static str,
    /// Whether it may be done twice, so that it is repeated at another member when its answer is missing.
    pub is_repeatable: bool,
    /// Whether a member that knows no leader shall refuse at once, instead of waiting for one. A refused write has certainly not
    /// been done.
    pub needs_leader: bool,
}

const fn read(path: &'static str, name: &'static str) -> Method {
    Method { path, name, is_repeatable: true, needs_leader: true }
}

const fn write(path: &'static str, name: &'static str) -> Method {
    Method { path, name, is_repeatable: false, needs_leader: true }
}

/// The method without the need of a leader: the member answers from its own state.
const fn local(method: Method) -> Method {
    Method { needs_leader: false, ..method }
}

pub const RANGE: Method = read("/etcdserverpb.KV/Range", "Range");
pub const SERIALIZABLE_RANGE: Method = local(RANGE);
pub const PUT: Method = write("/etcdserverpb.KV/Put", "Put");
pub const DELETE_RANGE: Method = write("/etcdserverpb.KV/DeleteRange", "DeleteRange");
pub const TXN: Method = write("/etcdserverpb.KV/Txn", "Txn");
pub const READ_ONLY_TXN: Method = read("/etcdserverpb.KV/Txn", "Txn");
pub const COMPACT: Method = write("/etcdserverpb.KV/Compact", "Compact");
pub const WATCH: Method = read("/etcdserverpb.Watch/Watch", "Watch");
pub const LEASE_GRANT: Method = write("/etcdserverpb.Lease/LeaseGrant", "LeaseGrant");
pub const LEASE_REVOKE: Method = write("/etcdserverpb.Lease/LeaseRevoke", "LeaseRevoke");
pub const LEASE_KEEP_ALIVE: Method = read("/etcdserverpb.Lease/LeaseKeepAlive", "LeaseKeepAlive");
pub const LEASE_TIME_TO_LIVE: Method = read("/etcdserverpb.Lease/LeaseTimeToLive", "LeaseTimeToLive");
pub const MEMBER_LIST: Method = local(read("/etcdserverpb.Cluster/MemberList", "MemberList"));
/// Listing alarms changes nothing, and disarming one twice is as good as once.
pub const ALARM: Method = read("/etcdserverpb.Maintenance/Alarm", "Alarm");
pub const STATUS: Method = local(read("/etcdserverpb.Maintenance/Status", "Status"));
pub const SNAPSHOT: Method = local(read("/etcdserverpb.Maintenance/Snapshot", "Snapshot"));
