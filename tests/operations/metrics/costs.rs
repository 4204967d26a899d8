//! What requests, lists, watches and allocations count, seen from outside.

use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::support::hook_server::{HookServer, Reply};
use crate::support::server::ON_FILE;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1";

/// How long the webhooks think.
const PAUSE: Duration = Duration::from_millis(300);

/// A configuration of one webhook for new ConfigMaps.
fn webhook(hooks: &HookServer, kind: &str) -> Value {
    let client_config = json!({"url": hooks.url("/admit"), "caBundle": STANDARD.encode(&hooks.ca_pem)});
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "h"}, "webhooks": [{
        "name": "h.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": client_config,
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}]}]})
}

#[test]
fn webhooks_count_for_the_duration_but_not_for_its_objective() {
    let hooks = HookServer::start("h", |_, _| {
        thread::sleep(PAUSE);
        Reply::Review(json!({"allowed": true}))
    });
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let mutating = webhook(&hooks, "MutatingWebhookConfiguration");
    client.post(&format!("{WEBHOOKS}/mutatingwebhookconfigurations"), &mutating).ok();
    let validating = webhook(&hooks, "ValidatingWebhookConfiguration");
    client.post(&format!("{WEBHOOKS}/validatingwebhookconfigurations"), &validating).ok();
    client.post(MAPS, &json!({"metadata": {"name": "m"}})).ok();
    let page = metrics_page(&mut client);
    let created = [r#"resource="configmaps""#, r#"verb="POST""#];
    let sum = |name: &str| series_value(&page, &format!("{name}_sum"), &created);
    let (whole, sli) =
        (sum("apiserver_request_duration_seconds"), sum("apiserver_request_sli_duration_seconds"));
    assert!(whole - sli >= 2.0 * PAUSE.as_secs_f64(), "{sli} of {whole} seconds");
    let host = format!("host=\"127.0.0.1:{}\"", hooks.port);
    let calls =
        series_value(&page, "rest_client_requests_total", &[&host, r#"code="200""#, r#"method="POST""#]);
    assert_eq!(calls, 2.0);
    let post = [host.as_str(), r#"verb="POST""#];
    assert!(
        series_value(&page, "rest_client_request_duration_seconds_sum", &post) >= 2.0 * PAUSE.as_secs_f64()
    );
    assert!(series_value(&page, "rest_client_request_size_bytes_sum", &post) > 500.0);
    assert!(series_value(&page, "rest_client_response_size_bytes_sum", &post) > 100.0);
}

#[test]
fn writes_lists_and_watches_are_counted() {
    let server = Server::with_flags(&[ON_FILE, "--feature-gates=WatchList=true"]);
    let mut client = server.admin();
    let first = client.get(MAPS).ok()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    for number in 0..3 {
        let object = json!({"metadata": {"name": format!("m{number}")}, "data": {"a": "x".repeat(60_000)}});
        client.post(MAPS, &object).ok();
    }
    client.delete(&format!("{MAPS}/m0")).ok();
    let mut watch = client
        .watch(MAPS, "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan");
    while watch.next()["type"] != "BOOKMARK" {}
    let listed = client.get(MAPS).ok()["items"].as_array().unwrap().len() as f64;
    client.get(&format!("{MAPS}?resourceVersion={first}&resourceVersionMatch=Exact")).ok();
    let page = metrics_page(&mut client);
    let maps = [r#"resource="configmaps""#];
    let created = [maps[0], r#"verb="create""#];
    assert_eq!(series_value(&page, "apiserver_request_body_size_bytes_count", &created), 3.0);
    assert!(series_value(&page, "apiserver_request_body_size_bytes_sum", &created) > 180_000.0);
    let small = [created[0], created[1], r#"le="50000""#];
    assert_eq!(series_value(&page, "apiserver_request_body_size_bytes_bucket", &small), 0.0);
    let of_type = r#"type="configmaps""#;
    let deleted = [of_type, r#"operation="delete""#];
    assert_eq!(series_value(&page, "etcd_requests_total", &deleted), 1.0);
    assert_eq!(series_value(&page, "etcd_request_duration_seconds_count", &deleted), 1.0);
    assert!(series_value(&page, "etcd_requests_total", &[of_type, r#"operation="create""#]) >= 3.0);
    assert!(series_value(&page, "pilothouse_commit_duration_seconds_count", &[]) > 4.0);
    assert!(
        series_value(&page, "pilothouse_commit_batch_writes_sum", &[])
            >= series_value(&page, "pilothouse_commit_batch_writes_count", &[])
    );
    let prefix = [r#"resource_prefix="/configmaps""#];
    assert!(series_value(&page, "apiserver_cache_list_total", &prefix) >= 2.0);
    assert!(series_value(&page, "apiserver_cache_list_fetched_objects_total", &prefix) >= listed);
    assert!(series_value(&page, "apiserver_cache_list_returned_objects_total", &prefix) >= listed);
    assert_eq!(series_value(&page, "apiserver_storage_list_total", &maps), 1.0);
    let returned = series_value(&page, "apiserver_storage_list_returned_objects_total", &maps);
    assert!(returned < listed, "{returned} objects were there before");
    let consistent = [r#"resource="/configmaps""#, r#"success="true""#];
    assert!(series_value(&page, "apiserver_watch_cache_consistent_read_total", &consistent) >= 2.0);
    assert!(series_value(&page, "apiserver_watch_cache_read_wait_seconds_count", &maps) >= 2.0);
    let kind = [r#"kind="ConfigMap""#];
    let events = series_value(&page, "apiserver_watch_events_total", &kind);
    assert_eq!(events, listed + 1.0, "with the bookmark");
    assert_eq!(series_value(&page, "apiserver_watch_events_sizes_count", &kind), events);
    assert!(series_value(&page, "apiserver_watch_events_sizes_sum", &kind) > 120_000.0);
    assert_eq!(series_value(&page, "apiserver_init_events_total", &maps), listed);
    assert_eq!(series_value(&page, "apiserver_watch_list_duration_seconds_count", &maps), 1.0);
    for changes in
        ["apiserver_watch_cache_events_received_total", "apiserver_watch_cache_events_dispatched_total"]
    {
        assert!(series_value(&page, changes, &maps) >= 4.0, "{changes}");
    }
    assert_eq!(series_value(&page, "apiserver_watch_cache_initializations_total", &maps), 1.0);
    let own = page.lines().filter(|line| line.starts_with("apiserver_selfrequest_total{"));
    let own: f64 = own.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum();
    assert!(own > 0.0, "the server asks itself: {page}");
}

#[test]
fn allocations_and_rules_are_counted() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let port = json!([{"port": 80, "nodePort": 30_007}]);
    client.post(services, &service("a", json!({"type": "NodePort", "ports": port}))).ok();
    let taken = client.post(services, &service("b", json!({"type": "NodePort", "ports": port})));
    taken.expect_error(422, "Invalid");
    let definition = json!({"metadata": {"name": "kites.toys.example"}, "spec": {"group": "toys.example", "scope": "Namespaced",
        "names": {"plural": "kites", "singular": "kite", "kind": "Kite", "listKind": "KiteList"}, "versions": [{"name": "v1",
            "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
                "properties": {"size": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": "self.size < 10"}]}}}}}]}});
    client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).ok();
    let kite = json!({"apiVersion": "toys.example/v1", "kind": "Kite", "metadata": {"name": "k"}, "spec": {"size": 3}});
    let create = || {
        let response = server.admin().post("/apis/toys.example/v1/namespaces/default/kites", &kite);
        (response.status == 201).then_some(())
    };
    poll(TIMEOUT, create).expect("kites are served");
    let page = metrics_page(&mut client);
    let addresses = "kube_apiserver_clusterip_allocator_";
    let dynamic = [r#"scope="dynamic""#];
    assert!(series_value(&page, &format!("{addresses}allocation_total"), &dynamic) >= 1.0);
    assert!(series_value(&page, &format!("{addresses}allocation_duration_seconds_count"), &[]) >= 1.0);
    // The service kubernetes has one, too.
    let allocated = series_value(&page, &format!("{addresses}allocated_ips"), &[]);
    assert!(allocated >= 2.0, "{allocated}");
    assert!(series_value(&page, &format!("{addresses}available_ips"), &[]) > 100.0);
    let ports = "kube_apiserver_nodeport_allocator_";
    let chosen = [r#"scope="static""#];
    assert_eq!(series_value(&page, &format!("{ports}allocation_total"), &chosen), 1.0);
    assert_eq!(series_value(&page, &format!("{ports}allocation_errors_total"), &chosen), 1.0);
    assert_eq!(series_value(&page, &format!("{ports}allocated_ports"), &[]), 1.0);
    assert_eq!(series_value(&page, &format!("{ports}available_ports"), &[]), 2_767.0);
    for durations in
        ["apiserver_cel_compilation_duration_seconds", "apiserver_cel_evaluation_duration_seconds"]
    {
        assert!(series_value(&page, &format!("{durations}_count"), &[]) >= 1.0, "{durations}");
    }
}
