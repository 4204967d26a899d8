//! OpenAPI documents, written on demand from the schemas and the catalog.
//!
//! OpenAPI v3 has a document per group version, v2 has one for everything. Both are made from the same parts: `operations` lists
//! paths and methods, `schemas` describes types, and `document` writes them in either version. `protobuf` encodes a finished
//! document in Protobuf.

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

use pilothouse_apimachinery::schema::{GroupVersionKind, Registry};
use pilothouse_apimachinery::version::{MinorVersion, RELEASE};

use super::catalog::Catalog;

pub(crate) use names::META as META_PACKAGE;
pub use protobuf::{v2_protobuf, v3_protobuf};

/// The inputs of the documents.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The schemas of built-in types.
    pub registry: &'a Registry,
    /// The served resources.
    pub catalog: &'a Catalog,
    /// The custom resources.
    pub custom: &'a [Arc<CustomSchema>],
    /// The contents that depend on flags.
    pub contents: Contents,
}

/// The contents of the documents that depend on flags.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    /// Whether CBOR is one of the encodings.
    pub cbor: bool,
    /// Whether the allowed values of fields are listed.
    pub allowed_values: bool,
    /// The release that the documents state.
    pub release: MinorVersion,
    /// Whether the log files of the host are served.
    pub logs: bool,
}

impl Default for Contents {
    fn default() -> Contents {
        Contents { cbor: false, allowed_values: true, release: RELEASE, logs: false }
    }
}

/// A custom resource, or its list kind.
#[derive(Clone, Debug)]
pub struct CustomSchema {
    /// The kind.
    pub kind: GroupVersionKind,
    /// The name that its schema is published under.
    pub published: String,
    /// Its schema as JSON. It may refer to ObjectMeta and ListMeta, and to other kinds of its group.
    pub schema: Vec<u8>,
    /// Its schema for OpenAPI v2.
    pub schema_v2: Vec<u8>,
}

/// A version of OpenAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
    /// OpenAPI v3 for custom resources, whose documents list fewer groups.
    V3Custom,
}

impl Dialect {
    fn reference(self, name: &str) -> String {
        match self {
            Dialect::V2 => format!("#/definitions/{name}"),
            Dialect::V3 | Dialect::V3Custom => format!("#/components/schemas/{name}"),
        }
    }

    /// Whether schemas contain defaults: not in v2.
    fn has_defaults(self) -> bool {
        self != Dialect::V2
    }
}
