//! Calls to servers that speak HTTP/2 alone.

use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_client::http2_testing::Http2Server;
use serde_json::{Value, json};

use crate::support::kubelet::TlsIdentity;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";

/// Lets the server review all new config maps.
fn add_webhook(admin: &mut Client, hook: &Http2Server, identity: &TlsIdentity) {
    let client = json!({"url": format!("https://{}/review", hook.address),
        "caBundle": STANDARD.encode(identity.certificate.to_pem().unwrap())});
    let webhook = json!({
        "name": "a.example.com", "clientConfig": client,
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
    });
    let body = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "a"}, "webhooks": [webhook]});
    admin.post("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", &body).ok();
}

#[test]
fn webhook_on_this_machine_may_speak_http2_alone() {
    let identity = TlsIdentity::new("hook", &["127.0.0.1"]);
    let hook = Http2Server::start((&identity.certificate, &identity.key), |_, body| {
        let review: Value = serde_json::from_slice(body).unwrap();
        let is_allowed = review["request"]["name"] != "refused";
        let response = json!({"uid": review["request"]["uid"], "allowed": is_allowed});
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        (200, review.to_string())
    });
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    add_webhook(&mut admin, &hook, &identity);
    let mut create = |name: &str| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        admin.post("/api/v1/namespaces/default/configmaps", &map).status
    };
    assert_eq!([create("a"), create("refused"), create("b")], [201, 400, 201]);
    assert_eq!(hook.targets(), ["/review?timeout=5s"; 3]);
    assert!(hook.connections() > 0);
}

#[test]
fn requests_at_once_share_the_connection_of_their_worker() {
    let identity = TlsIdentity::new("hook", &["127.0.0.1"]);
    let hook = Http2Server::start((&identity.certificate, &identity.key), |_, body| {
        let review: Value = serde_json::from_slice(body).unwrap();
        // The requests of all clients meet.
        thread::sleep(Duration::from_millis(5));
        let response = json!({"uid": review["request"]["uid"], "allowed": true});
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        (200, review.to_string())
    });
    let server = Server::with_flags(&["--engine=memory", "--workers=1"]);
    add_webhook(&mut server.admin(), &hook, &identity);
    let create = |name: String| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        server.admin().post("/api/v1/namespaces/default/configmaps", &map).status
    };
    thread::scope(|scope| {
        let client = |number| move || (0..5).all(|turn| create(format!("m-{number}-{turn}")) == 201);
        let clients: Vec<_> = (0..20).map(|number| scope.spawn(client(number))).collect();
        assert!(clients.into_iter().all(|client| client.join().unwrap()));
    });
    assert_eq!((hook.targets().len(), hook.connections()), (100, 1));
}

#[test]
fn aggregated_server_may_speak_http2_alone() {
    let identity = TlsIdentity::new("metrics.default.svc", &[]);
    let extension = Http2Server::start((&identity.certificate, &identity.key), |target, _| {
        let resource = json!({"name": "nodes", "singularName": "node", "namespaced": false, "kind": "NodeMetrics", "verbs": ["list"]});
        match target.split('?').next().unwrap() {
            METRICS => {
                let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "metrics.k8s.io/v1beta1",
                    "resources": [resource]});
                (200, list.to_string())
            }
            path if path.ends_with("/nodes") => {
                (200, json!({"kind": "NodeMetricsList", "items": ["x".repeat(1 << 20)]}).to_string())
            }
            _ => (404, String::new()),
        }
    });
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics"},
        "spec": {"type": "ExternalName", "externalName": "localhost"}});
    admin.post("/api/v1/namespaces/default/services", &service).ok();
    let spec = json!({"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
        "caBundle": STANDARD.encode(identity.certificate.to_pem().unwrap()),
        "service": {"namespace": "default", "name": "metrics", "port": extension.address.port()}});
    let object = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": spec});
    admin.post("/apis/apiregistration.k8s.io/v1/apiservices", &object).ok();
    let mut list = || admin.get(&format!("{METRICS}/nodes"));
    poll(TIMEOUT, || (list().status == 200).then_some(())).expect("it answers");
    // More than a window: the rest comes as it is read.
    assert_eq!(list().json()["items"][0].as_str().map(str::len), Some(1 << 20));
    assert!(extension.targets().iter().any(|target| target == &format!("{METRICS}/nodes")));
}
