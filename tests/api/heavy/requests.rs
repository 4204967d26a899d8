//! Heavy requests over HTTP, on a server with one worker: the heavy pool runs them while the worker answers other requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};

use crate::support::client::JSON;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Response, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GROUP: &str = "testers";

/// A server with one worker, on which members of [`GROUP`] may do everything and are not exempt.
fn server() -> Server {
    let server = Server::with_flags(&["--workers=1"]);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "t"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "Group", "name": GROUP, "apiGroup": "rbac.authorization.k8s.io"}],
    });
    server.admin().post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).ok();
    server
}

/// A request with a large body.
#[derive(Clone)]
struct HeavyRequest {
    method: &'static str,
    path: String,
    media: &'static str,
    body: String,
}

impl HeavyRequest {
    fn send(&self, client: &mut Client, user: &str) -> Response {
        let user = [("Impersonate-User", user), ("Impersonate-Group", GROUP), ("Content-Type", self.media)];
        // Without a user name the administrator is not impersonating.
        let headers = if user[0].1.is_empty() { &user[2..] } else { &user[..] };
        client.request(self.method, &self.path, headers, self.body.as_bytes())
    }
}

/// Sends requests of one user concurrently, each on its own connection, and counts the responses.
fn send_all(
    server: &Server,
    user: &str,
    requests: Vec<HeavyRequest>,
    responses: &Arc<AtomicUsize>,
) -> Vec<JoinHandle<Response>> {
    let threads = requests.into_iter().map(|request| {
        let (mut client, user, responses) = (server.admin(), user.to_owned(), responses.clone());
        thread::spawn(move || {
            let response = request.send(&mut client, &user);
            responses.fetch_add(1, Ordering::SeqCst);
            response
        })
    });
    threads.collect()
}

/// Series of the metrics page by name and labels.
fn metrics(client: &mut Client) -> BTreeMap<String, f64> {
    let page = client.get("/metrics").text();
    let series = page.lines().filter(|line| line.starts_with("pilothouse_heavy_work"));
    series
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(key, value)| (key.to_owned(), value.parse().unwrap()))
        .collect()
}

fn lane_metric(metrics: &BTreeMap<String, f64>, name: &str, lane: &str) -> f64 {
    metrics.get(&format!("pilothouse_heavy_work_{name}{{lane=\"{lane}\"}}")).copied().unwrap_or_default()
}

/// Waits until `count` requests were queued for the heavy pool.
fn wait_for_heavy(server: &Server, count: usize) {
    let mut client = server.admin();
    let queued = poll(TIMEOUT, || {
        let metrics = metrics(&mut client);
        let started = lane_metric(&metrics, "wait_seconds_count", "shared");
        (started + lane_metric(&metrics, "waiting", "shared") >= count as f64).then_some(())
    });
    queued.expect("the requests are queued for the threads for heavy work");
}

fn many_keys(count: usize) -> String {
    let keys: Vec<String> = (0..count).map(|key| format!("\"k{key}\":\"v\"")).collect();
    keys.join(",")
}

/// Ten thousand operations on a list of ten thousand items in an object of some hundred kilobytes.
fn list_patch() -> HeavyRequest {
    let operations = vec![r#"{"op":"add","path":"/metadata/finalizers/0","value":"a/b"}"#; 10_000].join(",");
    let media = "application/json-patch+json";
    HeavyRequest {
        method: "PATCH",
        path: format!("{MAPS}/large?dryRun=All"),
        media,
        body: format!("[{operations}]"),
    }
}

/// A configuration with many keys.
fn large_apply(name: &str, keys: usize) -> HeavyRequest {
    let keys = many_keys(keys);
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{{keys}}}}}"#
    );
    let path = format!("{MAPS}/{name}?fieldManager=m&force=true");
    HeavyRequest { method: "PATCH", path, media: "application/apply-patch+yaml", body }
}

