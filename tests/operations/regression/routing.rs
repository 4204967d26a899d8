//! Routing, negotiation, discovery and refusals.

use super::*;

/// A path that was authorized in one namespace and served from another.
#[test]
fn namespaces_are_not_served_below_a_namespace() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}});
    client.get("/api/v1/namespaces/default/namespaces").expect_error(404, "NotFound");
    client.get("/api/v1/namespaces/default/namespaces/kube-system").expect_error(404, "NotFound");
    client.delete("/api/v1/namespaces/default/namespaces/kube-node-lease").expect_error(404, "NotFound");
    client.get("/api/v1/namespaces/default/namespaces/default").expect_error(404, "NotFound");
    client.get("/api/v1/namespaces/default/namespaces/default/status").expect_error(404, "NotFound");
    client.post("/api/v1/namespaces/default/namespaces", &object).expect_error(404, "NotFound");
    client.get("/api/v1/namespaces/default").ok();
}

/// The old watch prefix turned any method into a watch.
#[test]
fn watch_prefix_accepts_only_get() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    for method in ["DELETE", "POST", "PUT"] {
        client.request(method, "/api/v1/watch/namespaces", &[], b"").expect_error(405, "MethodNotAllowed");
    }
}

/// A list of one name told of a next chunk, and a token that said where to go on by a key alone was refused.
#[test]
fn list_continues_from_any_key() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    for name in ["a", "b", "c"] {
        client.post(MAPS, &json!({"metadata": {"name": name}})).ok();
    }
    let filtered = client.get(&format!("{MAPS}?limit=1&fieldSelector=metadata.name%3Db")).ok();
    assert_eq!(
        (filtered["items"].as_array().map(Vec::len), &filtered["metadata"]["continue"]),
        (Some(1), &Value::Null)
    );
    // {"v":"meta.k8s.io/v1","rv":-1,"start":"b"}
    let token = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiYiJ9";
    let rest = client.get(&format!("{MAPS}?continue={token}")).ok();
    assert_eq!(
        (&rest["items"][0]["metadata"]["name"], rest["items"].as_array().map(Vec::len)),
        (&json!("b"), Some(2))
    );
    let first = client.get("/api/v1/configmaps?limit=1&fieldSelector=metadata.namespace%3Ddefault").ok();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let path = "/api/v1/configmaps?fieldSelector=metadata.namespace%3Ddefault";
    let second = client.get(&format!("{path}&limit=1&continue={token}")).ok();
    assert_eq!(second["items"][0]["metadata"]["name"], "b");
}

/// An unacceptable representation was refused before a missing object.
#[test]
fn missing_object_is_not_found_before_not_acceptable() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    client.post(MAPS, &json!({"metadata": {"name": "a"}})).ok();
    let accept = [("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")];
    client.request("GET", &format!("{MAPS}/none"), &accept, b"").expect_error(404, "NotFound");
    client.request("GET", &format!("{MAPS}/a"), &accept, b"").expect_error(406, "NotAcceptable");
    let deleted = client.request("DELETE", &format!("{MAPS}/a"), &accept, b"").ok();
    assert_eq!(deleted["status"], "Success");
}

/// A watch of an unwatchable collection was refused as an unsupported method of the path.
#[test]
fn watch_of_unwatchable_resource_is_method_not_allowed() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let response = client.get("/api/v1/componentstatuses?watch=1");
    assert_eq!(response.header("warning"), Some("299 - \"v1 ComponentStatus is deprecated in v1.19+\""));
    let status = response.expect_error(405, "MethodNotAllowed");
    assert_eq!(status["message"], "watch is not supported on resources of kind \"componentstatuses\"");
    assert_eq!(status["details"], json!({"kind": "componentstatuses"}));
    client.get("/api/v1/watch/componentstatuses").expect_error(404, "NotFound");
    client.get("/api/v1/watch/namespaces/default/pods/x/log").expect_error(404, "NotFound");
}

