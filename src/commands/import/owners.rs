//! Owner references: their UIDs are those of the old cluster.

use pilothouse_apimachinery::value::Value;

use crate::commands::object_stream::resource::{describe, split_api_version};

/// What is known about an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnerState {
    /// It is in the new cluster, with this UID.
    Present(String),
    /// It is in the stream and will be created later.
    Pending,
    /// It is in the stream and could not be imported.
    Failed,
    /// It is neither in the stream nor in the new cluster.
    Absent,
}

/// The owner references of an object in the new cluster.
#[derive(Debug, Default, PartialEq)]
pub(super) struct MappedOwners {
    /// The references with their new UIDs, without those that are not known yet.
    pub references: Vec<Value>,
    /// Whether some will be known later.
    pub has_pending: bool,
    /// Dropped references, each with its reason.
    pub dropped: Vec<String>,
}

/// Maps the references of an object, which say who owns it.
///
/// A reference is never kept with the UID of an object that is not there: the garbage collector of the new cluster would take the
/// owner for deleted, and delete the object with it.
pub(super) fn map_owners(object: &Value, state: impl Fn(&str) -> OwnerState) -> MappedOwners {
    let mut mapped = MappedOwners::default();
    let references = object.get_path(&["metadata", "ownerReferences"]).map(Value::items).unwrap_or_default();
    for reference in references {
        let reason = match state(reference.str("uid")) {
            OwnerState::Present(uid) => {
                let mut reference = reference.clone();
                reference.set("uid", uid);
                mapped.references.push(reference);
                continue;
            }
            OwnerState::Pending => {
                mapped.has_pending = true;
                continue;
            }
            OwnerState::Failed => "was not imported",
            OwnerState::Absent => "is neither in the stream nor in the cluster",
        };
        let (group, _) = split_api_version(reference.str("apiVersion"));
        let owner = describe(group, reference.str("kind"), "", reference.str("name"));
        mapped.dropped.push(format!("its owner {owner} {reason}: the reference was dropped"));
    }
    mapped
}

/// Sets the references of an object.
pub(super) fn set_owners(object: &mut Value, references: Vec<Value>) {
    let metadata = object.entry("metadata");
    match references.is_empty() {
        true => _ = metadata.remove("ownerReferences"),
        false => metadata.set("ownerReferences", references),
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::*;

    #[test]
    fn references_get_new_uids_or_are_dropped() {
        let mut object = yaml::read(
            b"metadata:
  ownerReferences:
  - {apiVersion: apps/v1, kind: ReplicaSet, name: a, uid: old, controller: true}
  - {apiVersion: v1, kind: ConfigMap, name: b, uid: later}
  - {apiVersion: v1, kind: ConfigMap, name: c, uid: bad}
  - {apiVersion: apps/v1, kind: Deployment, name: d, uid: gone}
",
        )
        .unwrap();
        let mapped = map_owners(&object, |uid| match uid {
            "old" => OwnerState::Present("new".to_owned()),
            "later" => OwnerState::Pending,
            "bad" => OwnerState::Failed,
            _ => OwnerState::Absent,
        });
        assert!(mapped.has_pending);
        assert_eq!(
            mapped.dropped,
            [
                "its owner ConfigMap c was not imported: the reference was dropped",
                "its owner Deployment.apps d is neither in the stream nor in the cluster: the reference was dropped"
            ]
        );
        set_owners(&mut object, mapped.references);
        let owners = object.get_path(&["metadata", "ownerReferences"]).unwrap().items();
        assert_eq!((owners.len(), owners[0].str("uid"), owners[0].str("name")), (1, "new", "a"));
        set_owners(&mut object, Vec::new());
        assert_eq!(object, yaml::read(b"metadata: {}").unwrap());
    }
}