fn definition(kind: &str, spec: &Value) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.heavy.example.com")},
        "spec": {
            "group": "heavy.example.com", "scope": "Cluster", "names": {"kind": kind, "plural": plural},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// A definition with many fields.
fn large_definition(kind: &str) -> HeavyRequest {
    let field = |number| (format!("f{number}"), json!({"type": "string", "pattern": "^[a-z]{1,30}$"}));
    let fields: serde_json::Map<String, Value> = (0..5_000).map(field).collect();
    let body = definition(kind, &json!({"type": "object", "properties": fields})).to_string();
    HeavyRequest { method: "POST", path: format!("{DEFINITIONS}?dryRun=All"), media: JSON[0].1, body }
}

fn hostile_requests() -> Vec<HeavyRequest> {
    let mut requests = vec![list_patch(); 3];
    requests.extend((0..2).map(|number| large_apply(&format!("applied-{number}"), 20_000)));
    requests.push(large_definition("Wide"));
    requests
}

fn create_large_map(server: &Server) {
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"large","finalizers":["a/c"]}},"data":{{{}}}}}"#,
        many_keys(20_000)
    );
    assert_eq!(server.admin().request("POST", MAPS, &JSON, body.as_bytes()).status, 201);
    server.admin().post(MAPS, &json!({"metadata": {"name": "small"}})).ok();
}

fn join_successful(threads: Vec<JoinHandle<Response>>) {
    for threads in threads {
        let response = threads.join().unwrap();
        assert!((200..300).contains(&response.status), "{}: {:.300}", response.status, response.text());
    }
}

#[test]
fn small_requests_are_answered_during_heavy_requests() {
    let server = server();
    create_large_map(&server);
    let (requests, answered) = (hostile_requests(), Arc::default());
    let count = requests.len();
    let before = lane_metric(&metrics(&mut server.admin()), "wait_seconds_count", "shared") as usize;
    let threads = send_all(&server, "mallory", requests, &answered);
    wait_for_heavy(&server, before + count);
    let mut client = server.admin();
    let user = [("Impersonate-User", "alice"), ("Impersonate-Group", GROUP)];
    for _ in 0..20 {
        assert_eq!(client.get("/livez").status, 200);
        assert_eq!(client.request("GET", &format!("{MAPS}/small"), &user, b"").status, 200);
    }
    let answered = answered.load(Ordering::SeqCst);
    assert!(answered < count, "all {count} heavy requests were answered before twenty small ones");
    join_successful(threads);
}

#[test]
fn heavy_requests_are_fair_between_users_and_exempt_ones_do_not_wait() {
    let server = server();
    create_large_map(&server);
    let (requests, answered) = (vec![list_patch(); 12], Arc::default());
    let count = requests.len();
    let before = lane_metric(&metrics(&mut server.admin()), "wait_seconds_count", "shared") as usize;
    let threads = send_all(&server, "mallory", requests, &answered);
    wait_for_heavy(&server, before + count);
    for user in ["", "alice"] {
        let response = list_patch().send(&mut server.admin(), user);
        assert_eq!(response.status, 200, "{:.300}", response.text());
        let answered = answered.load(Ordering::SeqCst);
        assert!(answered < count, "{user:?} was answered after all {count} of another user");
    }
    assert!(lane_metric(&metrics(&mut server.admin()), "wait_seconds_count", "exempt") > 0.0);
    join_successful(threads);
}

