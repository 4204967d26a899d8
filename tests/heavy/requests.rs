//! Heavy requests over HTTP, on a server with one worker thread: while threads for heavy work carry them out, the worker answers
//! everybody else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};

use super::support::client::JSON;
use super::support::wait::{CAP, poll};
use super::support::{Answer, Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GROUP: &str = "testers";

/// A server with one worker, on which members of [`GROUP`] may do everything and are not exempt.
fn server() -> Server {
    let server = Server::with(&["--workers=1"]);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "t"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "Group", "name": GROUP, "apiGroup": "rbac.authorization.k8s.io"}],
    });
    server.admin().post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).ok();
    server
}

/// A request with a body, and the media type of that.
#[derive(Clone)]
struct Heavy {
    method: &'static str,
    path: String,
    media: &'static str,
    body: String,
}

impl Heavy {
    fn send(&self, client: &mut Client, user: &str) -> Answer {
        let user = [("Impersonate-User", user), ("Impersonate-Group", GROUP), ("Content-Type", self.media)];
        // The administrator acts as others; without a name as itself.
        let headers = if user[0].1.is_empty() { &user[2..] } else { &user[..] };
        client.request(self.method, &self.path, headers, self.body.as_bytes())
    }
}

/// Sends requests of one user at the same time, each on a connection of its own, and counts those that are answered.
fn send_all(
    server: &Server,
    user: &str,
    all: Vec<Heavy>,
    answered: &Arc<AtomicUsize>,
) -> Vec<JoinHandle<Answer>> {
    let threads = all.into_iter().map(|heavy| {
        let (mut client, user, answered) = (server.admin(), user.to_owned(), answered.clone());
        thread::spawn(move || {
            let answer = heavy.send(&mut client, &user);
            answered.fetch_add(1, Ordering::SeqCst);
            answer
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

fn of_lane(metrics: &BTreeMap<String, f64>, name: &str, lane: &str) -> f64 {
    metrics.get(&format!("pilothouse_heavy_work_{name}{{lane=\"{lane}\"}}")).copied().unwrap_or_default()
}

/// Waits until so many requests were given to the threads for heavy work, now or before.
fn wait_for_heavy(server: &Server, count: usize) {
    let mut client = server.admin();
    let all_there = poll(CAP, || {
        let metrics = metrics(&mut client);
        let begun = of_lane(&metrics, "wait_seconds_count", "shared");
        (begun + of_lane(&metrics, "waiting", "shared") >= count as f64).then_some(())
    });
    all_there.expect("the requests are queued for the threads for heavy work");
}

fn many_keys(count: usize) -> String {
    let keys: Vec<String> = (0..count).map(|key| format!("\"k{key}\":\"v\"")).collect();
    keys.join(",")
}

/// Ten thousand operations on a list of ten thousand items in an object of some hundred kilobytes.
fn list_patch() -> Heavy {
    let operations = vec![r#"{"op":"add","path":"/metadata/finalizers/0","value":"a/b"}"#; 10_000].join(",");
    let media = "application/json-patch+json";
    Heavy {
        method: "PATCH",
        path: format!("{MAPS}/large?dryRun=All"),
        media,
        body: format!("[{operations}]"),
    }
}

/// A configuration with many keys.
fn large_apply(name: &str, keys: usize) -> Heavy {
    let keys = many_keys(keys);
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{{keys}}}}}"#
    );
    let path = format!("{MAPS}/{name}?fieldManager=m&force=true");
    Heavy { method: "PATCH", path, media: "application/apply-patch+yaml", body }
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
fn large_definition(kind: &str) -> Heavy {
    let field = |number| (format!("f{number}"), json!({"type": "string", "pattern": "^[a-z]{1,30}$"}));
    let fields: serde_json::Map<String, Value> = (0..5_000).map(field).collect();
    let body = definition(kind, &json!({"type": "object", "properties": fields})).to_string();
    Heavy { method: "POST", path: format!("{DEFINITIONS}?dryRun=All"), media: JSON[0].1, body }
}

fn hostile() -> Vec<Heavy> {
    let mut all = vec![list_patch(); 3];
    all.extend((0..2).map(|number| large_apply(&format!("applied-{number}"), 20_000)));
    all.push(large_definition("Wide"));
    all
}

fn create_large(server: &Server) {
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"large","finalizers":["a/c"]}},"data":{{{}}}}}"#,
        many_keys(20_000)
    );
    assert_eq!(server.admin().request("POST", MAPS, &JSON, body.as_bytes()).status, 201);
    server.admin().post(MAPS, &json!({"metadata": {"name": "small"}})).ok();
}

