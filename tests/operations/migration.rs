//! Storage versions: migrations by the controller and by the command, and the storage version API.

mod command;
mod controller;
mod conversion;
mod storage_version_api;

use serde_json::{Value, json};

use crate::support::compare::text;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/kites.toys.example";
const KITES_V1: &str = "/apis/toys.example/v1/namespaces/default/kites";
const KITES_V2: &str = "/apis/toys.example/v2/namespaces/default/kites";
const MIGRATIONS: &str = "/apis/storagemigration.k8s.io/v1alpha1/storageversionmigrations";

/// The flags of a server that carries out StorageVersionMigrations.
const MIGRATOR: [&str; 4] = [
    "--engine=memory",
    "--controllers=storage-version-migrator-controller",
    "--feature-gates=StorageVersionMigrator=true",
    "--runtime-config=storagemigration.k8s.io/v1alpha1=true",
];

/// Version v1 has a note, which v2 lacks. Version v2 has a string with a default. A stored object shows the defaults of the
/// version that it is stored in, and keeps no field that this version lacks. So its fields tell in which one it is stored.
fn version(name: &str, storage: bool) -> Value {
    let spec = match name {
        "v1" => json!({"size": {"type": "integer"}, "note": {"type": "string"}}),
        _ => json!({"size": {"type": "integer"}, "string": {"type": "string", "default": "long"}}),
    };
    json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object",
        "properties": {"spec": {"type": "object", "properties": spec}}}}})
}

fn kite(version: &str, name: &str) -> Value {
    json!({"apiVersion": format!("toys.example/{version}"), "kind": "Kite", "metadata": {"name": name},
        "spec": {"size": 3}})
}

/// Defines kites, which are stored as v1.
fn define(admin: &mut Client) {
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "kites.toys.example"},
        "spec": {"group": "toys.example", "scope": "Namespaced",
            "names": {"plural": "kites", "singular": "kite", "kind": "Kite"},
            "versions": [version("v1", true), version("v2", false)]}});
    let (collection, _) = DEFINITION.rsplit_once('/').expect("a collection");
    admin.post(collection, &definition).ok();
    let is_established = |definition: &Value| {
        let conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "Established" && condition["status"] == "True")
    };
    poll(TIMEOUT, || is_established(&admin.get(DEFINITION).ok()).then_some(())).expect("it is established");
}

/// Stores kites as v2 from now on.
fn switch_storage(admin: &mut Client) {
    let switch = json!([{"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true}]);
    let definition = admin.patch(DEFINITION, "json", &switch).ok();
    assert_eq!(definition["status"]["storedVersions"], json!(["v1", "v2"]));
}

/// Creates a kite that is stored as v2: the server takes a moment to notice the change of the definition.
fn create_stored_as_v2(admin: &mut Client, name: &str) {
    let created = poll(TIMEOUT, || {
        let created = admin.post(KITES_V2, &kite("v2", name));
        if created.status == 201 && is_stored_as_v2(admin, name) {
            return Some(());
        }
        admin.delete(&format!("{KITES_V2}/{name}"));
        None
    });
    created.expect("it is stored as v2");
}

/// Whether a kite is stored as v2.
fn is_stored_as_v2(admin: &mut Client, name: &str) -> bool {
    let kite = admin.get(&format!("{KITES_V2}/{name}")).ok();
    kite["spec"]["string"] == "long"
}

/// A kite that is stored as v1.
fn create_stored_as_v1(admin: &mut Client, name: &str) {
    let mut kite = kite("v1", name);
    kite["spec"]["note"] = json!("hm");
    admin.post(KITES_V1, &kite).ok();
    assert!(!is_stored_as_v2(admin, name));
}

fn revision(admin: &mut Client, name: &str) -> String {
    text(&admin.get(&format!("{KITES_V2}/{name}")).ok(), "/metadata/resourceVersion").to_owned()
}

fn stored_versions(admin: &mut Client) -> Value {
    admin.get(DEFINITION).ok()["status"]["storedVersions"].clone()
}

/// Removes v1 from the definition, which is refused as long as something may be stored in it.
fn remove_v1(admin: &mut Client) {
    admin.patch(DEFINITION, "json", &json!([{"op": "remove", "path": "/spec/versions/0"}])).ok();
    poll(TIMEOUT, || (admin.get(KITES_V1).status == 404).then_some(())).expect("v1 is no longer served");
}

/// Creates a migration.
fn migrate(admin: &mut Client, name: &str, resource: &Value) -> String {
    let migration = json!({"apiVersion": "storagemigration.k8s.io/v1alpha1", "kind": "StorageVersionMigration",
        "metadata": {"name": name}, "spec": {"resource": resource}});
    admin.post(MIGRATIONS, &migration).ok();
    format!("{MIGRATIONS}/{name}")
}

fn has_condition(migration: &Value, kind: &str) -> bool {
    let conditions = migration["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// Waits until a migration has ended in one way or the other.
fn wait_until_finished(admin: &mut Client, path: &str) -> Value {
    let mut last = Value::Null;
    let finished = poll(TIMEOUT, || {
        last = admin.get(path).ok();
        (has_condition(&last, "Succeeded") || has_condition(&last, "Failed")).then(|| last.clone())
    });
    finished.unwrap_or_else(|| panic!("the migration does not end: {last}"))
}

/// The conditions as type, status, reason and message.
fn conditions(migration: &Value) -> Vec<String> {
    let conditions = migration["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let render = |condition: &Value| {
        assert!(condition["lastUpdateTime"].is_string(), "{condition}");
        let message = condition["message"].as_str().unwrap_or_default();
        format!(
            "{} {} {}: {message}",
            text(condition, "/type"),
            text(condition, "/status"),
            text(condition, "/reason")
        )
    };
    conditions.iter().map(render).collect()
}
