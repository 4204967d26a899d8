//! Every bound of this crate, by name, with its reason.

/// Single permissions of one role that are held against those of its author. A rule multiplies its lists, so three megabytes
/// of rules could stand for more than any machine can count.
pub const ROLE_PERMISSIONS: usize = 50_000;
/// Words that are compared to find out whether the author of a role holds what it gives: a tenth of a second at most.
pub const RIGHTS_COMPARED: usize = 10_000_000;
/// Roles that a subject has and nobody has made, of which the answer to a question tells.
pub const MISSING_ROLES_TOLD: usize = 100;