/// Aggregated discovery was served at a path where the reference does not, and not served with a lower quality.
#[test]
fn aggregated_discovery_is_negotiated_like_reference() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let mut get = |path: &str, accept: &str| client.request("GET", path, &[("Accept", accept)], b"");
    let preferring = format!("application/json,{aggregated};q=0.1");
    assert_eq!(get("/apis", &preferring).json()["kind"], "APIGroupDiscoveryList");
    get("/apis/", aggregated).expect_error(406, "NotAcceptable");
    assert_eq!(get("/apis/", &format!("{aggregated},application/json")).json()["kind"], "APIGroupList");
}

/// The beta version of aggregated discovery was never served.
#[test]
fn beta_version_of_aggregated_discovery_is_served_unless_it_is_removed() {
    let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    for (gate, is_served) in [("true", false), ("false", true)] {
        let gate = format!("--feature-gates=AggregatedDiscoveryRemoveBetaType={gate}");
        let server = Server::with_flags(&["--engine=memory", &gate]);
        let mut client = server.admin();
        let mut get = |path: &str, accept: &str| client.request("GET", path, &[("Accept", accept)], b"");
        for path in ["/api", "/apis"] {
            let response = get(path, &format!("{beta},application/json"));
            assert_eq!(response.json()["kind"] == "APIGroupDiscoveryList", is_served, "{path}");
            if !is_served {
                get(path, beta).expect_error(406, "NotAcceptable");
                continue;
            }
            assert_eq!(response.header("content-type"), Some(beta));
            let mut document = response.json();
            assert_eq!(document["apiVersion"], "apidiscovery.k8s.io/v2beta1");
            let stable = get(path, &beta.replace("v2beta1", "v2"));
            assert_eq!(response.header("etag"), stable.header("etag"));
            document["apiVersion"] = "apidiscovery.k8s.io/v2".into();
            assert_eq!(document, stable.json());
            let binary = get(path, &beta.replace("application/json", "application/vnd.kubernetes.protobuf"));
            assert!(binary.status == 200 && binary.text().contains("apidiscovery.k8s.io/v2beta1"), "{path}");
        }
    }
}

/// Health checks of the reference were missing.
#[test]
fn health_checks_have_reference_names() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    for path in ["/livez/poststarthook/rbac/bootstrap-roles", "/readyz/etcd-readiness"] {
        assert_eq!((client.get(path).status, client.get(path).text()), (200, "ok".to_owned()), "{path}");
    }
    assert_eq!(client.get("/livez/etcd-readiness").status, 404);
    // Nothing here would be behind these names.
    for name in ["generic-apiserver-start-informers", "storage-object-count-tracker-hook"] {
        assert_eq!(client.get(&format!("/livez/poststarthook/{name}")).status, 404, "{name}");
    }
    let text = client.get("/livez?verbose&exclude=nope&exclude=nada").text();
    assert!(text.contains("no matches for \"nada\",\"nope\"\n"), "{text}");
}

/// A write with an Upgrade header waited for ever: its body was taken as endless.
#[test]
fn write_with_upgrade_header_is_processed() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let offers = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Content-Type", "application/json")];
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}).to_string();
    assert_eq!(client.request("POST", MAPS, &offers, object.as_bytes()).status, 201);
    assert_eq!(client.request("DELETE", &format!("{MAPS}/x"), &offers, b"").status, 200);
    client.get(&format!("{MAPS}/x")).expect_error(404, "NotFound");
}

