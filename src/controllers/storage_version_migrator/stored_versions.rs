//! `status.storedVersions` of a CustomResourceDefinition after a migration: the versions that no stored object has are removed, so
//! that they can be removed from the spec.
//!
//! The reference leaves this to the operator in release 1.33, and does it in later ones. Here the stored objects themselves
//! decide, not the course of the migration.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilothouse_actors::snapshot::Snapshot;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::stores::CUSTOM_RESOURCE_DEFINITIONS;
use pilothouse_types::object::TypeName;

use super::super::client::{Client, ObjectRef};
use crate::registry::storage_version::stored_api_version;

/// The CustomResourceDefinition of a resource.
pub(super) struct Definition<'a> {
    client: &'a Client,
    resource: Arc<Resource>,
    name: String,
}

impl<'a> Definition<'a> {
    /// The definition of this resource, whether it exists or not.
    pub(super) fn new(client: &'a Client, group: &str, plural: &str) -> Result<Definition<'a>> {
        let resource = client.resource(CUSTOM_RESOURCE_DEFINITIONS)?;
        Ok(Definition { client, resource, name: format!("{plural}.{group}") })
    }

    fn target(&self) -> ObjectRef<'_> {
        ObjectRef { resource: &self.resource, namespace: "", name: &self.name }
    }

    /// Reads it; `None` if it does not exist.
    pub(super) async fn read(&self) -> Result<Option<Value>> {
        self.client.read_cached(self.target()).await
    }

    /// Checks that the resource is served as the definition says now: it is published a moment after the definition was written,
    /// and objects written meanwhile are stored in the previous storage version.
    pub(super) async fn check_published(&self, served: &Resource) -> Result<()> {
        let (Some(custom), Some(definition)) = (&served.custom, self.read().await?) else { return Ok(()) };
        let storage = format!("{}/{}", served.gv.group, storage_version(&definition));
        match *custom.storage_api_version == *storage {
            true => Ok(()),
            false => Err(Status::unavailable(format!("{} is not served in its new form yet", self.name))),
        }
    }

    /// Removes the versions from `status.storedVersions` in which nothing is stored. Fails if something is stored in another
    /// version than the storage version, or if the definition has changed meanwhile: then the migration is not complete.
    pub(super) async fn remove_unused_versions(&self, served: &Resource, store: &TypeName) -> Result<()> {
        let Some(definition) = self.read().await? else { return Ok(()) };
        self.check_published(served).await?;
        let in_use = versions_in_use(&self.client.snapshot(store).await?);
        let storage = storage_version(&definition);
        if in_use.as_ref().is_some_and(|in_use| in_use.iter().any(|version| version != storage)) {
            let message = format!("objects of {} were stored in another version meanwhile", self.name);
            return Err(Status::unavailable(message));
        }
        let (Some(remaining), read) =
            (remaining_versions(&definition, in_use.as_ref()), version_of(&definition))
        else {
            return Ok(());
        };
        let change = |current: &mut Value| {
            if version_of(current) != read {
                return Err(Status::stale(self.resource.name(), &self.name));
            }
            current.entry("status").set("storedVersions", remaining.clone());
            Ok(true)
        };
        self.client.patch(self.target(), "status", change).await
    }
}

fn version_of(definition: &Value) -> &str {
    meta::metadata(definition).str("resourceVersion")
}

/// The name of the storage version in the spec.
fn storage_version(definition: &Value) -> &str {
    let versions = definition.get_path(&["spec", "versions"]).map(Value::items).unwrap_or_default();
    let storage =
        versions.iter().find(|version| version.get("storage").and_then(Value::as_bool) == Some(true));
    storage.map_or("", |version| version.str("name"))
}

/// The versions in which objects are stored; `None` if an object cannot be read: it may have any version.
fn versions_in_use(snapshot: &Snapshot) -> Option<BTreeSet<String>> {
    let version = |api_version: &str| api_version.rsplit('/').next().unwrap_or_default().to_owned();
    let mut versions = BTreeSet::new();
    for object in snapshot.iter() {
        versions.insert(version(stored_api_version(object)?));
    }
    Some(versions)
}

/// The stored versions that remain: the storage version, and those in use. `None` if nothing changes.
fn remaining_versions(definition: &Value, in_use: Option<&BTreeSet<String>>) -> Option<Vec<String>> {
    let storage = storage_version(definition);
    let stored = definition.get_path(&["status", "storedVersions"]).map(Value::items).unwrap_or_default();
    let stored: Vec<&str> = stored.iter().filter_map(Value::as_str).collect();
    let is_used = |version: &str| version == storage || in_use.is_none_or(|in_use| in_use.contains(version));
    let remaining: Vec<String> =
        stored.iter().filter(|version| is_used(version)).map(|version| (*version).to_owned()).collect();
    (remaining.len() < stored.len() && !remaining.is_empty()).then_some(remaining)
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;
    use pilothouse_types::object::{Draft, Key, Object, Pairs, Revision, UnreadableReason};

    use super::*;

    #[test]
    fn unused_versions_are_removed_and_the_storage_version_stays() {
        let definition = object(
            r#"{"spec":{"versions":[{"name":"v1"},{"name":"v2","storage":true}]},"status":{"storedVersions":["v1","v2"]}}"#,
        );
        let remaining = |in_use: Option<&[&str]>| {
            let in_use = in_use.map(|in_use| in_use.iter().map(|version| (*version).to_owned()).collect());
            remaining_versions(&definition, in_use.as_ref())
        };
        assert_eq!(remaining(Some(&["v2"])), Some(vec!["v2".to_owned()]));
        assert_eq!(remaining(Some(&[])), Some(vec!["v2".to_owned()]), "there are no objects");
        assert_eq!(remaining(Some(&["v1", "v2"])), None);
        assert_eq!(remaining(None), None, "an object that cannot be read may have any version");
    }

    #[test]
    fn unreadable_object_makes_the_versions_in_use_unknown() {
        let mut snapshot = Snapshot::empty(Revision::FIRST);
        let head = r#"{"kind":"Kite","apiVersion":"toys.example/v1","#;
        let draft = Draft {
            key: Key::namespaced("n", "a"),
            bytes: format!(r#"{head}"metadata":{{"resourceVersion":""}}}}"#).into(),
            revision_offset: head.len() + r#""metadata":{"resourceVersion":""#.len(),
            item_offset: head.len(),
            labels: Pairs::default(),
            fields: Pairs::default(),
        };
        let readable = Arc::new(Object::new(draft, Revision(2)));
        snapshot.objects.insert(readable.key.clone(), readable);
        assert_eq!(versions_in_use(&snapshot), Some(BTreeSet::from(["v1".to_owned()])));
        let unreadable =
            Arc::new(Object::unreadable(Key::namespaced("n", "b"), Revision(3), UnreadableReason::Damaged));
        snapshot.objects.insert(unreadable.key.clone(), unreadable);
        assert_eq!(versions_in_use(&snapshot), None);
    }
}
