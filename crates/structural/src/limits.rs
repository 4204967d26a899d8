//! Every bound of this crate, by name, with its reason.

/// Maximum number of values that are validated for one object. With `anyOf` and the like, a schema can validate each item of a list
/// against a thousand other schemas.
pub const CUSTOM_STEPS: usize = 2_000_000;
/// Maximum length in bytes of a JSONPath of a definition. Definitions are parsed again at every start.
pub const JSON_PATH_BYTES: usize = 4 << 10;
/// Maximum nesting of a JSONPath: its parser is recursive.
pub const JSON_PATH_DEPTH: usize = 8;
/// Maximum number of rules that are compiled to check the defaults of one schema: each default needs all rules inside of it.
pub const DEFAULT_RULES: usize = 10_000;
/// Maximum estimated cost of one rule of a definition, over all values of an object that it applies to; the reference's value. The
/// error message contains the factor by which a rule exceeds it.
pub const RULE_ESTIMATE: u64 = 10_000_000;
/// Maximum estimated cost of all rules of one schema; the reference's value.
pub const RULES_ESTIMATE: u64 = 100_000_000;
/// Maximum size in bytes of an object in cost estimates; the reference's value. Estimates must not depend on the request limit of
/// this server.
pub const ESTIMATED_OBJECT_BYTES: u64 = 3 << 20;
