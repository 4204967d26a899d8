//! Every bound of this crate, by name, with its reason.

use std::time::Duration;

/// Revisions that are handed on at once.
pub const BATCH_REVISIONS: usize = 256;
/// Bytes of changes with which a batch is handed on as it is, so that stores begin with it. The changes of one revision are never
/// parted, so a batch has at most those of one revision more.
pub const BATCH_BYTES: usize = 1 << 20;
/// Revisions before the newest one that are read at the start, as history, if etcd still has them. The windows of the types bound what is
/// kept of them.
pub const HISTORY_REVISIONS: i64 = 25_000;
/// How often the start of the history is read again when etcd was compacted meanwhile. Then there is none.
pub const PAST_ATTEMPTS: usize = 3;
/// How long etcd may take to say how far it is compacted.
pub const PAST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the record of a server lasts that says that it is alive: the reference's, which renews it every 10 seconds.
pub const ENDPOINT_LEASE_SECONDS: i64 = 15;
/// How long reading the record of another server may take: a request waits for it.
pub const RECORD_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait before a KMS plugin is asked again for a key that objects need which were read.
pub const DECRYPTION_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Writes by which a copy raises the revision that are on their way to etcd: enough to share its syncs.
pub const COPY_RAISES_IN_FLIGHT: usize = 64;
/// How often a write of a copy is repeated if nobody knows whether it was carried out.
pub const COPY_ATTEMPTS: usize = 5;
/// Revisions by which a copy raises etcd at most, so that it is above those of the old server. Each costs a write, so this takes a minute
/// or less on most disks.
pub const COPY_RAISE_REVISIONS: u64 = 100_000;
/// How long reading or writing a record of taken ports or addresses may take: many requests wait for it.
pub const RANGE_CALL_TIMEOUT: Duration = Duration::from_secs(5);