/// Results, warnings and errors do not depend on whether the heavy pool was used.
#[test]
fn heavy_requests_have_same_responses_as_light_ones() {
    let server = server();
    let mut client = server.admin();
    for (name, bytes) in [("light", 10), ("heavy", 100_000)] {
        let heavy_before = lane_metric(&metrics(&mut client), "wait_seconds_count", "exempt");
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"size": name}},
            "unknown": 1, "data": {"k": "x".repeat(bytes)},
        });
        let created = client.post(MAPS, &body);
        assert_eq!(
            (created.status, created.warnings()),
            (201, vec!["unknown field \"unknown\"".to_owned()]),
            "{name}"
        );
        client.post(&format!("{MAPS}?fieldValidation=Strict"), &body).expect_error(400, "BadRequest");
        client.post(MAPS, &body).expect_error(409, "AlreadyExists");
        let path = format!("{MAPS}/{name}");
        // A small patch of a large object.
        let patched = client.patch(&path, "merge", &json!({"data": {"other": "y"}})).ok();
        assert_eq!(
            (&patched["data"]["other"], patched["data"]["k"].as_str().map(str::len)),
            (&json!("y"), Some(bytes))
        );
        client
            .patch(&path, "merge", &json!({"metadata": {"resourceVersion": "1"}}))
            .expect_error(409, "Conflict");
        client
            .patch(&path, "json", &json!([{"op": "test", "path": "/data/k", "value": "z"}]))
            .expect_error(422, "Invalid");
        let table = [("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")];
        let rows = client.request("GET", &path, &table, b"").ok();
        assert_eq!(
            (rows["kind"].as_str(), rows["rows"][0]["cells"][0].as_str()),
            (Some("Table"), Some(name))
        );
        let deleted = client.request("DELETE", &format!("{MAPS}?labelSelector=size={name}"), &[], b"").ok();
        assert_eq!(
            (deleted["kind"].as_str(), deleted["items"].as_array().map(Vec::len)),
            (Some("ConfigMapList"), Some(1))
        );
        assert_eq!(deleted["items"][0]["metadata"]["name"], name);
        client.delete(&path).expect_error(404, "NotFound");
        let used_heavy_pool =
            lane_metric(&metrics(&mut client), "wait_seconds_count", "exempt") > heavy_before;
        assert_eq!(used_heavy_pool, name == "heavy");
    }
}

/// CEL rules can be costly for a small object: then they are evaluated on the heavy pool, with the same result.
#[test]
fn costly_cel_rules_run_on_heavy_pool() {
    let server = server();
    let mut client = server.admin();
    let list = json!({"type": "array", "maxItems": 1_000, "items": {"type": "integer"}});
    let rule = json!([{"rule": "self.list.all(x, self.list.exists(y, y == x + self.step))", "message": "no successor"}]);
    let spec = json!({
        "type": "object", "properties": {"list": list, "step": {"type": "integer"}},
        "x-kubernetes-validations": rule,
    });
    client.post(DEFINITIONS, &definition("Costly", &spec)).ok();
    let path = "/apis/heavy.example.com/v1/costlys";
    let served = poll(TIMEOUT, || (client.get(path).status == 200).then_some(()));
    served.expect("the definition is served");
    let object = |name: &str, length: usize, step: i64| {
        let list: Vec<usize> = (0..length).collect();
        let spec = json!({"list": list, "step": step});
        json!({"apiVersion": "heavy.example.com/v1", "kind": "Costly", "metadata": {"name": name}, "spec": spec})
    };
    for (name, length, uses_heavy_pool) in [("cheap", 10, false), ("dear", 400, true)] {
        let before = lane_metric(&metrics(&mut client), "wait_seconds_count", "exempt");
        client.post(path, &object(name, length, 0)).ok();
        let status = client.post(path, &object("wrong", length, 1)).expect_error(422, "Invalid");
        assert!(status["message"].as_str().unwrap().contains("no successor"), "{status}");
        let after = lane_metric(&metrics(&mut client), "wait_seconds_count", "exempt");
        assert_eq!(after > before, uses_heavy_pool, "{name}");
    }
}

/// Sends a GET and returns the response, and whether the heavy pool was used.
fn get_and_detect_pool(client: &mut Client, path: &str, accept: &str) -> (Response, bool) {
    let started = |client: &mut Client| {
        let metrics = metrics(client);
        let wait_count = |lane| lane_metric(&metrics, "wait_seconds_count", lane);
        wait_count("exempt") + wait_count("exempt_steps")
    };
    let before = started(client);
    let response = client.request("GET", path, &[("Accept", accept)], b"");
    assert_eq!(response.status, 200, "{path} {accept}: {:.300}", response.text());
    (response, started(client) > before)
}

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PROTOBUF_WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";
const YAML: &str = "application/yaml";

