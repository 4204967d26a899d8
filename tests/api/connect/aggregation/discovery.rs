//! Availability, discovery, OpenAPI and registration of aggregated API servers.

use super::*;

#[test]
fn aggregated_openapi_v2_is_merged() {
    let mut fixture = Fixture::new();
    let own_document = fixture.admin.get("/openapi/v2").ok();
    fixture.register("metrics.k8s.io", "v1beta1", &json!({}));
    let nodes = format!("{METRICS}/nodes");
    let merged = poll(TIMEOUT, || {
        Some(fixture.admin.get("/openapi/v2").ok()).filter(|merged| !merged["paths"][&nodes].is_null())
    });
    let merged = merged.expect("theirs has joined");
    let responses = &merged["paths"][&nodes]["get"]["responses"];
    assert_eq!(responses["200"]["schema"]["$ref"], "#/definitions/io.k8s.metrics.NodeMetrics");
    let schema = &merged["definitions"]["io.k8s.metrics.NodeMetrics"];
    assert_eq!(schema["properties"]["meta"]["$ref"], "#/definitions/io.k8s.api.core.v1.Pod_v2");
    assert_eq!(merged["definitions"]["io.k8s.api.core.v1.Pod_v2"]["type"], "string");
    assert_eq!(
        merged["definitions"]["io.k8s.api.core.v1.Pod"],
        own_document["definitions"]["io.k8s.api.core.v1.Pod"]
    );
    assert_eq!(
        (&merged["paths"]["/api/v1/pods"], &merged["info"]),
        (&own_document["paths"]["/api/v1/pods"], &own_document["info"])
    );
    assert!(merged["definitions"]["Unused"].is_null());
    assert_eq!(
        merged["paths"].as_object().unwrap().len(),
        own_document["paths"].as_object().unwrap().len() + 1
    );
    let binary = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    let response = fixture.admin.request("GET", "/openapi/v2", &[("Accept", binary)], b"");
    assert!(response.status == 200 && response.text().contains("what a node uses"));
    fixture.admin.delete(&format!("{REGISTRATIONS}/v1beta1.metrics.k8s.io")).ok();
    assert_eq!(fixture.admin.get("/openapi/v2").ok(), own_document, "it goes with the registration");
}

#[test]
fn apiservice_condition_reports_availability() {
    let mut fixture = Fixture::new();
    let cluster = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "inside"},
        "spec": {"ports": [{"name": "a", "port": 443}]}});
    fixture.admin.post("/api/v1/namespaces/default/services", &cluster).ok();
    let service =
        |name: &str, port: u16| json!({"service": {"namespace": "default", "name": name, "port": port}});
    fixture.register("a.io", "v1", &service("nowhere", 443));
    fixture.register("b.io", "v1", &service("inside", 444));
    fixture.register("c.io", "v1", &service("inside", 443));
    fixture.register("d.io", "v1", &service("metrics", 1));
    for (name, reason, message) in [
        ("v1.a.io", "ServiceNotFound", "service/nowhere in \"default\" is not present"),
        ("v1.b.io", "ServicePortError", "service/inside in \"default\" is not listening on port 444"),
        ("v1.c.io", "EndpointsNotFound", "cannot find endpoints for service/inside in \"default\""),
    ] {
        assert_eq!(fixture.wait_for(name, reason), message);
    }
    let condition_message = fixture.wait_for("v1.d.io", "FailedDiscoveryCheck");
    assert!(
        condition_message
            .starts_with("failing or missing response from https://localhost:1/apis/d.io/v1: Get "),
        "{condition_message}"
    );
    let response = fixture.admin.get("/apis/a.io/v1/things");
    assert_eq!((response.status, response.text().as_str()), (503, "service unavailable\n"));
    assert_eq!(response.header("content-type"), Some("text/plain; charset=utf-8"));

    // Changes of services and endpoints update the condition.
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "inside"},
        "subsets": [{"addresses": [{"ip": "10.0.0.9"}], "ports": [{"name": "b", "port": 1}]}]});
    fixture.admin.post("/api/v1/namespaces/default/endpoints", &endpoints).ok();
    let condition_message = fixture.wait_for("v1.c.io", "MissingEndpoints");
    assert_eq!(
        condition_message,
        "endpoints for service/inside in \"default\" have no addresses with port name \"a\""
    );
    let new_service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "nowhere"},
        "spec": {"ports": [{"port": 80}]}});
    fixture.admin.post("/api/v1/namespaces/default/services", &new_service).ok();
    fixture.wait_for("v1.a.io", "ServicePortError");

    let page = fixture.admin.get("/metrics").text();
    for line in [
        "aggregator_unavailable_apiservice{name=\"v1.a.io\"} 1",
        "aggregator_unavailable_apiservice{name=\"v1.apps\"} 0",
    ] {
        assert!(page.contains(line), "{line}");
    }
    fixture.admin.delete(&format!("{REGISTRATIONS}/v1.a.io")).ok();
    assert_eq!(fixture.admin.get("/apis/a.io/v1/things").status, 404, "with the next request");
}

