//! Proxies to nodes, pods and services.

use super::*;

/// Runs a test again in its own network namespace, where a global unicast address belongs to this host. Returns whether this is
/// that run. `path` is the path of the test, as from another crate.
fn in_own_network(path: &str) -> bool {
    const MARK: &str = "PILOTHOUSE_TEST_NETWORK";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let (_, test) = path.split_once("::").unwrap();
    let script = "ip link set lo up && ip addr add 192.0.2.7/32 dev lo && \
        exec \"$0\" --exact \"$1\" --include-ignored --nocapture";
    let status = Command::new("unshare")
        .args(["-rn", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(MARK, "1")
        .status()
        .expect("unshare creates a network namespace");
    assert!(status.success(), "{test} failed in its own network");
    false
}

const BACKEND_ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));

/// A server, and a pod with a service at an address that proxies may connect to.
fn start_proxied_backend(
    handler: impl Fn(&ReceivedRequest, &mut Wire) + Send + Sync + 'static,
) -> (Fixture, Kubelet) {
    let handler: Arc<RequestHandler> = Arc::new(handler);
    let same = Arc::clone(&handler);
    let mut fixture =
        Fixture::with_kubelet_at(BACKEND_ADDRESS, &[], move |request, wire| same(request, wire));
    let web = Kubelet::plain(BACKEND_ADDRESS, move |request, wire| handler(request, wire));
    let admin = &mut fixture.admin;
    let port = web.address.port();
    let status = json!({"status": {"podIP": "192.0.2.7", "podIPs": [{"ip": "192.0.2.7"}]}});
    admin.patch(&format!("{POD}/status"), "merge", &status).ok();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"name": "web", "port": 80}]}});
    admin.post("/api/v1/namespaces/default/services", &service).ok();
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "s"}, "subsets": [{
        "addresses": [{"ip": "192.0.2.7", "targetRef": {"kind": "Pod", "namespace": "default", "name": "p"}},
            {"ip": "192.0.2.9"}],
        "ports": [{"name": "web", "port": port}],
    }]});
    admin.post("/api/v1/namespaces/default/endpoints", &endpoints).ok();
    (fixture, web)
}

