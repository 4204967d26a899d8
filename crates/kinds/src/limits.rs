//! Every bound of this crate, by name, with its reason.

/// Things of one object that are held against each other for a warning: of those behind it nothing is said.
pub const WARNING_PAIRS: usize = 1_000;
