//! A real Prometheus scrapes a server: rules, alerts and dashboards, those that people have for kube-apiserver and those of `deploy/`,
//! find what they ask for.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::hook_server::{HookServer, Reply};
use crate::support::prometheus::{Prometheus, TIMEOUT, promtool};
use crate::support::wait::poll;
use crate::support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const REGISTRATIONS: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// The rules over an API server's metrics that people have.
fn usual_rules() -> String {
    path("tests/operations/data/apiserver_rules.yaml")
}

fn alerts() -> String {
    path("deploy/monitoring/alerts.yaml")
}

fn path(file: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file).to_str().unwrap().to_owned()
}

/// What dashboards of clusters ask about an API server. They also ask for goroutines, which this program does not have.
const DASHBOARD: [&str; 12] = [
    r#"sum by (code) (code_resource:apiserver_request_total:rate5m{verb="read"})"#,
    r#"sum by (resource) (code_resource:apiserver_request_total:rate5m{verb="write", code=~"5.."}) / sum by (resource) (code_resource:apiserver_request_total:rate5m{verb="write"})"#,
    r#"cluster_quantile:apiserver_request_sli_duration_seconds:histogram_quantile{verb="read"}"#,
    r#"apiserver_request:availability30d{verb="read"}"#,
    "sum by (instance, name) (rate(workqueue_adds_total[1m]))",
    "sum by (instance, name) (rate(workqueue_depth[1m]))",
    "histogram_quantile(0.99, sum by (instance, name, le) (rate(workqueue_queue_duration_seconds_bucket[1m]))) >= 0",
    "workqueue_unfinished_work_seconds",
    "process_resident_memory_bytes",
    "rate(process_cpu_seconds_total[1m])",
    "histogram_quantile(0.99, sum by (operation, type, le) (rate(etcd_request_duration_seconds_bucket[5m]))) >= 0",
    "histogram_quantile(0.99, sum by (name, le) (rate(apiserver_admission_controller_admission_duration_seconds_bucket[5m]))) >= 0",
];

/// The metrics that an expression names. Names of functions are followed by a parenthesis, those of labels and the words of the
/// language are left out by their form or here.
fn metric_names(expression: &str) -> BTreeSet<String> {
    let mut outside = String::new();
    let (mut depth, mut quote) = (0, false);
    for character in expression.chars() {
        match character {
            '"' => quote = !quote,
            '{' | '[' if !quote => depth += 1,
            '}' | ']' if !quote => depth -= 1,
            _ if depth == 0 && !quote => outside.push(character),
            _ => {}
        }
        if depth > 0 {
            outside.push(' ');
        }
    }
    let is_word = |character: char| character.is_ascii_alphanumeric() || "_:".contains(character);
    let words = outside.split(|character| !is_word(character));
    let words = words.filter(|word| word.contains('_') || word.contains(':'));
    words.filter(|word| is_metric(word)).map(str::to_owned).collect()
}

/// Whether a word with an underscore is a metric, and no function or label.
fn is_metric(word: &str) -> bool {
    let functions = ["histogram_quantile", "label_replace", "avg_over_time", "label_values"];
    let labels = ["git_version", "request_kind", "storage_cluster_id"];
    !functions.contains(&word) && !labels.contains(&word) && !word.starts_with('_')
}

fn kites(version: &str) -> String {
    format!("/apis/toys.example/{version}/namespaces/default/kites")
}

/// A server with what makes it fail now and then, so that rules about failures have values, too.
struct Scene {
    server: Server,
    _hooks: HookServer,
}

impl Scene {
    fn start() -> Scene {
        let hooks = HookServer::start("h", |path, request| match request["name"].as_str() {
            _ if path.starts_with("/convert") => match request["objects"][0]["metadata"]["name"].as_str() {
                Some("slow") => Reply::Hang,
                _ => Reply::Raw("500 Internal Server Error", "{}".to_owned()),
            },
            Some("bad") => Reply::Raw("500 Internal Server Error", "{}".to_owned()),
            _ => Reply::Review(json!({"allowed": true})),
        });
        let server = Server::with_flags(&["--memory-limit=2Gi"]);
        let mut client = server.admin();
        let client_config =
            |path: &str| json!({"url": hooks.url(path), "caBundle": STANDARD.encode(&hooks.ca_pem)});
        let webhook = json!({"metadata": {"name": "h"}, "webhooks": [{"name": "h.example.com", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "timeoutSeconds": 30, "clientConfig": client_config("/admit"), "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}]}]});
        client.post(WEBHOOKS, &webhook).ok();
        let version = |name: &str, storage: bool| {
            json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object",
                "x-kubernetes-preserve-unknown-fields": true}}})
        };
        let definition = json!({"metadata": {"name": "kites.toys.example"}, "spec": {"group": "toys.example", "scope": "Namespaced",
            "names": {"plural": "kites", "singular": "kite", "kind": "Kite", "listKind": "KiteList"},
            "versions": [version("v1", true), version("v2", false)],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client_config("/convert")}}}});
        client.post(DEFINITIONS, &definition).ok();
        for name in ["bad", "slow"] {
            let kite = json!({"apiVersion": "toys.example/v1", "kind": "Kite", "metadata": {"name": name}});
            let create =
                || Some(server.admin().post(&kites("v1"), &kite)).filter(|response| response.status == 201);
            poll(TIMEOUT, create).expect("kites are served");
        }
        let registration = json!({"metadata": {"name": "v1.away.example"}, "spec": {"group": "away.example", "version": "v1",
            "groupPriorityMinimum": 1, "versionPriority": 1, "insecureSkipTLSVerify": true,
            "service": {"namespace": "default", "name": "nobody"}}});
        client.post(REGISTRATIONS, &registration).ok();
        Scene { server, _hooks: hooks }
    }

    /// Some requests of each kind. Those that hang end after a second, by their own limit.
    fn send_requests(&self, round: usize) {
        let mut client = self.server.admin();
        client.post(MAPS, &json!({"metadata": {"name": format!("m{round}")}})).ok();
        client.get(MAPS).ok();
        client.get("/api/v1/configmaps").ok();
        client.get(&format!("{MAPS}/m{round}")).ok();
        assert_eq!(client.post(MAPS, &json!({"metadata": {"name": "bad"}})).status, 500);
        assert_eq!(client.get(&format!("{}/bad", kites("v2"))).status, 500);
        if round < 2 {
            assert_eq!(client.get(&format!("{}/slow?timeout=1s", kites("v2"))).status, 504);
            self.server.kubeconfig_client().get(MAPS).ok();
        }
    }
}

