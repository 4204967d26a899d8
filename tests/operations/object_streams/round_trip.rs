//! What is exported, imported into an empty server and exported again is the same, but for what servers set.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::{MAPS, config_map, define_ships, export, import, objects, reference};
use crate::support::compare::text;
use crate::support::manifests::discover;
use crate::support::server::temp_directory;
use crate::support::{Client, Manifest, Server};

/// Creates an object of every built-in kind, and others that are connected with each other.
fn fill(client: &mut Client) {
    let resources = discover(client);
    for manifest in Manifest::all() {
        client.post(&manifest.resource(&resources).collection(), &manifest.object).ok();
    }
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "port", "labels": {"a": "b"}}})).ok();
    define_ships(client);
    let ships = "/apis/example.com/v1/namespaces/port/ships";
    let ship = json!({"apiVersion": "example.com/v1", "kind": "Ship", "metadata": {"name": "s"},
        "spec": {"speed": 12.5, "crew": 9_007_199_254_740_993_i64, "text": "ä\n---\n"}});
    let mut ship = client.post(ships, &ship).ok();
    ship["status"] = json!({"phase": "Sailing"});
    client.put(&format!("{ships}/s/status"), &ship).ok();
    let mut owned = config_map("owned", &[reference(&ship)]);
    owned["metadata"]["namespace"] = json!("port");
    client.post("/api/v1/namespaces/port/configmaps", &owned).ok();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"type": "NodePort", "selector": {"a": "b"}, "ports": [{"port": 80}, {"port": 81, "name": "b"}]}});
    let mut service = service;
    service["spec"]["ports"][0]["name"] = json!("a");
    client.post("/api/v1/namespaces/port/services", &service).ok();
    bind_volume(client);
}

fn bind_volume(client: &mut Client) {
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = client.get(&format!("{claims}/sample")).ok();
    let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "sample"}});
    client.patch(&format!("{claims}/sample"), "merge", &bound).ok();
    let claim_ref = json!({"spec": {"claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": "default", "name": "sample", "uid": claim["metadata"]["uid"]}}});
    client.patch("/api/v1/persistentvolumes/sample", "merge", &claim_ref).ok();
}

/// An object without what its server set. UIDs of other objects become their names.
fn comparable(object: &Value, names: &BTreeMap<String, String>) -> Value {
    let mut object = object.clone();
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"] {
        metadata.remove(field);
    }
    // Conditions that the server itself writes have the times at which it did.
    let kinds_with_own_status =
        ["APIService", "CustomResourceDefinition", "FlowSchema", "PriorityLevelConfiguration"];
    if kinds_with_own_status.contains(&text(&object, "/kind")) {
        object.as_object_mut().unwrap().remove("status");
    }
    let mut text = object.to_string();
    for (uid, name) in names {
        text = text.replace(uid, name);
    }
    serde_json::from_str(&text).unwrap()
}

fn names_by_uid(objects: &BTreeMap<String, Value>) -> BTreeMap<String, String> {
    objects.iter().map(|(key, object)| (text(object, "/metadata/uid").to_owned(), key.clone())).collect()
}

#[test]
fn exported_objects_survive_the_move_to_another_server() {
    let (from, into) = (Server::with_flags(&["--engine=memory"]), with_garbage_collector());
    fill(&mut from.admin());
    let directory = temp_directory();
    let (first, fresh, second) =
        (directory.path().join("first"), directory.path().join("fresh"), directory.path().join("second"));
    export(&into, &fresh, &[]);
    let summary = export(&from, &first, &[]);
    assert!(summary.starts_with("exported "), "{summary}");
    assert_eq!(std::fs::metadata(&first).unwrap().permissions().mode() & 0o777, 0o600);

    let (success, stderr) = import(&into, &first, &[]);
    assert!(success, "{stderr}");
    export(&into, &second, &[]);

    let (fresh, first, second) = (objects(&fresh), objects(&first), objects(&second));
    let (old_names, new_names) = (names_by_uid(&first), names_by_uid(&second));
    let mut compared = 0;
    for (key, object) in first.iter().filter(|(key, _)| !fresh.contains_key(*key)) {
        let Some(imported) = second.get(key) else {
            let left_out =
                ["CertificateSigningRequest", "IPAddress", "Lease kube-system/", "APIService v1.example.com"];
            assert!(left_out.iter().any(|kind| key.contains(kind)), "{key} was not imported: {stderr}");
            continue;
        };
        assert_eq!(comparable(imported, &new_names), comparable(object, &old_names), "{key}");
        compared += 1;
    }
    assert!(compared > 45, "{compared}");
    let owned = &second["v1 ConfigMap port/owned"];
    let ship = &second["example.com/v1 Ship port/s"];
    assert_eq!(owned["metadata"]["ownerReferences"][0]["uid"], ship["metadata"]["uid"]);
    assert_eq!(second["v1 Service port/web"]["spec"], first["v1 Service port/web"]["spec"]);
    let (volume, claim) =
        (&second["v1 PersistentVolume /sample"], &second["v1 PersistentVolumeClaim default/sample"]);
    assert_eq!(volume["spec"]["claimRef"]["uid"], claim["metadata"]["uid"]);
}

fn with_garbage_collector() -> Server {
    Server::with_flags(&[
        "--engine=memory",
        "--controllers=garbagecollector",
        "--disable-admission-plugins=ServiceAccount",
    ])
}

#[test]
fn selection_limits_export_and_import() {
    let (from, into) = (Server::with_flags(&["--engine=memory"]), Server::with_flags(&["--engine=memory"]));
    let mut client = from.admin();
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "other"}})).ok();
    for name in ["a", "b"] {
        let mut map = config_map(name, &[]);
        map["metadata"]["labels"] = json!({"name": name});
        client.post(MAPS, &map).ok();
        client.post("/api/v1/namespaces/default/secrets", &json!({"metadata": {"name": name}})).ok();
    }
    let directory = temp_directory();
    let path = directory.path().join("export");
    let keys = |arguments: &[&str]| {
        export(&from, &path, arguments);
        objects(&path).into_keys().collect::<Vec<_>>()
    };
    assert_eq!(keys(&["--resource=configmaps", "-l", "name=a"]), ["v1 ConfigMap default/a"]);
    assert_eq!(keys(&["--namespace=other"]), ["v1 Namespace /other"]);
    let of_default = keys(&["-n", "default", "--exclude-resource=*.discovery.k8s.io,endpoints,services"]);
    assert_eq!(
        of_default,
        [
            "v1 ConfigMap default/a",
            "v1 ConfigMap default/b",
            "v1 Namespace /default",
            "v1 Secret default/a",
            "v1 Secret default/b"
        ]
    );
    let (success, stderr) = import(&into, &path, &["--resource=secrets,configmaps", "-l", "name=b"]);
    assert!(success && stderr.contains("1 object created, 0 failed"), "{stderr}");
    assert_eq!(into.admin().get(&format!("{MAPS}/b")).ok()["data"]["name"], "b");
}

#[test]
fn failed_export_leaves_the_old_file_alone() {
    let server = Server::with_flags(&["--engine=memory"]);
    let directory = temp_directory();
    let path = directory.path().join("export");
    std::fs::write(&path, "old").unwrap();
    let to = path.to_str().unwrap();
    let (success, stderr) = super::run(super::command("export", &server, &["--to", to, "--resource=podz"]));
    assert!(!success && stderr.contains("podz"), "{stderr}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}
