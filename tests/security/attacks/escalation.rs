//! Privilege escalation: by nodes over themselves, and by users over roles.

use serde_json::{Value, json};

use super::alice;
use crate::support::client::Response;
use crate::support::compare::text;
use crate::support::{Client, Server};

const PODS: &str = "/api/v1/namespaces/default/pods";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A server whose nodes are restricted, and a request of the node `mine`.
fn server_with_node_client() -> (Server, impl FnMut(&str, &str, &str, &Value) -> Response) {
    let server = Server::with_flags(&[
        "--engine=memory",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
    ]);
    let mut client = server.admin();
    let send_as_node = move |method: &str, path: &str, media: &str, body: &Value| {
        let media = format!("application/{media}");
        let headers = [
            ("Content-Type", media.as_str()),
            ("Impersonate-User", "system:node:mine"),
            ("Impersonate-Group", "system:nodes"),
        ];
        client.request(method, path, &headers, body.to_string().as_bytes())
    };
    (server, send_as_node)
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

fn forbidden_message(response: &Response) -> String {
    text(&response.expect_error(403, "Forbidden"), "/message").to_owned()
}

/// CVE-2025-4563: a mirror pod with a resource claim, by which a node takes devices that were not given to it.
#[test]
fn mirror_pods_may_not_reference_other_objects() {
    let (server, mut send_as_node) = server_with_node_client();
    let created = server.admin().post("/api/v1/nodes", &node("mine")).ok();
    let mirror = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "m",
            "annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "mine", "uid": created["metadata"]["uid"], "controller": true}]},
        "spec": {"nodeName": "mine", "containers": [{"name": "c", "image": "i"}]}});
    let pod_with = |fields: &Value| {
        let mut pod = mirror.clone();
        fields.as_object().unwrap().iter().for_each(|(field, value)| pod["spec"][field] = value.clone());
        pod
    };
    let volume = |source: Value| json!({"volumes": [{"name": "v", "projected": {"sources": [source]}}]});
    for (fields, resource) in [
        (json!({"resourceClaims": [{"name": "r", "resourceClaimName": "other"}]}), "resourceclaims"),
        (json!({"resourceClaims": [{"name": "r", "resourceClaimTemplateName": "other"}]}), "resourceclaims"),
        (json!({"serviceAccountName": "root"}), "a service account"),
        (json!({"serviceAccount": "root"}), "a service account"),
        (volume(json!({"secret": {"name": "s"}})), "secrets"),
        (volume(json!({"configMap": {"name": "s"}})), "configmaps"),
        (volume(json!({"clusterTrustBundle": {"name": "s", "path": "p"}})), "clustertrustbundles"),
        (
            json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}),
            "persistentvolumeclaims",
        ),
    ] {
        let message = forbidden_message(&send_as_node("POST", PODS, "json", &pod_with(&fields)));
        assert!(message.ends_with(&format!("can not create pods that reference {resource}")), "{message}");
    }
    send_as_node("POST", PODS, "json", &pod_with(&json!({}))).ok();
}

/// CVE-2025-5187: a node that gives itself an owner which does not exist is deleted by the garbage collector, and may come back
/// without its taints and labels.
#[test]
fn node_may_not_change_its_owner_references() {
    let (server, mut send_as_node) = server_with_node_client();
    let mut admin = server.admin();
    let mut owned = admin.post("/api/v1/nodes", &node("mine")).ok();
    let owners = json!([{"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"}]);
    owned["metadata"]["ownerReferences"] = owners.clone();
    let patch = json!({"metadata": {"ownerReferences": owners}});
    let operations = json!([{"op": "add", "path": "/metadata/ownerReferences", "value": owners}]);
    for path in ["/api/v1/nodes/mine", "/api/v1/nodes/mine/status"] {
        for (method, media, body) in [
            ("PUT", "json", &owned),
            ("PATCH", "merge-patch+json", &patch),
            ("PATCH", "strategic-merge-patch+json", &patch),
            ("PATCH", "json-patch+json", &operations),
        ] {
            let response = send_as_node(method, path, media, body);
            // A status update ignores metadata, which is as good.
            if response.status != 200 {
                let message = forbidden_message(&response);
                assert!(
                    message.ends_with("node \"mine\" is not allowed to modify ownerReferences"),
                    "{message}"
                );
            }
            let now = admin.get("/api/v1/nodes/mine").ok();
            assert_eq!(now["metadata"].get("ownerReferences"), None, "{method} {media} {path}");
        }
    }
    let apply =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "mine", "ownerReferences": owners}});
    let response =
        send_as_node("PATCH", "/api/v1/nodes/mine?fieldManager=m&force=true", "apply-patch+yaml", &apply);
    assert!(forbidden_message(&response).ends_with("is not allowed to modify ownerReferences"));
    // A node cannot remove owners that another client has set.
    admin.patch("/api/v1/nodes/mine", "merge", &patch).ok();
    let without_owners = json!({"metadata": {"ownerReferences": null}});
    let message =
        forbidden_message(&send_as_node("PATCH", "/api/v1/nodes/mine", "merge-patch+json", &without_owners));
    assert!(message.ends_with("is not allowed to modify ownerReferences"), "{message}");
}