/// Lists are encoded in pieces on the worker; large pieces are encoded on the heavy pool, in every representation but stored JSON.
#[test]
fn large_list_items_are_encoded_on_heavy_pool() {
    let server = server();
    let mut client = server.admin();
    client.post(MAPS, &json!({"metadata": {"name": "a-small"}, "data": {"k": "v"}})).ok();
    for accept in [TABLE, PROTOBUF, YAML, "application/json"] {
        let (_, used_heavy_pool) = get_and_detect_pool(&mut client, MAPS, accept);
        assert!(!used_heavy_pool, "a small list in {accept}");
    }
    let large: serde_json::Map<String, Value> =
        (0..20_000).map(|key| (format!("k{key}"), json!("v"))).collect();
    for name in ["b-large", "c-large"] {
        client.post(MAPS, &json!({"metadata": {"name": name}, "data": large})).ok();
    }
    client.post(MAPS, &json!({"metadata": {"name": "d-small"}})).ok();
    let names = ["a-small", "b-large", "c-large", "d-small"];
    for accept in [TABLE, PROTOBUF, YAML] {
        let (response, used_heavy_pool) = get_and_detect_pool(&mut client, MAPS, accept);
        assert!(used_heavy_pool, "a list of large objects in {accept}");
        let text = String::from_utf8_lossy(&response.body).into_owned();
        let offsets: Vec<usize> = names.iter().map(|name| text.find(name).expect(name)).collect();
        assert!(offsets.is_sorted(), "{accept}: {offsets:?}");
    }
    let (response, _) = get_and_detect_pool(&mut client, &format!("{MAPS}?pretty=true"), TABLE);
    let rows: Vec<Value> = response.json()["rows"].as_array().unwrap().clone();
    let cells: Vec<&str> = rows.iter().map(|row| row["cells"][0].as_str().unwrap()).collect();
    assert_eq!(cells.last(), Some(&"d-small"), "{cells:?}");
    assert!(names.iter().all(|name| cells.contains(name)), "{cells:?}");
    let (_, used_heavy_pool) = get_and_detect_pool(&mut client, MAPS, "application/json");
    assert!(!used_heavy_pool, "stored text is only copied");
}

/// Events of large objects are encoded on the heavy pool, in every representation but stored JSON: initial and later ones.
#[test]
fn large_watch_events_are_encoded_on_heavy_pool() {
    let server = server();
    let mut client = server.admin();
    let begin = client.post(MAPS, &json!({"metadata": {"name": "a-small"}})).ok();
    // Long enough for all events, also beside other tests.
    let initial = format!("{MAPS}?watch=true&timeoutSeconds=3");
    let later =
        format!("{initial}&resourceVersion={}", begin["metadata"]["resourceVersion"].as_str().unwrap());
    let large: serde_json::Map<String, Value> =
        (0..20_000).map(|key| (format!("k{key}"), json!("v"))).collect();
    for name in ["b-large", "c-large"] {
        client.post(MAPS, &json!({"metadata": {"name": name}, "data": large})).ok();
    }
    client.post(MAPS, &json!({"metadata": {"name": "d-small"}})).ok();
    let path = format!("{MAPS}/b-large");
    let label = br#"{"metadata":{"labels":{"is":"changed"}}}"#;
    let media = ("Content-Type", "application/merge-patch+json");
    assert_eq!(client.request("PATCH", &path, &[media], label).status, 200);
    assert_eq!(client.request("DELETE", &format!("{MAPS}/c-large"), &[], b"").status, 200);
    let before = ["ADDED a-small", "ADDED b-large", "ADDED d-small"].as_slice();
    let after =
        ["ADDED b-large", "ADDED c-large", "ADDED d-small", "MODIFIED b-large", "DELETED c-large"].as_slice();
    let is_test_object = |name: &&str| name.ends_with("-large") || name.ends_with("-small");
    for (path, expected) in [(&initial, before), (&later, after)] {
        let (response, used_heavy_pool) = get_and_detect_pool(&mut client, path, TABLE);
        assert!(used_heavy_pool, "a table of {path}");
        let events: Vec<Value> =
            response.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let name = |event: &Value| event["object"]["rows"][0]["cells"][0].as_str().unwrap().to_owned();
        let received: Vec<String> = events
            .iter()
            .filter(|event| is_test_object(&name(event).as_str()))
            .map(|event| format!("{} {}", event["type"].as_str().unwrap(), name(event)))
            .collect();
        assert_eq!(received, expected);
        let column_flags: Vec<bool> =
            events.iter().map(|event| event["object"]["columnDefinitions"].is_array()).collect();
        assert_eq!(
            column_flags.iter().position(|has_columns| !has_columns),
            Some(1),
            "the first has columns: {column_flags:?}"
        );
        assert!(
            !column_flags.iter().skip(1).any(|has_columns| *has_columns),
            "only the first: {column_flags:?}"
        );
        let (response, used_heavy_pool) = get_and_detect_pool(&mut client, path, PROTOBUF_WATCH);
        assert!(used_heavy_pool, "Protobuf of {path}");
        let text = String::from_utf8_lossy(&response.body).into_owned();
        let names = expected.iter().map(|event| event.split_once(' ').unwrap().1);
        names.for_each(|name| assert!(text.contains(name), "{name}"));
        let (_, used_heavy_pool) = get_and_detect_pool(&mut client, path, "application/json");
        assert!(!used_heavy_pool, "stored text is only copied");
    }
}

