//! Traces of requests: what a collector receives, what webhooks are told, and which requests are traced.

use std::fs;
use std::net::{SocketAddr, TcpListener};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::client::{Client, JSON};
use crate::support::collector::{Collector, Trace, attribute, hex};
use crate::support::hook_server::{HookServer, Reply};
use crate::support::server::{Server, temp_directory};
use crate::support::wait::{TIMEOUT, poll};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const CREATE: &str = "POST /api/v1/namespaces/{:namespace}/configmaps";
const GET: &str = "GET /api/v1/namespaces/{:namespace}/configmaps/{:name}";

/// A server whose traces go to this address, and the directory with its configuration.
fn start(collector: SocketAddr, fields: &str) -> (Server, TempDir) {
    let directory = temp_directory();
    let file = directory.path().join("traces.yaml");
    fs::write(&file, configuration(&format!("endpoint: {collector}\n{fields}"))).unwrap();
    (Server::with_flags(&[&format!("--tracing-config-file={}", file.display())]), directory)
}

fn configuration(fields: &str) -> String {
    format!("apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n{fields}\n")
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "b"}})
}

/// The trace with this number, as a client continues it, and its id.
fn parent(number: u8, flags: &str) -> (String, [u8; 16]) {
    let id = [number; 16];
    (format!("00-{}-00000000000000aa-{flags}", hex(&id)), id)
}

/// Sends a request as part of a trace.
fn send(client: &mut Client, method: &str, path: &str, traceparent: &str, body: &Value) -> u16 {
    let headers = [("traceparent", traceparent), ("tracestate", "a=1"), ("baggage", "who=me"), JSON[0]];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    client.request(method, path, &headers, body.as_bytes()).status
}

/// A webhook of each sort, and a policy, all for config maps.
fn configure_admission(admin: &mut Client, hooks: &HookServer) {
    let rules = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]);
    for kind in ["Mutating", "Validating"] {
        let hook = json!({"name": "h.example.com", "rules": rules, "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": hooks.url(&format!("/{kind}")), "caBundle": STANDARD.encode(&hooks.ca_pem)}});
        let path = format!("{GROUP}/{}webhookconfigurations", kind.to_lowercase());
        admin.post(&path, &json!({"metadata": {"name": "c"}, "webhooks": [hook]})).ok();
    }
    let constraints = json!({"resourceRules": rules});
    let spec =
        json!({"matchConstraints": constraints, "validations": [{"expression": "object.data.a == 'b'"}]});
    admin
        .post(
            &format!("{GROUP}/validatingadmissionpolicies"),
            &json!({"metadata": {"name": "p"}, "spec": spec}),
        )
        .ok();
    let spec = json!({"policyName": "p", "validationActions": ["Deny"]});
    let binding = json!({"metadata": {"name": "b"}, "spec": spec});
    admin.post(&format!("{GROUP}/validatingadmissionpolicybindings"), &binding).ok();
}

fn allowing_hooks() -> HookServer {
    HookServer::start("h", |_, _| Reply::Review(json!({"allowed": true})))
}

#[test]
fn collector_receives_the_whole_trace_of_a_create() {
    let (collector, hooks) = (Collector::start(), allowing_hooks());
    let (server, _directory) = start(collector.address, "");
    let mut admin = server.admin();
    configure_admission(&mut admin, &hooks);
    let (traceparent, id) = parent(1, "01");
    assert_eq!(send(&mut admin, "POST", MAPS, &traceparent, &map("m")), 201);
    let trace = collector.trace_with(&id, CREATE);
    let first = trace.span(CREATE);
    assert_eq!(
        (hex(&first.parent_span_id).as_str(), first.trace_state.as_str()),
        ("00000000000000aa", "a=1")
    );
    for filter in ["authentication", "audit", "impersonation", "priorityandfairness", "authorization"] {
        assert_eq!(trace.path(filter), [filter, CREATE]);
    }
    let [mutating, validating] = ["Mutating", "Validating"].map(|word| format!("{word} admission"));
    for (path, above) in [
        (vec!["NamespaceLifecycle"], mutating.as_str()),
        (vec!["Call mutating webhook", "MutatingAdmissionWebhook"], mutating.as_str()),
        (vec!["Call validating webhook", "ValidatingAdmissionWebhook"], validating.as_str()),
        (vec!["Evaluate validating policy", "ValidatingAdmissionPolicy"], validating.as_str()),
        (vec!["commit"], "Create in store"),
        (vec![], "SerializeObject"),
    ] {
        let path = [&path[..], &[above, "Create", CREATE]].concat();
        assert_eq!(trace.path(path[0]), path);
    }
    check_attributes(&trace, &collector);
    check_webhooks(&trace, &hooks);
    assert!(trace.0.iter().all(|span| span.start_time_unix_nano <= span.end_time_unix_nano));
    let others = collector.spans().into_iter().find(|span| span.trace_id != id);
    assert!(others.is_none(), "the other requests have no trace: {others:?}");
}

