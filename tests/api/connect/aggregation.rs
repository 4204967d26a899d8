//! Aggregated API servers, with a fake extension server.

mod discovery;
mod namespaces;
mod openapi;
mod requests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_types::lock::Lock;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{LOOPBACK, SPDY};
use crate::support::compare::text;
use crate::support::kubectl::Kubectl;
use crate::support::kubelet::{Kubelet, ReceivedRequest, TlsIdentity, Wire};
use crate::support::wait::{Deadline, TIMEOUT, poll};
use crate::support::{Client, Server};

const REGISTRATIONS: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";
const AGGREGATED_DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The timeout of a namespace deletion that was blocked for a while: it is retried with growing pauses.
const LONG: Duration = Duration::from_secs(60);
/// Makes each touch another change.
static TOUCHES: AtomicUsize = AtomicUsize::new(0);
/// States of the extension server.
const HEALTHY: u8 = 0;
const BROKEN: u8 = 1;
/// Without aggregated discovery.
const WITHOUT_AGGREGATED_DISCOVERY: u8 = 2;

fn node(name: &str, cpu: &str) -> Value {
    json!({"metadata": {"name": name}, "timestamp": "2024-01-01T00:00:00Z", "window": "30s",
        "usage": {"cpu": cpu, "memory": "1024Mi"}})
}

/// The OpenAPI document of the metrics server, with paths and schemas that are not its own.
fn openapi_document() -> Value {
    let schema_ref = |name: &str| json!({"schema": {"$ref": format!("#/definitions/{name}")}});
    json!({
        "swagger": "2.0",
        "info": {"title": "metrics", "version": "1"},
        "paths": {
            format!("{METRICS}/nodes"): {"get": {"responses": {"200": schema_ref("io.k8s.metrics.NodeMetrics"), "400": schema_ref("Pod")}}},
            "/api/v1/pods": {"get": {"description": "not mine"}},
        },
        "definitions": {
            "io.k8s.metrics.NodeMetrics": {"type": "object", "description": "what a node uses",
                "properties": {"meta": {"$ref": "#/definitions/io.k8s.api.core.v1.Pod"}}},
            "io.k8s.api.core.v1.Pod": {"type": "string"},
            "Unused": {"type": "object"},
        },
    })
}

/// The aggregated discovery document of the metrics server.
fn discovery_document() -> Value {
    let resource = json!({"resource": "nodes", "responseKind": {"group": "", "version": "", "kind": "NodeMetrics"},
        "scope": "Cluster", "singularResource": "node", "verbs": ["get", "list"]});
    let group = json!({"metadata": {"name": "metrics.k8s.io"},
        "versions": [{"version": "v1beta1", "resources": [resource], "freshness": "Current"}]});
    json!({"kind": "APIGroupDiscoveryList", "items": [group]})
}

/// Handles a request as a small metrics server.
fn serve(state: u8, request: &ReceivedRequest, wire: &mut Wire) {
    let json = |wire: &mut Wire, body: &Value| {
        wire.respond("200 OK", "Content-Type: application/json\r\n", body.to_string().as_bytes());
    };
    if state == BROKEN {
        return wire.respond("500 Internal Server Error", "", b"broken");
    }
    match request.path() {
        "/apis" if state == HEALTHY && request.header("if-none-match") == Some("\"1\"") => {
            wire.respond("304 Not Modified", "", b"");
        }
        "/apis" if state == HEALTHY => {
            let headers = format!("Content-Type: {AGGREGATED_DISCOVERY}\r\nETag: \"1\"\r\n");
            wire.respond("200 OK", &headers, discovery_document().to_string().as_bytes());
        }
        METRICS => {
            let resources = json!([
                {"name": "nodes", "singularName": "node", "namespaced": false, "kind": "NodeMetrics", "verbs": ["get", "list"]},
                {"name": "pods", "singularName": "pod", "namespaced": true, "kind": "PodMetrics", "verbs": ["get"]},
            ]);
            let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "metrics.k8s.io/v1beta1",
                "resources": resources});
            json(wire, &list);
        }
        "/openapi/v3" => {
            let path = "/openapi/v3/apis/metrics.k8s.io/v1beta1?hash=1";
            json(wire, &json!({"paths": {"apis/metrics.k8s.io/v1beta1": {"serverRelativeURL": path}}}));
        }
        "/openapi/v3/apis/metrics.k8s.io/v1beta1" => json(wire, &json!({"openapi": "3.0.0"})),
        "/openapi/v2" => json(wire, &openapi_document()),
        path if path.ends_with("/nodes") && request.query().contains("watch=") => {
            let head =
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
            let event = format!("{}\n", json!({"type": "ADDED", "object": node("n1", "1m")}));
            let chunk = format!("{:x}\r\n{event}\r\n", event.len());
            if wire.send(head.as_bytes()).and_then(|()| wire.send(chunk.as_bytes())).is_ok() {
                // The watch goes on until the client disconnects.
                wire.wait_for_disconnect();
            }
        }
        path if path.ends_with("/nodes") => {
            let items = [node("n1", "100m"), node("n2", "1500m")];
            json(
                wire,
                &json!({"kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}),
            );
        }
        path if path.ends_with("/echo") && request.method == "POST" => {
            let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            let body = wire.read_bytes(length).unwrap_or_default();
            wire.respond("201 Created", "Content-Type: application/json\r\n", &body);
        }
        path if path.ends_with("/talk") => {
            let upgraded =
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
            if wire.send(upgraded).is_ok() {
                let bytes = wire.read_bytes(5).unwrap_or_default().to_ascii_uppercase();
                let _ = wire.send(&bytes);
            }
        }
        path if path.ends_with("/away") => wire.respond("302 Found", "Location: /elsewhere\r\n", b""),
        path if path.ends_with("/drop") => {}
        _ => wire.respond("404 Not Found", "Content-Type: text/plain\r\n", b"nothing\n"),
    }
}

