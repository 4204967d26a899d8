//! The controller of StorageVersionMigrations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::*;
use crate::support::server::temp_directory;

fn kites_v2() -> Value {
    json!({"group": "toys.example", "version": "v2", "resource": "kites"})
}

#[test]
fn unchanged_update_rewrites_an_object_of_another_storage_version() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin);
    create_stored_as_v1(&mut admin, "a");
    switch_storage(&mut admin);
    create_stored_as_v2(&mut admin, "b");
    for name in ["a", "b"] {
        let path = format!("{KITES_V2}/{name}");
        let before = admin.get(&path).ok();
        // An apply without fields. A body with all fields would get the defaults of v2, and so change the object.
        let body = json!({"apiVersion": "toys.example/v2", "kind": "Kite"}).to_string();
        let media = [("Content-Type", "application/apply-patch+yaml")];
        let mut apply = || {
            let path = format!("{path}?fieldManager=tester");
            admin.request("PATCH", &path, &media, body.as_bytes()).ok()
        };
        let updated = apply();
        let again = apply();
        let is_rewritten = updated["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"];
        assert_eq!(is_rewritten, name == "a", "{updated}");
        assert_eq!(updated["metadata"]["generation"], before["metadata"]["generation"]);
        assert_eq!(updated["metadata"]["managedFields"], before["metadata"]["managedFields"]);
        assert!(is_stored_as_v2(&mut admin, name));
        assert_eq!(
            again["metadata"]["resourceVersion"], updated["metadata"]["resourceVersion"],
            "nothing is left"
        );
    }
}

#[test]
fn migration_stores_all_objects_in_the_storage_version() {
    let server = Server::with_flags(&MIGRATOR);
    let mut admin = server.admin();
    define(&mut admin);
    create_stored_as_v1(&mut admin, "a");
    create_stored_as_v1(&mut admin, "b");
    switch_storage(&mut admin);
    create_stored_as_v2(&mut admin, "c");
    assert!(!is_stored_as_v2(&mut admin, "a") && !is_stored_as_v2(&mut admin, "b"));
    let before = ["a", "b", "c"].map(|name| revision(&mut admin, name));
    let refused = admin.patch(DEFINITION, "json", &json!([{"op": "remove", "path": "/spec/versions/0"}]));
    refused.expect_error(422, "Invalid");

    let mut watch = server.admin().watch(KITES_V2, &format!("resourceVersion={}", before[2]));
    let path = migrate(&mut admin, "m", &kites_v2());
    let migration = wait_until_finished(&mut admin, &path);
    assert_eq!(
        conditions(&migration),
        [
            "Running False StorageVersionMigrationInProgress: ",
            "Succeeded True StorageVersionMigrationSucceeded: "
        ]
    );
    let listed: u64 = text(&migration, "/status/resourceVersion").parse().expect("a number");
    assert!(listed >= before[2].parse().expect("a number"), "{migration}");
    for name in ["a", "b", "c"] {
        assert!(is_stored_as_v2(&mut admin, name), "{name}");
        assert_eq!(admin.get(&format!("{KITES_V1}/{name}")).ok()["spec"]["note"], Value::Null);
    }
    let after = ["a", "b", "c"].map(|name| revision(&mut admin, name));
    assert!(before[0] != after[0] && before[1] != after[1], "rewritten");
    assert_eq!(before[2], after[2], "it was stored as v2 before");
    for _ in 0..2 {
        assert_eq!(watch.next()["type"], "MODIFIED");
    }

    assert_eq!(stored_versions(&mut admin), json!(["v2"]));
    remove_v1(&mut admin);
    let names: Vec<String> = admin.get(KITES_V2).ok()["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| text(item, "/metadata/name").to_owned())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn migration_waits_for_the_definition_and_survives_a_restart() {
    let folder = temp_directory();
    let data = folder.path().join("data");
    let flags = ["--controllers=-*", MIGRATOR[2], MIGRATOR[3]];
    let server = Server::start_in(&data, &flags);
    let mut admin = server.admin();
    define(&mut admin);
    create_stored_as_v1(&mut admin, "a");
    switch_storage(&mut admin);
    // No controller has begun it when the server ends.
    let path = migrate(&mut admin, "m", &kites_v2());
    server.kill();
    let server = Server::start_in(&data, &[MIGRATOR[1], MIGRATOR[2], MIGRATOR[3]]);
    let mut admin = server.admin();
    assert!(has_condition(&wait_until_finished(&mut admin, &path), "Succeeded"));
    assert!(is_stored_as_v2(&mut admin, "a"));
    assert_eq!(stored_versions(&mut admin), json!(["v2"]));
    // Created right after the definition was changed: whatever the server knows by then, the result is the same.
    let switch_back = json!([{"op": "replace", "path": "/spec/versions/0/storage", "value": true},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": false}]);
    admin.patch(DEFINITION, "json", &switch_back).ok();
    let path = migrate(&mut admin, "back", &kites_v2());
    assert!(has_condition(&wait_until_finished(&mut admin, &path), "Succeeded"));
    assert!(!is_stored_as_v2(&mut admin, "a"));
    assert_eq!(stored_versions(&mut admin), json!(["v1"]));
}

#[test]
fn migration_tolerates_concurrent_writes() {
    const KITES: usize = 60;
    let server = Server::with_flags(&MIGRATOR);
    let mut admin = server.admin();
    define(&mut admin);
    for number in 0..KITES {
        admin.post(KITES_V1, &kite("v1", &format!("k{number}"))).ok();
    }
    switch_storage(&mut admin);
    let is_done = Arc::new(AtomicBool::new(false));
    let (mut writer, writer_done) = (admin.new_connection(), is_done.clone());
    let writes = thread::spawn(move || {
        // Changes some objects, deletes and replaces others, all the time. Each outcome is fine: 404 and 409 between writers, and
        // 429 at the moment when the definition changes.
        let mut number = 0;
        while !writer_done.load(Ordering::Acquire) {
            let path = format!("{KITES_V1}/k{}", number % KITES);
            let response = match number % 3 {
                0 => writer.patch(&path, "merge", &json!({"spec": {"size": number % 10}})),
                1 => writer.delete(&path),
                _ => writer.post(KITES_V1, &kite("v1", &format!("k{}", number % KITES))),
            };
            assert!(matches!(response.status, 200 | 201 | 404 | 409 | 429), "{}", response.text());
            number += 1;
        }
    });
    let path = migrate(&mut admin, "m", &kites_v2());
    let migration = wait_until_finished(&mut admin, &path);
    is_done.store(true, Ordering::Release);
    writes.join().expect("the writer");
    assert!(has_condition(&migration, "Succeeded"), "{migration}");
    assert_eq!(stored_versions(&mut admin), json!(["v2"]));
    let list = admin.get(KITES_V2).ok();
    let items = list["items"].as_array().expect("items");
    assert!(!items.is_empty());
    for item in items {
        assert_eq!(item["spec"]["string"], "long", "{item}");
    }
}

#[test]
fn migration_of_unknown_resource_fails() {
    let server = Server::with_flags(&MIGRATOR);
    let mut admin = server.admin();
    let failed = ["Failed True StorageVersionMigrationFailed: resource does not exist in discovery"];
    for (name, resource) in [
        ("group", json!({"group": "toys.example", "version": "v1", "resource": "kites"})),
        ("version", json!({"group": "apps", "version": "v3", "resource": "deployments"})),
        (
            "unstored",
            json!({"group": "authorization.k8s.io", "version": "v1", "resource": "subjectaccessreviews"}),
        ),
    ] {
        let path = migrate(&mut admin, name, &resource);
        let migration = wait_until_finished(&mut admin, &path);
        assert_eq!(conditions(&migration), failed, "{name}");
        assert_eq!(migration["status"]["resourceVersion"], Value::Null);
    }
}

#[test]
fn migration_of_built_in_resource_leaves_current_objects_alone() {
    let server = Server::with_flags(&MIGRATOR);
    let mut admin = server.admin();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "b"}});
    let created = admin.post("/api/v1/namespaces/default/configmaps", &map).ok();
    let resource = json!({"version": "v1", "resource": "configmaps"});
    let path = migrate(&mut admin, "maps", &resource);
    let migration = wait_until_finished(&mut admin, &path);
    assert!(has_condition(&migration, "Succeeded"), "{migration}");
    assert_eq!(admin.get("/api/v1/namespaces/default/configmaps/m").ok(), created);
}

