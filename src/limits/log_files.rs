//! The bounds of `/logs`.

use std::time::Duration;

/// Files and directories that are open at the same time. Each may occupy a thread as long as the disk does not answer.
pub const LOG_OPEN_FILES: usize = 32;
/// Bytes of a file that are read and sent at a time.
pub const LOG_CHUNK_BYTES: usize = 64 << 10;
/// Pieces of a file in memory: one that was read, one that is sent.
pub const LOG_CHUNKS: usize = 2;
/// Bytes of the names in a directory that is listed, each with [`LOG_NAME_OVERHEAD`] more.
pub const LOG_NAMES_BYTES: usize = 1 << 20;
/// What a name takes in memory beside its own bytes.
pub const LOG_NAME_OVERHEAD: usize = 32;
/// Memory for a listing while it is made: the names, and the page, which escaping makes up to eight times as long.
pub const LOG_LISTING_BYTES: usize = 10 << 20;
/// Ranges of one response. A request for more gets the whole file.
pub const LOG_RANGES: usize = 64;
/// A client that reads a file more slowly loses it: few files may be open.
pub const LOG_MIN_BYTES_PER_SECOND: u64 = 64 << 10;
/// The time that it may take for the file in addition.
pub const LOG_SEND_GRACE: Duration = Duration::from_secs(60);
/// The longest time for a file: one without content on the disk may be of any length.
pub const LOG_MAX_SEND_TIME: Duration = Duration::from_secs(3_600);
