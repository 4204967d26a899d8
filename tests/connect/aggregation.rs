//! Versions that other servers serve, against an extension server that the tests play.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_types::lock::Lock;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::compare::text;
use super::support::kubectl::Kubectl;
use super::support::kubelet::{Kubelet, Papers, Seen, Wire};
use super::support::wait::{CAP, Deadline, poll};
use super::support::{Client, Server};
use super::{LOOPBACK, SPDY};

const REGISTRATIONS: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";
const EVERYTHING: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// How long a namespace may take that was kept for a while: it is looked at again with growing pauses.
const LONG: Duration = Duration::from_secs(60);
/// How the extension server is.
const WELL: u8 = 0;
const BROKEN: u8 = 1;
/// It knows no document that has everything in one.
const OLD: u8 = 2;

fn node(name: &str, cpu: &str) -> Value {
    json!({"metadata": {"name": name}, "timestamp": "2024-01-01T00:00:00Z", "window": "30s",
        "usage": {"cpu": cpu, "memory": "1024Mi"}})
}

/// What the server of metrics says of itself, and of what is not its own.
fn description() -> Value {
    let of = |name: &str| json!({"schema": {"$ref": format!("#/definitions/{name}")}});
    json!({
        "swagger": "2.0",
        "info": {"title": "metrics", "version": "1"},
        "paths": {
            format!("{METRICS}/nodes"): {"get": {"responses": {"200": of("io.k8s.metrics.NodeMetrics"), "400": of("Pod")}}},
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

/// A small server of metrics.
fn serve(state: u8, seen: &Seen, wire: &mut Wire) {
    let json = |wire: &mut Wire, body: &Value| {
        wire.answer("200 OK", "Content-Type: application/json\r\n", body.to_string().as_bytes());
    };
    if state == BROKEN {
        return wire.answer("500 Internal Server Error", "", b"broken");
    }
    match seen.path() {
        "/apis" if state == WELL && seen.header("if-none-match") == Some("\"1\"") => {
            wire.answer("304 Not Modified", "", b"");
        }
        "/apis" if state == WELL => {
            let resource = json!({"resource": "nodes", "responseKind": {"group": "", "version": "", "kind": "NodeMetrics"},
                "scope": "Cluster", "singularResource": "node", "verbs": ["get", "list"]});
            let group = json!({"metadata": {"name": "metrics.k8s.io"},
                "versions": [{"version": "v1beta1", "resources": [resource], "freshness": "Current"}]});
            let all = json!({"kind": "APIGroupDiscoveryList", "items": [group]}).to_string();
            wire.answer("200 OK", &format!("Content-Type: {EVERYTHING}\r\nETag: \"1\"\r\n"), all.as_bytes());
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
            let place = "/openapi/v3/apis/metrics.k8s.io/v1beta1?hash=1";
            json(wire, &json!({"paths": {"apis/metrics.k8s.io/v1beta1": {"serverRelativeURL": place}}}));
        }
        "/openapi/v3/apis/metrics.k8s.io/v1beta1" => json(wire, &json!({"openapi": "3.0.0"})),
        "/openapi/v2" => json(wire, &description()),
        path if path.ends_with("/nodes") && seen.query().contains("watch=") => {
            let head =
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
            let event = format!("{}\n", json!({"type": "ADDED", "object": node("n1", "1m")}));
            let chunk = format!("{:x}\r\n{event}\r\n", event.len());
            if wire.say(head.as_bytes()).and_then(|()| wire.say(chunk.as_bytes())).is_ok() {
                // Until the client has had enough.
                wire.until_hung_up();
            }
        }
        path if path.ends_with("/nodes") => {
            let items = [node("n1", "100m"), node("n2", "1500m")];
            json(
                wire,
                &json!({"kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}),
            );
        }
        path if path.ends_with("/echo") && seen.method == "POST" => {
            let length = seen.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            let body = wire.exactly(length).unwrap_or_default();
            wire.answer("201 Created", "Content-Type: application/json\r\n", &body);
        }
        path if path.ends_with("/talk") => {
            let agreed =
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
            if wire.say(agreed).is_ok() {
                let said = wire.exactly(5).unwrap_or_default().to_ascii_uppercase();
                let _gone = wire.say(&said);
            }
        }
        path if path.ends_with("/away") => wire.answer("302 Found", "Location: /elsewhere\r\n", b""),
        path if path.ends_with("/drop") => {}
        _ => wire.answer("404 Not Found", "Content-Type: text/plain\r\n", b"nothing\n"),
    }
}

/// A server, and an extension server behind a service of its cluster.
struct Scene {
    server: Server,
    admin: Client,
    extension: Kubelet,
    authority: String,
    state: Arc<AtomicU8>,
    _papers: TempDir,
}

impl Scene {
    fn new() -> Scene {
        Scene::with("--controllers=-*")
    }

    fn with(loops: &str) -> Scene {
        Scene::behind(loops, serve)
    }

    fn behind(loops: &str, serve: impl Fn(u8, &Seen, &mut Wire) + Send + Sync + 'static) -> Scene {
        let folder = super::support::server::directory();
        let papers = Papers::new("metrics.default.svc", &[]);
        let (authority, _) = papers.write(folder.path(), "extension");
        let (certificate, key) = Papers::new("front-proxy-client", &[]).write(folder.path(), "proxy");
        let state = Arc::new(AtomicU8::new(WELL));
        let is = state.clone();
        let extension = Kubelet::start(LOOPBACK, &papers, move |seen, wire| {
            serve(is.load(Ordering::Relaxed), seen, wire);
        });
        let flags = [
            "--engine=memory".to_owned(),
            loops.to_owned(),
            format!("--proxy-client-cert-file={}", certificate.display()),
            format!("--proxy-client-key-file={}", key.display()),
        ];
        let server = Server::with(&flags.each_ref().map(String::as_str));
        let mut admin = server.admin();
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics"},
            "spec": {"type": "ExternalName", "externalName": "localhost"}});
        admin.post("/api/v1/namespaces/default/services", &service).ok();
        let authority = STANDARD.encode(std::fs::read(authority).unwrap());
        Scene { server, admin, extension, authority, state, _papers: folder }
    }

    /// Registers a version; `fields` take the place of the usual ones.
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
        let of = |field: &str| {
            let found = object.pointer(&format!("/status/conditions/0/{field}")).and_then(Value::as_str);
            found.unwrap_or_default().to_owned()
        };
        (of("status"), of("reason"), of("message"))
    }

    fn wait_for(&mut self, name: &str, reason: &str) -> String {
        let found = poll(CAP, || Some(self.condition(name)).filter(|(_, found, _)| found == reason));
        found.unwrap_or_else(|| panic!("{name} is no {reason}: {:?}", self.condition(name))).2
    }

    /// Everything in one, for a group.
    fn discovered(&mut self, group: &str) -> Value {
        let all = self.admin.request("GET", "/apis", &[("Accept", EVERYTHING)], b"").ok();
        let items = all["items"].as_array().unwrap().clone();
        items.into_iter().find(|item| item["metadata"]["name"] == group).unwrap_or_default()
    }

    /// What was asked there last. Whether it answers is asked all the time.
    fn asked(&self, path: &str) -> Seen {
        let seen = self.extension.seen().into_iter().rev().find(|seen| seen.path().ends_with(path));
        seen.unwrap_or_else(|| panic!("nobody asked for {path}"))
    }

    fn touch(&mut self, name: &str) {
        let times = self.extension.seen().len().to_string();
        let mark = json!({"metadata": {"annotations": {"touched": times}}});
        self.admin.patch(&format!("{REGISTRATIONS}/{name}"), "merge", &mark).ok();
    }

    fn is(&mut self, state: u8, name: &str) {
        self.state.store(state, Ordering::Relaxed);
        self.touch(name);
    }
}

#[test]
fn requests_are_passed_on_with_whom_they_are_for() {
    let mut scene = Scene::new();
    scene.register("metrics.k8s.io", "v1beta1", &json!({}));
    assert_eq!(scene.wait_for("v1beta1.metrics.k8s.io", "Passed"), "all checks passed");
    let probe = scene.extension.seen().into_iter().find(|seen| seen.path() == METRICS).unwrap();
    assert_eq!(probe.header("x-remote-user"), Some("system:kube-aggregator"));

    let nodes = format!("{METRICS}/nodes");
    let headers = [("X-Remote-User", "evil"), ("X-Remote-Extra-A", "b"), ("X-Kept", "yes")];
    let answer = scene.admin.request("GET", &format!("{nodes}?limit=2"), &headers, b"");
    assert_eq!(answer.ok()["items"][1]["metadata"]["name"], "n2");
    assert!(answer.header("audit-id").is_some());
    let seen = scene.asked(&nodes);
    assert_eq!((seen.path(), seen.query()), (nodes.as_str(), "limit=2"));
    assert_eq!(seen.client.as_deref(), Some("front-proxy-client"), "it is shown who speaks for others");
    assert_eq!((seen.header("authorization"), seen.header("x-remote-extra-a")), (None, None));
    let users: Vec<_> =
        seen.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("x-remote-user")).collect();
    assert!(users.len() == 1 && users[0].1 != "evil", "{users:?}");
    assert!(seen.headers.iter().any(|(_, value)| value == "system:masters"), "{seen:?}");
    assert_eq!((seen.header("x-kept"), seen.header("x-forwarded-proto")), (Some("yes"), Some("https")));
    assert_eq!(seen.header("x-forwarded-uri"), Some(nodes.as_str()));
    assert_eq!(seen.header("audit-id"), answer.header("audit-id"));
    let host = format!("localhost:{}", scene.extension.address.port());
    assert_eq!((seen.header("host"), seen.header("x-forwarded-host")), (Some(&*host), Some(&*host)));

    // Impersonation counts, and the right to it was checked here.
    let masked = [("Impersonate-User", "ann"), ("Impersonate-Group", "system:masters")];
    scene.admin.request("GET", &nodes, &masked, b"").ok();
    assert_eq!(scene.asked(&nodes).header("x-remote-user"), Some("ann"));
    assert_eq!(scene.asked(&nodes).header("impersonate-user"), None);

    let echoed = scene.admin.post(&format!("{METRICS}/namespaces/default/echo"), &json!({"a": 1}));
    assert_eq!((echoed.status, echoed.json()), (201, json!({"a": 1})));
    let missing = scene.admin.get(&format!("{METRICS}/unknown"));
    assert_eq!((missing.status, missing.text().as_str()), (404, "nothing\n"));
    let away = scene.admin.get(&format!("{METRICS}/namespaces/default/away"));
    assert_eq!((away.status, away.header("location")), (502, None));
    let dropped = scene.admin.get(&format!("{METRICS}/namespaces/default/drop"));
    assert_eq!((dropped.status, dropped.text().as_str()), (503, "error trying to reach service: EOF\n"));

    // Whoever may not ask is not passed on.
    let before = scene.extension.seen().len();
    scene.server.anonymous().get(&nodes).refused(403, "Forbidden");
    assert!(scene.extension.seen()[before..].iter().all(|seen| seen.path() != nodes));
}

#[test]
fn streams_and_conversations_pass_both_ways() {
    let mut scene = Scene::new();
    scene.register("metrics.k8s.io", "v1beta1", &json!({}));
    scene.wait_for("v1beta1.metrics.k8s.io", "Passed");
    let mut watch = scene.admin.watch(&format!("{METRICS}/nodes"), "");
    assert_eq!(text(&watch.next(), "/object/metadata/name"), "n1", "before the stream ends");
    drop(watch);
    let mut connection = scene.admin.raw();
    let head = scene.admin.head("POST", &format!("{METRICS}/namespaces/default/talk"), &SPDY);
    connection.send(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(connection.head(Deadline::after(CAP)).unwrap().status, 101);
    connection.send(b"hello").unwrap();
    assert_eq!(connection.exactly(5, Deadline::after(CAP)).unwrap(), b"HELLO");
    assert!(scene.asked("/talk").header("x-remote-user").is_some());
}

#[test]
fn nothing_that_a_client_says_of_itself_gets_through() {
    let mut scene = Scene::new();
    scene.register("metrics.k8s.io", "v1beta1", &json!({}));
    scene.wait_for("v1beta1.metrics.k8s.io", "Passed");
    let nodes = format!("{METRICS}/nodes");
    let users = |seen: &Seen| {
        let all = seen.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("x-remote-user"));
        all.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    // What is named in Connection concerns this connection and no other.
    let named =
        [("Connection", "X-Remote-User, X-Remote-Group, X-Hop"), ("X-Hop", "1"), ("X-Remote-User", "evil")];
    scene.admin.request("GET", &nodes, &named, b"").ok();
    let seen = scene.asked(&nodes);
    assert_eq!((seen.header("connection"), seen.header("x-hop")), (None, None));
    assert!(users(&seen).len() == 1 && users(&seen)[0] != "evil", "{seen:?}");
    assert!(seen.header("x-remote-group").is_some());
    let mut connection = scene.admin.raw();
    let switching =
        [("Connection", "Upgrade, X-Remote-User"), ("Upgrade", "SPDY/3.1"), ("X-Remote-User", "evil")];
    let head = scene.admin.head("POST", &format!("{METRICS}/namespaces/default/talk"), &switching);
    connection.send(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(connection.head(Deadline::after(CAP)).unwrap().status, 101);
    let seen = scene.asked("/talk");
    assert_eq!((seen.header("connection"), seen.header("upgrade")), (Some("Upgrade"), Some("SPDY/3.1")));
    assert!(users(&seen).len() == 1 && users(&seen)[0] != "evil", "{seen:?}");
    // Another HTTP is not spoken on a connection of this server: whoever did could name anybody there.
    let other =
        [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")];
    scene.server.admin().request("GET", &nodes, &other, b"").ok();
    let seen = scene.asked(&nodes);
    assert_eq!((seen.header("upgrade"), seen.header("http2-settings")), (None, None));
    // Nor does anybody switch who was not asked to.
    let odd = scene.admin.get(&format!("{METRICS}/namespaces/default/talk"));
    assert_eq!(odd.status, 503, "{}", odd.text());
}

#[test]
fn descriptions_of_others_join_ours() {
    let mut scene = Scene::new();
    let ours = scene.admin.get("/openapi/v2").ok();
    scene.register("metrics.k8s.io", "v1beta1", &json!({}));
    let nodes = format!("{METRICS}/nodes");
    let all =
        poll(CAP, || Some(scene.admin.get("/openapi/v2").ok()).filter(|all| !all["paths"][&nodes].is_null()));
    let all = all.expect("theirs has joined");
    let answers = &all["paths"][&nodes]["get"]["responses"];
    assert_eq!(answers["200"]["schema"]["$ref"], "#/definitions/io.k8s.metrics.NodeMetrics");
    let described = &all["definitions"]["io.k8s.metrics.NodeMetrics"];
    assert_eq!(described["properties"]["meta"]["$ref"], "#/definitions/io.k8s.api.core.v1.Pod_v2");
    assert_eq!(all["definitions"]["io.k8s.api.core.v1.Pod_v2"]["type"], "string");
    assert_eq!(all["definitions"]["io.k8s.api.core.v1.Pod"], ours["definitions"]["io.k8s.api.core.v1.Pod"]);
    assert_eq!(
        (&all["paths"]["/api/v1/pods"], &all["info"]),
        (&ours["paths"]["/api/v1/pods"], &ours["info"])
    );
    assert!(all["definitions"]["Unused"].is_null());
    assert_eq!(all["paths"].as_object().unwrap().len(), ours["paths"].as_object().unwrap().len() + 1);
    let binary = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    let answer = scene.admin.request("GET", "/openapi/v2", &[("Accept", binary)], b"");
    assert!(answer.status == 200 && answer.text().contains("what a node uses"));
    scene.admin.delete(&format!("{REGISTRATIONS}/v1beta1.metrics.k8s.io")).ok();
    assert_eq!(scene.admin.get("/openapi/v2").ok(), ours, "it goes with the registration");
}

/// A server that keeps things in namespaces.
fn keep(kept: &Lock<BTreeSet<String>>, state: u8, seen: &Seen, wire: &mut Wire) {
    const GROUP: &str = "/apis/keep.io/v1";
    let json = |wire: &mut Wire, body: &Value| {
        wire.answer("200 OK", "Content-Type: application/json\r\n", body.to_string().as_bytes());
    };
    if state == BROKEN {
        return wire.answer("503 Service Unavailable", "", b"broken");
    }
    let length = seen.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    wire.exactly(length).unwrap();
    let mut kept = kept.lock();
    match (seen.method.as_str(), seen.path()) {
        ("GET", GROUP) => json(
            wire,
            &json!({"kind": "APIResourceList", "groupVersion": "keep.io/v1", "resources": [
                {"name": "things", "namespaced": true, "kind": "Thing", "verbs": ["list", "delete"]},
                {"name": "lots", "namespaced": true, "kind": "Lot", "verbs": ["list", "delete", "deletecollection"]},
                {"name": "shown", "namespaced": true, "kind": "Shown", "verbs": ["list"]},
            ]}),
        ),
        ("GET", path) if path.starts_with(&format!("{GROUP}/namespaces/")) => {
            let names = kept.iter().filter_map(|known| known.strip_prefix(&format!("{path}/")));
            let items: Vec<Value> = names.map(|name| json!({"metadata": {"name": name}})).collect();
            json(wire, &json!({"kind": "List", "metadata": {}, "items": items}));
        }
        ("DELETE", path) => {
            kept.retain(|known| known != path && !known.starts_with(&format!("{path}/")));
            json(wire, &json!({"kind": "Status", "status": "Success"}));
        }
        _ => wire.answer("404 Not Found", "", b"nothing"),
    }
}

#[test]
fn what_others_keep_goes_with_its_namespace() {
    let kept = Arc::<Lock<BTreeSet<String>>>::default();
    let of_server = kept.clone();
    let mut scene = Scene::behind("--controllers=namespace", move |state, seen, wire| {
        keep(&of_server, state, seen, wire);
    });
    scene.register("keep.io", "v1", &json!({}));
    scene.wait_for("v1.keep.io", "Passed");
    let put = |namespace: &str| {
        for name in ["things/a", "things/b", "lots/c"] {
            kept.lock().insert(format!("/apis/keep.io/v1/namespaces/{namespace}/{name}"));
        }
    };
    let make = |scene: &mut Scene, name: &str| {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        scene.admin.post("/api/v1/namespaces", &namespace).ok();
        put(name);
    };
    let gone = |scene: &mut Scene, name: &str| {
        let path = format!("/api/v1/namespaces/{name}");
        let gone = poll(LONG, || (scene.admin.get(&path).status == 404).then_some(()));
        gone.unwrap_or_else(|| panic!("{}", scene.admin.get(&path).text()));
    };
    make(&mut scene, "going");
    make(&mut scene, "staying");
    scene.admin.delete("/api/v1/namespaces/going").ok();
    gone(&mut scene, "going");
    assert_eq!(kept.lock().len(), 3, "those of others stay");
    assert!(kept.lock().iter().all(|known| known.contains("/staying/")));
    let deletions: Vec<Seen> =
        scene.extension.seen().into_iter().filter(|seen| seen.method == "DELETE").collect();
    let account = "system:serviceaccount:kube-system:namespace-controller";
    assert!(deletions.iter().all(|seen| seen.header("x-remote-user") == Some(account)), "{deletions:?}");
    let at_once = deletions.iter().filter(|seen| seen.path().ends_with("/lots")).count();
    assert_eq!((at_once, deletions.iter().filter(|seen| seen.path().contains("/shown")).count()), (1, 0));

    // Who does not say what they keep may keep anything.
    scene.is(BROKEN, "v1.keep.io");
    let stale =
        poll(CAP, || (scene.discovered("keep.io")["versions"][0]["freshness"] == "Stale").then_some(()));
    assert!(stale.is_some());
    scene.admin.delete("/api/v1/namespaces/staying").ok();
    let condition = poll(CAP, || {
        let namespace = scene.admin.get("/api/v1/namespaces/staying").json();
        let first = namespace["status"]["conditions"][0].clone();
        (first["reason"] == "DiscoveryFailed").then_some(first)
    });
    assert_eq!(
        condition.expect("a condition")["message"],
        "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: keep.io/v1: \
         stale GroupVersion discovery: keep.io/v1"
    );
    scene.is(WELL, "v1.keep.io");
    gone(&mut scene, "staying");
    assert!(kept.lock().is_empty());
}

#[test]
fn every_registration_says_whether_it_can_be_reached() {
    let mut scene = Scene::new();
    let cluster = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "inside"},
        "spec": {"ports": [{"name": "a", "port": 443}]}});
    scene.admin.post("/api/v1/namespaces/default/services", &cluster).ok();
    let service =
        |name: &str, port: u16| json!({"service": {"namespace": "default", "name": name, "port": port}});
    scene.register("a.io", "v1", &service("nowhere", 443));
    scene.register("b.io", "v1", &service("inside", 444));
    scene.register("c.io", "v1", &service("inside", 443));
    scene.register("d.io", "v1", &service("metrics", 1));
    for (name, reason, message) in [
        ("v1.a.io", "ServiceNotFound", "service/nowhere in \"default\" is not present"),
        ("v1.b.io", "ServicePortError", "service/inside in \"default\" is not listening on port 444"),
        ("v1.c.io", "EndpointsNotFound", "cannot find endpoints for service/inside in \"default\""),
    ] {
        assert_eq!(scene.wait_for(name, reason), message);
    }
    let why = scene.wait_for("v1.d.io", "FailedDiscoveryCheck");
    assert!(
        why.starts_with("failing or missing response from https://localhost:1/apis/d.io/v1: Get "),
        "{why}"
    );
    let answer = scene.admin.get("/apis/a.io/v1/things");
    assert_eq!((answer.status, answer.text().as_str()), (503, "service unavailable\n"));
    assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));

    // What happens to services and endpoints is seen at once.
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "inside"},
        "subsets": [{"addresses": [{"ip": "10.0.0.9"}], "ports": [{"name": "b", "port": 1}]}]});
    scene.admin.post("/api/v1/namespaces/default/endpoints", &endpoints).ok();
    let why = scene.wait_for("v1.c.io", "MissingEndpoints");
    assert_eq!(why, "endpoints for service/inside in \"default\" have no addresses with port name \"a\"");
    let late = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "nowhere"},
        "spec": {"ports": [{"port": 80}]}});
    scene.admin.post("/api/v1/namespaces/default/services", &late).ok();
    scene.wait_for("v1.a.io", "ServicePortError");

    let page = scene.admin.get("/metrics").text();
    for line in [
        "aggregator_unavailable_apiservice{name=\"v1.a.io\"} 1",
        "aggregator_unavailable_apiservice{name=\"v1.apps\"} 0",
    ] {
        assert!(page.contains(line), "{line}");
    }
    scene.admin.delete(&format!("{REGISTRATIONS}/v1.a.io")).ok();
    assert_eq!(scene.admin.get("/apis/a.io/v1/things").status, 404, "with the next request");
}

