//! /metrics and other debug pages, and the agreement of the two validation engines.

mod costs;

use std::io::{Read as _, Write as _};

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::support::compare::text;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server, USER_TOKEN};

const CONTROLLERS: &str = "/api/v1/namespaces/default/replicationcontrollers";

fn controller(name: &str, replicas: i64) -> Value {
    json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": name},
        "spec": {"replicas": replicas, "minReadySeconds": replicas.min(0), "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

fn metrics_page(client: &mut Client) -> String {
    let response = client.get("/metrics");
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(response.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    response.text()
}

/// The value of the only series of this name whose labels contain all of these.
fn series_value(page: &str, name: &str, labels: &[&str]) -> f64 {
    let mut lines = page.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with([' ', '{']))
            && labels.iter().all(|label| line.contains(label))
    });
    let line = lines.next().unwrap_or_else(|| panic!("{name} {labels:?} in\n{page}"));
    assert_eq!(lines.next(), None, "{name} {labels:?} is one series");
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn metrics_are_compressed_for_scrapers_that_accept_it() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let packed = client.request("GET", "/metrics", &[("Accept-Encoding", "gzip")], b"");
    assert_eq!((packed.status, packed.header("content-encoding")), (200, Some("gzip")));
    let mut page = String::new();
    GzDecoder::new(&*packed.body).read_to_string(&mut page).unwrap();
    assert!(page.contains("apiserver_request_total") && page.len() > 4 * packed.body.len());
    let plain = client.get("/metrics");
    assert_eq!(plain.header("content-encoding"), None);
    assert!(plain.text().contains("apiserver_request_total"));
}

