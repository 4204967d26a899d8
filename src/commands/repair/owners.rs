//! Owners that saved objects name and that are not there. They tell the names of lost objects, and a garbage collector would delete
//! everything that they own.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use pilothouse_actors::engine::redb::{Kept, Salvage};
use pilothouse_api::custom::definition::resource_of_store;
use pilothouse_types::object::TypeName;
use serde::Deserialize;
use serde_json::Value;

use super::super::progress::count;
use crate::encryption::StoredEncryption;

/// An owner that is not there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MissingOwner {
    uid: String,
    group: String,
    kind: String,
    name: String,
    /// One of the objects that it owns.
    example: String,
    objects: u64,
}

impl MissingOwner {
    pub(super) fn to_json(&self) -> Value {
        let MissingOwner { uid, kind, name, example, objects, .. } = self;
        serde_json::json!({
            "kind": "missing-owner", "ownerKind": kind, "ownerName": name, "ownerUID": uid, "example": example, "objects": objects,
        })
    }
}

impl fmt::Display for MissingOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingOwner { uid, kind, name, example, objects, .. } = self;
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
#[serde(rename_all = "camelCase")]
struct OwnerReference {
    #[serde(default)]
    api_version: String,
    uid: String,
    kind: String,
    name: String,
}

/// The owners that are not there.
#[derive(Default)]
pub(super) struct Owners {
    pub(super) missing: Vec<MissingOwner>,
    /// The number of objects that cannot be decrypted. Nobody can say which owners are among them, so none is called missing that may be.
    pub(super) not_considered: u64,
}

impl Owners {
    /// Finds the owners that are named by objects that are saved, and are not saved themselves.
    pub(super) fn find(salvage: &Salvage, kept: Kept, encryption: &StoredEncryption) -> Owners {
        let mut references = References::default();
        salvage.for_each_object(kept, encryption, |type_name, object| match object {
            Some(object) => references.add(type_name, object.key.as_str(), &object.bytes),
            None => references.add_undecryptable(type_name),
        });
        references.conclude()
    }
}

/// What saved objects say of owners.
#[derive(Default)]
struct References {
    /// The UIDs of the objects.
    uids: HashSet<String>,
    owners: BTreeMap<String, MissingOwner>,
    /// The resources that have objects that cannot be decrypted, and their number.
    undecryptable: BTreeMap<String, u64>,
}

impl References {
    fn add(&mut self, type_name: &TypeName, key: &str, bytes: &[u8]) {
        let Ok(Owned { metadata }) = serde_json::from_slice::<Owned<'_>>(bytes) else { return };
        self.uids.insert(metadata.uid.into_owned());
        for OwnerReference { api_version, uid, kind, name } in metadata.owner_references {
            let group = api_version.split_once('/').map_or("", |(group, _)| group).to_owned();
            let example = || format!("{} {key}", resource_of_store(type_name));
            let owner = self.owners.entry(uid.clone()).or_insert_with(|| MissingOwner {
                uid,
                group,
                kind,
                name,
                example: example(),
                objects: 0,
            });
            owner.objects += 1;
        }
    }

    fn add_undecryptable(&mut self, type_name: &TypeName) {
        *self.undecryptable.entry(resource_of_store(type_name).to_owned()).or_default() += 1;
    }

    fn conclude(self) -> Owners {
        let References { uids, owners, undecryptable } = self;
        let may_be_there =
            |owner: &MissingOwner| undecryptable.keys().any(|resource| may_have(resource, owner));
        let missing = owners.into_values().filter(|owner| !uids.contains(&owner.uid) && !may_be_there(owner));
        Owners { missing: missing.collect(), not_considered: undecryptable.values().sum() }
    }
}

/// Whether an object of this resource may be the owner. The plural of a kind begins like it, but a definition may choose any other.
fn may_have(resource: &str, owner: &MissingOwner) -> bool {
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    let kind = owner.kind.to_ascii_lowercase();
    let begins_alike =
        || kind.get(..kind.len().saturating_sub(1)).is_some_and(|stem| plural.starts_with(stem));
    group == owner.group && (!is_built_in(group) || begins_alike())
}

/// Whether the kinds of a group are those of Kubernetes.
fn is_built_in(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, owner: &Value) -> Vec<u8> {
        serde_json::json!({"metadata": {"uid": uid, "ownerReferences": [owner]}}).to_string().into_bytes()
    }

    #[test]
    fn owner_that_may_be_among_undecryptable_objects_is_not_missing() {
        let owner = |api_version: &str, kind: &str, uid: &str| serde_json::json!({"apiVersion": api_version, "kind": kind, "name": "a", "uid": uid});
        let mut references = References::default();
        let pods = TypeName::new("pods");
        for (index, owner) in [
            owner("v1", "Secret", "secret"),
            owner("v1", "Node", "node"),
            owner("apps/v1", "ReplicaSet", "set"),
            owner("toys.example/v1", "Kite", "kite"),
            owner("v1", "Pod", "pod-0"),
        ]
        .into_iter()
        .enumerate()
        {
            references.add(&pods, "default/a", &pod(&format!("pod-{index}"), &owner));
        }
        references.add_undecryptable(&TypeName::new("secrets"));
        references.add_undecryptable(&TypeName::new("secrets"));
        references.add_undecryptable(&TypeName::new("custom/people.toys.example"));
        let owners = references.conclude();
        let missing: Vec<&str> = owners.missing.iter().map(|owner| owner.uid.as_str()).collect();
        assert_eq!((missing, owners.not_considered), (vec!["node", "set"], 3));
    }
}
