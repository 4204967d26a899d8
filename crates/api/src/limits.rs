//! The limits of this crate.

/// Objects in a discovery document of an extension server. Even an empty one, written in two bytes, takes a hundred times as much
/// memory.
pub const EXTENSION_DOCUMENT_OBJECTS: usize = 20_000;
/// Paths, definitions and parameters in the OpenAPI document of an extension server; a document with more is left out.
pub const OPENAPI_PARTS: usize = 200_000;
/// What each of them takes beside its text: an entry in two maps, with two names.
pub const OPENAPI_PART_OVERHEAD: usize = 256;
/// Bytes of an untyped value of a document, such as a default, that Protobuf gets as indented YAML.
pub const OPENAPI_INDENTED_BYTES: usize = 64 << 10;
/// How many times as long as its JSON such YAML may be.
pub const OPENAPI_INDENTED_GROWTH: usize = 4;
/// Other names that are tried for a definition which differs from another server's of the same name; beyond them the other one stays.
pub const OPENAPI_NEW_NAMES: usize = 16;
/// Bytes of a definition that is parsed to compare it with another one of the same name. Longer ones are equal if their texts are.
pub const OPENAPI_COMPARED_BYTES: usize = 1 << 20;
/// Bytes that defaults may add to one custom object: a list of many empty items could get a large default for each.
pub const FILLED_BYTES: usize = 8 << 20;
