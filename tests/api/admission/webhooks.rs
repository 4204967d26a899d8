//! Admission webhooks: patches, denials, failures, and which requests are reviewed.

mod calls;
mod responses;
mod reviews;

use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::support::hook_server::{HookServer, Reply};
use crate::support::kubelet::TlsIdentity;
use crate::support::wait::{TIMEOUT, poll};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}})
}

fn patch(operations: &Value) -> Reply {
    let text = STANDARD.encode(operations.to_string());
    Reply::Review(json!({"allowed": true, "patchType": "JSONPatch", "patch": text}))
}

fn allow() -> Reply {
    Reply::Review(json!({"allowed": true}))
}

/// A webhook of a configuration; `fields` replace the usual ones.
fn hook(server: &HookServer, name: &str, fields: &Value) -> Value {
    let mut hook = json!({
        "name": name,
        "clientConfig": {"url": server.url(&format!("/{name}")), "caBundle": STANDARD.encode(&server.ca_pem)},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
    });
    for (field, value) in fields.as_object().unwrap() {
        hook[field] = value.clone();
    }
    hook
}

fn configure(admin: &mut Client, kind_prefix: &str, name: &str, hooks: &[Value]) {
    let path = format!("{GROUP}/{}webhookconfigurations", kind_prefix.to_lowercase());
    let body = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind_prefix}WebhookConfiguration"),
        "metadata": {"name": name}, "webhooks": hooks});
    admin.post(&path, &body).ok();
}

fn message(status: &Value) -> &str {
    text(status, "/message")
}
