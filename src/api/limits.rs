//! Every bound of this module, by name, with its reason.

/// Bytes of one request body, in any encoding.
pub const BODY_BYTES: usize = 3 << 20;
/// Unknown and duplicate fields that are reported per body; further ones are dropped silently.
pub const STRICT_FINDINGS: usize = 100;
/// Nesting depth of a JSON text, including dropped fields.
pub const JSON_DEPTH: usize = 10_000;
/// Nesting depth of a YAML document: the same as in JSON decoding, and its recursion fits the stack.
pub const YAML_DEPTH: usize = 100;
/// Nodes of a YAML document after aliases are expanded.
pub const YAML_NODES: usize = 250_000;
/// Anchors in one YAML document.
pub const YAML_ANCHORS: usize = 1_000;
/// Aliases in one YAML document.
pub const YAML_ALIASES: usize = 1_000;
/// Bytes of text that aliases add to a YAML document.
pub const YAML_ALIAS_BYTES: usize = 4 << 20;
/// Nesting depth of a CBOR body, including tags. Error messages contain this number.
pub const CBOR_DEPTH: usize = 64;
/// Items of a CBOR array. Error messages contain this number.
pub const CBOR_ITEMS: u64 = 1_024;
/// Pairs of a CBOR map. Error messages contain this number.
pub const CBOR_PAIRS: u64 = 1_024;
/// Nesting depth of a Protobuf object: its JSON must be decodable again.
pub const PROTOBUF_DEPTH: usize = 100;
/// Objects in a discovery document of an extension API server: an empty one is two bytes of text and a hundred times that in
/// memory.
pub const EXTENSION_DOCUMENT_OBJECTS: usize = 20_000;
/// Objects in the OpenAPI document of an extension API server.
pub const OPENAPI_PARTS: usize = 200_000;
/// Bytes of one path, definition or parameter in it; larger ones are left out.
pub const OPENAPI_PART_BYTES: usize = 1 << 20;
/// Types that are inlined in each other. The schema nests two; more would be an endless cycle.
pub const INLINE_DEPTH: usize = 8;

/// Objects within one object, except for metadata. Defaults can enlarge an empty one to a kilobyte, so a body of three megabytes
/// could need a gigabyte.
pub const OBJECT_PARTS: usize = 100_000;

/// Depth of a set of owned fields: more than any kind nests, and its recursion fits the stack.
pub const OWNED_DEPTH: usize = 200;

/// Operations of a JSON Patch. Error messages contain this number.
pub const PATCH_OPERATIONS: usize = 10_000;
/// Bytes that the copy operations of a JSON Patch may add: each can double the object.
pub const PATCH_COPIED_BYTES: usize = 3 << 20;
/// List items that the operations of a JSON Patch may shift in total: ten thousand insertions at the head of a long list would
/// otherwise block a worker for minutes.
pub const PATCH_SHIFTED_ITEMS: usize = 50_000_000;
/// Parts of values that the operations of a JSON Patch may move to a deeper place in total: the depth of each is checked.
pub const PATCH_DEEPENED_PARTS: usize = 2_000_000;
/// Nesting depth that a JSON Patch may build: the same as in decoding.
pub const PATCH_DEPTH: usize = 128;

/// Steps of validating one object against the schema of its definition: a schema can compare each list item with a thousand enum
/// values.
pub const CUSTOM_STEPS: usize = 2_000_000;

/// Bytes of a JSONPath in a definition. It is parsed again at every start.
pub const JSON_PATH_BYTES: usize = 4 << 10;
/// Nested filters of a JSONPath: its recursion fits the stack.
pub const JSON_PATH_DEPTH: usize = 8;

/// Bytes of a pattern in a definition. A class of three letters can expand to thousands of bytes.
pub const PATTERN_TEXT_BYTES: usize = 16 << 10;
/// Bytes of a compiled pattern.
pub const PATTERN_BYTES: usize = 1 << 20;
/// Bytes of all compiled patterns of a schema: they stay in memory as long as the definition.
pub const PATTERNS_BYTES: usize = 16 << 20;

/// Bytes that the defaults of a definition may add to one object: a list of empty items could get a large default each.
pub const FILLED_BYTES: usize = 8 << 20;

