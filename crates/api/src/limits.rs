//! Every bound of this crate, by name, with its reason.

/// Objects within a document by which an extension server says what it serves: each takes a hundred times the two bytes that an
/// empty one is written with.
pub const EXTENSION_DOCUMENT_OBJECTS: usize = 20_000;
/// Objects within the OpenAPI document of an extension server.
pub const OPENAPI_PARTS: usize = 200_000;
/// Bytes of one path, definition or parameter in it; a larger one is left out.
pub const OPENAPI_PART_BYTES: usize = 1 << 20;
/// Bytes that the defaults of a custom kind may add to one object: a list of empty items could ask for a large one for each.
pub const FILLED_BYTES: usize = 8 << 20;
