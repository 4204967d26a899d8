//! Calls to servers that speak HTTP/2 alone.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_client::http2_testing::Http2Server;
use serde_json::{Value, json};

use crate::support::Server;
use crate::support::kubelet::TlsIdentity;
use crate::support::wait::{TIMEOUT, poll};

const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";

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
    let mut create = |name: &str| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        admin.post("/api/v1/namespaces/default/configmaps", &map).status
    };
    assert_eq!([create("a"), create("refused"), create("b")], [201, 400, 201]);
    assert_eq!(hook.targets(), ["/review?timeout=5s"; 3]);
    assert!(hook.connections() > 0);
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