#[test]
fn metrics_page_counts_requests_and_resources() {
    let server = Server::with_flags(&["--etcd-count-metric-poll-period=1s"]);
    let mut client = server.admin();
    for _ in 0..3 {
        client.get("/api/v1/namespaces/default").ok();
    }
    client.get("/api/v1/namespaces/nobody").expect_error(404, "NotFound");
    client.get("/apis/unheard.of/v1/things");
    server.anonymous().get("/api/v1/namespaces/default").expect_error(403, "Forbidden");
    client.with_token(Some("unknown")).get("/api/v1/namespaces/default").expect_error(401, "Unauthorized");
    client.get("/api/v1/namespaces/default/endpoints").ok();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    client.post("/api/v1/namespaces/default/configmaps", &map).ok();
    client.post("/api/v1/namespaces/default/configmaps?dryRun=All", &controller("x", 1));
    let _watch = client.watch("/api/v1/namespaces/default/configmaps", "");
    // In etcd, objects are counted once in a while.
    let maps = || {
        let page = metrics_page(&mut server.admin());
        series_value(&page, "apiserver_storage_objects", &[r#"resource="configmaps""#])
    };
    // The one created above, the extension-apiserver-authentication map, and the tracking of legacy tokens.
    poll(TIMEOUT, || (maps() == 3.0).then_some(())).expect("three are counted");
    let page = metrics_page(&mut client);
    let total = "apiserver_request_total";
    let get = [r#"resource="namespaces""#, r#"verb="GET""#, r#"scope="resource""#];
    assert_eq!(series_value(&page, total, &[&get[..], &[r#"code="200""#]].concat()), 3.0);
    assert_eq!(series_value(&page, total, &[&get[..], &[r#"code="404""#]].concat()), 1.0);
    let created = [r#"resource="configmaps""#, r#"verb="POST""#];
    assert_eq!(
        series_value(&page, total, &[&created[..], &[r#"code="201""#, r#"dry_run="""#]].concat()),
        1.0
    );
    assert_eq!(
        series_value(&page, total, &[&created[..], &[r#"code="400""#, r#"dry_run="All""#]].concat()),
        1.0
    );
    assert_eq!(series_value(&page, "apiserver_request_duration_seconds_count", &get), 4.0);
    let old = ["resource=\"endpoints\"", "version=\"v1\""];
    assert_eq!(series_value(&page, "apiserver_requested_deprecated_apis", &old), 1.0);
    assert_eq!(series_value(&page, "apiserver_longrunning_requests", &[r#"verb="WATCH""#]), 1.0);
    assert_eq!(
        series_value(&page, "apiserver_current_inflight_requests", &[r#"request_kind="readOnly""#]),
        1.0
    );
    assert_eq!(series_value(&page, "kubernetes_build_info", &[r#"minor="33""#]), 1.0);
    assert!(series_value(&page, "process_start_time_seconds", &[]) > 1e9);
    assert!(series_value(&page, "process_resident_memory_bytes", &[]) > 1e6);
    let utilization = "apiserver_flowcontrol_priority_level_seat_utilization";
    let exempt = [r#"phase="executing""#, r#"priority_level="exempt""#];
    let (sum, count) = (
        series_value(&page, &format!("{utilization}_sum"), &exempt),
        series_value(&page, &format!("{utilization}_count"), &exempt),
    );
    assert!(sum > 0.0 && count > 1e6 && sum < count, "{sum} of {count} nanoseconds");
    let idle = [exempt[0], exempt[1], r#"le="0""#];
    assert!(series_value(&page, &format!("{utilization}_bucket"), &idle) <= count);
    assert!(series_value(&page, "process_virtual_memory_bytes", &[]) > 1e6);
    assert!(series_value(&page, "process_cpu_seconds_total", &[]) > 0.0);
    let (open, limit) =
        (series_value(&page, "process_open_fds", &[]), series_value(&page, "process_max_fds", &[]));
    assert!(open > 3.0 && open < limit, "{open} of {limit}");
    assert!(series_value(&page, "apiserver_storage_size_bytes", &[r#"storage_cluster_id="etcd-0""#]) > 1e3);
    assert!(!page.contains("unheard"), "a client makes no labels: {page}");
    assert!(!page.contains(r#"code="401""#) && !page.contains(r#"code="403""#), "{page}");
}

#[test]
fn statusz_and_flagz_need_feature_gates() {
    let plain = [("accept", "text/plain")];
    let server = Server::start();
    assert_eq!(server.admin().request("GET", "/statusz", &plain, b"").status, 404);
    assert_eq!(server.admin().request("GET", "/flagz", &plain, b"").status, 404);

    let server = Server::with_flags(&["--feature-gates=ComponentStatusz=true,ComponentFlagz=true"]);
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
fn metrics_page_requires_permission() {
    let server = Server::start();
    let denied = server.anonymous().get("/metrics").expect_error(403, "Forbidden");
    let expected = "forbidden: User \"system:anonymous\" cannot get path \"/metrics\"";
    assert_eq!(text(&denied, "/message"), expected);
    server.anonymous().with_token(Some(USER_TOKEN)).get("/metrics").expect_error(403, "Forbidden");
}

#[test]
fn declarative_and_handwritten_validation_agree() {
    let gates = [
        vec![],
        vec!["--feature-gates=DeclarativeValidationTakeover=true"],
        vec!["--feature-gates=DeclarativeValidation=false"],
    ];
    let mut causes_by_gate = Vec::new();
    for gates in gates {
        let server = Server::with_flags(&gates);
        let mut client = server.admin();
        let created = client.post(CONTROLLERS, &controller("good", 1)).ok();
        let mut invalid = created.clone();
        invalid["spec"]["replicas"] = json!(-2);
        let on_update = client.put(&format!("{CONTROLLERS}/good"), &invalid).expect_error(422, "Invalid");
        let on_create = client.post(CONTROLLERS, &controller("bad", -1)).expect_error(422, "Invalid");
        let mut causes: Vec<String> = [on_update, on_create]
            .iter()
            .flat_map(|status| status["details"]["causes"].as_array().unwrap().iter().map(Value::to_string))
            .collect();
        causes.sort();
        // Handwritten validation reports an update twice, declarative validation once.
        causes.dedup();
        causes_by_gate.push(causes);
        assert_eq!(
            series_value(&metrics_page(&mut client), "declarative_validation_mismatch_total", &[]),
            0.0,
            "{gates:?}"
        );
    }
    assert_eq!(causes_by_gate[0].len(), 3, "{causes_by_gate:?}");
    assert!(causes_by_gate.iter().all(|causes| *causes == causes_by_gate[0]), "{causes_by_gate:?}");
}

#[test]
fn slis_page_counts_health_checks() {
    let server = Server::start();
    let mut client = server.admin();
    for _ in 0..2 {
        assert_eq!(client.get("/livez").status, 200);
    }
    let response = client.get("/metrics/slis");
    assert_eq!(response.status, 200);
    let page = response.text();
    let ping = [r#"name="ping""#, r#"type="livez""#];
    assert_eq!(series_value(&page, "kubernetes_healthcheck", &ping), 1.0);
    let succeeded = [&ping[..], &[r#"status="success""#]].concat();
    assert_eq!(series_value(&page, "kubernetes_healthchecks_total", &succeeded), 2.0);
}

#[test]
fn log_verbosity_is_settable_at_runtime() {
    let server = Server::start();
    let mut client = server.admin();
    let response = client.request("PUT", "/debug/flags/v", &[], b"4");
    assert_eq!(
        (response.status, response.text().as_str()),
        (200, "successfully set klog.logging.verbosity to 4\n")
    );
    let response = client.request("PUT", "/debug/flags/v", &[], b"much");
    assert_eq!(response.status, 400);
    assert_eq!(client.get("/debug/flags/v").status, 406);
    server.anonymous().request("PUT", "/debug/flags/v", &[], b"4").expect_error(403, "Forbidden");
}

#[test]
fn responses_carry_flow_schema_and_priority_level_uids() {
    let server = Server::start();
    let mut client = server.admin();
    const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
    const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
    let uid = |client: &mut Client, path: String| {
        client.get(&path).ok()["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    let check_flow = |client: &mut Client, schema: &str, level: &str| {
        let mut admin = server.admin();
        let response = client.get("/api/v1/namespaces/default");
        let header = |name: &str| response.header(name).map(str::to_owned);
        assert_eq!(
            header("x-kubernetes-pf-flowschema-uid"),
            Some(uid(&mut admin, format!("{SCHEMAS}/{schema}")))
        );
        assert_eq!(
            header("x-kubernetes-pf-prioritylevel-uid"),
            Some(uid(&mut admin, format!("{LEVELS}/{level}")))
        );
    };
    check_flow(&mut server.admin(), "exempt", "exempt");
    check_flow(&mut server.anonymous(), "global-default", "global-default");
    let flow_schema = json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "mine"},
        "spec": {"matchingPrecedence": 7, "priorityLevelConfiguration": {"name": "system"}, "rules": [{
            "subjects": [{"kind": "User", "user": {"name": "system:anonymous"}}],
            "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["namespaces"], "clusterScope": true,
                "namespaces": ["*"]}]}]}});
    client.post(SCHEMAS, &flow_schema).ok();
    check_flow(&mut server.anonymous(), "mine", "system");
    let response = server.anonymous().with_token(Some("unknown")).get("/api/v1/namespaces/default");
    assert_eq!(response.header("x-kubernetes-pf-flowschema-uid"), None, "nobody knows whose request it was");
}

#[test]
fn metrics_tell_how_long_requests_took_and_what_was_sent() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let maps = "/api/v1/namespaces/default/configmaps";
    for number in 0..30 {
        let object =
            json!({"metadata": {"name": format!("m{number}")}, "data": {"filler": "x".repeat(1_000)}});
        client.post(maps, &object).ok();
    }
    let list = client.get(maps);
    list.ok();
    // A handshake that is none.
    let mut plain = std::net::TcpStream::connect(server.address()).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    plain.read_to_end(&mut Vec::new()).unwrap();
    drop(plain);
    let page = metrics_page(&mut client);
    let of_list = [r#"resource="configmaps""#, r#"verb="LIST""#];
    assert_eq!(series_value(&page, "apiserver_response_sizes_sum", &of_list), list.body.len() as f64);
    let of_create = [r#"resource="configmaps""#, r#"verb="POST""#];
    let whole = series_value(&page, "apiserver_request_duration_seconds_sum", &of_create);
    let sli = series_value(&page, "apiserver_request_sli_duration_seconds_sum", &of_create);
    assert!(0.0 < sli && sli <= whole, "{sli} of {whole}");
    assert!(!page.lines().any(|line| line.starts_with("apiserver_response_sizes") && line.contains("POST")));
    for filter in ["authentication", "audit", "impersonation", "priorityandfairness", "authorization"] {
        let label = format!("filter=\"{filter}\"");
        assert!(series_value(&page, "apiserver_request_filter_duration_seconds_count", &[&label]) >= 31.0);
    }
    let plugin = [r#"name="NamespaceLifecycle""#, r#"operation="CREATE""#, r#"rejected="false""#];
    let admitted = "apiserver_admission_controller_admission_duration_seconds_count";
    assert!(series_value(&page, admitted, &plugin) >= 30.0);
    assert!(!page.lines().any(|line| {
        line.starts_with(admitted) && line.contains("NamespaceLifecycle") && line.contains("validate")
    }));
    for step in [r#"type="admit""#, r#"type="validate""#] {
        let labels = [step, r#"operation="CREATE""#, r#"rejected="false""#];
        let steps = series_value(&page, "apiserver_admission_step_admission_duration_seconds_count", &labels);
        assert!(steps >= 30.0, "{step}: {steps}");
    }
    let failed = poll(TIMEOUT, || {
        let page = metrics_page(&mut client);
        Some(series_value(&page, "apiserver_tls_handshake_errors_total", &[])).filter(|failed| *failed > 0.0)
    });
    assert_eq!(failed, Some(1.0));
}

#[test]
fn metrics_have_classes_and_can_be_disabled_and_bounded() {
    let flags = [
        "--engine=memory",
        "--disabled-metrics=apiserver_watch_events_total,kubernetes_feature_enabled",
        "--allow-metric-labels=apiserver_request_total,verb=GET",
        "--show-hidden-metrics-for-version=1.32",
    ];
    let server = Server::with_flags(&flags);
    let mut client = server.admin();
    let maps = "/api/v1/namespaces/default/configmaps";
    client.get(maps).ok();
    client.post(maps, &json!({"metadata": {"name": "m"}})).ok();
    client.get(&format!("{maps}/m")).ok();
    let page = metrics_page(&mut client);
    for help in [
        "# HELP apiserver_request_total [STABLE] ",
        "# HELP apiserver_flowcontrol_nominal_limit_seats [BETA] ",
        "# HELP apiserver_storage_size_bytes [STABLE] ",
        "# HELP apiserver_request_slo_duration_seconds [ALPHA] (Deprecated since 1.27.0) ",
        "# HELP apiserver_flowcontrol_request_concurrency_limit [ALPHA] (Deprecated since 1.30.0) ",
        "# HELP pilothouse_watch_lag_seconds The ",
    ] {
        assert!(page.contains(help), "{help} in\n{page}");
    }
    assert!(!page.contains("apiserver_watch_events_total") && !page.contains("kubernetes_feature_enabled"));
    let of_maps = |verb: &'static str| [r#"resource="configmaps""#, verb];
    assert_eq!(series_value(&page, "apiserver_request_total", &of_maps(r#"verb="GET""#)), 1.0);
    // A list and a creation differ in their codes.
    let others = page.lines().filter(|line| {
        line.starts_with("apiserver_request_total{")
            && of_maps(r#"verb="unexpected""#).iter().all(|label| line.contains(label))
    });
    assert_eq!(others.count(), 2, "{page}");
    assert!(series_value(&page, "registered_metrics_total", &[r#"stability_level="STABLE""#]) >= 10.0);
    assert_eq!(series_value(&page, "disabled_metrics_total", &[]), 2.0);
    assert_eq!(series_value(&page, "hidden_metrics_total", &[]), 0.0);

    let shown = metrics_page(&mut Server::with_flags(&["--engine=memory"]).admin());
    assert!(shown.contains("kubernetes_feature_enabled{") && !shown.contains("slo_duration"), "{shown}");
    assert_eq!(series_value(&shown, "hidden_metrics_total", &[]), 6.0);
}
