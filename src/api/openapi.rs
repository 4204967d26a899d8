//! What the API looks like, as OpenAPI documents: written from the schemas and the catalog when somebody asks.
//!
//! The third version has a document for each group version, the second has one for everything. Both are made of the
//! same parts: `operations` says what can be done at which path, `schemas` what a type looks like, and `document` puts
//! them on paper in either version. `protobuf` turns a finished document into the binary form that some clients ask for.

mod document;
mod json;
pub mod merged;
mod messages;
mod names;
mod operations;
mod parameters;
mod protobuf;
mod schemas;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::catalog::Catalog;
use super::schema::{GroupVersionKind, Registry};

pub(in crate::api) use names::META as META_PACKAGE;
pub use protobuf::{v2_protobuf, v3_protobuf};

/// What the documents are written from.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The types.
    pub registry: &'a Registry,
    /// The resources.
    pub catalog: &'a Catalog,
    /// The kinds that are not built in.
    pub custom: &'a [Arc<Custom>],
    /// Whether CBOR is one of the encodings.
    pub cbor: bool,
}

/// A kind that is not built in, or the kind of its lists.
#[derive(Clone, Debug)]
pub struct Custom {
    /// The kind.
    pub kind: GroupVersionKind,
    /// The name its schema is published under.
    pub published: String,
    /// Its schema as JSON. It may refer to the metadata of objects and lists, and to the other kinds of its group.
    pub schema: Vec<u8>,
    /// The same for documents of the second version.
    pub schema_v2: Vec<u8>,
}

/// A version of OpenAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
    /// The same for kinds that are defined, whose documents know fewer groups.
    V3Defined,
}

impl Dialect {
    fn reference(self, name: &str) -> String {
        match self {
            Dialect::V2 => format!("#/definitions/{name}"),
            Dialect::V3 | Dialect::V3Defined => format!("#/components/schemas/{name}"),
        }
    }

    /// Whether schemas tell defaults. Clients of the second version have never seen any.
    fn has_defaults(self) -> bool {
        self != Dialect::V2
    }
}
