//! All limits of this crate.

/// Items of one object that are compared pairwise for a warning. Later items are ignored.
pub const WARNING_PAIRS: usize = 1_000;