#[test]
fn a_server_that_breaks_is_stale_and_comes_back() {
    let mut scene = Scene::new();
    let name = "v1beta1.metrics.k8s.io";
    scene.register("metrics.k8s.io", "v1beta1", &json!({}));
    scene.wait_for(name, "Passed");
    let fresh = |scene: &mut Scene, wanted: &str, resources: usize| {
        let found = poll(CAP, || {
            let version = scene.discovered("metrics.k8s.io")["versions"][0].clone();
            let has = version["resources"].as_array().map_or(0, Vec::len);
            (version["freshness"] == wanted && has == resources).then_some(())
        });
        found.unwrap_or_else(|| panic!("{}", scene.discovered("metrics.k8s.io")));
    };
    fresh(&mut scene, "Current", 1);
    let groups = scene.admin.get("/apis").ok();
    let last = groups["groups"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["preferredVersion"]["groupVersion"], "metrics.k8s.io/v1beta1", "by its priority");
    let group = scene.admin.get("/apis/metrics.k8s.io").ok();
    assert_eq!((&group["kind"], &group["versions"][0]["version"]), (&json!("APIGroup"), &json!("v1beta1")));
    let list = scene.admin.get(METRICS).ok();
    assert_eq!(list["resources"][1]["name"], "pods", "from the server itself");
    let index = poll(CAP, || {
        let index = scene.admin.get("/openapi/v3").json();
        index["paths"].get("apis/metrics.k8s.io/v1beta1").is_some().then_some(index)
    });
    assert!(index.unwrap()["paths"].get("api/v1").is_some());
    assert_eq!(scene.admin.get("/openapi/v3/apis/metrics.k8s.io/v1beta1").ok()["openapi"], "3.0.0");

    // What has not changed is not sent again, and stays.
    scene.touch(name);
    let again = || {
        let asked = |seen: &Seen| seen.path() == "/apis" && seen.header("if-none-match").is_some();
        scene.extension.seen().iter().any(asked).then_some(())
    };
    assert!(poll(CAP, again).is_some());
    fresh(&mut scene, "Current", 1);

    scene.is(OLD, name);
    fresh(&mut scene, "Current", 2);
    scene.is(BROKEN, name);
    let why = scene.wait_for(name, "FailedDiscoveryCheck");
    assert!(why.ends_with("/apis/metrics.k8s.io/v1beta1: 500"), "{why}");
    fresh(&mut scene, "Stale", 0);
    assert_eq!(scene.admin.get(METRICS).text(), "service unavailable\n");
    assert_eq!(scene.admin.get("/apis/metrics.k8s.io").status, 200, "it is still registered");
    // Nobody else is kept.
    scene.admin.get("/api/v1/nodes").ok();
    let page = scene.admin.get("/metrics").text();
    let counted = format!(
        "aggregator_unavailable_apiservice_total{{name=\"{name}\",reason=\"FailedDiscoveryCheck\"}} 1"
    );
    assert!(page.contains(&counted));
    scene.is(WELL, name);
    scene.wait_for(name, "Passed");
    fresh(&mut scene, "Current", 1);
    scene.admin.get(&format!("{METRICS}/nodes")).ok();
    scene.admin.delete(&format!("{REGISTRATIONS}/{name}")).ok();
    assert_eq!(scene.discovered("metrics.k8s.io"), Value::Null);
    assert_eq!(scene.admin.get("/apis/metrics.k8s.io").status, 404);
}