fn role(name: &str, verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name},
        "rules": [{"verbs": verbs, "apiGroups": [group], "resources": resources}]})
}

fn binding(name: &str, kind: &str, role: &str) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": "alice"}]})
}

/// Rights beyond one's own cannot be granted by creating, changing, applying or binding a role, except with `escalate` and `bind`.
#[test]
fn rbac_grants_beyond_own_rights_need_escalate_or_bind() {
    let server = Server::with_flags(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let rbac_path = format!("{RBAC}/namespaces/default");
    let (roles, bindings) = (format!("{rbac_path}/roles"), format!("{rbac_path}/rolebindings"));
    let author = role(
        "author",
        &["create", "update", "patch", "get"],
        "rbac.authorization.k8s.io",
        &["roles", "rolebindings"],
    );
    admin.post(&roles, &author).ok();
    admin.post(&bindings, &binding("author", "Role", "author")).ok();
    let role_for_secrets = role("more", &["get"], "", &["secrets"]);
    let expect_escalation_error = |response: Response| {
        let message = forbidden_message(&response);
        assert!(message.contains("is attempting to grant RBAC permissions not currently held"), "{message}");
    };
    expect_escalation_error(alice.post(&roles, &role_for_secrets));
    expect_escalation_error(alice.post(&bindings, &binding("root", "ClusterRole", "cluster-admin")));
    admin.post(&roles, &role("less", &["get"], "rbac.authorization.k8s.io", &["roles"])).ok();
    let wider_rules = json!({"rules": role_for_secrets["rules"]});
    expect_escalation_error(alice.patch(&format!("{roles}/less"), "merge", &wider_rules));
    let mut changed = role_for_secrets.clone();
    changed["metadata"]["name"] = json!("less");
    expect_escalation_error(alice.put(&format!("{roles}/less"), &changed));
    let apply = [("Content-Type", "application/apply-patch+yaml")];
    let path = format!("{roles}/more?fieldManager=m");
    forbidden_message(&alice.request("PATCH", &path, &apply, role_for_secrets.to_string().as_bytes()));
    // Alice may grant what she holds.
    alice.post(&roles, &role("same", &["get"], "rbac.authorization.k8s.io", &["roles"])).ok();
    alice.post(&bindings, &binding("same", "Role", "same")).ok();
    // `escalate` and `bind` allow more.
    admin.post(&roles, &role("escalates", &["escalate"], "rbac.authorization.k8s.io", &["roles"])).ok();
    admin.post(&bindings, &binding("escalates", "Role", "escalates")).ok();
    alice.post(&roles, &role_for_secrets).ok();
    expect_escalation_error(alice.post(&bindings, &binding("more", "Role", "more")));
    let mut binds = role("binds", &["bind"], "rbac.authorization.k8s.io", &["roles"]);
    binds["rules"][0]["resourceNames"] = json!(["more"]);
    admin.post(&roles, &binds).ok();
    admin.post(&bindings, &binding("binds", "Role", "binds")).ok();
    alice.post(&bindings, &binding("more", "Role", "more")).ok();
    expect_escalation_error(alice.post(&bindings, &binding("root", "ClusterRole", "cluster-admin")));
    let secrets = |alice: &mut Client| alice.get("/api/v1/namespaces/default/secrets/x").status;
    assert_eq!(secrets(&mut alice), 404, "what was granted counts");
}

/// CVE-2021-25740: who may edit endpoints leads the traffic of a load balancer into another namespace. No role that users get by
/// default has that right.
#[test]
fn default_user_roles_do_not_write_endpoints() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    for role in [
        "admin",
        "edit",
        "view",
        "system:aggregate-to-admin",
        "system:aggregate-to-edit",
        "system:aggregate-to-view",
    ] {
        let object = admin.get(&format!("{RBAC}/clusterroles/{role}")).ok();
        for rule in object["rules"].as_array().cloned().unwrap_or_default() {
            let has_any = |field: &str, expected: &[&str]| {
                let names_of_rule = rule[field].as_array().cloned().unwrap_or_default();
                names_of_rule.iter().filter_map(Value::as_str).any(|name| expected.contains(&name))
            };
            let writes = has_any("verbs", &["create", "update", "patch", "*"]);
            assert!(
                !(writes && has_any("resources", &["endpoints", "endpointslices", "*"])),
                "{role}: {rule}"
            );
        }
    }
}
