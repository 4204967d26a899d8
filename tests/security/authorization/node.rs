//! The Node authorizer and NodeRestriction: kubelets read the objects of their pods and write their own.

use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::{X509NameBuilder, X509ReqBuilder};
use serde_json::{Value, json};

use crate::support::client::Response;
use crate::support::compare::text;
use crate::support::{Client, Server};

const DEFAULT: &str = "/api/v1/namespaces/default";

/// A client that impersonates a kubelet.
struct Node<'a>(Client, &'a str);

impl Node<'_> {
    fn send(&mut self, method: &str, path: &str, body: &Value) -> Response {
        let user = format!("system:node:{}", self.1);
        let headers = [
            ("Content-Type", "application/json"),
            ("Impersonate-User", user.as_str()),
            ("Impersonate-Group", "system:nodes"),
        ];
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.0.request(method, path, &headers, &body)
    }

    fn get(&mut self, path: &str) -> Response {
        self.send("GET", path, &Value::Null)
    }
}

/// The message of a 403 response.
fn forbidden_message(response: &Response) -> String {
    text(&response.expect_error(403, "Forbidden"), "/message").to_owned()
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeName": node, "serviceAccountName": "runner",
            "containers": [{"name": "c", "image": "i", "envFrom": [{"configMapRef": {"name": "settings"}}]}],
            "volumes": [
                {"name": "s", "secret": {"secretName": "password"}},
                {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"audience": "vault", "path": "v"}}]}},
            ],
        },
    })
}

fn server() -> Server {
    Server::with_flags(&[
        "--engine=memory",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
    ])
}

fn create_object(admin: &mut Client, kind: &str, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
    let namespace = if kind == "Node" { "/api/v1" } else { DEFAULT };
    admin.post(&format!("{namespace}/{}s", kind.to_lowercase()), &object).ok();
}

#[test]
fn node_reads_objects_of_its_pods_only_while_they_run() {
    let server = server();
    let mut admin = server.admin();
    for (kind, name) in
        [("Secret", "password"), ("Secret", "other"), ("ConfigMap", "settings"), ("ServiceAccount", "runner")]
    {
        create_object(&mut admin, kind, name);
    }
    create_object(&mut admin, "Node", "mine");
    let (mut node, mut other_node) = (Node(server.admin(), "mine"), Node(server.admin(), "yours"));
    let secret = format!("{DEFAULT}/secrets/password");
    assert!(
        forbidden_message(&node.get(&secret))
            .ends_with("no relationship found between node 'mine' and this object"),
        "before there is a pod"
    );
    admin.post(&format!("{DEFAULT}/pods"), &pod("p", "mine")).ok();
    for allowed in ["secrets/password", "configmaps/settings", "pods/p"] {
        node.get(&format!("{DEFAULT}/{allowed}")).ok();
        other_node.get(&format!("{DEFAULT}/{allowed}")).expect_error(403, "Forbidden");
    }
    assert_eq!(node.get(&format!("{DEFAULT}/secrets/other")).status, 403);
    assert!(forbidden_message(&node.get(&format!("{DEFAULT}/secrets"))).ends_with("No Object name found"));
    node.get("/api/v1/nodes/mine").ok();
    assert_eq!(node.get("/api/v1/nodes/yours").status, 403);
    assert_eq!(node.get("/api/v1/pods").status, 403);
    node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dmine").ok();
    assert_eq!(other_node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dmine").status, 403);
    let named = format!("{DEFAULT}/secrets?fieldSelector=metadata.name%3Dpassword");
    node.get(&named).ok();
    assert_eq!(other_node.get(&named).status, 403);

    // A node has access to its own lease only.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = |name: &str| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}});
    node.send("POST", leases, &lease("mine")).ok();
    assert!(
        forbidden_message(&node.send("POST", leases, &lease("yours")))
            .contains("same name as the requesting node")
    );
    assert_eq!(other_node.get(&format!("{leases}/mine")).status, 403);

    admin.delete(&format!("{DEFAULT}/pods/p?gracePeriodSeconds=0")).ok();
    assert_eq!(node.get(&secret).status, 403, "the pod has gone");
}

fn token_request_for(pod: &Value, audiences: &[&str]) -> Value {
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]});
    json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": audiences, "boundObjectRef": bound},
    })
}

