//! Every bound of this crate, by name, with its reason.

/// Maximum number of kinds against which the expressions of one policy are type-checked; the reference's value.
pub const TYPES_CHECKED: usize = 10;
/// Maximum cost of type checking one policy: the bytes of each expression plus [`TYPE_CHECK_EACH`], once for each kind. Takes some
/// seconds at most. The remaining expressions are not checked; the result is only informational.
pub const TYPE_CHECK_COST: usize = 8 << 20;
/// The fixed cost of type checking an expression.
pub const TYPE_CHECK_EACH: usize = 1_024;
/// Maximum size in bytes of all type checking warnings of one policy.
pub const TYPE_WARNINGS_BYTES: usize = 256 << 10;
/// Maximum number of composition variables of a policy with which `variables` has a type of its own, for presence tests. That type
/// is rebuilt for every variable.
pub const VARIABLES_IN_TYPE: usize = 1_000;
/// Maximum cost of all match conditions of one policy or webhook for one request.
pub const CONDITIONS_COST: u64 = 2_500_000;
/// Maximum number of warnings of one webhook that are parsed; a response to a client has far fewer.
pub const HOOK_WARNINGS: usize = 1_000;
