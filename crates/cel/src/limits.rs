//! Every bound of this crate, by name, with its reason.

/// Maximum length of an expression in characters; the reference's value, which the error message contains.
pub const CEL_CHARS: usize = 100_000;
/// Maximum nesting of an expression in its source; the reference's value, which the error message contains.
pub const CEL_DEPTH: usize = 250;
/// Maximum height of the syntax tree after macro expansion: type checking and evaluation recurse over it.
pub const CEL_HEIGHT: usize = 300;
/// Maximum number of compile errors that are reported for one expression.
pub const CEL_ISSUES: usize = 100;
/// Maximum length of a source line, in characters, that an error message quotes.
pub const CEL_SNIPPET_CHARS: usize = 16_384;
/// Maximum number of steps of one evaluation that the cost model does not charge for, such as comparing the fields of two objects.
/// They take a tenth of a second at most.
pub const CEL_UNCHARGED_STEPS: u64 = 10_000_000;
/// Maximum size in bytes of a string that an expression computes.
pub const CEL_TEXT_BYTES: usize = 16 << 20;

/// Maximum runtime cost of one validation rule of a custom resource for one object; the reference's value.
pub const RULE_COST: u64 = 1_000_000;
/// Maximum runtime cost of all validation rules of a custom resource for one object; the reference's value.
pub const RULES_COST: u64 = 10_000_000;
/// Maximum size in bytes of the result of a messageExpression.
pub const RULE_MESSAGE_BYTES: usize = 5 << 10;
