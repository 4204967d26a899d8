//! Every bound of this crate, by name, with its reason.

/// Kinds that the expressions of one policy are held against; the reference server's value.
pub const TYPES_CHECKED: usize = 10;
/// What holding the expressions of one policy against kinds may cost: the bytes of each, and what any costs, once for each kind.
/// Some seconds at most. What comes after that is not looked at; nothing depends on it.
pub const TYPE_CHECK_COST: usize = 8 << 20;
/// What any expression costs there besides its bytes.
pub const TYPE_CHECK_EACH: usize = 1_024;
/// Bytes of what is told of the expressions of one policy that do not fit.
pub const TYPE_WARNINGS_BYTES: usize = 256 << 10;
/// Variables of a policy that expressions can also ask for all at once, to know whether there is one.
pub const VARIABLES_AS_ONE: usize = 1_000;
/// What all conditions of one policy or webhook may cost for one request together.
pub const CONDITIONS_COST: u64 = 2_500_000;
/// Warnings of one webhook that are looked at; an answer has far fewer.
pub const HOOK_WARNINGS: usize = 1_000;
