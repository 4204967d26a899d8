//! StorageVersions: what the server publishes about itself, and what is left of servers that are gone.

use serde_json::{Value, json};

use super::*;

const STORAGE_VERSIONS: &str = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const FLAGS: [&str; 4] = [
    "--engine=memory",
    "--controllers=storageversion-garbage-collector-controller",
    "--feature-gates=StorageVersionAPI=true",
    "--runtime-config=internal.apiserver.k8s.io/v1alpha1=true",
];

/// Waits until an object meets a condition.
fn wait_until(admin: &mut Client, path: &str, is_met: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let reached = poll(TIMEOUT, || {
        last = admin.get(path).json();
        is_met(&last).then(|| last.clone())
    });
    reached.unwrap_or_else(|| panic!("{path} is {last}"))
}

fn servers(storage_version: &Value) -> Vec<String> {
    let entries = storage_version["status"]["storageVersions"].as_array().cloned().unwrap_or_default();
    entries.iter().map(|entry| text(entry, "/apiServerID").to_owned()).collect()
}

fn entry(server: &str, version: &str) -> Value {
    json!({"apiServerID": server, "encodingVersion": version, "decodableVersions": [version]})
}

#[test]
fn server_publishes_storage_versions_under_its_identity() {
    let server = Server::with_flags(&FLAGS);
    let mut admin = server.admin();
    let is_published = |object: &Value| object["status"]["commonEncodingVersion"].is_string();
    let path = format!("{STORAGE_VERSIONS}/autoscaling.horizontalpodautoscalers");
    let published = wait_until(&mut admin, &path, is_published);
    let status = &published["status"];
    let entry = &status["storageVersions"][0];
    assert_eq!(status["commonEncodingVersion"], entry["encodingVersion"]);
    assert_eq!(entry["servedVersions"], json!(["autoscaling/v2", "autoscaling/v1"]));
    let condition = &status["conditions"][0];
    assert_eq!(
        [&condition["type"], &condition["status"], &condition["reason"], &condition["message"]],
        [
            &json!("AllEncodingVersionsEqual"),
            &json!("True"),
            &json!("CommonEncodingVersionSet"),
            &json!("Common encoding version set")
        ]
    );
    let id = text(entry, "/apiServerID");
    assert!(id.starts_with("apiserver-"), "{id}");
    let lease = admin.get(&format!("{LEASES}/{id}")).ok();
    assert_eq!(lease["metadata"]["labels"]["apiserver.kubernetes.io/identity"], "kube-apiserver");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 3_600);
    // One for the events of both groups, and none for custom resources.
    wait_until(&mut admin, &format!("{STORAGE_VERSIONS}/core.events"), is_published);
    assert_eq!(admin.get(&format!("{STORAGE_VERSIONS}/events.k8s.io.events")).status, 404);
    // A deleted one is published again.
    admin.delete(&path).ok();
    let again = wait_until(&mut admin, &path, is_published);
    assert_ne!(again["metadata"]["uid"], published["metadata"]["uid"]);
}

#[test]
fn entries_of_servers_without_lease_are_removed() {
    let server = Server::with_flags(&FLAGS);
    let mut admin = server.admin();
    let path = format!("{STORAGE_VERSIONS}/core.configmaps");
    let published = wait_until(&mut admin, &path, |object| object["status"]["commonEncodingVersion"] == "v1");
    let own = servers(&published);
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "other", "labels": {"apiserver.kubernetes.io/identity": "kube-apiserver"}},
        "spec": {"holderIdentity": "h", "leaseDurationSeconds": 3_600, "renewTime": "2099-01-01T00:00:00.000000Z"}});
    admin.post(LEASES, &lease).ok();
    // A server of another release writes another version: while it is alive, there is no common one.
    let mut other = published;
    let entries = other["status"]["storageVersions"].as_array_mut().expect("entries");
    entries.push(entry("other", "v2"));
    entries.push(entry("gone", "v1"));
    other["status"].as_object_mut().expect("a status").remove("commonEncodingVersion");
    other["status"]["conditions"][0]["status"] = json!("False");
    admin.put(&format!("{path}/status"), &other).ok();
    let both = wait_until(&mut admin, &path, |object| servers(object).len() == 2);
    assert_eq!(servers(&both), [own[0].as_str(), "other"]);
    assert_eq!(both["status"]["commonEncodingVersion"], Value::Null);
    assert_eq!(both["status"]["conditions"][0]["reason"], "CommonEncodingVersionUnset");
    admin.delete(&format!("{LEASES}/other")).ok();
    let alone = wait_until(&mut admin, &path, |object| servers(object) == own);
    assert_eq!(alone["status"]["commonEncodingVersion"], "v1");
    assert_eq!(alone["status"]["conditions"][0]["status"], "True");

    let stale = json!({"apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion",
        "metadata": {"name": "toys.kites"}, "spec": {}});
    let mut stale = admin.post(STORAGE_VERSIONS, &stale).ok();
    stale["status"] = json!({"storageVersions": [entry("gone", "v1")], "commonEncodingVersion": "v1",
        "conditions": [{"type": "AllEncodingVersionsEqual", "status": "True", "reason": "CommonEncodingVersionSet",
            "message": "Common encoding version set", "lastTransitionTime": "2024-01-01T00:00:00Z"}]});
    admin.put(&format!("{STORAGE_VERSIONS}/toys.kites/status"), &stale).ok();
    wait_until(&mut admin, &format!("{STORAGE_VERSIONS}/toys.kites"), |object| object["code"] == 404);
}

#[test]
fn nothing_is_published_without_the_gate() {
    let server = Server::with_flags(&["--engine=memory", FLAGS[3]]);
    let mut admin = server.admin();
    assert_eq!(admin.get(STORAGE_VERSIONS).ok()["items"], json!([]));
    assert_eq!(admin.get(LEASES).ok()["items"], json!([]));
}