#[test]
fn failing_extension_server_is_stale_in_discovery_until_it_recovers() {
    let mut fixture = Fixture::new();
    let name = "v1beta1.metrics.k8s.io";
    fixture.register("metrics.k8s.io", "v1beta1", &json!({}));
    fixture.wait_for(name, "Passed");
    let wait_for_freshness = |fixture: &mut Fixture, expected: &str, resources: usize| {
        let reached = poll(TIMEOUT, || {
            let version = fixture.aggregated_discovery("metrics.k8s.io")["versions"][0].clone();
            let resource_count = version["resources"].as_array().map_or(0, Vec::len);
            (version["freshness"] == expected && resource_count == resources).then_some(())
        });
        reached.unwrap_or_else(|| panic!("{}", fixture.aggregated_discovery("metrics.k8s.io")));
    };
    wait_for_freshness(&mut fixture, "Current", 1);
    let groups = fixture.admin.get("/apis").ok();
    let last = groups["groups"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["preferredVersion"]["groupVersion"], "metrics.k8s.io/v1beta1", "by its priority");
    let group = fixture.admin.get("/apis/metrics.k8s.io").ok();
    assert_eq!((&group["kind"], &group["versions"][0]["version"]), (&json!("APIGroup"), &json!("v1beta1")));
    let list = fixture.admin.get(METRICS).ok();
    assert_eq!(list["resources"][1]["name"], "pods", "from the server itself");
    let index = poll(TIMEOUT, || {
        let index = fixture.admin.get("/openapi/v3").json();
        index["paths"].get("apis/metrics.k8s.io/v1beta1").is_some().then_some(index)
    });
    assert!(index.unwrap()["paths"].get("api/v1").is_some());
    assert_eq!(fixture.admin.get("/openapi/v3/apis/metrics.k8s.io/v1beta1").ok()["openapi"], "3.0.0");

    // Unchanged discovery is revalidated and kept.
    fixture.touch(name);
    let was_revalidated = || {
        let is_conditional = |request: &ReceivedRequest| {
            request.path() == "/apis" && request.header("if-none-match").is_some()
        };
        fixture.extension.requests().iter().any(is_conditional).then_some(())
    };
    assert!(poll(TIMEOUT, was_revalidated).is_some());
    wait_for_freshness(&mut fixture, "Current", 1);

    fixture.set_state(WITHOUT_AGGREGATED_DISCOVERY, name);
    wait_for_freshness(&mut fixture, "Current", 2);
    fixture.set_state(BROKEN, name);
    let reason = fixture.wait_for(name, "FailedDiscoveryCheck");
    assert!(reason.ends_with("/apis/metrics.k8s.io/v1beta1: 500"), "{reason}");
    wait_for_freshness(&mut fixture, "Stale", 0);
    assert_eq!(fixture.admin.get(METRICS).text(), "service unavailable\n");
    assert_eq!(fixture.admin.get("/apis/metrics.k8s.io").status, 200, "it is still registered");
    // Other requests are not affected.
    fixture.admin.get("/api/v1/nodes").ok();
    let page = fixture.admin.get("/metrics").text();
    let counted = format!(
        "aggregator_unavailable_apiservice_total{{name=\"{name}\",reason=\"FailedDiscoveryCheck\"}} 1"
    );
    assert!(page.contains(&counted));
    fixture.set_state(HEALTHY, name);
    fixture.wait_for(name, "Passed");
    wait_for_freshness(&mut fixture, "Current", 1);
    fixture.admin.get(&format!("{METRICS}/nodes")).ok();
    fixture.admin.delete(&format!("{REGISTRATIONS}/{name}")).ok();
    assert_eq!(fixture.aggregated_discovery("metrics.k8s.io"), Value::Null);
    assert_eq!(fixture.admin.get("/apis/metrics.k8s.io").status, 404);
}

