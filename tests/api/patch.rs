//! JSON patches, merge patches and strategic merge patches.

use std::sync::{Arc, Barrier};
use std::thread;

use serde_json::{Value, json};

use crate::support::compare::text;
use crate::support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MAP: &str = "/api/v1/namespaces/default/configmaps/a";
const VERSION: &str = "/metadata/resourceVersion";

fn server_with_map(data: &Value) -> (Server, Client) {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    client.post(MAPS, &json!({"metadata": {"name": "a"}, "data": data})).ok();
    (server, client)
}

fn message(status: &Value) -> &str {
    text(status, "/message")
}

#[test]
fn each_patch_type_changes_named_fields() {
    let (_server, mut client) = server_with_map(&json!({"x": "1", "y": "2"}));
    let operations = json!([
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "move", "from": "/data/x", "path": "/data/z"},
        {"op": "add", "path": "/metadata/labels", "value": {"l": "1"}},
    ]);
    let after = client.patch(MAP, "json", &operations).ok();
    assert_eq!(after["data"], json!({"y": "2", "z": "1"}));
    assert_eq!(after["metadata"]["labels"], json!({"l": "1"}));
    let after = client.patch(MAP, "merge", &json!({"data": {"y": null, "w": "3"}})).ok();
    assert_eq!(after["data"], json!({"z": "1", "w": "3"}));
    let after = client.patch(MAP, "strategic-merge", &json!({"data": {"$patch": "replace", "q": "4"}})).ok();
    assert_eq!(after["data"], json!({"q": "4"}));
    assert_eq!(client.get(MAP).ok(), after);
}

#[test]
fn unchanged_patch_writes_nothing() {
    let (_server, mut client) = server_with_map(&json!({"x": "1"}));
    let before = client.get(MAP).ok();
    for (language, patch) in [
        ("json", json!([])),
        ("json", json!([{"op": "replace", "path": "/data/x", "value": "1"}])),
        ("merge", json!({})),
        ("merge", json!({"data": {"none": null}})),
        ("strategic-merge", json!({"data": {"x": "1"}})),
    ] {
        assert_eq!(client.patch(MAP, language, &patch).ok(), before, "{language} {patch}");
    }
    let dry = format!("{MAP}?dryRun=All");
    assert_eq!(client.patch(&dry, "merge", &json!({"data": {"x": "2"}})).ok()["data"], json!({"x": "2"}));
    assert_eq!(client.get(MAP).ok(), before);
}

#[test]
fn patch_with_stale_resource_version_conflicts() {
    let (_server, mut client) = server_with_map(&json!({"x": "1"}));
    let first = text(&client.get(MAP).ok(), "/metadata/resourceVersion").to_owned();
    let patch = json!({"metadata": {"resourceVersion": first}, "data": {"x": "2"}});
    client.patch(MAP, "merge", &patch).ok();
    for language in ["merge", "strategic-merge"] {
        let status = client.patch(MAP, language, &patch).expect_error(409, "Conflict");
        assert!(message(&status).contains("the object has been modified"), "{status}");
    }
    let unconditional = json!({"metadata": {"resourceVersion": null}, "data": {"x": "3"}});
    assert_eq!(client.patch(MAP, "merge", &unconditional).ok()["data"]["x"], "3");
}

