//! Deletion of namespaces with aggregated objects.

use super::*;

/// Handles a request as a server that stores objects in namespaces.
fn serve_stored(stored: &Lock<BTreeSet<String>>, state: u8, request: &ReceivedRequest, wire: &mut Wire) {
    const GROUP: &str = "/apis/keep.io/v1";
    let json = |wire: &mut Wire, body: &Value| {
        wire.respond("200 OK", "Content-Type: application/json\r\n", body.to_string().as_bytes());
    };
    if state == BROKEN {
        return wire.respond("503 Service Unavailable", "", b"broken");
    }
    let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    wire.read_bytes(length).unwrap();
    let mut stored = stored.lock();
    match (request.method.as_str(), request.path()) {
        ("GET", GROUP) => json(
            wire,
            &json!({"kind": "APIResourceList", "groupVersion": "keep.io/v1", "resources": [
                {"name": "things", "namespaced": true, "kind": "Thing", "verbs": ["list", "delete"]},
                {"name": "lots", "namespaced": true, "kind": "Lot", "verbs": ["list", "delete", "deletecollection"]},
                {"name": "shown", "namespaced": true, "kind": "Shown", "verbs": ["list"]},
            ]}),
        ),
        ("GET", path) if path.starts_with(&format!("{GROUP}/namespaces/")) => {
            let names = stored.iter().filter_map(|known| known.strip_prefix(&format!("{path}/")));
            let items: Vec<Value> = names.map(|name| json!({"metadata": {"name": name}})).collect();
            json(wire, &json!({"kind": "List", "metadata": {}, "items": items}));
        }
        ("DELETE", path) => {
            stored.retain(|known| known != path && !known.starts_with(&format!("{path}/")));
            json(wire, &json!({"kind": "Status", "status": "Success"}));
        }
        _ => wire.respond("404 Not Found", "", b"nothing"),
    }
}

#[test]
fn namespace_deletion_deletes_aggregated_objects() {
    let stored = Arc::<Lock<BTreeSet<String>>>::default();
    let handler_state = stored.clone();
    let mut fixture = Fixture::with_handler("--controllers=namespace", move |state, request, wire| {
        serve_stored(&handler_state, state, request, wire);
    });
    fixture.register("keep.io", "v1", &json!({}));
    fixture.wait_for("v1.keep.io", "Passed");
    let store = |namespace: &str| {
        for name in ["things/a", "things/b", "lots/c"] {
            stored.lock().insert(format!("/apis/keep.io/v1/namespaces/{namespace}/{name}"));
        }
    };
    let create_namespace = |fixture: &mut Fixture, name: &str| {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        fixture.admin.post("/api/v1/namespaces", &namespace).ok();
        store(name);
    };
    let wait_until_gone = |fixture: &mut Fixture, name: &str| {
        let path = format!("/api/v1/namespaces/{name}");
        let deleted = poll(LONG, || (fixture.admin.get(&path).status == 404).then_some(()));
        deleted.unwrap_or_else(|| panic!("{}", fixture.admin.get(&path).text()));
    };
    create_namespace(&mut fixture, "going");
    create_namespace(&mut fixture, "staying");
    fixture.admin.delete("/api/v1/namespaces/going").ok();
    wait_until_gone(&mut fixture, "going");
    assert_eq!(stored.lock().len(), 3, "those of others stay");
    assert!(stored.lock().iter().all(|known| known.contains("/staying/")));
    let deletions: Vec<ReceivedRequest> =
        fixture.extension.requests().into_iter().filter(|request| request.method == "DELETE").collect();
    let account = "system:serviceaccount:kube-system:namespace-controller";
    assert!(
        deletions.iter().all(|request| request.header("x-remote-user") == Some(account)),
        "{deletions:?}"
    );
    // More than one, if the controller had to try again.
    assert!(deletions.iter().any(|request| request.path().ends_with("/lots")), "{deletions:?}");
    assert!(!deletions.iter().any(|request| request.path().contains("/shown")), "{deletions:?}");

    // While discovery fails, the namespace may have unknown contents.
    fixture.set_state(BROKEN, "v1.keep.io");
    let stale = poll(TIMEOUT, || {
        (fixture.aggregated_discovery("keep.io")["versions"][0]["freshness"] == "Stale").then_some(())
    });
    assert!(stale.is_some());
    fixture.admin.delete("/api/v1/namespaces/staying").ok();
    let condition = poll(TIMEOUT, || {
        let namespace = fixture.admin.get("/api/v1/namespaces/staying").json();
        let first = namespace["status"]["conditions"][0].clone();
        (first["reason"] == "DiscoveryFailed").then_some(first)
    });
    assert_eq!(
        condition.expect("a condition")["message"],
        "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: keep.io/v1: \
         stale GroupVersion discovery: keep.io/v1"
    );
    fixture.set_state(HEALTHY, "v1.keep.io");
    wait_until_gone(&mut fixture, "staying");
    assert!(stored.lock().is_empty());
}