#[test]
fn somebody_else_is_not_believed() {
    let mut scene = Scene::new();
    let other = Papers::new("somebody.else", &[]);
    let pem = STANDARD.encode(other.certificate.to_pem().unwrap());
    // Whether somebody answers can be asked of anybody; what they say is believed of nobody else.
    scene.register("metrics.k8s.io", "v1beta1", &json!({"caBundle": pem}));
    scene.wait_for("v1beta1.metrics.k8s.io", "Passed");
    let why = "error trying to reach service: tls: failed to verify certificate: x509: certificate signed by unknown \
               authority\n";
    let answer = scene.admin.get(&format!("{METRICS}/nodes"));
    assert_eq!((answer.status, answer.text().as_str()), (503, why));
    let trust = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    scene.admin.patch(&format!("{REGISTRATIONS}/v1beta1.metrics.k8s.io"), "merge", &trust).ok();
    scene.admin.get(&format!("{METRICS}/nodes")).ok();
    let nonsense = json!({"spec": {"caBundle": STANDARD.encode("nonsense"), "insecureSkipTLSVerify": false}});
    scene.admin.patch(&format!("{REGISTRATIONS}/v1beta1.metrics.k8s.io"), "merge", &nonsense).ok();
    let answer = scene.admin.get(&format!("{METRICS}/nodes"));
    assert_eq!((answer.status, answer.text().starts_with("unable to load root certificates")), (500, true));
}

