//! Streams of objects that leave a cluster and enter another one: which objects are selected, how they are written and read, and
//! in which order they can be created.
//!
//! Nothing here knows where the objects come from or go to. A place that has objects to export is a [`Source`]; one that takes
//! them is a [`Destination`]. `commands/api_objects.rs` is both, over the API of a running server.

pub(super) mod cluster_objects;
pub(super) mod document_reader;
pub(super) mod order;
pub(super) mod output_file;
pub(super) mod reader;
pub(super) mod resource;
pub(super) mod selection;
pub(super) mod spool;
pub(super) mod writer;
pub(super) mod yaml_lists;

use pilothouse_apimachinery::value::Value;

use self::resource::Resource;
use self::selection::Selection;

/// A number of objects of one resource, in a row.
pub(super) struct Page {
    /// The objects, each with apiVersion and kind.
    pub objects: Vec<Value>,
    /// Where the next page begins; `None` if this is the last one.
    pub next: Option<String>,
    /// Whether this page shows a later state than those before it.
    pub is_inconsistent: bool,
}

/// One part of a resource that is listed on its own.
pub(super) struct Listing<'a> {
    /// The resource.
    pub resource: &'a Resource,
    /// The namespace, if only one is listed. Of the resource namespaces, it is the one with this name.
    pub namespace: Option<&'a str>,
    /// What is selected. A source may apply the labels of it, or return all objects.
    pub selection: &'a Selection,
}

/// A place that has objects.
pub(super) trait Source {
    /// Every resource whose objects are stored there and could be created elsewhere, in one version each.
    async fn resources(&self) -> Result<Vec<Resource>, String>;

    /// A page of objects, the first one without a token.
    async fn list(&self, listing: &Listing<'_>, token: Option<&str>) -> Result<Page, String>;
}

/// Why a destination did not do what it was asked for. The texts are those of the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is an object of this name.
    AlreadyExists(String),
    /// The object was changed in the meantime.
    Conflict(String),
    /// There is no such object, or no such resource.
    NotFound(String),
    /// Anything else.
    Other(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Refusal::AlreadyExists(message)
        | Refusal::Conflict(message)
        | Refusal::NotFound(message)
        | Refusal::Other(message)) = self;
        f.write_str(message)
    }
}

/// What a destination stored, and what it had to say about it.
pub(super) struct Stored {
    /// The object as it is stored now.
    pub object: Value,
    /// Warnings about the object, such as fields that were dropped.
    pub warnings: Vec<String>,
}

/// A place that takes objects, and gives each a UID of its own.
pub(super) trait Destination {
    /// Every resource whose objects can be created there, in all versions.
    async fn resources(&self) -> Result<Vec<Resource>, String>;

    /// Creates an object.
    async fn create(&self, resource: &Resource, object: &Value) -> Result<Stored, Refusal>;

    /// Reads an object.
    async fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Value, Refusal>;

    /// Replaces an object, but not its status, if it still has the resourceVersion of `object`.
    async fn replace(&self, resource: &Resource, object: &Value) -> Result<Stored, Refusal>;

    /// Replaces the status of an object, if it still has the resourceVersion of `object`.
    async fn replace_status(&self, resource: &Resource, object: &Value) -> Result<Stored, Refusal>;

    /// Applies a JSON merge patch.
    async fn patch(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<(), Refusal>;
}
