//! Attacks by paths that do not match the scope, group or namespace of a resource.

use serde_json::{Value, json};

use super::alice;
use crate::support::client::JSON;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

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
    poll(TIMEOUT, || (admin.get(&collection).status == 200).then_some(())).expect("the kind is served");
}

fn object(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "harbor.example.com/v1", "kind": kind, "metadata": {"name": name}, "cargo": "gold"})
}

/// Lets alice do something in a namespace, or everywhere.
fn grant(admin: &mut Client, namespace: Option<&str>, verbs: &[&str], resources: &[&str]) {
    let (role, binding, rbac_path) = match namespace {
        Some(namespace) => ("Role", "RoleBinding", format!("{RBAC}/namespaces/{namespace}")),
        None => ("ClusterRole", "ClusterRoleBinding", RBAC.to_owned()),
    };
    let name = resources[0].replace('/', "-");
    let rule = json!({"verbs": verbs, "apiGroups": ["harbor.example.com"], "resources": resources});
    let object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": role, "metadata": {"name": name}, "rules": [rule]});
    admin.post(&format!("{rbac_path}/{}s", role.to_lowercase()), &object).ok();
    let object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": binding, "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": name},
        "subjects": [{"kind": "User", "name": "alice"}]});
    admin.post(&format!("{rbac_path}/{}s", binding.to_lowercase()), &object).ok();
}

/// CVE-2019-11247: a role in one namespace was enough for cluster-scoped custom resources, by a path with the namespace.
#[test]
fn custom_resource_is_served_only_in_its_scope() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, "lighthouses", "Lighthouse", "Cluster");
    define(&mut admin, "boats", "Boat", "Namespaced");
    let created = admin.post(&format!("{GROUP}/lighthouses"), &object("Lighthouse", "a")).ok();
    let boat = admin.post(&format!("{GROUP}/namespaces/default/boats"), &object("Boat", "a")).ok();
    grant(
        &mut admin,
        Some("default"),
        &["*"],
        &["lighthouses", "lighthouses/status", "boats", "boats/status"],
    );
    let mut alice = alice(&server);
    // Cluster-scoped, by a path with a namespace: not even for the administrator.
    let path_with_namespace = format!("{GROUP}/namespaces/default/lighthouses");
    let patch = [("Content-Type", "application/merge-patch+json")];
    for client in [&mut alice, &mut admin] {
        for path in [
            &path_with_namespace,
            &format!("{path_with_namespace}/a"),
            &format!("{path_with_namespace}/a/status"),
            &format!("{path_with_namespace}?watch=true"),
        ] {
            for method in ["GET", "DELETE", "POST", "PUT", "PATCH"] {
                let headers = if method == "PATCH" { patch } else { JSON };
                let body =
                    if method == "GET" { String::new() } else { object("Lighthouse", "a").to_string() };
                let response = client.request(method, path, &headers, body.as_bytes());
                assert!(
                    matches!(response.status, 404 | 405),
                    "{method} {path}: {} {}",
                    response.status,
                    response.text()
                );
                assert!(!response.text().contains("gold"));
            }
        }
    }
    // Namespaced, by a path without one: a role in the namespace does not count, and not even the administrator gets an object.
    for path in ["boats/a", "boats/a/status"] {
        let path = format!("{GROUP}/{path}");
        for method in ["GET", "DELETE", "PUT", "PATCH"] {
            let headers = if method == "PATCH" { patch } else { JSON };
            let body = if method == "GET" { String::new() } else { object("Boat", "a").to_string() };
            alice.request(method, &path, &headers, body.as_bytes()).expect_error(403, "Forbidden");
            let response = admin.request(method, &path, &headers, body.as_bytes());
            assert!(
                matches!(response.status, 404 | 405),
                "{method} {path}: {} {}",
                response.status,
                response.text()
            );
        }
    }
    alice.get(&format!("{GROUP}/boats")).expect_error(403, "Forbidden");
    alice.post(&format!("{GROUP}/boats"), &object("Boat", "b")).expect_error(403, "Forbidden");
    assert!(matches!(admin.post(&format!("{GROUP}/boats"), &object("Boat", "b")).status, 404 | 405));
    assert_eq!(admin.get(&format!("{GROUP}/lighthouses/a")).ok(), created, "nobody has changed it");
    assert_eq!(admin.get(&format!("{GROUP}/namespaces/default/boats/a")).ok(), boat);
    server.assert_healthy();
}

/// CVE-2022-3162: whoever may list one custom resource everywhere read another one of its group, by a name that climbs out of
/// the place where the first one is stored.
#[test]
fn list_paths_do_not_traverse_into_other_resources() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define(&mut admin, "boats", "Boat", "Namespaced");
    define(&mut admin, "treasures", "Treasure", "Namespaced");
    for name in ["a", "b", "c"] {
        admin.post(&format!("{GROUP}/namespaces/default/treasures"), &object("Treasure", name)).ok();
    }
    grant(&mut admin, None, &["get", "list", "watch"], &["boats"]);
    let mut alice = alice(&server);
    alice.get(&format!("{GROUP}/boats")).ok();
    alice.get(&format!("{GROUP}/treasures")).expect_error(403, "Forbidden");
    let chunk = admin.get(&format!("{GROUP}/treasures?limit=1")).ok();
    let token = chunk["metadata"]["continue"].as_str().expect("there is more").to_owned();
    let traversals = [
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
    for traversal in traversals {
        let quoted = traversal.replace('/', "%2F");
        let twice = quoted.replace('%', "%25");
        for encoded in [traversal, &quoted, &twice, &quoted.replace('.', "%2e")] {
            paths.push(format!("{GROUP}/boats/{encoded}"));
            paths.push(format!("{GROUP}/namespaces/{encoded}/boats"));
            paths.push(format!("{GROUP}/namespaces/default/boats/{encoded}"));
        }
        for field in ["metadata.name", "metadata.namespace"] {
            paths.push(format!("{GROUP}/boats?fieldSelector={field}%3D{quoted}"));
            paths.push(format!("{GROUP}/namespaces/default/boats?fieldSelector={field}%3D{quoted}"));
        }
    }
    for field in ["metadata.name", "metadata.namespace"] {
        let traversal = "..%2Ftreasures%2Fdefault%2Fa";
        paths.push(format!("{GROUP}/boats?watch=true&timeoutSeconds=1&fieldSelector={field}%3D{traversal}"));
    }
    for path in paths {
        let response = alice.request("GET", &path, &[], b"");
        assert!(!response.text().contains("gold"), "{path}: {}", response.text());
    }
    server.assert_healthy();
}