#[test]
fn node_requests_tokens_only_for_its_pods_and_their_audiences() {
    let server = server();
    let mut admin = server.admin();
    create_object(&mut admin, "ServiceAccount", "runner");
    create_object(&mut admin, "Node", "mine");
    let own_pod = admin.post(&format!("{DEFAULT}/pods"), &pod("p", "mine")).ok();
    let other_pod = admin.post(&format!("{DEFAULT}/pods"), &pod("q", "yours")).ok();
    let path = format!("{DEFAULT}/serviceaccounts/runner/token");
    let mut node = Node(server.admin(), "mine");
    let created = node.send("POST", &path, &token_request_for(&own_pod, &["vault"])).ok();
    assert!(!text(&created, "/status/token").is_empty());
    let mut refusal_of = |request: &Value| forbidden_message(&node.send("POST", &path, request));
    let mut unbound = token_request_for(&own_pod, &["vault"]);
    unbound["spec"]["boundObjectRef"] = Value::Null;
    assert!(refusal_of(&unbound).ends_with("node requested token not bound to a pod"));
    let mut without_uid = token_request_for(&own_pod, &["vault"]);
    without_uid["spec"]["boundObjectRef"]["uid"] = json!("");
    assert!(refusal_of(&without_uid).ends_with("node requested token with a pod binding without a uid"));
    let mut with_old_uid = token_request_for(&own_pod, &["vault"]);
    with_old_uid["spec"]["boundObjectRef"]["uid"] = json!("x");
    assert!(
        refusal_of(&with_old_uid)
            .contains("the UID in the bound object reference (x) does not match the UID in record.")
    );
    assert!(
        refusal_of(&token_request_for(&other_pod, &["vault"]))
            .ends_with("node requested token bound to a pod scheduled on a different node")
    );
    assert!(
        refusal_of(&token_request_for(&own_pod, &["a", "b"]))
            .ends_with("node may only request 0 or 1 audiences")
    );
    assert!(refusal_of(&token_request_for(&own_pod, &["other"])).ends_with(
        "audience \"other\" not found in pod spec volume, system:node:mine is not authorized to request tokens for this \
         audience"
    ));
    let mut missing_pod = token_request_for(&own_pod, &["vault"]);
    missing_pod["spec"]["boundObjectRef"]["name"] = json!("gone");
    let status = node.send("POST", &path, &missing_pod).expect_error(404, "NotFound");
    assert_eq!(text(&status, "/message"), "pod \"gone\" not found");

    // RBAC may allow more audiences.
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "audience"},
        "rules": [{"verbs": ["request-serviceaccounts-token-audience"], "apiGroups": [""], "resources": ["other"]}],
    });
    admin.post(&format!("{rbac}/clusterroles"), &role).ok();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "audience"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "audience"},
        "subjects": [{"kind": "Group", "name": "system:nodes"}],
    });
    admin.post(&format!("{rbac}/clusterrolebindings"), &binding).ok();
    node.send("POST", &path, &token_request_for(&own_pod, &["other"])).ok();
}

fn csr_for(name: &str) -> Value {
    let key = PKey::generate_ed25519().unwrap();
    let mut subject = X509NameBuilder::new().unwrap();
    subject.append_entry_by_nid(Nid::ORGANIZATIONNAME, "system:nodes").unwrap();
    subject.append_entry_by_nid(Nid::COMMONNAME, name).unwrap();
    let mut builder = X509ReqBuilder::new().unwrap();
    builder.set_subject_name(&subject.build()).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.sign(&key, MessageDigest::null()).unwrap();
    let pem = openssl::base64::encode_block(&builder.build().to_pem().unwrap());
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "csr-"},
        "spec": {"signerName": "kubernetes.io/kube-apiserver-client-kubelet", "request": pem, "usages": ["client auth"]},
    })
}

#[test]
fn node_requests_own_certificate_and_modifies_only_itself() {
    let server = server();
    let mut admin = server.admin();
    create_object(&mut admin, "Node", "yours");
    let mut node = Node(server.admin(), "mine");
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    node.send("POST", requests, &csr_for("system:node:mine")).ok();
    assert!(
        forbidden_message(&node.send("POST", requests, &csr_for("system:node:yours")))
            .ends_with("can only create a node CSR with CN=system:node:mine")
    );
    let node_object = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    assert!(
        forbidden_message(&node.send("POST", "/api/v1/nodes", &node_object("yours", json!({}))))
            .ends_with("node \"mine\" is not allowed to modify node \"yours\"")
    );
    assert!(
        forbidden_message(&node.send(
            "POST",
            "/api/v1/nodes",
            &node_object("mine", json!({"node-restriction.kubernetes.io/a": "b"}))
        ))
        .ends_with("is not allowed to set the following labels: node-restriction.kubernetes.io/a")
    );
    let mut created = node.send("POST", "/api/v1/nodes", &node_object("mine", json!({"app": "x"}))).ok();
    created["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
    assert!(
        forbidden_message(&node.send("PUT", "/api/v1/nodes/mine", &created))
            .ends_with("node \"mine\" is not allowed to modify taints")
    );
    // A mirror pod needs the node as its owner; that is checked before its references.
    let mut mirror = pod("m", "mine");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    let pods = format!("{DEFAULT}/pods");
    assert!(
        forbidden_message(&node.send("POST", &pods, &mirror))
            .ends_with("with an owner reference set to itself")
    );
    mirror["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "mine", "uid": created["metadata"]["uid"], "controller": true}]);
    assert!(
        forbidden_message(&node.send("POST", &pods, &mirror)).ends_with("that reference a service account")
    );
}