#[test]
fn patch_cannot_change_identity() {
    let (_server, mut client) = server_with_map(&json!({"x": "1"}));
    let status =
        client.patch(MAP, "merge", &json!({"metadata": {"name": "b"}})).expect_error(400, "BadRequest");
    assert_eq!(message(&status), "the name of the object (b) does not match the name on the URL (a)");
    let other_namespace = json!({"metadata": {"namespace": "b"}});
    client.patch(MAP, "strategic-merge", &other_namespace).expect_error(400, "BadRequest");
    let uid = json!({"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}});
    let status = client.patch(MAP, "merge", &uid).expect_error(422, "Invalid");
    assert!(message(&status).contains("metadata.uid: Invalid value"), "{status}");
    client.patch(MAP, "merge", &json!({"kind": "Secret"})).expect_error(422, "Invalid");
    // A strategic merge patch is not decoded as an object: its kind is ignored.
    assert_eq!(client.patch(MAP, "strategic-merge", &json!({"kind": "Secret"})).ok()["kind"], "ConfigMap");
    let missing = client.patch(&format!("{MAPS}/none"), "merge", &json!({})).expect_error(404, "NotFound");
    assert_eq!(message(&missing), "configmaps \"none\" not found");
    client
        .request("PATCH", MAP, &[("Content-Type", "application/json")], b"{}")
        .expect_error(415, "UnsupportedMediaType");
    let status = client.patch(&format!("{MAP}?force=true"), "merge", &json!({})).expect_error(422, "Invalid");
    assert!(
        message(&status).ends_with("force: Forbidden: may not be specified for non-apply patch"),
        "{status}"
    );
}

#[test]
fn patch_unknown_fields_follow_field_validation() {
    let (_server, mut client) = server_with_map(&json!({"x": "1"}));
    for language in ["merge", "strategic-merge"] {
        let patch = json!({"nope": 1});
        let response = client.patch(MAP, language, &patch);
        assert_eq!(response.header("warning"), Some(r#"299 - "unknown field \"nope\"""#), "{language}");
        response.ok();
        let quiet = client.patch(&format!("{MAP}?fieldValidation=Ignore"), language, &patch);
        assert_eq!(quiet.header("warning"), None);
        quiet.ok();
        let strict_response = client.patch(&format!("{MAP}?fieldValidation=Strict"), language, &patch);
        let strict_response = strict_response.expect_error(422, "Invalid");
        assert!(
            message(&strict_response).ends_with(r#"strict decoding error: unknown field "nope""#),
            "{strict_response}"
        );
    }
}

#[test]
fn patch_applies_to_requested_version() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let path =
        |version: &str| format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers");
    let spec = json!({
        "scaleTargetRef": {"kind": "Deployment", "name": "d"},
        "maxReplicas": 3,
        "targetCPUUtilizationPercentage": 50,
    });
    client.post(&path("v1"), &json!({"metadata": {"name": "h"}, "spec": spec})).ok();
    let old = client.patch(
        &format!("{}/h", path("v1")),
        "json",
        &json!([{"op": "replace", "path": "/spec/targetCPUUtilizationPercentage", "value": 70}]),
    );
    assert_eq!(old.ok()["apiVersion"], "autoscaling/v1");
    let new = client.patch(&format!("{}/h", path("v2")), "merge", &json!({"spec": {"minReplicas": 2}})).ok();
    assert_eq!(new["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 70);
    assert_eq!(client.get(&format!("{}/h", path("v1"))).ok()["spec"]["minReplicas"], 2);
}

#[test]
fn status_patch_changes_only_status() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let pods = "/api/v1/namespaces/default/pods";
    let spec = json!({"containers": [{"name": "c", "image": "i:1"}]});
    client.post(pods, &json!({"metadata": {"name": "p"}, "spec": spec})).ok();
    let patch = json!({
        "spec": {"containers": [{"name": "c", "image": "i:2"}]},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]},
    });
    let after = client.patch(&format!("{pods}/p/status"), "strategic-merge", &patch).ok();
    assert_eq!(after["spec"]["containers"][0]["image"], "i:1");
    assert_eq!(after["status"]["conditions"][0]["type"], "Ready");
    let second_patch = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}]}});
    let after = client.patch(&format!("{pods}/p/status"), "strategic-merge", &second_patch).ok();
    let conditions = after["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 2, "{after}");
    assert_eq!(conditions[0]["status"], "True");
    let object = client.patch(&format!("{pods}/p"), "strategic-merge", &patch).ok();
    assert_eq!(object["spec"]["containers"][0]["image"], "i:2");
    assert_eq!(object["status"]["conditions"].as_array().unwrap().len(), 2, "{object}");
}

