//! Requests to aggregated API servers: identity, streams, connections and trust.

use super::*;

#[test]
fn aggregated_request_carries_authenticated_user() {
    let mut fixture = Fixture::new();
    fixture.register("metrics.k8s.io", "v1beta1", &json!({}));
    assert_eq!(fixture.wait_for("v1beta1.metrics.k8s.io", "Passed"), "all checks passed");
    let probe = fixture.extension.requests().into_iter().find(|request| request.path() == METRICS).unwrap();
    assert_eq!(probe.header("x-remote-user"), Some("system:kube-aggregator"));

    let nodes = format!("{METRICS}/nodes");
    let headers = [("X-Remote-User", "evil"), ("X-Remote-Extra-A", "b"), ("X-Kept", "yes")];
    let response = fixture.admin.request("GET", &format!("{nodes}?limit=2"), &headers, b"");
    assert_eq!(response.ok()["items"][1]["metadata"]["name"], "n2");
    assert!(response.header("audit-id").is_some());
    let request = fixture.last_request_to(&nodes);
    assert_eq!((request.path(), request.query()), (nodes.as_str(), "limit=2"));
    assert_eq!(request.client.as_deref(), Some("front-proxy-client"), "it is shown who speaks for others");
    assert_eq!((request.header("authorization"), request.header("x-remote-extra-a")), (None, None));
    let users: Vec<_> =
        request.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("x-remote-user")).collect();
    assert!(users.len() == 1 && users[0].1 != "evil", "{users:?}");
    assert!(request.headers.iter().any(|(_, value)| value == "system:masters"), "{request:?}");
    assert_eq!((request.header("x-kept"), request.header("x-forwarded-proto")), (Some("yes"), Some("https")));
    assert_eq!(request.header("x-forwarded-uri"), Some(nodes.as_str()));
    assert_eq!(request.header("audit-id"), response.header("audit-id"));
    let host = format!("localhost:{}", fixture.extension.address.port());
    assert_eq!((request.header("host"), request.header("x-forwarded-host")), (Some(&*host), Some(&*host)));

    // The impersonated user is forwarded; the permission was checked here.
    let impersonation = [("Impersonate-User", "ann"), ("Impersonate-Group", "system:masters")];
    fixture.admin.request("GET", &nodes, &impersonation, b"").ok();
    assert_eq!(fixture.last_request_to(&nodes).header("x-remote-user"), Some("ann"));
    assert_eq!(fixture.last_request_to(&nodes).header("impersonate-user"), None);

    let echoed = fixture.admin.post(&format!("{METRICS}/namespaces/default/echo"), &json!({"a": 1}));
    assert_eq!((echoed.status, echoed.json()), (201, json!({"a": 1})));
    let missing = fixture.admin.get(&format!("{METRICS}/unknown"));
    assert_eq!((missing.status, missing.text().as_str()), (404, "nothing\n"));
    let redirect = fixture.admin.get(&format!("{METRICS}/namespaces/default/away"));
    assert_eq!((redirect.status, redirect.header("location")), (502, None));
    let dropped = fixture.admin.get(&format!("{METRICS}/namespaces/default/drop"));
    assert_eq!((dropped.status, dropped.text().as_str()), (503, "error trying to reach service: EOF\n"));

    // Unauthorized requests are not forwarded.
    let request_count = fixture.extension.requests().len();
    fixture.server.anonymous().get(&nodes).expect_error(403, "Forbidden");
    assert!(fixture.extension.requests()[request_count..].iter().all(|request| request.path() != nodes));
}

#[test]
fn aggregated_server_continues_the_trace_of_the_client() {
    let mut fixture = Fixture::new();
    fixture.register("metrics.k8s.io", "v1beta1", &json!({}));
    fixture.wait_for("v1beta1.metrics.k8s.io", "Passed");
    let (nodes, echo) = (format!("{METRICS}/nodes"), format!("{METRICS}/namespaces/default/echo"));
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [("traceparent", parent), ("Content-Type", "application/json")];
    fixture.admin.request("GET", &nodes, &headers, b"").ok();
    assert_eq!(fixture.last_request_to(&nodes).header("traceparent"), Some(parent));
    fixture.admin.request("POST", &echo, &headers, b"{}").ok();
    assert_eq!(fixture.last_request_to(&echo).header("traceparent"), Some(parent));
}