/// Field errors that are kept per object, and reported in one response.
pub const FIELD_ERRORS: usize = 1_000;
/// Bytes of the kept field errors per object: the one that exceeds it is the last.
pub const FIELD_ERROR_BYTES: usize = 8 << 20;
/// Bytes of a field path. Every level copies the path so far, so a longer one is cut.
pub const PATH_BYTES: usize = 4 << 10;
/// Warnings that are kept per object. A response contains fewer, without duplicates.
pub const WARNINGS: usize = 1_000;
/// Bytes of the kept warnings per object: the one that exceeds it is the last.
pub const WARNING_BYTES: usize = 1 << 20;
/// Pairs of values that are compared for one warning; later ones are not checked.
pub const WARNING_PAIRS: usize = 1_000;
/// Requirements of a selector: each is evaluated for every object.
pub const SELECTOR_RULES: usize = 1_000;
/// Single permissions of a role that are compared with those of its author. A rule multiplies its lists, so three megabytes of
/// rules could stand for more than any machine can count.
pub const ROLE_PERMISSIONS: usize = 50_000;
/// String comparisons for checking that the author of a role has its rights: a tenth of a second at most.
pub const RIGHTS_COMPARED: usize = 10_000_000;
/// Missing roles of a user that an access review reports.
pub const MISSING_ROLES_TOLD: usize = 100;

/// Characters of a CEL expression. Error messages contain this number.
pub const CEL_CHARS: usize = 100_000;
/// Nesting depth of a CEL expression in its source. Error messages contain this number.
pub const CEL_DEPTH: usize = 250;
/// Depth of a CEL expression after macro expansion: checking and evaluating it fits the stack.
pub const CEL_HEIGHT: usize = 300;
/// Errors that are reported per CEL expression.
pub const CEL_ISSUES: usize = 100;
/// Characters of a source line that is shown with an error.
pub const CEL_SNIPPET_CHARS: usize = 16_384;
/// Steps of an evaluation that its cost does not cover, such as comparing the parts of two objects: a tenth of a second at most.
pub const CEL_EFFORT: u64 = 10_000_000;
/// Bytes of a string that an expression makes.
pub const CEL_TEXT_BYTES: usize = 16 << 20;

/// The CEL cost of one validation rule for one object.
pub const RULE_COST: u64 = 1_000_000;
/// The CEL cost of all validation rules for one object.
pub const RULES_COST: u64 = 10_000_000;
/// Rules that are compiled to check the defaults of a schema: each default needs all rules within it.
pub const DEFAULT_RULES: usize = 10_000;
/// Kinds that the expressions of a policy are type-checked against; the reference's value.
pub const TYPES_CHECKED: usize = 10;
/// The cost of type-checking the expressions of one policy: bytes plus [`TYPE_CHECK_EACH`] of every expression, per kind. Some
/// seconds at most. Later expressions are not checked; nothing depends on these warnings.
pub const TYPE_CHECK_COST: usize = 2 << 20;
/// The fixed cost of type-checking one expression, besides its bytes.
pub const TYPE_CHECK_EACH: usize = 1_024;
/// Bytes of the type-checking warnings of one policy.
pub const TYPE_WARNINGS_BYTES: usize = 256 << 10;
/// Variables of a policy that are available in one map, for expressions that test their presence.
pub const VARIABLES_AS_ONE: usize = 1_000;
/// The CEL cost of all match conditions of a policy or webhook for one request.
pub const CONDITIONS_COST: u64 = 2_500_000;
/// The estimated cost of one rule of a definition, wherever it applies. Error messages say by which factor it is exceeded.
pub const RULE_ESTIMATE: u64 = 10_000_000;
/// The estimated cost of all rules of a schema.
pub const RULES_ESTIMATE: u64 = 100_000_000;
/// Bytes of a message that a messageExpression makes.
pub const RULE_MESSAGE_BYTES: usize = 5 << 10;
/// The object size that estimates assume: costs must not depend on the server's limits.
pub const REQUEST_BYTES_PRICED: u64 = 3 << 20;
/// Warnings of one webhook that are processed; a response contains fewer.
pub const HOOK_WARNINGS: usize = 1_000;