#[test]
fn refused_object_fails_the_migration() {
    let server = Server::with_flags(&MIGRATOR);
    let mut admin = server.admin();
    define(&mut admin);
    create_stored_as_v1(&mut admin, "bad");
    create_stored_as_v1(&mut admin, "good");
    switch_storage(&mut admin);
    let policies = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [{"apiGroups": ["toys.example"],
            "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["kites"]}]},
        "validations": [{"expression": "object.metadata.name != 'bad'", "message": "never"}]}});
    admin.post(&format!("{policies}/validatingadmissionpolicies"), &policy).ok();
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    admin.post(&format!("{policies}/validatingadmissionpolicybindings"), &binding).ok();
    let path = migrate(&mut admin, "m", &kites_v2());
    let migration = wait_until_finished(&mut admin, &path);
    let conditions = conditions(&migration);
    assert_eq!(conditions[0], "Running False StorageVersionMigrationInProgress: ");
    let expected =
        "Failed True StorageVersionMigrationFailed: migration encountered unhandled error: default/bad: ";
    assert!(conditions[1].starts_with(expected) && conditions[1].contains("never"), "{conditions:?}");
    assert_eq!(stored_versions(&mut admin), json!(["v1", "v2"]), "something is still stored as v1");

    // A finished migration stays as it is; another one succeeds.
    admin.delete(&format!("{policies}/validatingadmissionpolicybindings/p")).ok();
    let path = migrate(&mut admin, "again", &kites_v2());
    assert!(has_condition(&wait_until_finished(&mut admin, &path), "Succeeded"));
    assert_eq!(stored_versions(&mut admin), json!(["v2"]));
    assert!(has_condition(&admin.get(&format!("{MIGRATIONS}/m")).ok(), "Failed"));
}

#[test]
fn stored_versions_can_be_edited_by_hand() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin);
    switch_storage(&mut admin);
    let status = format!("{DEFINITION}/status");
    let with_versions = |versions: Value| json!({"status": {"storedVersions": versions}});
    let refused = admin.patch(DEFINITION, "json", &json!([{"op": "remove", "path": "/spec/versions/0"}]));
    refused.expect_error(422, "Invalid");
    admin.patch(&status, "merge", &with_versions(json!(["v2"]))).ok();
    assert_eq!(stored_versions(&mut admin), json!(["v2"]));
    remove_v1(&mut admin);
}
