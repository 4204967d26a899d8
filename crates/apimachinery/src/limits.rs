//! Every bound of this module, by name, with its reason.

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
/// Objects within a document by which an extension server says what it serves: each takes a hundred times the two bytes that an
/// empty one is written with.
pub const EXTENSION_DOCUMENT_OBJECTS: usize = 20_000;
/// Objects within the OpenAPI document of an extension server.
pub const OPENAPI_PARTS: usize = 200_000;
/// Bytes of one path, definition or parameter in it; a larger one is left out.
pub const OPENAPI_PART_BYTES: usize = 1 << 20;
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

/// Values that are held against the schema of a custom kind for one object. A schema can ask of each item of a list which of a
/// thousand others it is.
pub const CUSTOM_STEPS: usize = 2_000_000;

/// Bytes of one path into the objects of a custom kind. It is read again at every start.
pub const JSON_PATH_BYTES: usize = 4 << 10;
/// Conditions within conditions of such a path: its recursion stays within a stack.
pub const JSON_PATH_DEPTH: usize = 8;

/// Bytes of the text of one pattern in the schema of a custom kind. A class of three letters stands for thousands of bytes.
pub const PATTERN_TEXT_BYTES: usize = 16 << 10;
/// Bytes of one such pattern as it is used.
pub const PATTERN_BYTES: usize = 1 << 20;
/// Bytes of all patterns of one schema as they are used: they are kept as long as the kind is.
pub const PATTERNS_BYTES: usize = 16 << 20;

/// Bytes that the defaults of a custom kind may add to one object: a list of empty items could ask for a large one for each.
pub const FILLED_BYTES: usize = 8 << 20;

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
/// Things of one object that are held against each other for a warning: of those behind it nothing is said.
pub const WARNING_PAIRS: usize = 1_000;
/// Requirements of one selector: each is held against every object that is looked at.
pub const SELECTOR_RULES: usize = 1_000;
/// Single permissions of one role that are held against those of its author. A rule multiplies its lists, so three megabytes
/// of rules could stand for more than any machine can count.
pub const ROLE_PERMISSIONS: usize = 50_000;
/// Words that are compared to find out whether the author of a role holds what it gives: a tenth of a second at most.
pub const RIGHTS_COMPARED: usize = 10_000_000;
/// Roles that a subject has and nobody has made, of which the answer to a question tells.
pub const MISSING_ROLES_TOLD: usize = 100;

/// What one rule of a custom kind may cost for one object, in the units of the language.
pub const RULE_COST: u64 = 1_000_000;
/// What all rules of a custom kind may cost for one object together.
pub const RULES_COST: u64 = 10_000_000;
/// Rules that are made to check the defaults of one schema, where each default asks for all rules within it.
pub const DEFAULT_RULES: usize = 10_000;
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
/// What one rule of a definition may be estimated to cost, wherever it applies. Clients are told how much more theirs is.
pub const RULE_ESTIMATE: u64 = 10_000_000;
/// The same of all rules of one schema.
pub const RULES_ESTIMATE: u64 = 100_000_000;
/// Bytes of a message that a rule works out.
pub const RULE_MESSAGE_BYTES: usize = 5 << 10;
/// Bytes of the largest object that estimates think of: prices must not change with what a server takes.
pub const REQUEST_BYTES_PRICED: u64 = 3 << 20;
/// Warnings of one webhook that are looked at; an answer has far fewer.
pub const HOOK_WARNINGS: usize = 1_000;