#[test]
fn requests_go_over_one_connection_which_may_end_and_is_not_believed_for_ever() {
    const NAME: &str = "v1beta1.metrics.k8s.io";
    let mut scene = Scene::new();
    scene.extension.keep();
    scene.register("metrics.k8s.io", "v1beta1", &json!({}));
    scene.wait_for(NAME, "Passed");
    let (nodes, echo) = (format!("{METRICS}/nodes"), format!("{METRICS}/namespaces/default/echo"));
    let ask = |scene: &mut Scene| {
        for _ in 0..10 {
            scene.admin.get(&nodes).ok();
            assert_eq!(scene.admin.post(&echo, &json!({"a": 1})).status, 201);
        }
        let asked = scene.extension.seen().into_iter().rev();
        let asked = asked.filter(|seen| [&nodes, &echo].contains(&&seen.path().to_owned())).take(20);
        asked.map(|seen| seen.connection).collect::<BTreeSet<usize>>()
    };
    let first = ask(&mut scene);
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(ask(&mut scene), first);
    // Nobody notices that the server has hung up.
    scene.extension.hang_up();
    assert_eq!(scene.admin.post(&echo, &json!({"a": 1})).status, 201);
    scene.extension.hang_up();
    scene.admin.get(&nodes).ok();
    let second = ask(&mut scene);
    assert!(second.len() == 1 && second.is_disjoint(&first), "{second:?}");
    // Whom it must be known to has changed: what was believed before is not asked on.
    let other = STANDARD.encode(Papers::new("somebody.else", &[]).certificate.to_pem().unwrap());
    for (bundle, status) in [(other, 503), (scene.authority.clone(), 200)] {
        let bundle = json!({"spec": {"caBundle": bundle}});
        scene.admin.patch(&format!("{REGISTRATIONS}/{NAME}"), "merge", &bundle).ok();
        assert_eq!(scene.admin.get(&nodes).status, status);
    }
    let third = ask(&mut scene);
    assert!(third.len() == 1 && third.is_disjoint(&second), "{third:?}");
    // Many at once do not wait for each other.
    let many: Vec<_> = (0..20).map(|_| scene.admin.again()).collect();
    std::thread::scope(|scope| {
        for mut one in many {
            let nodes = &nodes;
            scope.spawn(move || (0..5).for_each(|_| drop(one.get(nodes).ok())));
        }
    });
    // Whoever is not asked any more is not kept.
    scene.admin.delete(&format!("{REGISTRATIONS}/{NAME}")).ok();
    let gone = poll(CAP, || (scene.extension.open() == 0).then_some(()));
    assert!(gone.is_some(), "{} connections are left", scene.extension.open());
}