fn succeed(sent: Vec<JoinHandle<Answer>>) {
    for sent in sent {
        let answer = sent.join().unwrap();
        assert!((200..300).contains(&answer.status), "{}: {:.300}", answer.status, answer.text());
    }
}

#[test]
fn small_requests_are_answered_while_heavy_ones_are_carried_out() {
    let server = server();
    create_large(&server);
    let (all, answered) = (hostile(), Arc::default());
    let count = all.len();
    let before = of_lane(&metrics(&mut server.admin()), "wait_seconds_count", "shared") as usize;
    let sent = send_all(&server, "mallory", all, &answered);
    wait_for_heavy(&server, before + count);
    let mut client = server.admin();
    let user = [("Impersonate-User", "alice"), ("Impersonate-Group", GROUP)];
    for _ in 0..20 {
        assert_eq!(client.get("/livez").status, 200);
        assert_eq!(client.request("GET", &format!("{MAPS}/small"), &user, b"").status, 200);
    }
    let answered = answered.load(Ordering::SeqCst);
    assert!(answered < count, "all {count} heavy requests were answered before twenty small ones");
    succeed(sent);
}

#[test]
fn users_take_turns_and_administrators_do_not_wait() {
    let server = server();
    create_large(&server);
    let (flood, answered) = (vec![list_patch(); 12], Arc::default());
    let count = flood.len();
    let before = of_lane(&metrics(&mut server.admin()), "wait_seconds_count", "shared") as usize;
    let sent = send_all(&server, "mallory", flood, &answered);
    wait_for_heavy(&server, before + count);
    for user in ["", "alice"] {
        let answer = list_patch().send(&mut server.admin(), user);
        assert_eq!(answer.status, 200, "{:.300}", answer.text());
        let answered = answered.load(Ordering::SeqCst);
        assert!(answered < count, "{user:?} was answered after all {count} of another user");
    }
    assert!(of_lane(&metrics(&mut server.admin()), "wait_seconds_count", "exempt") > 0.0);
    succeed(sent);
}

/// What a client sees of a heavy request is what it sees of a light one: results, warnings, errors.
#[test]
fn heavy_requests_are_answered_like_light_ones() {
    let server = server();
    let mut client = server.admin();
    for (name, bytes) in [("light", 10), ("heavy", 100_000)] {
        let heavy_before = of_lane(&metrics(&mut client), "wait_seconds_count", "exempt");
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
        client.post(&format!("{MAPS}?fieldValidation=Strict"), &body).refused(400, "BadRequest");
        client.post(MAPS, &body).refused(409, "AlreadyExists");
        let path = format!("{MAPS}/{name}");
        // A small body that concerns a large object.
        let patched = client.patch(&path, "merge", &json!({"data": {"other": "y"}})).ok();
        assert_eq!(
            (&patched["data"]["other"], patched["data"]["k"].as_str().map(str::len)),
            (&json!("y"), Some(bytes))
        );
        client.patch(&path, "merge", &json!({"metadata": {"resourceVersion": "1"}})).refused(409, "Conflict");
        client
            .patch(&path, "json", &json!([{"op": "test", "path": "/data/k", "value": "z"}]))
            .refused(422, "Invalid");
        let table = [("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")];
        let rows = client.request("GET", &path, &table, b"").ok();
        assert_eq!(
            (rows["kind"].as_str(), rows["rows"][0]["cells"][0].as_str()),
            (Some("Table"), Some(name))
        );
        let gone = client.request("DELETE", &format!("{MAPS}?labelSelector=size={name}"), &[], b"").ok();
        assert_eq!(
            (gone["kind"].as_str(), gone["items"].as_array().map(Vec::len)),
            (Some("ConfigMapList"), Some(1))
        );
        assert_eq!(gone["items"][0]["metadata"]["name"], name);
        client.delete(&path).refused(404, "NotFound");
        let went_aside = of_lane(&metrics(&mut client), "wait_seconds_count", "exempt") > heavy_before;
        assert_eq!(went_aside, name == "heavy");
    }
}

