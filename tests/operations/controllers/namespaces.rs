//! The deletion of namespaces.

use serde_json::{Value, json};

use super::{config_map, server, wait_until, wait_until_gone};
use crate::support::compare::text;
use crate::support::manifests::{discover, root};
use crate::support::{Client, Manifest, Server};

fn create_namespace(client: &mut Client, name: &str) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    client.post("/api/v1/namespaces", &namespace).ok();
}

/// Status, reason and message of a condition.
fn condition(namespace: &Value, name: &str) -> [String; 3] {
    let conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let condition_object =
        conditions.iter().find(|condition| condition["type"] == name).cloned().unwrap_or_default();
    ["status", "reason", "message"]
        .map(|field| condition_object[field].as_str().unwrap_or_default().to_owned())
}

#[test]
fn namespace_with_every_kind_is_deleted() {
    let mut server = server(&[]);
    let mut client = server.admin();
    let resources = discover(&mut client);
    create_namespace(&mut client, "full");
    let mut collections = Vec::new();
    for manifest in Manifest::all() {
        let resource = manifest.resource(&resources);
        if !resource.namespaced || !resource.has("delete") {
            continue;
        }
        let collection = format!("{}/namespaces/full/{}", root(manifest.group_version()), resource.plural);
        let mut object = manifest.object.clone();
        object["metadata"]["namespace"] = json!("full");
        let text = object.to_string().replace("\"namespace\":\"default\"", "\"namespace\":\"full\"");
        let response = client.post(&collection, &serde_json::from_str(&text).unwrap());
        assert!(response.status < 300, "{}: {}", manifest.title(), String::from_utf8_lossy(&response.body));
        collections.push(collection);
    }
    assert!(collections.len() > 25, "{}", collections.len());
    let mut watch = client.watch("/api/v1/namespaces", "fieldSelector=metadata.name=full");
    assert_eq!(watch.next()["type"], "ADDED");
    client.delete("/api/v1/namespaces/full").ok();
    let mut event_types = Vec::new();
    loop {
        let event = watch.next();
        assert_eq!(event["object"]["status"]["phase"], "Terminating");
        event_types.push(event["type"].as_str().unwrap().to_owned());
        if event["type"] == "DELETED" {
            let object = &event["object"];
            let removed_condition =
                ["False", "ContentRemoved", "All content successfully removed"].map(str::to_owned);
            assert_eq!(condition(object, "NamespaceContentRemaining"), removed_condition);
            break;
        }
    }
    assert_eq!(event_types.first().map(String::as_str), Some("MODIFIED"));
    for collection in collections {
        let remaining = client.get(&collection).ok();
        assert_eq!(remaining["items"], json!([]), "{collection}");
    }
    server.assert_healthy();
}

#[test]
fn namespace_reports_remaining_finalizers() {
    let server = server(&[]);
    let mut client = server.admin();
    create_namespace(&mut client, "held");
    let maps = "/api/v1/namespaces/held/configmaps";
    let mut held = config_map("held", &[]);
    held["metadata"]["finalizers"] = json!(["example.com/wait"]);
    client.post(maps, &held).ok();
    client.post(maps, &config_map("free", &[])).ok();
    client.delete("/api/v1/namespaces/held").ok();
    let namespace = wait_until(&mut client, "/api/v1/namespaces/held", |namespace| {
        condition(namespace, "NamespaceFinalizersRemaining")[0] == "True"
    });
    assert_eq!(
        condition(&namespace, "NamespaceFinalizersRemaining"),
        [
            "True",
            "SomeFinalizersRemain",
            "Some content in the namespace has finalizers remaining: example.com/wait in 1 resource instances"
        ]
    );
    assert_eq!(
        condition(&namespace, "NamespaceContentRemaining"),
        ["True", "SomeResourcesRemain", "Some resources are remaining: configmaps. has 1 resource instances"]
    );
    assert_eq!(
        condition(&namespace, "NamespaceDeletionContentFailure"),
        ["False", "ContentDeleted", "All content successfully deleted, may be waiting on finalization"]
    );
    assert_eq!(client.get(&format!("{maps}/free")).status, 404);
    let refused = client.post(maps, &config_map("late", &[]));
    assert_eq!(refused.status, 403);
    client.patch(&format!("{maps}/held"), "merge", &json!({"metadata": {"finalizers": null}})).ok();
    wait_until_gone(&mut client, "/api/v1/namespaces/held");
}