#[test]
fn what_this_server_serves_stays_registered() {
    let mut scene = Scene::new();
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.x.io"}, "spec": {"group": "x.io", "scope": "Namespaced",
            "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    scene.admin.post(definitions, &definition).ok();
    let path = format!("{REGISTRATIONS}/v1.x.io");
    let found =
        |scene: &mut Scene| poll(CAP, || Some(scene.admin.get(&path)).filter(|answer| answer.status == 200));
    let first = found(&mut scene).expect("it is registered").json();
    assert_eq!(first["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"], "true");
    scene.admin.delete(&path).ok();
    let second = found(&mut scene).expect("it comes back").json();
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    scene.admin.patch(&path, "merge", &json!({"spec": {"versionPriority": 3}})).ok();
    let restored =
        poll(CAP, || (scene.admin.get(&path).ok()["spec"]["versionPriority"] == 100).then_some(()));
    assert!(restored.is_some(), "it is put right");
    scene.admin.delete(&format!("{definitions}/foos.x.io")).ok();
    assert!(
        poll(CAP, || (scene.admin.get(&path).status == 404).then_some(())).is_some(),
        "it goes with its definition"
    );

    // What nobody has defined is not kept under that label, and what is built in cannot be led elsewhere.
    let stray = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.y.io",
        "labels": {"kube-aggregator.kubernetes.io/automanaged": "true"}},
        "spec": {"group": "y.io", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100}});
    scene.admin.post(REGISTRATIONS, &stray).ok();
    let gone = || (scene.admin.get(&format!("{REGISTRATIONS}/v1.y.io")).status == 404).then_some(());
    assert!(poll(CAP, gone).is_some());
    let service = json!({"spec": {"service": {"namespace": "default", "name": "metrics"}}});
    scene.admin.patch(&format!("{REGISTRATIONS}/v1.apps"), "merge", &service).ok();
    scene.admin.get("/apis/apps/v1/deployments").ok();
}