/// With the gate enabled, early refusals and group documents were sent as CBOR, and undecodable CBOR bodies had other messages than
/// the reference.
#[test]
fn cbor_is_served_only_for_objects() {
    let server = Server::with_flags(&["--engine=memory", "--feature-gates=CBORServingAndStorage=true"]);
    let mut client = server.admin();
    const CBOR: &str = "application/cbor";
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.g.example"}, "spec": {"group": "g.example", "scope": "Namespaced",
            "names": {"plural": "foos", "kind": "Foo"}, "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).ok();
    poll(TIMEOUT, || (client.get("/apis/g.example/v1").status == 200).then_some(())).unwrap();
    let mut request = |method: &str, path: &str, accept: &str| {
        let response = client.request(method, path, &[("accept", accept)], b"");
        (response.status, response.header("content-type").unwrap_or_default().to_owned(), response.text())
    };
    for path in [&format!("{MAPS}/none"), "/apis/apps/v1", "/api/v1/namespaces/default"] {
        assert_eq!(request("GET", path, CBOR).1, CBOR, "{path}");
    }
    for (method, path, code) in [
        ("GET", "/api", 406),
        ("GET", "/apis", 406),
        ("GET", "/apis/apps", 406),
        ("GET", "/apis/apiregistration.k8s.io", 406),
        ("GET", "/apis/g.example/v1", 406),
        ("GET", "/version", 406),
        ("GET", "/api/v1/none", 404),
        ("POST", "/api/v1/namespaces/default", 405),
        ("POST", "/apis/apps/v1", 405),
    ] {
        let (status, media, _) = request(method, path, CBOR);
        assert_eq!((status, &*media), (code, "application/json"), "{method} {path}");
    }
    for (path, accept) in
        [(&*format!("{MAPS}?watch=1"), "application/cbor-seq"), ("/apis/g.example/v1", "text/html")]
    {
        let (code, _, text) = request("GET", path, accept);
        assert!(code == 406 && text.contains("only the following media types are accepted"), "{text}");
    }
    let mut apply = |body: &[u8]| {
        let path = format!("{MAPS}/a?fieldManager=m");
        let response =
            client.request("PATCH", &path, &[("content-type", "application/apply-patch+cbor")], body);
        response.expect_error(400, "BadRequest")["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(apply(b"\xff"), "error decoding YAML: cbor: unexpected \"break\" code");
    let target = "into Go value of type map[string]interface {}";
    assert_eq!(apply(b"\x80"), format!("error decoding YAML: cbor: cannot unmarshal array {target}"));
    assert_eq!(
        apply(b"\x20"),
        format!("error decoding YAML: cbor: cannot unmarshal negative integer {target}")
    );
}

/// The group document of apiregistration.k8s.io accepted any method, and did not check Accept first.
#[test]
fn apiregistration_group_document_checks_method_and_accept() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let path = "/apis/apiregistration.k8s.io";
    client.get(path).ok();
    client.post(path, &json!({})).expect_error(405, "MethodNotAllowed");
    let refused =
        client.request("GET", path, &[("accept", "application/*")], b"").expect_error(406, "NotAcceptable");
    assert!(refused["message"].as_str().unwrap().starts_with("406: Not Acceptable"), "{refused}");
    client.request("POST", "/apis/apps", &[], b"").ok();
}

/// A write with an unacceptable representation was refused before its own errors.
#[test]
fn not_acceptable_is_checked_after_other_errors() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let accept_list = ("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io");
    let json = ("content-type", "application/json");
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}).to_string();
    client.request("POST", MAPS, &[accept_list, json], object.as_bytes()).expect_error(406, "NotAcceptable");
    client.get(&format!("{MAPS}/a")).ok();
    client.request("POST", MAPS, &[accept_list, json], object.as_bytes()).expect_error(409, "AlreadyExists");
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let accept_object = ("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io");
    let status = client.request("GET", events, &[accept_object], b"").expect_error(406, "NotAcceptable");
    assert!(status["message"].as_str().unwrap().ends_with("is a list (*core.EventList)"), "{status}");
    // List options are checked before the representation as well.
    let later = [("accept", "application/json;as=Table;v=v2;g=meta.k8s.io")];
    client.request("GET", MAPS, &later, b"").expect_error(406, "NotAcceptable");
    client.request("GET", &format!("{MAPS}?limit=x"), &later, b"").expect_error(400, "BadRequest");
    client.request("GET", &format!("{MAPS}?labelSelector=(("), &later, b"").expect_error(400, "BadRequest");
}