#[test]
fn large_discovery_documents_are_encoded_on_heavy_pool() {
    const AGGREGATED: &str = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let server = server();
    let mut client = server.admin();
    let (response, used_heavy_pool) =
        get_and_detect_pool(&mut client, "/apis", &format!("{PROTOBUF};{AGGREGATED}"));
    assert!(used_heavy_pool);
    assert!(String::from_utf8_lossy(&response.body).contains("horizontalpodautoscalers"));
    let (_, used_heavy_pool) =
        get_and_detect_pool(&mut client, "/apis", &format!("application/json;{AGGREGATED}"));
    assert!(!used_heavy_pool, "the text of all is shared");
}

#[test]
fn openapi_documents_are_encoded_on_heavy_pool() {
    let server = server();
    let mut client = server.admin();
    for path in ["/openapi/v3", "/openapi/v3/apis/apps/v1", "/openapi/v2"] {
        let (_, used_heavy_pool) = get_and_detect_pool(&mut client, path, "application/json");
        assert!(used_heavy_pool, "{path}");
    }
}

/// A request that turns out costly starts again on the heavy pool, but its webhooks are called once.
#[test]
fn webhooks_are_called_once_when_request_moves_to_heavy_pool() {
    const HOOK: &str = "once.heavy.example.com";
    let server = server();
    let mut client = server.admin();
    let list = json!({"type": "array", "maxItems": 1_000, "items": {"type": "integer"}});
    let rule = json!([{"rule": "self.list.all(x, self.list.exists(y, y == x))"}]);
    let spec = json!({"type": "object", "properties": {"list": list}, "x-kubernetes-validations": rule});
    client.post(DEFINITIONS, &definition("Hooked", &spec)).ok();
    let path = "/apis/heavy.example.com/v1/hookeds";
    poll(TIMEOUT, || (client.get(path).status == 200).then_some(())).expect("the definition is served");
    // The webhook does not exist: its failure is ignored, and counted.
    let hook = json!({
        "name": HOOK, "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{"apiGroups": ["heavy.example.com"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"]}],
    });
    let configuration = json!({"metadata": {"name": "once"}, "webhooks": [hook]});
    let configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    client.post(configurations, &configuration).ok();
    let calls = |client: &mut Client| -> f64 {
        let page = client.get("/metrics").text();
        let lines = page.lines().filter(|line| {
            line.starts_with("apiserver_admission_webhook_request_total") && line.contains(HOOK)
        });
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    };
    let list: Vec<usize> = (0..400).collect();
    for number in 1..=3 {
        let before = lane_metric(&metrics(&mut client), "wait_seconds_count", "exempt");
        let object = json!({
            "apiVersion": "heavy.example.com/v1", "kind": "Hooked",
            "metadata": {"name": format!("dear-{number}")}, "spec": {"list": list},
        });
        client.post(path, &object).ok();
        assert!((calls(&mut client) - f64::from(number)).abs() < 0.5, "object {number}");
        let after = lane_metric(&metrics(&mut client), "wait_seconds_count", "exempt");
        assert!(after > before, "object {number} was created aside");
    }
}
