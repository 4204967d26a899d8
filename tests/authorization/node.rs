//! What kubelets may do: read what their pods need, and write what is theirs.

use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::{X509NameBuilder, X509ReqBuilder};
use serde_json::{Value, json};

use super::support::client::Answer;
use super::support::compare::text;
use super::support::{Client, Server};

const DEFAULT: &str = "/api/v1/namespaces/default";

/// A kubelet, as the server sees it.
struct Node<'a>(Client, &'a str);

impl Node<'_> {
    fn ask(&mut self, method: &str, path: &str, body: &Value) -> Answer {
        let user = format!("system:node:{}", self.1);
        let headers = [
            ("Content-Type", "application/json"),
            ("Impersonate-User", user.as_str()),
            ("Impersonate-Group", "system:nodes"),
        ];
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.0.request(method, path, &headers, &body)
    }

    fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, &Value::Null)
    }
}

/// The end of the message of a refusal.
fn refusal(answer: &Answer) -> String {
    text(&answer.refused(403, "Forbidden"), "/message").to_owned()
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
    Server::with(&[
        "--engine=memory",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
    ])
}

fn make(admin: &mut Client, kind: &str, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
    let namespace = if kind == "Node" { "/api/v1" } else { DEFAULT };
    admin.post(&format!("{namespace}/{}s", kind.to_lowercase()), &object).ok();
}

#[test]
fn a_node_reads_what_its_pods_need_and_for_as_long() {
    let server = server();
    let mut admin = server.admin();
    for (kind, name) in
        [("Secret", "password"), ("Secret", "other"), ("ConfigMap", "settings"), ("ServiceAccount", "runner")]
    {
        make(&mut admin, kind, name);
    }
    make(&mut admin, "Node", "mine");
    let (mut mine, mut yours) = (Node(server.admin(), "mine"), Node(server.admin(), "yours"));
    let secret = format!("{DEFAULT}/secrets/password");
    assert!(
        refusal(&mine.get(&secret)).ends_with("no relationship found between node 'mine' and this object"),
        "before there is a pod"
    );
    admin.post(&format!("{DEFAULT}/pods"), &pod("p", "mine")).ok();
    for allowed in ["secrets/password", "configmaps/settings", "pods/p"] {
        mine.get(&format!("{DEFAULT}/{allowed}")).ok();
        yours.get(&format!("{DEFAULT}/{allowed}")).refused(403, "Forbidden");
    }
    assert_eq!(mine.get(&format!("{DEFAULT}/secrets/other")).status, 403);
    assert!(refusal(&mine.get(&format!("{DEFAULT}/secrets"))).ends_with("No Object name found"));
    mine.get("/api/v1/nodes/mine").ok();
    assert_eq!(mine.get("/api/v1/nodes/yours").status, 403);
    assert_eq!(mine.get("/api/v1/pods").status, 403);
    mine.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dmine").ok();
    assert_eq!(yours.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dmine").status, 403);
    let named = format!("{DEFAULT}/secrets?fieldSelector=metadata.name%3Dpassword");
    mine.get(&named).ok();
    assert_eq!(yours.get(&named).status, 403);

    // Its own lease, and nobody else's.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = |name: &str| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}});
    mine.ask("POST", leases, &lease("mine")).ok();
    assert!(refusal(&mine.ask("POST", leases, &lease("yours"))).contains("same name as the requesting node"));
    assert_eq!(yours.get(&format!("{leases}/mine")).status, 403);

    admin.delete(&format!("{DEFAULT}/pods/p?gracePeriodSeconds=0")).ok();
    assert_eq!(mine.get(&secret).status, 403, "the pod has gone");
}

fn token_for(pod: &Value, audiences: &[&str]) -> Value {
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]});
    json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": audiences, "boundObjectRef": bound},
    })
}

