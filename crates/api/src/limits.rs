//! The limits of this crate.

/// Objects in a discovery document of an extension server. Even an empty one, written in two bytes, takes a hundred times as much
/// memory.
pub const EXTENSION_DOCUMENT_OBJECTS: usize = 20_000;
/// Objects in the OpenAPI document of an extension server.
pub const OPENAPI_PARTS: usize = 200_000;
/// Bytes of one path, definition or parameter in that document; a larger one is omitted.
pub const OPENAPI_PART_BYTES: usize = 1 << 20;
/// Bytes that defaults may add to one custom object: a list of many empty items could get a large default for each.
pub const FILLED_BYTES: usize = 8 << 20;
