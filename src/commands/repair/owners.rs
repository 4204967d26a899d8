//! Owners that saved objects name and that are not there. They tell the names of lost objects, and a garbage collector would delete
//! everything that they own.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use pilothouse_actors::engine::redb::{Kept, Salvage};
use pilothouse_api::custom::definition::resource_of_store;
use serde::Deserialize;
use serde_json::Value;

use super::super::progress::count;
use crate::encryption::StoredEncryption;

/// An owner that is not there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MissingOwner {
    uid: String,
    kind: String,
    name: String,
    /// One of the objects that it owns.
    example: String,
    objects: u64,
}

impl MissingOwner {
    pub(super) fn to_json(&self) -> Value {
        let MissingOwner { uid, kind, name, example, objects } = self;
        serde_json::json!({
            "kind": "missing-owner", "ownerKind": kind, "ownerName": name, "ownerUID": uid, "example": example, "objects": objects,
        })
    }
}

impl fmt::Display for MissingOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingOwner { uid, kind, name, example, objects } = self;
        write!(f, "{kind} {name} with the UID {uid} owns {}, such as {example}", count(*objects, "object"))
    }
}

#[derive(Deserialize)]
struct Owned<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow, default)]
    uid: std::borrow::Cow<'a, str>,
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
}

#[derive(Deserialize)]
struct OwnerReference {
    uid: String,
    kind: String,
    name: String,
}

/// Finds the owners that are named by objects that are saved, and are not saved themselves. Objects that this program cannot read name
/// none.
pub(super) fn find_missing(
    salvage: &Salvage,
    kept: Kept,
    encryption: &StoredEncryption,
) -> Vec<MissingOwner> {
    let mut uids: HashSet<String> = HashSet::new();
    let mut owners: BTreeMap<String, MissingOwner> = BTreeMap::new();
    salvage.for_each_object(kept, encryption, |type_name, object| {
        let Ok(Owned { metadata }) = serde_json::from_slice::<Owned<'_>>(&object.bytes) else { return };
        uids.insert(metadata.uid.into_owned());
        for OwnerReference { uid, kind, name } in metadata.owner_references {
            let example = || format!("{} {}", resource_of_store(type_name), object.key.as_str());
            let owner = owners.entry(uid.clone()).or_insert_with(|| MissingOwner {
                uid,
                kind,
                name,
                example: example(),
                objects: 0,
            });
            owner.objects += 1;
        }
    });
    owners.into_values().filter(|owner| !uids.contains(&owner.uid)).collect()
}