/// Rules can be costly for a small object. Then they are evaluated elsewhere, with the same result.
#[test]
fn costly_rules_are_evaluated_aside() {
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
    let served = poll(CAP, || (client.get(path).status == 200).then_some(()));
    served.expect("the definition is served");
    let object = |name: &str, length: usize, step: i64| {
        let list: Vec<usize> = (0..length).collect();
        let spec = json!({"list": list, "step": step});
        json!({"apiVersion": "heavy.example.com/v1", "kind": "Costly", "metadata": {"name": name}, "spec": spec})
    };
    for (name, length, goes_aside) in [("cheap", 10, false), ("dear", 400, true)] {
        let before = of_lane(&metrics(&mut client), "wait_seconds_count", "exempt");
        client.post(path, &object(name, length, 0)).ok();
        let status = client.post(path, &object("wrong", length, 1)).refused(422, "Invalid");
        assert!(status["message"].as_str().unwrap().contains("no successor"), "{status}");
        let after = of_lane(&metrics(&mut client), "wait_seconds_count", "exempt");
        assert_eq!(after > before, goes_aside, "{name}");
    }
}

/// Sends a request, and answers it with whether threads for heavy work had a part in it.
fn send_and_count(client: &mut Client, path: &str, accept: &str) -> (Answer, bool) {
    let begun = |client: &mut Client| {
        let metrics = metrics(client);
        let of_lane = |lane| of_lane(&metrics, "wait_seconds_count", lane);
        of_lane("exempt") + of_lane("exempt_steps")
    };
    let before = begun(client);
    let answer = client.request("GET", path, &[("Accept", accept)], b"");
    assert_eq!(answer.status, 200, "{path} {accept}: {:.300}", answer.text());
    (answer, begun(client) > before)
}

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PROTOBUF_WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";
const YAML: &str = "application/yaml";

/// Lists are encoded piece by piece on the worker. A piece that is long work is made by the threads for heavy work, in every form
/// that has to be made.
#[test]
fn long_steps_of_lists_are_taken_aside() {
    let server = server();
    let mut client = server.admin();
    client.post(MAPS, &json!({"metadata": {"name": "a-small"}, "data": {"k": "v"}})).ok();
    for accept in [TABLE, PROTOBUF, YAML, "application/json"] {
        let (_, is_aside) = send_and_count(&mut client, MAPS, accept);
        assert!(!is_aside, "a small list in {accept}");
    }
    let large: serde_json::Map<String, Value> =
        (0..20_000).map(|key| (format!("k{key}"), json!("v"))).collect();
    for name in ["b-large", "c-large"] {
        client.post(MAPS, &json!({"metadata": {"name": name}, "data": large})).ok();
    }
    client.post(MAPS, &json!({"metadata": {"name": "d-small"}})).ok();
    let names = ["a-small", "b-large", "c-large", "d-small"];
    for accept in [TABLE, PROTOBUF, YAML] {
        let (answer, is_aside) = send_and_count(&mut client, MAPS, accept);
        assert!(is_aside, "a list of large objects in {accept}");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let places: Vec<usize> = names.iter().map(|name| text.find(name).expect(name)).collect();
        assert!(places.is_sorted(), "{accept}: {places:?}");
    }
    let (answer, _) = send_and_count(&mut client, &format!("{MAPS}?pretty=true"), TABLE);
    let rows: Vec<Value> = answer.json()["rows"].as_array().unwrap().clone();
    let cells: Vec<&str> = rows.iter().map(|row| row["cells"][0].as_str().unwrap()).collect();
    assert_eq!(cells.last(), Some(&"d-small"), "{cells:?}");
    assert!(names.iter().all(|name| cells.contains(name)), "{cells:?}");
    let (_, is_aside) = send_and_count(&mut client, MAPS, "application/json");
    assert!(!is_aside, "stored text is only copied");
}

