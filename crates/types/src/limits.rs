//! Every bound of this crate, by name, with its reason.

/// Cached forms of one object version: encodings and API versions. Further forms are made anew each time.
pub const VARIANTS_KEPT: usize = 4;
/// The part of a memory limit that only small requests may use: an operator must be able to look and to delete when large requests
/// have taken the rest.
pub const LEDGER_RESERVE_PART: usize = 64;
/// The part of a memory limit that must be free before something is kept only to save work.
pub const LEDGER_KEPT_PART: usize = 8;
/// If less than this part of a memory limit is reserved, what else the process uses is measured exactly.
pub const LEDGER_SETTLED_PART: usize = 16;
/// The part of a memory limit that the ledger leaves free for what is allocated between two observations of the process.
pub const LEDGER_LAG_PART: usize = 64;
/// Bytes up to which a request counts as small.
pub const RESERVE_FOR_REQUESTS_UP_TO: usize = 64 << 10;
/// Bytes from which a frame, or a queue of them, is counted. Smaller ones are shared, or gone before anybody could count them.
pub const HELD_FROM_BYTES: usize = 8 << 10;
