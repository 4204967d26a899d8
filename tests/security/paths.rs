//! Paths that name a resource in another way than its scope, its group or its namespace allow.

use serde_json::{Value, json};

use super::alice;
use super::support::client::JSON;
use super::support::wait::{CAP, poll};
use super::support::{Client, Server};

const GROUP: &str = "/apis/harbor.example.com/v1";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Defines a kind and waits until it is served.
fn define(admin: &mut Client, plural: &str, kind: &str, scope: &str) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.harbor.example.com")},
        "spec": {"group": "harbor.example.com", "scope": scope, "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]}});
    admin.post(CRDS, &definition).ok();
    let collection = format!("{GROUP}/{plural}");
    poll(CAP, || (admin.get(&collection).status == 200).then_some(())).expect("the kind is served");
}

fn object(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "harbor.example.com/v1", "kind": kind, "metadata": {"name": name}, "cargo": "gold"})
}

/// Lets alice do something in a namespace, or everywhere.
fn grant(admin: &mut Client, namespace: Option<&str>, verbs: &[&str], resources: &[&str]) {
    let (role, binding, place) = match namespace {
        Some(namespace) => ("Role", "RoleBinding", format!("{RBAC}/namespaces/{namespace}")),
        None => ("ClusterRole", "ClusterRoleBinding", RBAC.to_owned()),
    };
    let name = resources[0].replace('/', "-");
    let rule = json!({"verbs": verbs, "apiGroups": ["harbor.example.com"], "resources": resources});
    let object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": role, "metadata": {"name": name}, "rules": [rule]});
    admin.post(&format!("{place}/{}s", role.to_lowercase()), &object).ok();
    let object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": binding, "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": name},
        "subjects": [{"kind": "User", "name": "alice"}]});
    admin.post(&format!("{place}/{}s", binding.to_lowercase()), &object).ok();
}

/// CVE-2019-11247: a role in one namespace was enough for cluster-scoped custom resources, by a path with the namespace.
#[test]
fn a_custom_resource_is_reached_only_in_its_scope() {
    let mut server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, "lighthouses", "Lighthouse", "Cluster");
    define(&mut admin, "boats", "Boat", "Namespaced");
    let made = admin.post(&format!("{GROUP}/lighthouses"), &object("Lighthouse", "a")).ok();
    let boat = admin.post(&format!("{GROUP}/namespaces/default/boats"), &object("Boat", "a")).ok();
    grant(
        &mut admin,
        Some("default"),
        &["*"],
        &["lighthouses", "lighthouses/status", "boats", "boats/status"],
    );
    let mut alice = alice(&server);
    // Cluster-scoped, by a path with a namespace: also for who may do everything.
    let wrong = format!("{GROUP}/namespaces/default/lighthouses");
    let patch = [("Content-Type", "application/merge-patch+json")];
    for client in [&mut alice, &mut admin] {
        for path in
            [&wrong, &format!("{wrong}/a"), &format!("{wrong}/a/status"), &format!("{wrong}?watch=true")]
        {
            for method in ["GET", "DELETE", "POST", "PUT", "PATCH"] {
                let headers = if method == "PATCH" { patch } else { JSON };
                let body =
                    if method == "GET" { String::new() } else { object("Lighthouse", "a").to_string() };
                let answer = client.request(method, path, &headers, body.as_bytes());
                assert!(
                    matches!(answer.status, 404 | 405),
                    "{method} {path}: {} {}",
                    answer.status,
                    answer.text()
                );
                assert!(!answer.text().contains("gold"));
            }
        }
    }
    // Namespaced, by a path without one: a role in the namespace does not count, and nobody gets an object that way.
    for path in ["boats/a", "boats/a/status"] {
        let path = format!("{GROUP}/{path}");
        for method in ["GET", "DELETE", "PUT", "PATCH"] {
            let headers = if method == "PATCH" { patch } else { JSON };
            let body = if method == "GET" { String::new() } else { object("Boat", "a").to_string() };
            alice.request(method, &path, &headers, body.as_bytes()).refused(403, "Forbidden");
            let answer = admin.request(method, &path, &headers, body.as_bytes());
            assert!(
                matches!(answer.status, 404 | 405),
                "{method} {path}: {} {}",
                answer.status,
                answer.text()
            );
        }
    }
    alice.get(&format!("{GROUP}/boats")).refused(403, "Forbidden");
    alice.post(&format!("{GROUP}/boats"), &object("Boat", "b")).refused(403, "Forbidden");
    assert!(matches!(admin.post(&format!("{GROUP}/boats"), &object("Boat", "b")).status, 404 | 405));
    assert_eq!(admin.get(&format!("{GROUP}/lighthouses/a")).ok(), made, "nobody has changed it");
    assert_eq!(admin.get(&format!("{GROUP}/namespaces/default/boats/a")).ok(), boat);
    server.unharmed();
}

/// CVE-2022-3162: whoever may list one custom resource everywhere read another one of its group, by a name that climbs out of
/// the place where the first one is stored.
#[test]
fn a_list_does_not_climb_into_another_resource() {
    let mut server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, "boats", "Boat", "Namespaced");
    define(&mut admin, "treasures", "Treasure", "Namespaced");
    for name in ["a", "b", "c"] {
        admin.post(&format!("{GROUP}/namespaces/default/treasures"), &object("Treasure", name)).ok();
    }
    grant(&mut admin, None, &["get", "list", "watch"], &["boats"]);
    let mut alice = alice(&server);
    alice.get(&format!("{GROUP}/boats")).ok();
    alice.get(&format!("{GROUP}/treasures")).refused(403, "Forbidden");
    let chunk = admin.get(&format!("{GROUP}/treasures?limit=1")).ok();
    let token = chunk["metadata"]["continue"].as_str().expect("there is more").to_owned();
    let climbs = [
        "..",
        "../treasures",
        "../treasures/default/a",
        "../../treasures",
        ".",
        "treasures",
        "*",
        "default/../..",
    ];
    let mut paths = vec![
        format!("{GROUP}/boats?limit=1&continue={token}"),
        format!("{GROUP}/namespaces/default/boats?limit=1&continue={token}"),
    ];
    for climb in climbs {
        let quoted = climb.replace('/', "%2F");
        let twice = quoted.replace('%', "%25");
        for written in [climb, &quoted, &twice, &quoted.replace('.', "%2e")] {
            paths.push(format!("{GROUP}/boats/{written}"));
            paths.push(format!("{GROUP}/namespaces/{written}/boats"));
            paths.push(format!("{GROUP}/namespaces/default/boats/{written}"));
        }
        for field in ["metadata.name", "metadata.namespace"] {
            paths.push(format!("{GROUP}/boats?fieldSelector={field}%3D{quoted}"));
            paths.push(format!("{GROUP}/namespaces/default/boats?fieldSelector={field}%3D{quoted}"));
        }
    }
    for field in ["metadata.name", "metadata.namespace"] {
        let climb = "..%2Ftreasures%2Fdefault%2Fa";
        paths.push(format!("{GROUP}/boats?watch=true&timeoutSeconds=1&fieldSelector={field}%3D{climb}"));
    }
    for path in paths {
        let answer = alice.request("GET", &path, &[], b"");
        assert!(!answer.text().contains("gold"), "{path}: {}", answer.text());
    }
    server.unharmed();
}