#[test]
fn local_apiservices_are_reconciled() {
    let mut fixture = Fixture::new();
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.x.io"}, "spec": {"group": "x.io", "scope": "Namespaced",
            "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    fixture.admin.post(definitions, &definition).ok();
    let path = format!("{REGISTRATIONS}/v1.x.io");
    let wait_for_registration = |fixture: &mut Fixture| {
        poll(TIMEOUT, || Some(fixture.admin.get(&path)).filter(|response| response.status == 200))
    };
    let first = wait_for_registration(&mut fixture).expect("it is registered").json();
    assert_eq!(first["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"], "true");
    fixture.admin.delete(&path).ok();
    let second = wait_for_registration(&mut fixture).expect("it comes back").json();
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    fixture.admin.patch(&path, "merge", &json!({"spec": {"versionPriority": 3}})).ok();
    let restored =
        poll(TIMEOUT, || (fixture.admin.get(&path).ok()["spec"]["versionPriority"] == 100).then_some(()));
    assert!(restored.is_some(), "the priority is restored");
    fixture.admin.delete(&format!("{definitions}/foos.x.io")).ok();
    assert!(
        poll(TIMEOUT, || (fixture.admin.get(&path).status == 404).then_some(())).is_some(),
        "it goes with its definition"
    );

    // An automanaged APIService without a CRD is deleted, and a built-in one cannot be redirected.
    let foreign = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.y.io",
        "labels": {"kube-aggregator.kubernetes.io/automanaged": "true"}},
        "spec": {"group": "y.io", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100}});
    fixture.admin.post(REGISTRATIONS, &foreign).ok();
    let is_deleted = || (fixture.admin.get(&format!("{REGISTRATIONS}/v1.y.io")).status == 404).then_some(());
    assert!(poll(TIMEOUT, is_deleted).is_some());
    let service = json!({"spec": {"service": {"namespace": "default", "name": "metrics"}}});
    fixture.admin.patch(&format!("{REGISTRATIONS}/v1.apps"), "merge", &service).ok();
    fixture.admin.get("/apis/apps/v1/deployments").ok();
}

#[test]
fn built_in_apiservices_are_restored_on_start() {
    let data = crate::support::server::temp_directory();
    let server = Server::start_in(data.path(), &[]);
    let mut admin = server.admin();
    admin.delete(&format!("{REGISTRATIONS}/v1.apps")).ok();
    admin.patch(&format!("{REGISTRATIONS}/v1.batch"), "merge", &json!({"spec": {"versionPriority": 3}})).ok();
    let foreign = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v9.apps",
        "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"}},
        "spec": {"group": "apps", "version": "v9", "groupPriorityMinimum": 100, "versionPriority": 100}});
    admin.post(REGISTRATIONS, &foreign).ok();
    assert_eq!(admin.get(&format!("{REGISTRATIONS}/v1.apps")).status, 404, "not before the next start");
    server.stop();
    let server = Server::start_in(data.path(), &[]);
    let mut admin = server.admin();
    assert_eq!(admin.get(&format!("{REGISTRATIONS}/v1.apps")).ok()["spec"]["versionPriority"], 15);
    assert_eq!(admin.get(&format!("{REGISTRATIONS}/v1.batch")).ok()["spec"]["versionPriority"], 15);
    assert_eq!(admin.get(&format!("{REGISTRATIONS}/v9.apps")).status, 404);
}