#[test]
fn a_node_gets_tokens_for_its_own_pods_and_whom_they_speak_to() {
    let server = server();
    let mut admin = server.admin();
    make(&mut admin, "ServiceAccount", "runner");
    make(&mut admin, "Node", "mine");
    let own = admin.post(&format!("{DEFAULT}/pods"), &pod("p", "mine")).ok();
    let others = admin.post(&format!("{DEFAULT}/pods"), &pod("q", "yours")).ok();
    let path = format!("{DEFAULT}/serviceaccounts/runner/token");
    let mut mine = Node(server.admin(), "mine");
    let made = mine.ask("POST", &path, &token_for(&own, &["vault"])).ok();
    assert!(!text(&made, "/status/token").is_empty());
    let mut no = |request: &Value| refusal(&mine.ask("POST", &path, request));
    let mut unbound = token_for(&own, &["vault"]);
    unbound["spec"]["boundObjectRef"] = Value::Null;
    assert!(no(&unbound).ends_with("node requested token not bound to a pod"));
    let mut nameless = token_for(&own, &["vault"]);
    nameless["spec"]["boundObjectRef"]["uid"] = json!("");
    assert!(no(&nameless).ends_with("node requested token with a pod binding without a uid"));
    let mut older = token_for(&own, &["vault"]);
    older["spec"]["boundObjectRef"]["uid"] = json!("x");
    assert!(
        no(&older).contains("the UID in the bound object reference (x) does not match the UID in record.")
    );
    assert!(
        no(&token_for(&others, &["vault"]))
            .ends_with("node requested token bound to a pod scheduled on a different node")
    );
    assert!(no(&token_for(&own, &["a", "b"])).ends_with("node may only request 0 or 1 audiences"));
    assert!(no(&token_for(&own, &["other"])).ends_with(
        "audience \"other\" not found in pod spec volume, system:node:mine is not authorized to request tokens for this \
         audience"
    ));
    let mut gone = token_for(&own, &["vault"]);
    gone["spec"]["boundObjectRef"]["name"] = json!("gone");
    let status = mine.ask("POST", &path, &gone).refused(404, "NotFound");
    assert_eq!(text(&status, "/message"), "pod \"gone\" not found");

    // Somebody may allow more.
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
    mine.ask("POST", &path, &token_for(&own, &["other"])).ok();
}

fn request_for(name: &str) -> Value {
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
fn a_node_asks_for_certificates_and_changes_nobody_but_itself() {
    let server = server();
    let mut admin = server.admin();
    make(&mut admin, "Node", "yours");
    let mut mine = Node(server.admin(), "mine");
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    mine.ask("POST", requests, &request_for("system:node:mine")).ok();
    assert!(
        refusal(&mine.ask("POST", requests, &request_for("system:node:yours")))
            .ends_with("can only create a node CSR with CN=system:node:mine")
    );
    let node = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    assert!(
        refusal(&mine.ask("POST", "/api/v1/nodes", &node("yours", json!({}))))
            .ends_with("node \"mine\" is not allowed to modify node \"yours\"")
    );
    assert!(
        refusal(&mine.ask(
            "POST",
            "/api/v1/nodes",
            &node("mine", json!({"node-restriction.kubernetes.io/a": "b"}))
        ))
        .ends_with("is not allowed to set the following labels: node-restriction.kubernetes.io/a")
    );
    let mut made = mine.ask("POST", "/api/v1/nodes", &node("mine", json!({"app": "x"}))).ok();
    made["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
    assert!(
        refusal(&mine.ask("PUT", "/api/v1/nodes/mine", &made))
            .ends_with("node \"mine\" is not allowed to modify taints")
    );
    // A pod that it runs by itself belongs to it, before anybody looks at what it needs.
    let mut mirror = pod("m", "mine");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    let pods = format!("{DEFAULT}/pods");
    assert!(refusal(&mine.ask("POST", &pods, &mirror)).ends_with("with an owner reference set to itself"));
    mirror["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "mine", "uid": made["metadata"]["uid"], "controller": true}]);
    assert!(refusal(&mine.ask("POST", &pods, &mirror)).ends_with("that reference a service account"));
}
