//! Every bound of this crate, by name, with its reason.

/// Maximum number of single permissions of one role that are compared with those of its author. A rule stands for the product of its
/// lists, so three megabytes of rules could stand for more permissions than can be enumerated.
pub const ROLE_PERMISSIONS: usize = 50_000;
/// Maximum number of words that are compared to decide whether the author of a role has its permissions: a tenth of a second at most.
pub const RIGHTS_COMPARED: usize = 10_000_000;
/// Maximum number of missing roles that a decision reports.
pub const MISSING_ROLES_REPORTED: usize = 100;
