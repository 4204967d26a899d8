//! Every bound of this crate, by name, with its reason.

/// Characters of one expression. Clients are told this number.
pub const CEL_CHARS: usize = 100_000;
/// Expressions within expressions, as they are written. Clients are told this number.
pub const CEL_DEPTH: usize = 250;
/// Levels of an expression after its macros have become what they stand for: checking and evaluating it stays within a stack.
pub const CEL_HEIGHT: usize = 300;
/// Wrong things that are told of one expression.
pub const CEL_ISSUES: usize = 100;
/// Characters of a line that is shown with what is wrong in it.
pub const CEL_SNIPPET_CHARS: usize = 16_384;
/// Steps of one evaluation that its price does not say, such as the parts of two objects that are compared: a tenth of a
/// second at most.
pub const CEL_EFFORT: u64 = 10_000_000;
/// Bytes of one text that an expression makes.
pub const CEL_TEXT_BYTES: usize = 16 << 20;

/// What one rule of a custom kind may cost for one object, in the units of the language.
pub const RULE_COST: u64 = 1_000_000;
/// What all rules of a custom kind may cost for one object together.
pub const RULES_COST: u64 = 10_000_000;
/// Bytes of a message that a rule works out.
pub const RULE_MESSAGE_BYTES: usize = 5 << 10;
