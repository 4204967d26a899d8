//! Every bound of this crate, by name, with its reason.

/// Bytes of one request body, in any encoding.
pub const BODY_BYTES: usize = 3 << 20;
/// Unknown and duplicate fields that are reported for one body; further ones are dropped without a report.
pub const STRICT_FINDINGS: usize = 100;
/// Levels of nesting in a JSON text, counted also in fields that are dropped.
pub const JSON_DEPTH: usize = 10_000;
/// Levels of nesting in a YAML document: few enough that the recursive decoder does not overflow the stack.
pub const YAML_DEPTH: usize = 100;
/// Nodes of one YAML document after its aliases are expanded.
pub const YAML_NODES: usize = 250_000;
/// Anchors in one YAML document.
pub const YAML_ANCHORS: usize = 1_000;
/// Aliases in one YAML document.
pub const YAML_ALIASES: usize = 1_000;
/// Bytes of text that aliases add to one YAML document.
pub const YAML_ALIAS_BYTES: usize = 4 << 20;
/// Levels of nesting in a CBOR body, nested tags included. Error messages contain this number.
pub const CBOR_DEPTH: usize = 64;
/// Items of one CBOR array. Error messages contain this number.
pub const CBOR_ITEMS: u64 = 1_024;
/// Pairs of one CBOR map. Error messages contain this number.
pub const CBOR_PAIRS: u64 = 1_024;
/// Levels of nesting in an object that came as Protobuf: its JSON must be decodable again.
pub const PROTOBUF_DEPTH: usize = 100;
/// Levels of types inlined in each other. The table has two; a cycle of inlined types would recurse forever.
pub const INLINE_DEPTH: usize = 8;

/// Nested objects of one object, its metadata apart. Defaulting can turn an empty one into a kilobyte, so a body of three
/// megabytes of them would take a gigabyte.
pub const OBJECT_PARTS: usize = 100_000;

/// Levels of a set of owned fields: more than any kind nests, and its recursion stays within a stack.
pub const OWNED_DEPTH: usize = 200;

/// Operations of one JSON Patch. Error messages contain this number.
pub const PATCH_OPERATIONS: usize = 10_000;
/// Bytes that the copy operations of one JSON Patch may add together: each can double the document.
pub const PATCH_COPIED_BYTES: usize = 3 << 20;
/// Nodes that all operations of one JSON Patch together may move to a deeper level: the depth of each is computed again.
pub const PATCH_DEEPENED_PARTS: usize = 2_000_000;
/// Levels of nesting that a JSON Patch may build: as many as the decoder accepts.
pub const PATCH_DEPTH: usize = 128;

/// Bytes of the text of one pattern in the schema of a custom kind. A class of three letters stands for thousands of bytes.
pub const PATTERN_TEXT_BYTES: usize = 16 << 10;
/// Bytes of one such pattern in compiled form.
pub const PATTERN_BYTES: usize = 1 << 20;
/// Bytes of all compiled patterns of one schema: they stay in memory as long as the kind exists.
pub const PATTERNS_BYTES: usize = 16 << 20;

/// Field errors that are kept for one object, and that one response names.
pub const FIELD_ERRORS: usize = 1_000;
/// Bytes of the field errors that are kept for one object. The error that exceeds it is kept, later ones are not.
pub const FIELD_ERROR_BYTES: usize = 8 << 20;
/// Bytes of the path of a field. Every step down copies the path so far, so a longer one is cut.
pub const PATH_BYTES: usize = 4 << 10;
/// Warnings that are kept for one object. A response has far fewer, without duplicates.
pub const WARNINGS: usize = 1_000;
/// Bytes of the warnings that are kept for one object. The warning that exceeds it is kept, later ones are not.
pub const WARNING_BYTES: usize = 1 << 20;
/// Requirements of one selector: each is evaluated for every object that is listed or watched.
pub const SELECTOR_RULES: usize = 1_000;
