//! Every bound of this crate, by name, with its reason.

/// Values that are held against the schema of a custom kind for one object. A schema can ask of each item of a list which of a
/// thousand others it is.
pub const CUSTOM_STEPS: usize = 2_000_000;
/// Bytes of one path into the objects of a custom kind. It is read again at every start.
pub const JSON_PATH_BYTES: usize = 4 << 10;
/// Conditions within conditions of such a path: its recursion stays within a stack.
pub const JSON_PATH_DEPTH: usize = 8;
/// Rules that are made to check the defaults of one schema, where each default asks for all rules within it.
pub const DEFAULT_RULES: usize = 10_000;
/// What one rule of a definition may be estimated to cost, wherever it applies. Clients are told how much more theirs is.
pub const RULE_ESTIMATE: u64 = 10_000_000;
/// The same of all rules of one schema.
pub const RULES_ESTIMATE: u64 = 100_000_000;
/// Bytes of the largest object that estimates think of: prices must not change with what a server takes.
pub const REQUEST_BYTES_PRICED: u64 = 3 << 20;