/// The record rules of a file, as queries for what they record.
fn recorded(rules: &[Value]) -> Vec<String> {
    let records = rules.iter().filter(|rule| rule["type"] == "recording");
    let query = |rule: &Value| {
        let labels = rule["labels"].as_object().cloned().unwrap_or_default();
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{}{{{}}}", rule["name"].as_str().unwrap(), labels.join(","))
    };
    records.map(query).collect()
}

/// The queries of the panels of a dashboard, with the variables filled in.
fn panel_queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let filled = |target: &Value| {
        let expression = target["expr"].as_str().unwrap();
        expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
    };
    targets.map(filled).collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(path("deploy/monitoring/grafana-dashboard.json")).unwrap())
        .unwrap()
}

/// Waits until every query has a result, while requests go on.
fn expect_results(prometheus: &Prometheus, scene: &Scene, mut queries: BTreeSet<String>) {
    let mut round = 0;
    let has_results = || {
        scene.send_requests(round);
        round += 1;
        queries.retain(|query| prometheus.query(query).is_empty());
        queries.is_empty().then_some(())
    };
    let done = poll(TIMEOUT, has_results);
    assert!(done.is_some(), "nothing comes of {queries:#?}\n{}", prometheus.log());
}

#[test]
fn rules_alerts_and_dashboards_find_what_they_ask_for() {
    let (usual_rules, alerts) = (usual_rules(), alerts());
    let scene = Scene::start();
    let _watch = scene.server.admin().watch(MAPS, "");
    let prometheus = Prometheus::start(&scene.server, &[&usual_rules, &alerts]);
    let rules = poll(TIMEOUT, || Some(prometheus.rules()).filter(|rules| !rules.is_empty())).expect("rules");
    let mut queries: BTreeSet<String> = recorded(&rules).into_iter().collect();
    assert!(queries.len() >= 12, "{queries:?}");
    queries.extend(DASHBOARD.map(str::to_owned));
    // Whether an alert fires is another question: what it asks about has to be there.
    let alerting = rules.iter().filter(|rule| rule["type"] == "alerting");
    queries.extend(alerting.flat_map(|rule| metric_names(rule["query"].as_str().unwrap())));
    // As on the reference, it is only counted when one goes away that was available.
    queries.remove("aggregator_unavailable_apiservice_total");
    let dashboard = dashboard();
    let own = panel_queries(&dashboard);
    assert!(own.len() >= 18, "{own:?}");
    // Without backups there is no age of one.
    let is_empty_here = |query: &&String| query.contains("pilothouse_backup_");
    queries.extend(own.iter().filter(|query| !is_empty_here(query)).cloned());
    queries.extend(own.iter().flat_map(|query| metric_names(query)));
    expect_results(&prometheus, &scene, queries);
    let failed: Vec<Value> = prometheus.rules().into_iter().filter(|rule| rule["health"] != "ok").collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn promtool_accepts_the_rules() {
    for file in [usual_rules(), alerts()] {
        let output = promtool(&["check", "rules", &file]);
        assert!(output.status.success(), "{file}: {output:?}");
    }
}

/// Histograms are shown as several series.
fn is_on_page(page: &str, name: &str) -> bool {
    let has = |name: &str| page.contains(&format!("\n# TYPE {name} "));
    let of_histogram = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| name.strip_suffix(suffix));
    has(name) || of_histogram.is_some_and(has)
}

#[test]
fn metrics_that_the_deployment_names_exist() {
    let scene = Scene::start();
    let _watch = scene.server.admin().watch(MAPS, "");
    scene.send_requests(9);
    let page = Client::get(&mut scene.server.admin(), "/metrics").text();
    let rules = fs::read_to_string(alerts()).unwrap();
    let words = rules.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    let of_rules = words.filter(|word| word.starts_with("pilothouse_") || word.starts_with("workqueue_"));
    let mut names: BTreeSet<String> = of_rules.map(str::to_owned).collect();
    names.extend(panel_queries(&dashboard()).iter().flat_map(|query| metric_names(query)));
    assert!(names.len() > 25, "{names:?}");
    let missing: Vec<&String> = names.iter().filter(|name| !is_on_page(&page, name)).collect();
    assert!(missing.is_empty(), "{missing:?} in\n{page}");
}

#[test]
fn names_of_metrics_are_found_in_expressions() {
    let expression = r#"histogram_quantile(0.99, sum by (verb, le) (rate(a_b_bucket{instance=~"x_y", le="1"}[$__rate_interval]))) / c:d_e and time() - f_g > 3"#;
    let found: Vec<String> = metric_names(expression).into_iter().collect();
    assert_eq!(found, ["a_b_bucket", "c:d_e", "f_g"]);
}