#[test]
fn what_is_built_in_is_registered_anew_at_a_start() {
    let data = super::support::server::directory();
    let server = Server::on(data.path(), &[]);
    let mut admin = server.admin();
    admin.delete(&format!("{REGISTRATIONS}/v1.apps")).ok();
    admin.patch(&format!("{REGISTRATIONS}/v1.batch"), "merge", &json!({"spec": {"versionPriority": 3}})).ok();
    let stray = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v9.apps",
        "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"}},
        "spec": {"group": "apps", "version": "v9", "groupPriorityMinimum": 100, "versionPriority": 100}});
    admin.post(REGISTRATIONS, &stray).ok();
    assert_eq!(admin.get(&format!("{REGISTRATIONS}/v1.apps")).status, 404, "not before the next start");
    server.stop();
    let server = Server::on(data.path(), &[]);
    let mut admin = server.admin();
    assert_eq!(admin.get(&format!("{REGISTRATIONS}/v1.apps")).ok()["spec"]["versionPriority"], 15);
    assert_eq!(admin.get(&format!("{REGISTRATIONS}/v1.batch")).ok()["spec"]["versionPriority"], 15);
    assert_eq!(admin.get(&format!("{REGISTRATIONS}/v9.apps")).status, 404);
}

#[test]
fn kubectl_shows_what_nodes_use() {
    let mut scene = Scene::with("--controllers=namespace,garbagecollector");
    scene.register("metrics.k8s.io", "v1beta1", &json!({}));
    scene.wait_for("v1beta1.metrics.k8s.io", "Passed");
    for name in ["n1", "n2"] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"allocatable": {"cpu": "2", "memory": "2048Mi"}}});
        scene.admin.post("/api/v1/nodes", &node).ok();
    }
    let kubectl = Kubectl::new(&scene.server);
    let shown = kubectl.run(&["top", "nodes"]);
    assert!(shown.contains("n1") && shown.contains("100m") && shown.contains("50%"), "{shown}");
    let raw = kubectl.run(&["get", "--raw", &format!("{METRICS}/nodes")]);
    assert!(raw.contains("NodeMetricsList"), "{raw}");
    // Namespaces go, though it keeps nothing in them that could.
    kubectl.run(&["create", "namespace", "short"]);
    kubectl.run(&["delete", "namespace", "short", "--timeout=30s"]);
    // While it is broken everything else works.
    scene.is(BROKEN, "v1beta1.metrics.k8s.io");
    scene.wait_for("v1beta1.metrics.k8s.io", "FailedDiscoveryCheck");
    assert!(kubectl.run(&["get", "nodes"]).contains("n2"));
    assert!(
        kubectl
            .run(&["get", "apiservice", "v1beta1.metrics.k8s.io"])
            .contains("False (FailedDiscoveryCheck)")
    );
}