#[test]
fn namespace_waits_for_foreign_spec_finalizer() {
    let server = server(&[]);
    let mut client = server.admin();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "twice"},
        "spec": {"finalizers": ["example.com/other"]}});
    client.post("/api/v1/namespaces", &namespace).ok();
    client.delete("/api/v1/namespaces/twice").ok();
    let mut namespace = wait_until(&mut client, "/api/v1/namespaces/twice", |namespace| {
        namespace["spec"]["finalizers"] == json!(["example.com/other"])
    });
    namespace["spec"]["finalizers"] = json!([]);
    // Unconditional, because the controller may update the conditions meanwhile.
    namespace["metadata"]["resourceVersion"] = json!("");
    client.put("/api/v1/namespaces/twice/finalize", &namespace).ok();
    wait_until_gone(&mut client, "/api/v1/namespaces/twice");
}

fn create_maps(client: &mut Client, namespace: &str, count: usize) {
    for number in 0..count {
        let map = config_map(&format!("m{number:05}"), &[]);
        client.post(&format!("/api/v1/namespaces/{namespace}/configmaps"), &map).ok();
    }
}

#[test]
fn namespace_deletion_resumes_after_kill_and_restart() {
    let directory = crate::support::server::temp_directory();
    let data = directory.path().join("data");
    let server = Server::start_in(&data, &["--controllers=*"]);
    let mut client = server.admin();
    create_namespace(&mut client, "crash");
    create_maps(&mut client, "crash", 400);
    client.delete("/api/v1/namespaces/crash").ok();
    server.kill();

    let server = Server::start_in(&data, &[]);
    let mut client = server.admin();
    let response = client.get("/api/v1/namespaces/crash");
    assert!(response.status == 404 || text(&response.json(), "/status/phase") == "Terminating");
    server.stop();

    let server = Server::start_in(&data, &["--controllers=*"]);
    let mut client = server.admin();
    wait_until_gone(&mut client, "/api/v1/namespaces/crash");
    assert_eq!(client.get("/api/v1/namespaces/crash/configmaps").ok()["items"], json!([]));
    server.stop();
}

/// A second namespace controller deletes and finalizes the same objects.
#[test]
fn namespace_deletion_tolerates_second_controller() {
    let mut server = server(&[]);
    let mut client = server.admin();
    create_namespace(&mut client, "shared");
    let maps = "/api/v1/namespaces/shared/configmaps";
    let owner = client.post(maps, &config_map("owner", &[])).ok();
    for number in 0..300 {
        let owners = if number % 2 == 0 { vec![super::reference(&owner, true)] } else { Vec::new() };
        client.post(maps, &config_map(&format!("m{number:05}"), &owners)).ok();
    }
    let mut other_client = client.new_connection();
    let other_controller = std::thread::spawn(move || {
        for _ in 0..200 {
            other_client.delete(maps);
            let mut namespace = other_client.get("/api/v1/namespaces/shared");
            if namespace.status == 404 {
                return;
            }
            let mut object = namespace.json();
            if other_client.get(maps).ok()["items"] == json!([])
                && object["metadata"]["deletionTimestamp"].is_string()
            {
                object["spec"]["finalizers"] = json!([]);
                namespace = other_client.put("/api/v1/namespaces/shared/finalize", &object);
                assert!(matches!(namespace.status, 200 | 404 | 409), "{}", namespace.text());
            }
        }
    });
    client.delete(&format!("{maps}/owner"));
    client.delete("/api/v1/namespaces/shared");
    wait_until_gone(&mut client, "/api/v1/namespaces/shared");
    other_controller.join().unwrap();
    assert_eq!(client.get(maps).ok()["items"], json!([]));
    server.assert_healthy();
}
