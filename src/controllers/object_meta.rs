//! The metadata that controllers need, parsed from the stored bytes without building the rest of the object.

use std::borrow::Cow;

use pilothouse_types::object::Object;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The part of the metadata that controllers need.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMeta<'a> {
    /// `metadata.uid`.
    #[serde(borrow, default)]
    pub uid: Cow<'a, str>,
    /// Set when the object is being deleted.
    #[serde(default)]
    deletion_timestamp: Option<IgnoredAny>,
    /// The finalizers.
    #[serde(borrow, default)]
    pub finalizers: Vec<Cow<'a, str>>,
    /// The owner references.
    #[serde(borrow, default)]
    pub owner_references: Vec<OwnerReference<'a>>,
}

/// An owner reference.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference<'a> {
    /// The apiVersion of the owner.
    #[serde(borrow, default)]
    pub api_version: Cow<'a, str>,
    /// The kind of the owner.
    #[serde(borrow, default)]
    pub kind: Cow<'a, str>,
    /// The name of the owner.
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    /// The UID of the owner.
    #[serde(borrow, default)]
    pub uid: Cow<'a, str>,
    /// Whether a foreground deletion of the owner waits for this object.
    #[serde(default)]
    pub block_owner_deletion: Option<bool>,
}

impl OwnerReference<'_> {
    /// Whether a foreground deletion of the owner waits for this object.
    pub fn blocks(&self) -> bool {
        self.block_owner_deletion == Some(true)
    }
}

#[derive(Deserialize)]
struct MetaOnly<'a> {
    #[serde(borrow, default)]
    metadata: ObjectMeta<'a>,
}

impl<'a> ObjectMeta<'a> {
    /// Parses the metadata of a stored object. Unparsable metadata, which no store contains, counts as empty.
    pub fn from_object(object: &'a Object) -> ObjectMeta<'a> {
        ObjectMeta::read(&object.bytes)
    }

    fn read(bytes: &'a [u8]) -> ObjectMeta<'a> {
        serde_json::from_slice(bytes).map(|object: MetaOnly<'a>| object.metadata).unwrap_or_default()
    }

    /// Whether it is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Whether it has this finalizer.
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_meta_reads_uid_finalizers_and_owners() {
        let text = br#"{"kind":"Pod","metadata":{"name":"a","uid":"u","deletionTimestamp":"2024-01-01T00:00:00Z",
            "finalizers":["orphan"],"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n\u00e4","uid":"o",
            "blockOwnerDeletion":true}]},"spec":{"metadata":{"uid":"x"}}}"#;
        let metadata = ObjectMeta::read(text);
        assert_eq!(metadata.uid, "u");
        assert!(
            metadata.is_terminating() && metadata.has_finalizer("orphan") && !metadata.has_finalizer("x")
        );
        assert_eq!(metadata.owner_references[0].name, "n\u{e4}");
        assert!(metadata.owner_references[0].blocks());
        assert!(!ObjectMeta::read(b"{}").is_terminating());
        assert!(ObjectMeta::read(br#"{"metadata":{"uid":"u"}}"#).owner_references.is_empty());
    }
}