/// A server, and an extension server behind a service of its cluster.
struct Fixture {
    server: Server,
    admin: Client,
    extension: Kubelet,
    identity: TlsIdentity,
    authority: String,
    state: Arc<AtomicU8>,
    _certificate_dir: TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::with_controllers("--controllers=-*")
    }

    fn with_controllers(controllers: &str) -> Fixture {
        Fixture::with_handler(controllers, serve)
    }

    fn with_handler(
        controllers: &str,
        serve: impl Fn(u8, &ReceivedRequest, &mut Wire) + Send + Sync + 'static,
    ) -> Fixture {
        Fixture::with_flags_and_handler(&[controllers], serve)
    }

    fn with_flags_and_handler(
        flags: &[&str],
        serve: impl Fn(u8, &ReceivedRequest, &mut Wire) + Send + Sync + 'static,
    ) -> Fixture {
        let folder = crate::support::server::temp_directory();
        let identity = TlsIdentity::new("metrics.default.svc", &[]);
        let (authority, _) = identity.write(folder.path(), "extension");
        let (certificate, key) = TlsIdentity::new("front-proxy-client", &[]).write(folder.path(), "proxy");
        let state = Arc::new(AtomicU8::new(HEALTHY));
        let state_of_handler = state.clone();
        let extension = Kubelet::start(LOOPBACK, &identity, move |request, wire| {
            serve(state_of_handler.load(Ordering::Relaxed), request, wire);
        });
        let proxy_flags = [
            format!("--proxy-client-cert-file={}", certificate.display()),
            format!("--proxy-client-key-file={}", key.display()),
        ];
        let all_flags: Vec<&str> = std::iter::once("--engine=memory")
            .chain(flags.iter().copied())
            .chain(proxy_flags.iter().map(String::as_str))
            .collect();
        let server = Server::with_flags(&all_flags);
        let mut admin = server.admin();
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics"},
            "spec": {"type": "ExternalName", "externalName": "localhost"}});
        admin.post("/api/v1/namespaces/default/services", &service).ok();
        let authority = STANDARD.encode(std::fs::read(authority).unwrap());
        Fixture { server, admin, extension, identity, authority, state, _certificate_dir: folder }
    }

    /// Another extension server, behind the same Service at a port of its own.
    fn add_extension(
        &self,
        serve: impl Fn(&ReceivedRequest, &mut Wire) + Send + Sync + 'static,
    ) -> (Kubelet, Value) {
        let extension = Kubelet::start(LOOPBACK, &self.identity, serve);
        let port = extension.address.port();
        (extension, json!({"service": {"namespace": "default", "name": "metrics", "port": port}}))
    }

    /// Registers a group version; `fields` replace the usual ones.
    fn register(&mut self, group: &str, version: &str, fields: &Value) {
        let mut spec = json!({"group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
            "caBundle": self.authority,
            "service": {"namespace": "default", "name": "metrics", "port": self.extension.address.port()}});
        for (field, value) in fields.as_object().unwrap() {
            spec[field] = value.clone();
        }
        let object = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{group}")}, "spec": spec});
        self.admin.post(REGISTRATIONS, &object).ok();
    }

    fn condition(&mut self, name: &str) -> (String, String, String) {
        let object = self.admin.get(&format!("{REGISTRATIONS}/{name}")).ok();
        let condition_field = |field: &str| {
            let value = object.pointer(&format!("/status/conditions/0/{field}")).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        (condition_field("status"), condition_field("reason"), condition_field("message"))
    }

    fn wait_for(&mut self, name: &str, reason: &str) -> String {
        let condition =
            poll(TIMEOUT, || Some(self.condition(name)).filter(|(_, condition, _)| condition == reason));
        condition.unwrap_or_else(|| panic!("{name} is no {reason}: {:?}", self.condition(name))).2
    }

    /// The aggregated discovery of a group.
    fn aggregated_discovery(&mut self, group: &str) -> Value {
        let list = self.admin.request("GET", "/apis", &[("Accept", AGGREGATED_DISCOVERY)], b"").ok();
        let items = list["items"].as_array().unwrap().clone();
        items.into_iter().find(|item| item["metadata"]["name"] == group).unwrap_or_default()
    }

    /// The last request to a path; availability probes go to others.
    fn last_request_to(&self, path: &str) -> ReceivedRequest {
        let request =
            self.extension.requests().into_iter().rev().find(|request| request.path().ends_with(path));
        request.unwrap_or_else(|| panic!("nobody asked for {path}"))
    }

    fn touch(&mut self, name: &str) {
        let times = TOUCHES.fetch_add(1, Ordering::Relaxed).to_string();
        let mark = json!({"metadata": {"annotations": {"touched": times}}});
        self.admin.patch(&format!("{REGISTRATIONS}/{name}"), "merge", &mark).ok();
    }

    fn set_state(&mut self, state: u8, name: &str) {
        self.state.store(state, Ordering::Relaxed);
        self.touch(name);
    }
}
