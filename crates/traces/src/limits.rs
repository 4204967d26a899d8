//! Every bound of this crate, by name, with its reason.

use std::time::Duration;

/// Bytes of the configuration file.
pub const CONFIGURATION_BYTES: usize = 1 << 20;
/// Spans that wait for the collector. What comes when there are so many is dropped and counted.
pub const WAITING_SPANS: usize = 4_096;
/// Bytes of memory of the spans that wait: usual ones take a fraction of that, but clients choose texts in them.
pub const WAITING_BYTES: usize = 8 << 20;
/// Spans of a message to the collector.
pub const BATCH_SPANS: usize = 512;
/// Bytes of memory of those spans, unless a single one takes more. Collectors refuse messages of more than 4 MiB unless they are told to
/// take them.
pub const BATCH_BYTES: usize = 2 << 20;
/// How long spans wait for a full batch.
pub const BATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How long the collector may take for a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the collector may take for a batch.
pub const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a first failure; each further one is twice as long.
pub const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long the spans that wait may take when the server ends.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of an answer of the collector.
pub const ANSWER_BYTES: usize = 64 << 10;
