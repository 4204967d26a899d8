//! Rights that grow: of nodes over themselves, and of users over roles.

use serde_json::{Value, json};

use super::alice;
use super::support::client::Answer;
use super::support::compare::text;
use super::support::{Client, Server};

const PODS: &str = "/api/v1/namespaces/default/pods";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A server whose nodes are restricted, and a request of the node `mine`.
fn restricted() -> (Server, impl FnMut(&str, &str, &str, &Value) -> Answer) {
    let server = Server::with(&[
        "--engine=memory",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
    ]);
    let mut client = server.admin();
    let ask = move |method: &str, path: &str, media: &str, body: &Value| {
        let media = format!("application/{media}");
        let headers = [
            ("Content-Type", media.as_str()),
            ("Impersonate-User", "system:node:mine"),
            ("Impersonate-Group", "system:nodes"),
        ];
        client.request(method, path, &headers, body.to_string().as_bytes())
    };
    (server, ask)
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

fn refusal(answer: &Answer) -> String {
    text(&answer.refused(403, "Forbidden"), "/message").to_owned()
}

/// CVE-2025-4563: a mirror pod with a resource claim, by which a node takes devices that were not given to it.
#[test]
fn mirror_pods_reference_nothing() {
    let (server, mut ask) = restricted();
    let made = server.admin().post("/api/v1/nodes", &node("mine")).ok();
    let mirror = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "m",
            "annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "mine", "uid": made["metadata"]["uid"], "controller": true}]},
        "spec": {"nodeName": "mine", "containers": [{"name": "c", "image": "i"}]}});
    let with = |fields: &Value| {
        let mut pod = mirror.clone();
        fields.as_object().unwrap().iter().for_each(|(field, value)| pod["spec"][field] = value.clone());
        pod
    };
    let volume = |source: Value| json!({"volumes": [{"name": "v", "projected": {"sources": [source]}}]});
    for (fields, what) in [
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
        let message = refusal(&ask("POST", PODS, "json", &with(&fields)));
        assert!(message.ends_with(&format!("can not create pods that reference {what}")), "{message}");
    }
    ask("POST", PODS, "json", &with(&json!({}))).ok();
}

/// CVE-2025-5187: a node that gives itself an owner which does not exist is deleted by the garbage collector, and may come back
/// without its taints and labels.
#[test]
fn a_node_does_not_choose_its_owners() {
    let (server, mut ask) = restricted();
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
            let answer = ask(method, path, media, body);
            // The status takes nothing but the status: that is as good.
            if answer.status != 200 {
                let message = refusal(&answer);
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
    let answer = ask("PATCH", "/api/v1/nodes/mine?fieldManager=m&force=true", "apply-patch+yaml", &apply);
    assert!(refusal(&answer).ends_with("is not allowed to modify ownerReferences"));
    // Owners that somebody else has set stay.
    admin.patch("/api/v1/nodes/mine", "merge", &patch).ok();
    let none = json!({"metadata": {"ownerReferences": null}});
    let message = refusal(&ask("PATCH", "/api/v1/nodes/mine", "merge-patch+json", &none));
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

/// Nobody grants what they do not hold: not by a new role, a changed one, a binding or an applied one. `escalate` and `bind` say
/// otherwise.
#[test]
fn nobody_grants_more_than_they_hold_without_escalate_or_bind() {
    let server = Server::with(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let place = format!("{RBAC}/namespaces/default");
    let (roles, bindings) = (format!("{place}/roles"), format!("{place}/rolebindings"));
    let author = role(
        "author",
        &["create", "update", "patch", "get"],
        "rbac.authorization.k8s.io",
        &["roles", "rolebindings"],
    );
    admin.post(&roles, &author).ok();
    admin.post(&bindings, &binding("author", "Role", "author")).ok();
    let more = role("more", &["get"], "", &["secrets"]);
    let refused = |answer: Answer| {
        let message = refusal(&answer);
        assert!(message.contains("is attempting to grant RBAC permissions not currently held"), "{message}");
    };
    refused(alice.post(&roles, &more));
    refused(alice.post(&bindings, &binding("root", "ClusterRole", "cluster-admin")));
    admin.post(&roles, &role("less", &["get"], "rbac.authorization.k8s.io", &["roles"])).ok();
    let wider = json!({"rules": more["rules"]});
    refused(alice.patch(&format!("{roles}/less"), "merge", &wider));
    let mut changed = more.clone();
    changed["metadata"]["name"] = json!("less");
    refused(alice.put(&format!("{roles}/less"), &changed));
    let apply = [("Content-Type", "application/apply-patch+yaml")];
    let path = format!("{roles}/more?fieldManager=m");
    refusal(&alice.request("PATCH", &path, &apply, more.to_string().as_bytes()));
    // What alice holds she may pass on.
    alice.post(&roles, &role("same", &["get"], "rbac.authorization.k8s.io", &["roles"])).ok();
    alice.post(&bindings, &binding("same", "Role", "same")).ok();
    // The two verbs that say otherwise.
    admin.post(&roles, &role("escalates", &["escalate"], "rbac.authorization.k8s.io", &["roles"])).ok();
    admin.post(&bindings, &binding("escalates", "Role", "escalates")).ok();
    alice.post(&roles, &more).ok();
    refused(alice.post(&bindings, &binding("more", "Role", "more")));
    let mut binds = role("binds", &["bind"], "rbac.authorization.k8s.io", &["roles"]);
    binds["rules"][0]["resourceNames"] = json!(["more"]);
    admin.post(&roles, &binds).ok();
    admin.post(&bindings, &binding("binds", "Role", "binds")).ok();
    alice.post(&bindings, &binding("more", "Role", "more")).ok();
    refused(alice.post(&bindings, &binding("root", "ClusterRole", "cluster-admin")));
    let secrets = |alice: &mut Client| alice.get("/api/v1/namespaces/default/secrets/x").status;
    assert_eq!(secrets(&mut alice), 404, "what was granted counts");
}

/// CVE-2021-25740: who may edit endpoints leads the traffic of a load balancer into another namespace. No role that users get by
/// default has that right.
#[test]
fn default_roles_of_users_do_not_write_endpoints() {
    let server = Server::with(&["--engine=memory"]);
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
            let names = |field: &str, wanted: &[&str]| {
                let all = rule[field].as_array().cloned().unwrap_or_default();
                all.iter().filter_map(Value::as_str).any(|name| wanted.contains(&name))
            };
            let writes = names("verbs", &["create", "update", "patch", "*"]);
            assert!(!(writes && names("resources", &["endpoints", "endpointslices", "*"])), "{role}: {rule}");
        }
    }
}