fn check_attributes(trace: &Trace, collector: &Collector) {
    let server = collector.resource().attributes;
    assert_eq!(attribute(&server, "service.name"), "apiserver");
    assert!(attribute(&server, "service.instance.id").starts_with("apiserver-"));
    for (span, key, value) in [
        (CREATE, "http.method", "POST"),
        (CREATE, "http.target", MAPS),
        (CREATE, "http.status_code", "201"),
        (CREATE, "net.sock.peer.addr", "127.0.0.1"),
        ("Create", "resource", "configmaps"),
        ("Create", "namespace", "default"),
        ("Create", "verb", "create"),
        ("Create", "client", "127.0.0.1"),
        ("Call mutating webhook", "configuration", "c"),
        ("Call mutating webhook", "webhook", "h.example.com"),
        ("Call mutating webhook", "resource", "/v1, Resource=configmaps"),
        ("Evaluate validating policy", "policy", "p"),
        ("Create in store", "key", "default/m"),
        ("Create in store", "resource", "configmaps"),
        ("SerializeObject", "mediaType", "application/json"),
        ("NamespaceLifecycle", "type", "admit"),
        ("HTTP POST", "http.status_code", "200"),
    ] {
        assert_eq!(attribute(&trace.span(span).attributes, key), value, "{key} of {span}");
    }
    assert!(!attribute(&trace.span("Create").attributes, "audit-id").is_empty());
}

/// Each webhook was told of the span of its call.
fn check_webhooks(trace: &Trace, hooks: &HookServer) {
    let calls: Vec<_> = trace.0.iter().filter(|span| span.name == "HTTP POST").collect();
    let heads = hooks.heads();
    assert_eq!((calls.len(), heads.len()), (2, 2));
    for call in calls {
        let expected = format!("traceparent: 00-{}-{}-01\r\n", hex(&call.trace_id), hex(&call.span_id));
        let head = heads.iter().find(|head| head.contains(&expected));
        let head = head.unwrap_or_else(|| panic!("no {expected} in {heads:?}"));
        assert!(head.contains("tracestate: a=1\r\n") && head.contains("baggage: who=me\r\n"), "{head}");
    }
}

#[test]
fn reads_and_other_writes_have_spans_of_their_verbs() {
    let collector = Collector::start();
    let (server, _directory) = start(collector.address, "samplingRatePerMillion: 0");
    let mut admin = server.admin();
    admin.post(MAPS, &map("m")).ok();
    let object = format!("{MAPS}/m");
    let changed = json!({"metadata": {"name": "m"}, "data": {"a": "c"}});
    for (number, (method, path, body, step, store)) in [
        ("GET", object.as_str(), Value::Null, "Get", "Get from store"),
        ("GET", MAPS, Value::Null, "List", "List from store"),
        ("PUT", object.as_str(), changed, "Update", "Replace in store"),
        ("DELETE", object.as_str(), Value::Null, "Delete", "Remove from store"),
    ]
    .into_iter()
    .enumerate()
    {
        let (traceparent, id) = parent(number as u8 + 1, "01");
        assert_eq!(send(&mut admin, method, path, &traceparent, &body), 200, "{method} {path}");
        let trace = collector.trace_with(&id, step);
        if method != "DELETE" {
            assert_eq!(trace.path("SerializeObject")[1], step);
        }
        assert!(trace.path(store).contains(&step), "{:?}", trace.path(store));
        if method != "GET" {
            assert_eq!(trace.path("commit")[1], store);
        }
    }
}

#[test]
fn only_trusted_clients_decide_whether_they_are_traced() {
    let collector = Collector::start();
    let (server, _directory) = start(collector.address, "");
    let (mut admin, mut user) = (server.admin(), server.admin().with_token(Some(crate::support::USER_TOKEN)));
    assert_eq!(send(&mut user, "GET", MAPS, &parent(1, "01").0, &Value::Null), 403);
    assert_eq!(send(&mut server.anonymous(), "GET", "/healthz", &parent(2, "01").0, &Value::Null), 200);
    assert_eq!(send(&mut admin, "GET", MAPS, &parent(3, "00").0, &Value::Null), 200);
    admin.get(MAPS).ok();
    let (traceparent, id) = parent(4, "01");
    assert_eq!(send(&mut admin, "GET", &format!("{MAPS}/none"), &traceparent, &Value::Null), 404);
    collector.trace_with(&id, GET);
    // Those before it would have come before it.
    assert!(collector.spans().iter().all(|span| span.trace_id == id));
}

