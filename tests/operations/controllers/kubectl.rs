//! kubectl, which waits for the effects of controllers.

use serde_json::json;

use super::{server, wait_until};
use crate::support::kubectl::Kubectl;
use crate::support::manifests::discover;
use crate::support::{Manifest, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Creates an owner with two dependents.
fn create_owner_with_dependents(server: &Server, name: &str) {
    let mut client = server.admin();
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let set = client.post("/apis/apps/v1/namespaces/default/replicasets", &set).ok();
    for number in 0..2 {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("{name}-{number}"),
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name,
                "uid": set["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}]}});
        client.post(MAPS, &map).ok();
    }
}

#[test]
fn kubectl_delete_waits_for_cascading_deletion() {
    let server = server(&[]);
    let kubectl = Kubectl::new(&server);
    let mut client = server.admin();
    create_owner_with_dependents(&server, "front");
    kubectl.run(&["delete", "replicaset", "front", "--cascade=foreground", "--wait", "--timeout=30s"]);
    assert_eq!(client.get(&format!("{MAPS}/front-0")).status, 404);
    assert_eq!(client.get(&format!("{MAPS}/front-1")).status, 404);

    create_owner_with_dependents(&server, "alone");
    kubectl.run(&["delete", "replicaset", "alone", "--cascade=orphan", "--wait", "--timeout=30s"]);
    let orphan = client.get(&format!("{MAPS}/alone-0")).ok();
    assert!(orphan["metadata"]["ownerReferences"].is_null());

    create_owner_with_dependents(&server, "back");
    kubectl.run(&["delete", "replicaset", "back", "--wait", "--timeout=30s"]);
    wait_until(&mut client, &format!("{MAPS}/back-1"), |response| response["code"] == 404);

    kubectl.run(&["create", "namespace", "short"]);
    kubectl.run(&["create", "configmap", "-n", "short", "c", "--from-literal=a=b"]);
    kubectl.run(&["create", "deployment", "-n", "short", "d", "--image=i"]);
    kubectl.run(&["delete", "namespace", "short", "--wait", "--timeout=30s"]);
    assert_eq!(client.get("/api/v1/namespaces/short").status, 404);
}

#[test]
fn kubectl_deletes_namespace_with_every_kind() {
    let server = server(&[]);
    let kubectl = Kubectl::new(&server);
    let mut client = server.admin();
    let resources = discover(&mut client);
    kubectl.run(&["create", "namespace", "full"]);
    let namespaced_object = |manifest: &Manifest| {
        let resource = manifest.resource(&resources);
        (resource.namespaced && resource.has("delete")).then(|| manifest.object.clone())
    };
    let mut items: Vec<_> = Manifest::all().iter().filter_map(namespaced_object).collect();
    for item in &mut items {
        item["metadata"]["namespace"] = json!("full");
    }
    assert!(items.len() > 25, "{}", items.len());
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let text = list.to_string().replace("\"namespace\":\"default\"", "\"namespace\":\"full\"");
    let file = kubectl.home.path().join("all.json");
    std::fs::write(&file, text).unwrap();
    let created = kubectl.run(&["create", "--validate=false", "-f", file.to_str().unwrap()]);
    assert_eq!(created.lines().filter(|line| line.ends_with(" created")).count(), items.len(), "{created}");
    kubectl.run(&["delete", "namespace", "full", "--wait", "--timeout=60s"]);
    assert_eq!(client.get("/api/v1/namespaces/full").status, 404);
}
