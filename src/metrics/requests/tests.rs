use pilothouse_api::catalog::build::Builtin;
use pilothouse_api::catalog::runtime_config::RuntimeConfig;
use pilothouse_apimachinery::query::Query;
use pilothouse_types::clock::Timestamp;

use super::*;

fn scrape(paths: &[(&str, &str, u16)]) -> String {
    let metrics = Arc::new(Metrics::new(Timestamp(1_500_000)).unwrap());
    let meter = Meter::new(metrics.clone());
    let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
    for (method, path, code) in paths {
        let sample = Sample::begin(Moment::default());
        let query = Query::parse("");
        let request = Request::parse(method, path, &query).unwrap();
        let resource = match &request.target {
            Target::Resource(path_info) => catalog.resource_at(path_info),
            Target::NonResource(_) => None,
        };
        sample.note(&request, resource, RequestOptions { dry_run: false, is_apply: *method == "PATCH" });
        meter.end(&sample, Moment::default().plus(Duration::from_millis(30)), *code, Some(1_500));
    }
    metrics.count_mismatches(2);
    String::from_utf8(metrics.text().unwrap()).unwrap()
}

#[test]
fn requests_are_counted_by_verb_resource_and_code() {
    let text = scrape(&[
        ("GET", "/api/v1/namespaces/n/pods/p", 200),
        ("GET", "/api/v1/namespaces/n/pods/q", 200),
        ("GET", "/api/v1/namespaces/n/pods", 410),
        ("POST", "/api/v1/namespaces/n/pods", 201),
        ("PUT", "/apis/apps/v1/namespaces/n/deployments/d/status", 200),
        ("GET", "/api/v1/namespaces/n/endpoints/e", 200),
        ("GET", "/livez/ping", 200),
        ("GET", "/apis", 200),
        ("GET", "/openapi/v3/api/v1", 200),
        ("PATCH", "/api/v1/namespaces/n/pods/p", 200),
        ("DELETE", "/api/v1/namespaces/n/pods", 200),
    ]);
    let expected = [
        r#"subresource="apis",verb="GET""#,
        r#"subresource="openapi/v3",verb="GET""#,
        r#"scope="resource",subresource="",verb="APPLY""#,
        r#"scope="namespace",subresource="",verb="DELETE""#,
        r#"apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 2"#,
        r#"apiserver_request_total{code="410",component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1"#,
        r#"apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 1"#,
        r#"group="apps",resource="deployments",scope="resource",subresource="status",verb="PUT",version="v1"} 1"#,
        r#"resource="",scope="",subresource="/livez",verb="GET",version=""} 1"#,
        r#"apiserver_requested_deprecated_apis{group="",removed_release="",resource="endpoints",subresource="",version="v1"} 1"#,
        r#"verb="GET",version="v1",le="0.05"} 2"#,
        "declarative_validation_mismatch_total 2",
        "process_start_time_seconds 1.5",
        r#"apiserver_response_sizes_bucket{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1",le="10000"} 2"#,
        r#"apiserver_request_sli_duration_seconds_count{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 1"#,
    ];
    for expected in expected {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

#[test]
fn ended_and_abandoned_requests_have_counters_of_their_own() {
    let metrics = Arc::new(Metrics::new(Timestamp(0)).unwrap());
    let meter = Meter::new(metrics.clone());
    let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
    let sample = || {
        let query = Query::parse("");
        let request = Request::parse("GET", "/api/v1/namespaces/n/pods", &query).unwrap();
        let Target::Resource(path_info) = &request.target else { panic!() };
        let sample = Sample::begin(Moment::default());
        sample.note(&request, catalog.resource_at(path_info), RequestOptions::default());
        sample
    };
    let terminated = sample();
    terminated.terminate();
    terminated.exclude(Duration::from_secs(2));
    meter.end(&terminated, Moment::default().plus(Duration::from_secs(3)), 429, Some(10));
    meter.abort(&sample());
    metrics.requests.note_filter(Filter::Queue, Duration::from_secs(2));
    let text = String::from_utf8(metrics.text().unwrap()).unwrap();
    let class = r#"group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1""#;
    for expected in [
        format!(r#"apiserver_request_terminations_total{{code="429",component="apiserver",{class}}} 1"#),
        format!(r#"apiserver_request_aborts_total{{{class}}} 1"#),
        format!(r#"apiserver_request_sli_duration_seconds_sum{{component="apiserver",{class}}} 1"#),
        format!(r#"apiserver_request_duration_seconds_sum{{component="apiserver",dry_run="",{class}}} 3"#),
        r#"apiserver_request_filter_duration_seconds_count{filter="priorityandfairness"} 1"#.to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected}\n{text}");
    }
    assert!(!text.contains(r#"apiserver_request_total{code="200""#), "{text}");
}

#[test]
fn unauthorized_requests_are_not_counted() {
    let metrics = Arc::new(Metrics::new(Timestamp(0)).unwrap());
    let meter = Meter::new(metrics.clone());
    meter.end(&Sample::begin(Moment::default()), Moment::default().plus(Duration::from_micros(1)), 401, None);
    let sample = Sample::begin(Moment::default());
    sample.note(
        &Request::parse("GET", "/version", &Query::parse("")).unwrap(),
        None,
        RequestOptions::default(),
    );
    sample.forget();
    meter.end(&sample, Moment::default().plus(Duration::from_micros(1)), 403, None);
    let text = String::from_utf8(metrics.text().unwrap()).unwrap();
    assert!(!text.contains("apiserver_request_total{"), "{text}");
}

#[test]
fn unknown_resources_and_paths_add_no_series() {
    let text = scrape(&[
        ("GET", "/apis/made.up/v1/namespaces/n/things/t", 404),
        ("GET", "/apis/made.up/v1/namespaces/n/others/t", 404),
        ("GET", "/api/v1/namespaces/n/pods/p/nothing", 404),
        ("GET", "/some/page", 404),
    ]);
    assert!(!text.contains("made.up") && !text.contains("things") && !text.contains("nothing"), "{text}");
    let lines = text.lines().filter(|line| line.starts_with("apiserver_request_total{"));
    assert_eq!(lines.count(), 2, "{text}");
}
