//! Every bound of this crate, by name, with its reason.

use std::time::Duration;

/// How long a call may take, with all its attempts, unless the settings say otherwise. A cluster elects a leader in less.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take to connect to a member; the reference's value.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(20);
/// How long one member may take to connect before the next one is tried beside it: a member that is paused accepts connections and
/// says nothing.
pub const DIAL_STAGGER: Duration = Duration::from_millis(500);
/// The interval of HTTP/2 pings while something waits for the member. etcd ends connections that ping more often than every 5 s.
pub const KEEPALIVE_TIME: Duration = Duration::from_secs(10);
/// How long a ping may stay unanswered; the reference's value.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a member may answer none of the calls that wait for it before it is asked for a sign of life, and how long that may
/// take. Pings would need longer.
pub const SILENCE: Duration = Duration::from_secs(2);
/// Pauses between attempts grow from the first to the second: a cluster without a leader should not be asked all the time.
pub const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// Bytes of one request; the reference's value. etcd itself refuses more than 1.5 MiB by default.
pub const REQUEST_BYTES: usize = 2 << 20;
/// Bytes of one response, and of the events of one revision. The reference sets no limit; a list this large should be read in pages.
pub const RESPONSE_BYTES: usize = 256 << 20;
/// Calls that are sent and not answered yet; further ones wait.
pub const CALLS_IN_FLIGHT: usize = 4_096;
/// Connections to one member for calls. Each watch has one of its own in addition.
pub const CONNECTIONS: usize = 1;
/// Requests on one stream that are not sent yet.
pub const STREAM_REQUESTS: usize = 16;
/// Responses of a watch that are decoded before their reader wants them. What follows waits in the windows of HTTP/2, and then at
/// the member.
pub const WATCH_RESPONSES: usize = 4;
/// Revisions that each part of a watch has that is far behind: as many as etcd hands to one watch in a tenth of a second.
pub const CATCH_UP_REVISIONS: i64 = 1_000;
/// Parts of such a watch that are open at a time. Each may hold [`WATCH_RESPONSES`].
pub const CATCH_UP_WATCHES: usize = 8;
/// Keys of the first page of a range.
pub const FIRST_PAGE_KEYS: i64 = 500;
/// Keys of any page.
pub const PAGE_KEYS: i64 = 10_000;
/// Bytes that a page should have; its number of keys follows from the page before. For each page, etcd counts all keys after it, so many
/// small ones would take longer.
pub const PAGE_BYTES: usize = 8 << 20;
/// Bytes that are read of a certificate or key file.
pub const PKI_FILE_BYTES: u64 = 4 << 20;
