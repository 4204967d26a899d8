//! All limits of this crate.

/// Cached variants of one object version: encodings and API versions. Further variants are encoded on each use.
pub const MAX_CACHED_VARIANTS: usize = 4;
/// The part of a memory limit that only small requests may use, so that an operator can still list and delete when large
/// requests have used the rest.
pub const LEDGER_RESERVE_PART: usize = 64;
/// The part of a memory limit that must be free before anything is cached.
pub const LEDGER_CACHE_PART: usize = 8;
/// If less than this part of a memory limit is reserved, the memory without reservations is measured exactly.
pub const LEDGER_SETTLED_PART: usize = 16;
/// The part of a memory limit that the ledger leaves free for allocations between two observations of the process.
pub const LEDGER_LAG_PART: usize = 64;
/// Bytes up to which a request counts as small.
pub const SMALL_REQUEST_BYTES: usize = 64 << 10;
/// The size from which a frame, or a queue of frames, is counted. Smaller ones are shared or short-lived.
pub const LARGE_FRAME_BYTES: usize = 8 << 10;
