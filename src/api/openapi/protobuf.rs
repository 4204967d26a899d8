//! The binary form of documents.

/// A document of the second version as Protobuf.
pub fn v2_protobuf(_json: &[u8]) -> Option<Vec<u8>> {
    None
}

/// A document of the third version as Protobuf.
pub fn v3_protobuf(_json: &[u8]) -> Option<Vec<u8>> {
    None
}
