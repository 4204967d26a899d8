//! /metrics, and the two engines of validation that it watches over.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use support::compare::text;
use support::{Client, Server, USER_TOKEN};

const CONTROLLERS: &str = "/api/v1/namespaces/default/replicationcontrollers";

fn controller(name: &str, replicas: i64) -> Value {
    json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": name},
        "spec": {"replicas": replicas, "minReadySeconds": replicas.min(0), "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

fn page(client: &mut Client) -> String {
    let answer = client.get("/metrics");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    answer.text()
}

/// The value of the only series of this name whose labels contain all of these.
fn value(page: &str, name: &str, labels: &[&str]) -> f64 {
    let mut found = page.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with([' ', '{']))
            && labels.iter().all(|label| line.contains(label))
    });
    let line = found.next().unwrap_or_else(|| panic!("{name} {labels:?} in\n{page}"));
    assert_eq!(found.next(), None, "{name} {labels:?} is one series");
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn the_page_says_what_happened() {
    let server = Server::start();
    let mut client = server.admin();
    for _ in 0..3 {
        client.get("/api/v1/namespaces/default").ok();
    }
    client.get("/api/v1/namespaces/nobody").refused(404, "NotFound");
    client.get("/apis/unheard.of/v1/things");
    server.anonymous().get("/api/v1/namespaces/default").refused(403, "Forbidden");
    client.with_token(Some("unknown")).get("/api/v1/namespaces/default").refused(401, "Unauthorized");
    client.get("/api/v1/namespaces/default/endpoints").ok();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    client.post("/api/v1/namespaces/default/configmaps", &map).ok();
    client.post("/api/v1/namespaces/default/configmaps?dryRun=All", &controller("x", 1));
    let _watch = client.watch("/api/v1/namespaces/default/configmaps", "");
    let page = page(&mut client);
    let total = "apiserver_request_total";
    let get = [r#"resource="namespaces""#, r#"verb="GET""#, r#"scope="resource""#];
    assert_eq!(value(&page, total, &[&get[..], &[r#"code="200""#]].concat()), 3.0);
    assert_eq!(value(&page, total, &[&get[..], &[r#"code="404""#]].concat()), 1.0);
    let made = [r#"resource="configmaps""#, r#"verb="POST""#];
    assert_eq!(value(&page, total, &[&made[..], &[r#"code="201""#, r#"dry_run="""#]].concat()), 1.0);
    assert_eq!(value(&page, total, &[&made[..], &[r#"code="400""#, r#"dry_run="All""#]].concat()), 1.0);
    assert_eq!(value(&page, "apiserver_request_duration_seconds_count", &get), 4.0);
    let old = ["resource=\"endpoints\"", "version=\"v1\""];
    assert_eq!(value(&page, "apiserver_requested_deprecated_apis", &old), 1.0);
    assert_eq!(value(&page, "apiserver_longrunning_requests", &[r#"verb="WATCH""#]), 1.0);
    assert_eq!(value(&page, "apiserver_current_inflight_requests", &[r#"request_kind="readOnly""#]), 1.0);
    // What was made above, what extensions read about the clients of this server, and since when uses of tokens are tracked.
    assert_eq!(value(&page, "apiserver_storage_objects", &[r#"resource="configmaps""#]), 3.0);
    assert_eq!(value(&page, "kubernetes_build_info", &[r#"minor="33""#]), 1.0);
    assert!(value(&page, "process_start_time_seconds", &[]) > 1e9);
    assert!(value(&page, "process_resident_memory_bytes", &[]) > 1e6);
    let utilization = "apiserver_flowcontrol_priority_level_seat_utilization";
    let exempt = [r#"phase="executing""#, r#"priority_level="exempt""#];
    let (sum, count) = (
        value(&page, &format!("{utilization}_sum"), &exempt),
        value(&page, &format!("{utilization}_count"), &exempt),
    );
    assert!(sum > 0.0 && count > 1e6 && sum < count, "{sum} of {count} nanoseconds");
    let idle = [exempt[0], exempt[1], r#"le="0""#];
    assert!(value(&page, &format!("{utilization}_bucket"), &idle) <= count);
    assert!(value(&page, "process_virtual_memory_bytes", &[]) > 1e6);
    assert!(value(&page, "process_cpu_seconds_total", &[]) > 0.0);
    let (open, most) = (value(&page, "process_open_fds", &[]), value(&page, "process_max_fds", &[]));
    assert!(open > 3.0 && open < most, "{open} of {most}");
    assert!(value(&page, "apiserver_storage_size_bytes", &[r#"storage_cluster_id="etcd-0""#]) > 1e3);
    assert!(!page.contains("unheard"), "a client makes no labels: {page}");
    assert!(!page.contains(r#"code="401""#) && !page.contains(r#"code="403""#), "{page}");
}

#[test]
fn pages_for_people_are_served_where_their_gates_are_open() {
    let plain = [("accept", "text/plain")];
    let server = Server::start();
    assert_eq!(server.admin().request("GET", "/statusz", &plain, b"").status, 404);
    assert_eq!(server.admin().request("GET", "/flagz", &plain, b"").status, 404);

    let server = Server::with(&["--feature-gates=ComponentStatusz=true,ComponentFlagz=true"]);
    let mut client = server.admin();
    let status = client.request("GET", "/statusz", &plain, b"");
    assert!(status.text().starts_with("\nkube-apiserver statusz\nWarning: "), "{}", status.text());
    assert_eq!(status.header("content-type"), Some("text/plain; charset=utf-8"));
    let flags = client.request("GET", "/flagz", &plain, b"").text();
    assert!(flags.starts_with("\nkube-apiserver flags\nWarning: "), "{flags}");
    assert!(flags.contains("\nfeature-gates=ComponentStatusz=true,ComponentFlagz=true\n"), "{flags}");
    assert!(flags.contains("\nservice-node-port-range=30000-32767\n"), "{flags}");
    let json = client.request("GET", "/statusz", &[("accept", "application/json")], b"");
    assert_eq!(
        (json.status, json.text().as_str()),
        (406, "media type not acceptable, must be: text/plain\n")
    );
    let paths = client.get("/").ok()["paths"].to_string();
    assert!(paths.contains("\"/flagz\"") && paths.contains("\"/statusz\""), "{paths}");
    assert_eq!(server.anonymous().request("GET", "/statusz", &plain, b"").status, 403);
}

#[test]
fn not_everybody_may_read_it() {
    let server = Server::start();
    let denied = server.anonymous().get("/metrics").refused(403, "Forbidden");
    let wanted = "forbidden: User \"system:anonymous\" cannot get path \"/metrics\"";
    assert_eq!(text(&denied, "/message"), wanted);
    server.anonymous().with_token(Some(USER_TOKEN)).get("/metrics").refused(403, "Forbidden");
}

#[test]
fn both_engines_say_the_same() {
    let gates = [
        vec![],
        vec!["--feature-gates=DeclarativeValidationTakeover=true"],
        vec!["--feature-gates=DeclarativeValidation=false"],
    ];
    let mut said = Vec::new();
    for gates in gates {
        let server = Server::with(&gates);
        let mut client = server.admin();
        let made = client.post(CONTROLLERS, &controller("good", 1)).ok();
        let mut bad = made.clone();
        bad["spec"]["replicas"] = json!(-2);
        let on_update = client.put(&format!("{CONTROLLERS}/good"), &bad).refused(422, "Invalid");
        let on_create = client.post(CONTROLLERS, &controller("bad", -1)).refused(422, "Invalid");
        let mut causes: Vec<String> = [on_update, on_create]
            .iter()
            .flat_map(|status| status["details"]["causes"].as_array().unwrap().iter().map(Value::to_string))
            .collect();
        causes.sort();
        // The functions look at an update twice, the table once.
        causes.dedup();
        said.push(causes);
        assert_eq!(value(&page(&mut client), "declarative_validation_mismatch_total", &[]), 0.0, "{gates:?}");
    }
    assert_eq!(said[0].len(), 3, "{said:?}");
    assert!(said.iter().all(|causes| *causes == said[0]), "{said:?}");
}

#[test]
fn health_checks_have_a_page_of_their_own() {
    let server = Server::start();
    let mut client = server.admin();
    for _ in 0..2 {
        assert_eq!(client.get("/livez").status, 200);
    }
    let answer = client.get("/metrics/slis");
    assert_eq!(answer.status, 200);
    let page = answer.text();
    let ping = [r#"name="ping""#, r#"type="livez""#];
    assert_eq!(value(&page, "kubernetes_healthcheck", &ping), 1.0);
    let succeeded = [&ping[..], &[r#"status="success""#]].concat();
    assert_eq!(value(&page, "kubernetes_healthchecks_total", &succeeded), 2.0);
}

#[test]
fn the_log_says_more_when_it_is_told_to() {
    let server = Server::start();
    let mut client = server.admin();
    let answer = client.request("PUT", "/debug/flags/v", &[], b"4");
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "successfully set klog.logging.verbosity to 4\n")
    );
    let answer = client.request("PUT", "/debug/flags/v", &[], b"much");
    assert_eq!(answer.status, 400);
    assert_eq!(client.get("/debug/flags/v").status, 406);
    server.anonymous().request("PUT", "/debug/flags/v", &[], b"4").refused(403, "Forbidden");
}

#[test]
fn answers_say_which_flow_their_request_belongs_to() {
    let server = Server::start();
    let mut client = server.admin();
    const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
    const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
    let uid = |client: &mut Client, path: String| {
        client.get(&path).ok()["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    let flow = |client: &mut Client, schema: &str, level: &str| {
        let mut admin = server.admin();
        let answer = client.get("/api/v1/namespaces/default");
        let said = |name: &str| answer.header(name).map(str::to_owned);
        assert_eq!(
            said("x-kubernetes-pf-flowschema-uid"),
            Some(uid(&mut admin, format!("{SCHEMAS}/{schema}")))
        );
        assert_eq!(
            said("x-kubernetes-pf-prioritylevel-uid"),
            Some(uid(&mut admin, format!("{LEVELS}/{level}")))
        );
    };
    flow(&mut server.admin(), "exempt", "exempt");
    flow(&mut server.anonymous(), "global-default", "global-default");
    let mine = json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "mine"},
        "spec": {"matchingPrecedence": 7, "priorityLevelConfiguration": {"name": "system"}, "rules": [{
            "subjects": [{"kind": "User", "user": {"name": "system:anonymous"}}],
            "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["namespaces"], "clusterScope": true,
                "namespaces": ["*"]}]}]}});
    client.post(SCHEMAS, &mine).ok();
    flow(&mut server.anonymous(), "mine", "system");
    let answer = server.anonymous().with_token(Some("unknown")).get("/api/v1/namespaces/default");
    assert_eq!(answer.header("x-kubernetes-pf-flowschema-uid"), None, "nobody knows whose request it was");
}
