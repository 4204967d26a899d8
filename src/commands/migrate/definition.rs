//! The CustomResourceDefinition of a migrated resource.

use std::time::Duration;

use hyper::Method;
use pilothouse_api::catalog::build::storage_hash;
use pilothouse_apimachinery::well_known::{JSON, MERGE_PATCH};
use serde_json::{Value, json};

use super::api::{Api, Failure, succeed};
use super::discovery::MigratedResource;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// How often, and how many times, the command looks whether the server uses the storage version of the definition.
const PUBLISHED_INTERVAL: Duration = Duration::from_millis(250);
const PUBLISHED_CHECKS: u32 = 120;
/// Attempts to change the status against other writers.
const STATUS_ATTEMPTS: u32 = 10;

/// A definition as it was before the migration.
pub(super) struct Definition {
    path: String,
    before: Value,
}

fn versions(definition: &Value) -> impl Iterator<Item = &Value> {
    definition["spec"]["versions"].as_array().into_iter().flatten()
}

fn storage_version(definition: &Value) -> &str {
    let storage = versions(definition).find(|version| version["storage"] == true);
    storage.and_then(|version| version["name"].as_str()).unwrap_or_default()
}

/// The stored versions without the storage version; `None` if they may not be removed, because the definition has changed since.
fn unused_versions(before: &Value, now: &Value) -> Option<Vec<String>> {
    let is_same = |field: &str| before["metadata"][field] == now["metadata"][field];
    if !is_same("uid") || !is_same("generation") {
        return None;
    }
    let stored = now["status"]["storedVersions"].as_array().into_iter().flatten();
    let stored = stored.filter_map(Value::as_str).filter(|version| *version != storage_version(now));
    Some(stored.map(str::to_owned).collect())
}

impl Definition {
    /// Reads the definition of a resource; `None` for built-in resources.
    pub(super) async fn read(api: &Api, resource: &MigratedResource) -> Result<Option<Definition>, Failure> {
        // The group of a definition is a domain.
        if !resource.group.contains('.') {
            return Ok(None);
        }
        let path = format!("{DEFINITIONS}/{resource}");
        let definition = api.get(&path, JSON).await?;
        Ok(definition.map(|before| Definition { path, before }))
    }

    /// The version that objects are stored in.
    pub(super) fn storage_version(&self) -> &str {
        storage_version(&self.before)
    }

    /// Waits until the server stores objects in the storage version: it may take a moment to notice a change of the definition.
    pub(super) async fn wait_until_served(
        &self,
        api: &Api,
        resource: &MigratedResource,
    ) -> Result<(), Failure> {
        let is_served =
            versions(&self.before).any(|version| version["storage"] == true && version["served"] == true);
        if !is_served {
            // Nothing tells which version the server uses.
            return Ok(());
        }
        let expected = storage_hash(&resource.group, self.storage_version(), &resource.kind);
        for _ in 0..PUBLISHED_CHECKS {
            let discovered = api.get_json(&resource.version_path()).await?;
            let resources = discovered["resources"].as_array().into_iter().flatten();
            let mut hashes = resources
                .filter(|found| found["name"] == resource.plural.as_str())
                .map(|found| found["storageVersionHash"].as_str().unwrap_or_default());
            // A server may publish no hashes.
            if hashes.any(|hash| hash.is_empty() || hash == expected) {
                return Ok(());
            }
            tokio::time::sleep(PUBLISHED_INTERVAL).await;
        }
        Err(Failure::NotServed(self.storage_version().to_owned()))
    }

    /// Removes the versions from `status.storedVersions` in which nothing is stored after the migration. Returns those that were
    /// removed, by this command or by the server; `None` if there were none.
    pub(super) async fn remove_unused_versions(&self, api: &Api) -> Result<Option<Vec<String>>, Failure> {
        for _ in 0..STATUS_ATTEMPTS {
            let Some(now) = api.get(&self.path, JSON).await? else { return Ok(None) };
            let Some(unused) = unused_versions(&self.before, &now) else {
                return Err(Failure::Failed(
                    "the definition was changed during the migration; please run the command again"
                        .to_owned(),
                ));
            };
            if unused.is_empty() {
                let removed = unused_versions(&self.before, &self.before).unwrap_or_default();
                return Ok((!removed.is_empty()).then_some(removed));
            }
            let status = format!("{}/status", self.path);
            // The resourceVersion makes sure that the storage version is still the same.
            let patch = json!({"metadata": {"resourceVersion": now["metadata"]["resourceVersion"]},
                "status": {"storedVersions": [storage_version(&now)]}});
            let reply = api.send(Method::PATCH, &status, JSON, Some((MERGE_PATCH, &patch))).await?;
            if reply.status != 409 {
                succeed(Method::PATCH, &status, reply)?;
                return Ok(Some(unused));
            }
        }
        Err(Failure::Failed(
            "status.storedVersions of the definition is changed by others all the time".to_owned(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_an_unchanged_definition_may_be_removed() {
        let definition = |generation: u32, stored: &[&str]| {
            json!({"metadata": {"uid": "u", "generation": generation}, "status": {"storedVersions": stored},
                "spec": {"versions": [{"name": "v1"}, {"name": "v2", "storage": true}]}})
        };
        let before = definition(2, &["v1", "v2"]);
        assert_eq!(storage_version(&before), "v2");
        assert_eq!(unused_versions(&before, &before), Some(vec!["v1".to_owned()]));
        assert_eq!(unused_versions(&before, &definition(2, &["v2"])), Some(Vec::new()));
        assert_eq!(unused_versions(&before, &definition(3, &["v1", "v2"])), None, "it was changed");
        let mut replaced = before.clone();
        replaced["metadata"]["uid"] = json!("other");
        assert_eq!(unused_versions(&before, &replaced), None);
    }
}
