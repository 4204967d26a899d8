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
/// How long to wait before a KMS plugin is asked again for a key that objects need which were read.
pub const DECRYPTION_RETRY_PAUSE: Duration = Duration::from_secs(1);