#[test]
fn requests_of_other_clients_are_sampled_and_linked_to_their_spans() {
    let collector = Collector::start();
    let (server, _directory) = start(collector.address, "samplingRatePerMillion: 1000000");
    let mut user = server.admin().with_token(Some(crate::support::USER_TOKEN));
    let (traceparent, id) = parent(1, "00");
    assert_eq!(send(&mut user, "GET", &format!("{MAPS}/m"), &traceparent, &Value::Null), 403);
    let is_linked = |span: &opentelemetry_proto::tonic::trace::v1::Span| {
        span.links.iter().any(|link| link.trace_id == id && hex(&link.span_id) == "00000000000000aa")
    };
    let span = poll(TIMEOUT, || collector.spans().into_iter().find(is_linked)).expect("a linked span");
    assert_eq!((span.name.as_str(), attribute(&span.attributes, "http.status_code").as_str()), (GET, "403"));
    assert!(span.parent_span_id.is_empty() && span.trace_id != id && span.trace_state.is_empty());
}

#[test]
fn last_spans_are_sent_before_the_server_ends() {
    let collector = Collector::start();
    let (server, _directory) = start(collector.address, "");
    let (traceparent, id) = parent(1, "01");
    assert_eq!(send(&mut server.admin(), "POST", MAPS, &traceparent, &map("m")), 201);
    server.stop();
    let names: Vec<String> = collector.spans().into_iter().map(|span| span.name).collect();
    assert!(names.iter().any(|name| name == CREATE), "{names:?}");
    assert!(collector.spans().iter().all(|span| span.trace_id == id));
}

#[test]
fn a_collector_that_is_away_costs_spans_alone() {
    // Nothing listens at this port any more.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (mut server, _directory) = start(address, "samplingRatePerMillion: 1000000");
    let mut admin = server.admin();
    let lost = r#"pilothouse_lost_spans_total{reason="queue"} "#;
    let mut count = 0;
    let is_counted = poll(TIMEOUT, || {
        for _ in 0..20 {
            count += 1;
            admin.post(MAPS, &map(&format!("m{count}"))).ok();
        }
        let page = admin.get("/metrics").text();
        let line = page.lines().find_map(|line| line.strip_prefix(lost)).unwrap().to_owned();
        (line.parse::<f64>().unwrap() > 0.0).then_some(())
    });
    assert!(is_counted.is_some(), "{count} requests lost nothing");
    server.assert_healthy();
    server.stop();
}

#[test]
fn without_a_configuration_webhooks_get_the_context_of_the_client() {
    let hooks = allowing_hooks();
    let (traceparent, _) = parent(1, "01");
    for (flag, is_passed_on) in
        [("--feature-gates=APIServerTracing=true", true), ("--feature-gates=APIServerTracing=false", false)]
    {
        let server = Server::with_flags(&[flag]);
        let mut admin = server.admin();
        configure_admission(&mut admin, &hooks);
        hooks.clear_requests();
        assert_eq!(send(&mut admin, "POST", MAPS, &traceparent, &map("m")), 201);
        let head = hooks.last_head();
        assert_eq!(head.contains(&format!("traceparent: {traceparent}\r\n")), is_passed_on, "{head}");
        assert_eq!(head.contains("baggage: who=me\r\n"), is_passed_on, "{head}");
        hooks.clear_requests();
        admin.post(MAPS, &map("n")).ok();
        assert!(!hooks.last_head().contains("traceparent"), "{}", hooks.last_head());
    }
}

#[test]
fn empty_path_of_a_configuration_means_none() {
    let flags = ["--tracing-config-file=", "--audit-policy-file=", "--encryption-provider-config="];
    assert_eq!(Server::with_flags(&flags).admin().get("/readyz").status, 200);
}

#[test]
fn bad_configurations_are_refused_at_the_start() {
    let directory = temp_directory();
    let file = directory.path().join("traces.yaml");
    let flag = format!("--tracing-config-file={}", file.display());
    let refusal = |flags: &[&str]| {
        let flags = [&["--engine=memory"][..], flags].concat();
        let failure = Server::try_start_in(&directory.path().join("data"), &flags).err().expect("a refusal");
        assert!(!failure.status.success());
        failure.stderr
    };
    let log = refusal(&[&flag]);
    assert!(log.contains(&format!("tracing-config-file {} does not exist", file.display())), "{log}");
    for (fields, reason) in [
        (
            "samplingRatePerMillion: -1",
            "samplingRatePerMillion: Invalid value: -1: sampling rate must be positive",
        ),
        (
            "endpoint: https://a:1",
            "unsupported scheme: https.  Options are none, dns, unix, or unix-abstract.",
        ),
        ("sampling: 1", "unknown field"),
    ] {
        fs::write(&file, configuration(fields)).unwrap();
        let log = refusal(&[&flag]);
        assert!(log.contains("--tracing-config-file") && log.contains(reason), "{log}");
    }
    fs::write(&file, configuration("")).unwrap();
    let log = refusal(&[&flag, "--feature-gates=APIServerTracing=false"]);
    let reason = "APIServerTracing feature is not enabled, but tracing config file was provided";
    assert!(log.contains(reason), "{log}");
}