/// A request without a route had a deprecation warning.
#[test]
fn unrouted_request_has_no_deprecation_warning() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let path = "/api/v1/namespaces/default/endpoints";
    assert_eq!(client.get(path).warnings().len(), 1);
    let refused = client.request("GET", path, &[("accept", "text/html")], b"");
    refused.expect_error(406, "NotAcceptable");
    assert!(refused.warnings().is_empty());
}

/// The name of a core event was reported beside other errors, and refusals of admission had the headers of the authorizer.
#[test]
fn refusals_have_reference_causes_and_headers() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let events = "/api/v1/namespaces/default/events";
    let status = client.post(events, &json!({"metadata": {"name": "a%b"}})).expect_error(422, "Invalid");
    let causes = status["details"]["causes"].as_array().map(Vec::len);
    assert_eq!(causes, Some(1), "{status}");
    let with_object = json!({"metadata": {"name": "a%b"}, "involvedObject": {"namespace": "default"}});
    let status = client.post(events, &with_object).expect_error(422, "Invalid");
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.name");
    let status = client.get(&format!("{events}/e?resourceVersion=x")).expect_error(400, "BadRequest");
    assert!(status["message"].as_str().unwrap().starts_with("invalid resource version: "), "{status}");
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}],
        "priorityClassName": "none"}});
    let denied = client.post("/api/v1/namespaces/default/pods", &pod);
    denied.expect_error(403, "Forbidden");
    assert_eq!(denied.header("x-content-type-options"), None);
    assert_eq!(client.get("/livez/ping").header("x-content-type-options"), None);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    for (kind, reason) in
        [("Status", "converting (v1.Status) to (coordination.Lease)"), ("A\tB", "no kind \"A\\tB\" is")]
    {
        let body = json!({"apiVersion": "coordination.k8s.io/v1", "kind": kind});
        let status = client.post(leases, &body).expect_error(400, "BadRequest");
        assert!(status["message"].as_str().unwrap().contains(reason), "{status}");
    }
    let unknown = server.anonymous().get(MAPS);
    unknown.expect_error(403, "Forbidden");
    assert_eq!(unknown.header("x-content-type-options"), Some("nosniff"));
}

/// A path with an empty name before its subresource was refused as an unsupported method.
#[test]
fn path_with_empty_name_requires_name() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    for path in ["/apis/batch/v1/namespaces/default/jobs//status", "/api/v1/namespaces/default/pods//log"] {
        let status = client.get(path).expect_error(400, "BadRequest");
        assert_eq!(status["message"], "name must be provided", "{path}");
    }
    let binding_without_name = json!({"apiVersion": "v1", "kind": "Binding", "target": {"name": "n"}});
    client
        .post("/api/v1/namespaces/default/pods//binding", &binding_without_name)
        .expect_error(400, "BadRequest");
    // Trailing slashes of documents are ignored.
    for path in ["/api/v1//", "/apis/apps//", "/apis/apps/v1//", "/version//"] {
        client.get(path).ok();
    }
    let status = server.anonymous().get("/api/v1//namespaces").expect_error(403, "Forbidden");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("forbidden: User \"system:anonymous\" cannot get resource \"\""),
        "{message}"
    );
}

/// A list with an invalid continue token and a version was refused for the version.
#[test]
fn invalid_continue_token_is_reported_before_version() {
    let server = Server::with_flags(&["--engine=memory"]);
    let status =
        server.admin().get(&format!("{MAPS}?continue=x&resourceVersion=7")).expect_error(400, "BadRequest");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("invalid continue token"), "{message}");
}

/// A document that does not exist was refused for its media type.
#[test]
fn missing_openapi_document_is_not_found_for_any_accept() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let headers = [("Accept", "text/html")];
    let missing = client.request("GET", "/openapi/v3/apis/nope/v1", &headers, b"");
    assert_eq!(missing.status, 404);
    let refused = client.request("GET", "/openapi/v3/api/v1", &headers, b"");
    assert_eq!((refused.status, refused.header("vary")), (406, Some("Accept")));
}