#[test]
fn aggregated_watch_and_upgrade_are_streamed() {
    let mut fixture = Fixture::new();
    fixture.register("metrics.k8s.io", "v1beta1", &json!({}));
    fixture.wait_for("v1beta1.metrics.k8s.io", "Passed");
    let mut watch = fixture.admin.watch(&format!("{METRICS}/nodes"), "");
    assert_eq!(text(&watch.next(), "/object/metadata/name"), "n1", "before the stream ends");
    drop(watch);
    let mut connection = fixture.admin.raw();
    let head = fixture.admin.head("POST", &format!("{METRICS}/namespaces/default/talk"), &SPDY);
    connection.send(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(connection.head(Deadline::after(TIMEOUT)).unwrap().status, 101);
    connection.send(b"hello").unwrap();
    assert_eq!(connection.read_bytes(5, Deadline::after(TIMEOUT)).unwrap(), b"HELLO");
    assert!(fixture.last_request_to("/talk").header("x-remote-user").is_some());
}

#[test]
fn aggregated_request_drops_client_identity_and_hop_headers() {
    let mut fixture = Fixture::new();
    fixture.register("metrics.k8s.io", "v1beta1", &json!({}));
    fixture.wait_for("v1beta1.metrics.k8s.io", "Passed");
    let nodes = format!("{METRICS}/nodes");
    let users = |request: &ReceivedRequest| {
        let headers = request.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("x-remote-user"));
        headers.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    // Headers named in Connection are hop-by-hop.
    let connection_headers =
        [("Connection", "X-Remote-User, X-Remote-Group, X-Hop"), ("X-Hop", "1"), ("X-Remote-User", "evil")];
    fixture.admin.request("GET", &nodes, &connection_headers, b"").ok();
    let request = fixture.last_request_to(&nodes);
    assert_eq!((request.header("connection"), request.header("x-hop")), (None, None));
    assert!(users(&request).len() == 1 && users(&request)[0] != "evil", "{request:?}");
    assert!(request.header("x-remote-group").is_some());
    let mut connection = fixture.admin.raw();
    let upgrade_headers =
        [("Connection", "Upgrade, X-Remote-User"), ("Upgrade", "SPDY/3.1"), ("X-Remote-User", "evil")];
    let head = fixture.admin.head("POST", &format!("{METRICS}/namespaces/default/talk"), &upgrade_headers);
    connection.send(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(connection.head(Deadline::after(TIMEOUT)).unwrap().status, 101);
    let request = fixture.last_request_to("/talk");
    assert_eq!(
        (request.header("connection"), request.header("upgrade")),
        (Some("Upgrade"), Some("SPDY/3.1"))
    );
    assert!(users(&request).len() == 1 && users(&request)[0] != "evil", "{request:?}");
    // An upgrade to h2c is not forwarded: over it a client could send any identity.
    let h2c_upgrade =
        [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")];
    fixture.server.admin().request("GET", &nodes, &h2c_upgrade, b"").ok();
    let request = fixture.last_request_to(&nodes);
    assert_eq!((request.header("upgrade"), request.header("http2-settings")), (None, None));
    // An unrequested upgrade is an error.
    let response = fixture.admin.get(&format!("{METRICS}/namespaces/default/talk"));
    assert_eq!(response.status, 503, "{}", response.text());
}

#[test]
fn extension_server_with_untrusted_certificate_is_refused() {
    let mut fixture = Fixture::new();
    let untrusted = TlsIdentity::new("somebody.else", &[]);
    let pem = STANDARD.encode(untrusted.certificate.to_pem().unwrap());
    // The availability probe does not verify the certificate; requests do.
    fixture.register("metrics.k8s.io", "v1beta1", &json!({"caBundle": pem}));
    fixture.wait_for("v1beta1.metrics.k8s.io", "Passed");
    let reason = "error trying to reach service: tls: failed to verify certificate: x509: certificate signed by unknown \
               authority\n";
    let response = fixture.admin.get(&format!("{METRICS}/nodes"));
    assert_eq!((response.status, response.text().as_str()), (503, reason));
    let trust = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    fixture.admin.patch(&format!("{REGISTRATIONS}/v1beta1.metrics.k8s.io"), "merge", &trust).ok();
    fixture.admin.get(&format!("{METRICS}/nodes")).ok();
    let nonsense = json!({"spec": {"caBundle": STANDARD.encode("nonsense"), "insecureSkipTLSVerify": false}});
    fixture.admin.patch(&format!("{REGISTRATIONS}/v1beta1.metrics.k8s.io"), "merge", &nonsense).ok();
    let response = fixture.admin.get(&format!("{METRICS}/nodes"));
    assert_eq!(
        (response.status, response.text().starts_with("unable to load root certificates")),
        (500, true)
    );
}

#[test]
fn extension_server_connection_is_reused_until_closed_or_ca_changes() {
    const NAME: &str = "v1beta1.metrics.k8s.io";
    let mut fixture = Fixture::new();
    fixture.extension.enable_keep_alive();
    fixture.register("metrics.k8s.io", "v1beta1", &json!({}));
    fixture.wait_for(NAME, "Passed");
    let (nodes, echo) = (format!("{METRICS}/nodes"), format!("{METRICS}/namespaces/default/echo"));
    let send_requests = |fixture: &mut Fixture| {
        for _ in 0..10 {
            fixture.admin.get(&nodes).ok();
            assert_eq!(fixture.admin.post(&echo, &json!({"a": 1})).status, 201);
        }
        let requests = fixture.extension.requests().into_iter().rev();
        let requests =
            requests.filter(|request| [&nodes, &echo].contains(&&request.path().to_owned())).take(20);
        requests.map(|request| request.connection).collect::<BTreeSet<usize>>()
    };
    let first = send_requests(&mut fixture);
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(send_requests(&mut fixture), first);
    // A closed connection is replaced without an error.
    fixture.extension.close_connections();
    assert_eq!(fixture.admin.post(&echo, &json!({"a": 1})).status, 201);
    fixture.extension.close_connections();
    fixture.admin.get(&nodes).ok();
    let second = send_requests(&mut fixture);
    assert!(second.len() == 1 && second.is_disjoint(&first), "{second:?}");
    // After a change of the CA bundle old connections are not reused.
    let untrusted = STANDARD.encode(TlsIdentity::new("somebody.else", &[]).certificate.to_pem().unwrap());
    for (bundle, status) in [(untrusted, 503), (fixture.authority.clone(), 200)] {
        let bundle = json!({"spec": {"caBundle": bundle}});
        fixture.admin.patch(&format!("{REGISTRATIONS}/{NAME}"), "merge", &bundle).ok();
        assert_eq!(fixture.admin.get(&nodes).status, status);
    }
    let third = send_requests(&mut fixture);
    assert!(third.len() == 1 && third.is_disjoint(&second), "{third:?}");
    // Concurrent requests do not wait for each other.
    let clients: Vec<_> = (0..20).map(|_| fixture.admin.new_connection()).collect();
    std::thread::scope(|scope| {
        for mut client in clients {
            let nodes = &nodes;
            scope.spawn(move || (0..5).for_each(|_| drop(client.get(nodes).ok())));
        }
    });
    // Connections of a deleted APIService are closed.
    fixture.admin.delete(&format!("{REGISTRATIONS}/{NAME}")).ok();
    let all_closed = poll(TIMEOUT, || (fixture.extension.open_connections() == 0).then_some(()));
    assert!(all_closed.is_some(), "{} connections are left", fixture.extension.open_connections());
}

#[test]
fn kubectl_top_nodes_reads_aggregated_metrics() {
    let mut fixture = Fixture::with_controllers("--controllers=namespace,garbagecollector");
    fixture.register("metrics.k8s.io", "v1beta1", &json!({}));
    fixture.wait_for("v1beta1.metrics.k8s.io", "Passed");
    for name in ["n1", "n2"] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"allocatable": {"cpu": "2", "memory": "2048Mi"}}});
        fixture.admin.post("/api/v1/nodes", &node).ok();
    }
    let kubectl = Kubectl::new(&fixture.server);
    let output = kubectl.run(&["top", "nodes"]);
    assert!(output.contains("n1") && output.contains("100m") && output.contains("50%"), "{output}");
    let raw = kubectl.run(&["get", "--raw", &format!("{METRICS}/nodes")]);
    assert!(raw.contains("NodeMetricsList"), "{raw}");
    // Namespaces can be deleted while the extension server is available.
    kubectl.run(&["create", "namespace", "short"]);
    kubectl.run(&["delete", "namespace", "short", "--timeout=30s"]);
    // While it fails, everything else works.
    fixture.set_state(BROKEN, "v1beta1.metrics.k8s.io");
    fixture.wait_for("v1beta1.metrics.k8s.io", "FailedDiscoveryCheck");
    assert!(kubectl.run(&["get", "nodes"]).contains("n2"));
    assert!(
        kubectl
            .run(&["get", "apiservice", "v1beta1.metrics.k8s.io"])
            .contains("False (FailedDiscoveryCheck)")
    );
}