#[test]
#[cfg_attr(not(has_network_namespaces), ignore = "needs a network namespace (unshare -rn ip link)")]
fn proxy_forwards_path_query_and_headers() {
    if !in_own_network(concat!(module_path!(), "::proxy_forwards_path_query_and_headers")) {
        return;
    }
    let (mut fixture, web) = start_proxied_backend(|request, wire| match request.path() {
        "/moved" => wire.respond("302 Found", "Location: /to/here?x=1\r\n", b""),
        "/page" => {
            wire.respond("200 OK", "Content-Type: text/html\r\n", b"<a href=\"/x\">x</a><a href=\"y\">");
        }
        "/broken" => {}
        _ => wire.respond("418 Teapot", "X-From: there\r\nConnection: X-Hop\r\nX-Hop: 1\r\n", b"tea"),
    });
    let port = web.address.port();
    let admin = &mut fixture.admin;
    let headers = [
        ("X-Kept", "1"),
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
        ("Impersonate-User", "root"),
        ("Impersonate-Group", "system:masters"),
    ];
    let by_pod = format!("/api/v1/namespaces/default/pods/p:{port}/proxy");
    let response = admin.request("GET", &format!("{by_pod}/a%20b/../c//d/?q=%2F&r"), &headers, b"");
    assert_eq!((response.status, response.text().as_str()), (418, "tea"));
    assert_eq!((response.header("x-from"), response.header("x-hop")), (Some("there"), None));
    let request = web.last_request();
    assert_eq!((request.method.as_str(), request.target.as_str()), ("GET", "/c/d/?q=%2F&r"));
    assert_eq!((request.header("x-kept"), request.header("x-hop")), (Some("1"), None));
    assert_eq!((request.header("authorization"), request.header("impersonate-user")), (None, None));
    assert_eq!(request.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(request.header("x-forwarded-uri"), Some(format!("{by_pod}/c/d/").as_str()));
    for service in ["s:web", "s:80", "http:s:80"] {
        let path = format!("/api/v1/namespaces/default/services/{service}/proxy/via/service");
        assert_eq!(admin.request("DELETE", &path, &[], b"").status, 418, "{service}");
        assert_eq!(
            (web.last_request().method.as_str(), web.last_request().path()),
            ("DELETE", "/via/service")
        );
    }
    let services = "/api/v1/namespaces/default/services";
    let status = admin.get(&format!("{services}/s:81/proxy/")).expect_error(503, "ServiceUnavailable");
    assert_eq!(status["message"], "no service port 81 found for service \"s\"");
    let status = admin.get(&format!("{services}/s:other/proxy/")).expect_error(503, "ServiceUnavailable");
    assert_eq!(status["message"], "no endpoints available for service \"s:other\"");
    admin.get(&format!("{services}/none/proxy/")).expect_error(404, "NotFound");
    let response = admin.get("/api/v1/nodes/n1/proxy/stats");
    assert_eq!((response.status, fixture.kubelet.last_request().path()), (418, "/stats"));
    assert_eq!(fixture.kubelet.last_request().client.as_deref(), Some("the-server"));
    check_rewritten_links(&mut fixture, &by_pod);
    let admin = &mut fixture.admin;
    let response = admin.request("HEAD", &format!("{by_pod}/head"), &[], b"");
    assert_eq!((response.status, response.header("content-length")), (418, Some("3")));
    assert_eq!(admin.request("OPTIONS", &format!("{by_pod}/options"), &[], b"").status, 418);
    let status = admin.get(&format!("{by_pod}/broken")).expect_error(503, "ServiceUnavailable");
    assert_eq!(status["message"], "error trying to reach service: EOF");
    let status =
        admin.get("/api/v1/namespaces/default/pods/p:1/proxy/").expect_error(503, "ServiceUnavailable");
    let expected = "error trying to reach service: dial tcp 192.0.2.7:1: connect: connection refused";
    assert_eq!(status["message"], expected);
    fixture.server.assert_healthy();
}

/// Checks redirects and HTML links, which are rewritten to the path of the proxy.
fn check_rewritten_links(fixture: &mut Fixture, by_pod: &str) {
    let admin = &mut fixture.admin;
    let response = admin.get(&format!("{by_pod}?x=1"));
    assert_eq!(
        (response.status, response.header("location")),
        (301, Some(format!("{by_pod}/?x=1").as_str()))
    );
    let response = admin.get(&format!("{by_pod}/moved"));
    assert_eq!(
        (response.status, response.header("location")),
        (302, Some(format!("{by_pod}/to/here?x=1").as_str()))
    );
    let page = admin.get(&format!("{by_pod}/page")).text();
    assert_eq!(page, format!("<a href=\"{by_pod}/x\">x</a><a href=\"y\">"));
    let (is_ok, stdout, stderr) = run_kubectl(fixture, &["get", "--raw", &format!("{by_pod}/page")]);
    assert!(is_ok && stdout == page, "{stdout} {stderr}");
}

#[test]
#[cfg_attr(not(has_network_namespaces), ignore = "needs a network namespace (unshare -rn ip link)")]
fn proxy_forwards_large_bodies_and_upgrades() {
    if !in_own_network(concat!(module_path!(), "::proxy_forwards_large_bodies_and_upgrades")) {
        return;
    }
    let (mut fixture, web) = start_proxied_backend(|request, wire| {
        if request.header("upgrade").is_some() {
            wire.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n")
                .unwrap();
            let bytes = wire.read_bytes(2).unwrap();
            return wire.send(&bytes).unwrap();
        }
        let length: usize = request.header("content-length").unwrap().parse().unwrap();
        let body = wire.read_bytes(length).unwrap();
        wire.respond("200 OK", "", &body);
    });
    let path = format!("/api/v1/namespaces/default/pods/p:{}/proxy/echo", web.address.port());
    let body: Vec<u8> = (0..20 << 20).map(|index: usize| (index % 251) as u8).collect();
    let response = fixture.admin.request("PUT", &path, &[], &body);
    assert_eq!(response.status, 200);
    assert!(response.body == body, "20 MiB came back as they went");
    let mut connection = fixture.admin.raw();
    let headers = [("Connection", "Upgrade"), ("Upgrade", "chat")];
    let head = fixture.admin.head("GET", &format!("{path}?q=1"), &headers);
    connection.send(format!("{head}\r\n").as_bytes()).unwrap();
    let deadline = Deadline::after(TIMEOUT);
    assert_eq!(connection.head(deadline).unwrap().status, 101);
    connection.send(b"hi").unwrap();
    assert_eq!(connection.read_to_end(deadline).unwrap(), b"hi");
    assert_eq!(web.last_request().target, "/echo?q=1");
    fixture.server.assert_healthy();
}
