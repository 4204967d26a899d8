//! What the loops need of any object's metadata, read from its stored text without building the rest.

use std::borrow::Cow;

use pilothouse_actors::object::Object;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The part of the metadata that loops look at.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head<'a> {
    /// Who it is.
    #[serde(borrow, default)]
    pub uid: Cow<'a, str>,
    /// Set when its deletion has begun.
    #[serde(default)]
    deletion_timestamp: Option<IgnoredAny>,
    /// What it waits for before it goes.
    #[serde(borrow, default)]
    pub finalizers: Vec<Cow<'a, str>>,
    /// Whom it belongs to.
    #[serde(borrow, default)]
    pub owner_references: Vec<Reference<'a>>,
}

/// A reference to an owner.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Reference<'a> {
    /// The version that the kind is named in.
    #[serde(borrow, default)]
    pub api_version: Cow<'a, str>,
    /// The kind.
    #[serde(borrow, default)]
    pub kind: Cow<'a, str>,
    /// The name.
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    /// Which object of that name.
    #[serde(borrow, default)]
    pub uid: Cow<'a, str>,
    /// Whether a foreground deletion of the owner waits for this object.
    #[serde(default)]
    pub block_owner_deletion: Option<bool>,
}

impl Reference<'_> {
    /// Whether a foreground deletion of the owner waits for this object.
    pub fn blocks(&self) -> bool {
        self.block_owner_deletion == Some(true)
    }
}

#[derive(Deserialize)]
struct Whole<'a> {
    #[serde(borrow, default)]
    metadata: Head<'a>,
}

impl<'a> Head<'a> {
    /// Reads the metadata of a stored object. What cannot be read, which no store holds, counts as empty.
    pub fn of(object: &'a Object) -> Head<'a> {
        Head::read(&object.bytes)
    }

    fn read(bytes: &'a [u8]) -> Head<'a> {
        serde_json::from_slice(bytes).map(|whole: Whole<'a>| whole.metadata).unwrap_or_default()
    }

    /// Whether its deletion has begun.
    pub fn is_terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Whether it waits for this finalizer.
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_loops_need_is_read() {
        let text = br#"{"kind":"Pod","metadata":{"name":"a","uid":"u","deletionTimestamp":"2024-01-01T00:00:00Z",
            "finalizers":["orphan"],"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n\u00e4","uid":"o",
            "blockOwnerDeletion":true}]},"spec":{"metadata":{"uid":"x"}}}"#;
        let head = Head::read(text);
        assert_eq!(head.uid, "u");
        assert!(head.is_terminating() && head.has_finalizer("orphan") && !head.has_finalizer("x"));
        assert_eq!(head.owner_references[0].name, "n\u{e4}");
        assert!(head.owner_references[0].blocks());
        assert!(!Head::read(b"{}").is_terminating());
        assert!(Head::read(br#"{"metadata":{"uid":"u"}}"#).owner_references.is_empty());
    }
}