/// Events of large objects are encoded by the threads for heavy work, in every form that has to be made: those of the start, and
/// later ones.
#[test]
fn large_events_are_encoded_aside() {
    let server = server();
    let mut client = server.admin();
    let begin = client.post(MAPS, &json!({"metadata": {"name": "a-small"}})).ok();
    let initial = format!("{MAPS}?watch=true&timeoutSeconds=1");
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
    let is_of_test = |name: &&str| name.ends_with("-large") || name.ends_with("-small");
    for (path, expected) in [(&initial, before), (&later, after)] {
        let (answer, is_aside) = send_and_count(&mut client, path, TABLE);
        assert!(is_aside, "a table of {path}");
        let events: Vec<Value> =
            answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let name = |event: &Value| event["object"]["rows"][0]["cells"][0].as_str().unwrap().to_owned();
        let received: Vec<String> = events
            .iter()
            .filter(|event| is_of_test(&name(event).as_str()))
            .map(|event| format!("{} {}", event["type"].as_str().unwrap(), name(event)))
            .collect();
        assert_eq!(received, expected);
        let described: Vec<bool> =
            events.iter().map(|event| event["object"]["columnDefinitions"].is_array()).collect();
        assert_eq!(described.iter().position(|is| !is), Some(1), "the first has columns: {described:?}");
        assert!(!described.iter().skip(1).any(|is| *is), "only the first: {described:?}");
        let (answer, is_aside) = send_and_count(&mut client, path, PROTOBUF_WATCH);
        assert!(is_aside, "Protobuf of {path}");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let names = expected.iter().map(|event| event.split_once(' ').unwrap().1);
        names.for_each(|name| assert!(text.contains(name), "{name}"));
        let (_, is_aside) = send_and_count(&mut client, path, "application/json");
        assert!(!is_aside, "stored text is only copied");
    }
}

#[test]
fn large_discovery_documents_are_encoded_aside() {
    const AGGREGATED: &str = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let server = server();
    let mut client = server.admin();
    let (answer, is_aside) = send_and_count(&mut client, "/apis", &format!("{PROTOBUF};{AGGREGATED}"));
    assert!(is_aside);
    assert!(String::from_utf8_lossy(&answer.body).contains("horizontalpodautoscalers"));
    let (_, is_aside) = send_and_count(&mut client, "/apis", &format!("application/json;{AGGREGATED}"));
    assert!(!is_aside, "the text of all is shared");
}

#[test]
fn openapi_documents_are_written_aside() {
    let server = server();
    let mut client = server.admin();
    for path in ["/openapi/v3", "/openapi/v3/apis/apps/v1", "/openapi/v2"] {
        let (_, is_aside) = send_and_count(&mut client, path, "application/json");
        assert!(is_aside, "{path}");
    }
}

/// A call that is costly for a worker begins again elsewhere. Its webhooks are called once, the first time and later.
#[test]
fn webhooks_are_called_once_for_a_costly_object() {
    const HOOK: &str = "once.heavy.example.com";
    let server = server();
    let mut client = server.admin();
    let list = json!({"type": "array", "maxItems": 1_000, "items": {"type": "integer"}});
    let rule = json!([{"rule": "self.list.all(x, self.list.exists(y, y == x))"}]);
    let spec = json!({"type": "object", "properties": {"list": list}, "x-kubernetes-validations": rule});
    client.post(DEFINITIONS, &definition("Hooked", &spec)).ok();
    let path = "/apis/heavy.example.com/v1/hookeds";
    poll(CAP, || (client.get(path).status == 200).then_some(())).expect("the definition is served");
    // Nobody listens there; that is ignored, and counted.
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
        let before = of_lane(&metrics(&mut client), "wait_seconds_count", "exempt");
        let object = json!({
            "apiVersion": "heavy.example.com/v1", "kind": "Hooked",
            "metadata": {"name": format!("dear-{number}")}, "spec": {"list": list},
        });
        client.post(path, &object).ok();
        assert!((calls(&mut client) - f64::from(number)).abs() < 0.5, "object {number}");
        let after = of_lane(&metrics(&mut client), "wait_seconds_count", "exempt");
        assert!(after > before, "object {number} was created aside");
    }
}