/// Runs many writers at once, each with a connection of its own, and waits for all.
fn contend(server: &Server, writers: usize, write: impl Fn(&mut Client, usize) + Copy + Send + 'static) {
    let writers: Vec<_> = (0..writers)
        .map(|writer| {
            let mut client = server.admin();
            thread::spawn(move || write(&mut client, writer))
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

#[test]
fn concurrent_patches_are_all_applied_once() {
    const WRITERS: usize = 32;
    const EACH: usize = 8;
    let (server, mut client) = server_with_map(&json!({"first": "1"}));
    let before = client.patch(MAP, "merge", &json!({"metadata": {"finalizers": ["example.com/first"]}})).ok();
    contend(&server, WRITERS, |client, writer| {
        for round in 0..EACH {
            let key = format!("w{writer}-{round}");
            let (language, patch) = match writer % 3 {
                0 => ("merge", json!({"data": {key: "1"}})),
                1 => ("strategic-merge", json!({"data": {key: "1"}})),
                _ => ("json", json!([{"op": "add", "path": format!("/data/{key}"), "value": "1"}])),
            };
            // The response to each patch has its change.
            let changed = client.patch(MAP, language, &patch).ok();
            assert_eq!(changed["data"][format!("w{writer}-{round}")], "1");
        }
        // Each appends to the current list.
        let name = format!("example.com/f{writer}");
        client
            .patch(MAP, "json", &json!([{"op": "add", "path": "/metadata/finalizers/-", "value": name}]))
            .ok();
    });
    let after = client.get(MAP).ok();
    let mut watch = client.watch(MAPS, &format!("resourceVersion={}", text(&before, VERSION)));
    let writes = (1..).find(|_| text(&watch.next()["object"], VERSION) == text(&after, VERSION));
    assert_eq!(writes, Some(WRITERS * (EACH + 1)), "every patch is one write");
    assert_eq!(after["data"].as_object().unwrap().len(), 1 + WRITERS * EACH);
    assert_eq!(after["metadata"]["finalizers"].as_array().unwrap().len(), 1 + WRITERS);
}

#[test]
fn delete_succeeds_among_concurrent_patches() {
    const PATCHERS: usize = 12;
    // On disk, so that a write is always pending.
    let server = Server::start();
    let mut client = server.admin();
    for _ in 0..5 {
        client.post(MAPS, &json!({"metadata": {"name": "a"}})).ok();
        let started = Arc::new(Barrier::new(PATCHERS + 1));
        let patchers: Vec<_> = (0..PATCHERS)
            .map(|patcher| {
                let (mut client, started) = (server.admin(), Arc::clone(&started));
                thread::spawn(move || {
                    for round in 0.. {
                        let patched = client.patch(
                            MAP,
                            "merge",
                            &json!({"data": {format!("p{patcher}"): round.to_string()}}),
                        );
                        if round == 3 {
                            started.wait();
                        }
                        if patched.status != 200 {
                            return patched.status;
                        }
                    }
                    0
                })
            })
            .collect();
        started.wait();
        client.delete(MAP).ok();
        for patcher in patchers {
            assert_eq!(patcher.join().unwrap(), 404, "it is gone");
        }
    }
}

#[test]
fn concurrent_applies_creating_one_object_all_succeed() {
    const WRITERS: usize = 16;
    let (server, mut client) = server_with_map(&json!({}));
    contend(&server, WRITERS, |client, writer| {
        for round in 0..8 {
            let name = format!("new-{round}");
            let path = format!("/api/v1/namespaces/default/configmaps/{name}?fieldManager=w{writer}");
            let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
                "data": {format!("w{writer}"): "1"}});
            let headers = [("Content-Type", "application/apply-patch+yaml")];
            client.request("PATCH", &path, &headers, applied.to_string().as_bytes()).ok();
        }
    });
    for round in 0..8 {
        let created = client.get(&format!("/api/v1/namespaces/default/configmaps/new-{round}")).ok();
        assert_eq!(created["data"].as_object().map(serde_json::Map::len), Some(WRITERS), "{created}");
    }
}
