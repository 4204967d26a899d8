//! Every bound of this crate, by name, with its reason.

/// Bytes of one request body, in any encoding.
pub const BODY_BYTES: usize = 3 << 20;
/// Unknown and duplicate fields that are reported of one body; the rest is dropped like they are.
pub const STRICT_FINDINGS: usize = 100;
/// Levels of nesting in a JSON text, counted also in fields that are dropped.
pub const JSON_DEPTH: usize = 10_000;
/// Levels of nesting in a YAML document: what the JSON decoder takes as well, and its recursion stays within a stack.
pub const YAML_DEPTH: usize = 100;
/// Nodes of one YAML document after its aliases are replaced by what they stand for.
pub const YAML_NODES: usize = 250_000;
/// Anchors in one YAML document.
pub const YAML_ANCHORS: usize = 1_000;
/// Aliases in one YAML document.
pub const YAML_ALIASES: usize = 1_000;
/// Bytes of text that aliases add to one YAML document.
pub const YAML_ALIAS_BYTES: usize = 4 << 20;
/// Levels of nesting in a CBOR body, rows of tags included. Clients are told this number.
pub const CBOR_DEPTH: usize = 64;
/// Items of one CBOR array. Clients are told this number.
pub const CBOR_ITEMS: u64 = 1_024;
/// Pairs of one CBOR map. Clients are told this number.
pub const CBOR_PAIRS: u64 = 1_024;
/// Levels of nesting in an object that came as Protobuf: its JSON must be readable again.
pub const PROTOBUF_DEPTH: usize = 100;
/// Types that may be inlined in each other. The table nests two; more is a mistake that would not end.
pub const INLINE_DEPTH: usize = 8;

/// Objects within one object, its metadata apart. Defaults can make a kilobyte of an empty one, so a body of three
/// megabytes of them would take a gigabyte.
pub const OBJECT_PARTS: usize = 100_000;

/// Levels of a set of owned fields: more than any kind nests, and its recursion stays within a stack.
pub const OWNED_DEPTH: usize = 200;

/// Operations of one JSON Patch. Clients are told this number.
pub const PATCH_OPERATIONS: usize = 10_000;
/// Bytes that the copy operations of one JSON Patch may make together: each can double what is there.
pub const PATCH_COPIED_BYTES: usize = 3 << 20;
/// Parts of values that the operations of one JSON Patch may move to a deeper place, all together: each is looked at, how deep it
/// nests.
pub const PATCH_DEEPENED_PARTS: usize = 2_000_000;
/// Levels of nesting that a JSON Patch may build: what the decoder takes as well.
pub const PATCH_DEPTH: usize = 128;

/// Bytes of the text of one pattern in the schema of a custom kind. A class of three letters stands for thousands of bytes.
pub const PATTERN_TEXT_BYTES: usize = 16 << 10;
/// Bytes of one such pattern as it is used.
pub const PATTERN_BYTES: usize = 1 << 20;
/// Bytes of all patterns of one schema as they are used: they are kept as long as the kind is.
pub const PATTERNS_BYTES: usize = 16 << 20;

/// Wrong fields that are kept of one object, and that one answer names.
pub const FIELD_ERRORS: usize = 1_000;
/// Bytes of the errors that are kept of one object: the one that passes it is the last.
pub const FIELD_ERROR_BYTES: usize = 8 << 20;
/// Bytes of the path of a field. Every step down copies the path so far, so a longer one is cut.
pub const PATH_BYTES: usize = 4 << 10;
/// Warnings that are kept of one object. An answer has far fewer, but none of them twice.
pub const WARNINGS: usize = 1_000;
/// Bytes of the warnings that are kept of one object: the one that passes it is the last.
pub const WARNING_BYTES: usize = 1 << 20;
/// Requirements of one selector: each is held against every object that is looked at.
pub const SELECTOR_RULES: usize = 1_000;
