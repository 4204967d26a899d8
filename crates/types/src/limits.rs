//! All limits of this crate.

/// Cached variants of one object version: encodings and API versions. Further variants are encoded on each use.
pub const MAX_CACHED_VARIANTS: usize = 4;
/// A memory limit is divided by this to get the part that only small requests may use, so that an operator can still list and
/// delete when large requests have used the rest.
pub const LEDGER_RESERVE_DIVISOR: usize = 64;
/// A memory limit is divided by this to get the part that must be free before anything is cached.
pub const LEDGER_CACHE_DIVISOR: usize = 8;
/// A memory limit is divided by this to get the reserved bytes below which the memory without reservations is measured exactly.
pub const LEDGER_SETTLED_DIVISOR: usize = 16;
/// A memory limit is divided by this to get the part that the ledger leaves free for allocations between two observations of
/// the process.
pub const LEDGER_LAG_DIVISOR: usize = 64;
/// Bytes up to which a request counts as small.
pub const SMALL_REQUEST_BYTES: usize = 64 << 10;
/// The size from which a frame, or a queue of frames, is counted. Smaller ones are shared or short-lived.
pub const LARGE_FRAME_BYTES: usize = 8 << 10;
/// Items of one range allocation: the largest range of cluster IPs has 2^20 addresses.
pub const RANGE_ITEMS: usize = 1 << 20;
/// Spans of a trace. A deletion of a collection has some for each object; the rest of it is counted and not recorded.
pub const SPANS_PER_TRACE: u32 = 512;
/// Bytes of a text in an attribute of a span. Clients choose paths and names.
pub const ATTRIBUTE_BYTES: usize = 1 << 10;
/// Bytes of `tracestate`, and of `baggage`, that are passed on; for the second one the limit is the standard's.
pub const PROPAGATED_BYTES: usize = 8 << 10;
/// Members of `tracestate`; the standard's limit.
pub const STATE_MEMBERS: usize = 32;
/// Members of `baggage`; the standard's limit.
pub const BAGGAGE_MEMBERS: usize = 64;
