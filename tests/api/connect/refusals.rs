//! Connect requests that are refused, and errors of kubelet connections.

use super::*;

#[test]
fn invalid_connect_requests_do_not_reach_kubelet() {
    let mut fixture = Fixture::new(|_, wire| wire.respond("200 OK", "", b""));
    let admin = &mut fixture.admin;
    pod(admin, "two", "n1", &["a", "b"]);
    pod(admin, "nowhere", "", &["c"]);
    pod(admin, "lost", "n2", &["c"]);
    let pods = "/api/v1/namespaces/default/pods";
    for (method, path, code, reason, message) in [
        (
            "GET",
            "two/log",
            400,
            "BadRequest",
            "a container name must be specified for pod two, choose one of: [a b]",
        ),
        ("GET", "p/log?container=x", 400, "BadRequest", "container x is not valid for pod p"),
        (
            "GET",
            "p/log?tailLines=-1",
            422,
            "Invalid",
            "PodLogOptions \"p\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0",
        ),
        ("GET", "none/log", 404, "NotFound", "pods \"none\" not found"),
        ("GET", "lost/log", 404, "NotFound", "pods \"n2\" not found"),
        ("POST", "nowhere/exec?command=x", 400, "BadRequest", "pod nowhere does not have a host assigned"),
        ("POST", "nowhere/portforward", 400, "BadRequest", "pod nowhere does not have a host assigned"),
        ("POST", "p/exec?command=x", 400, "BadRequest", "Upgrade request required"),
        ("GET", "p/attach", 400, "BadRequest", "Upgrade request required"),
        (
            "POST",
            "p/portforward?ports=x",
            400,
            "BadRequest",
            "cannot convert to []int32: strconv.ParseUint: parsing \"x\": invalid syntax",
        ),
        ("POST", "p/exec?dryRun=All", 400, "BadRequest", "dryRun is not supported"),
        ("GET", "p/proxy/x", 400, "BadRequest", "address not allowed"),
        ("GET", "a:b:c:d/proxy/", 400, "BadRequest", "invalid pod request \"a:b:c:d\""),
        (
            "PUT",
            "p/exec",
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
        (
            "POST",
            "p/log",
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
    ] {
        let status = admin.request(method, &format!("{pods}/{path}"), &[], b"").expect_error(code, reason);
        assert_eq!(status["message"], message, "{path}");
    }
    assert_eq!(admin.get(&format!("{pods}/nowhere/log")).status, 204);
    let status = admin.get("/api/v1/nodes/n1/proxy/healthz").expect_error(400, "BadRequest");
    assert_eq!(status["message"], "address not allowed", "a node on the loopback");
    assert!(fixture.kubelet.requests().is_empty(), "{:?}", fixture.kubelet.requests());
}

#[test]
fn unauthorized_connect_requests_do_not_reach_kubelet() {
    let fixture = Fixture::new(|_, wire| wire.respond("200 OK", "", b""));
    let mut alice = fixture.server.anonymous().with_token(Some(crate::support::USER_TOKEN));
    for (method, path, verb) in [
        ("GET", format!("{POD}/log"), "get resource \"pods/log\""),
        ("POST", format!("{POD}/exec?command=x"), "create resource \"pods/exec\""),
        ("GET", format!("{POD}/attach"), "get resource \"pods/attach\""),
        ("POST", format!("{POD}/portforward"), "create resource \"pods/portforward\""),
        ("DELETE", format!("{POD}/proxy/x"), "delete resource \"pods/proxy\""),
        ("PUT", "/api/v1/nodes/n1/proxy/x".to_owned(), "update resource \"nodes/proxy\""),
        (
            "PATCH",
            "/api/v1/namespaces/default/services/s:80/proxy/".to_owned(),
            "patch resource \"services/proxy\"",
        ),
    ] {
        let status = alice.request(method, &path, &SPDY, b"").expect_error(403, "Forbidden");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains(&format!("cannot {verb}")), "{message}");
        alice = alice.new_connection();
    }
    assert!(fixture.kubelet.requests().is_empty());
}

#[test]
fn kubelet_connection_errors_are_distinguished() {
    let mut fixture = Fixture::with_kubelet_at(LOOPBACK, &["--kubelet-timeout=3s"], |_, wire| {
        wire.respond("200 OK", "", b"log");
    });
    let silent_listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // Bound and not listening: connections to the port are refused.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::new(LOOPBACK, 0).into()).unwrap();
    let absent = socket.local_addr().unwrap().as_socket().unwrap();
    let impostor = Kubelet::start(LOOPBACK, &TlsIdentity::new("n9", &["127.0.0.1"]), |_, wire| {
        wire.respond("200 OK", "", b"a stranger's log");
    });
    let admin = &mut fixture.admin;
    for (name, port) in [
        ("absent", absent.port()),
        ("silent", silent_listener.local_addr().unwrap().port()),
        ("stranger", impostor.address.port()),
    ] {
        node(admin, name, "127.0.0.1", port);
        pod(admin, name, name, &["c"]);
    }
    let pod_path = |name: &str| format!("/api/v1/namespaces/default/pods/{name}");
    let get_error = |admin: &mut Client, path: String| {
        let response = admin.request("GET", &path, &[], b"");
        (response.status, response.json()["message"].as_str().unwrap().to_owned())
    };
    let (code, message) = get_error(admin, format!("{}/log", pod_path("absent")));
    let port = absent.port();
    let expected = format!(
        "Get \"https://127.0.0.1:{port}/containerLogs/default/absent/c\": dial tcp 127.0.0.1:{port}: connect: connection refused"
    );
    assert_eq!((code, message), (500, expected));
    let status = admin.request("POST", &format!("{}/exec?command=x", pod_path("absent")), &SPDY, b"").json();
    let expected = format!("error dialing backend: dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!((&status["code"], &status["message"]), (&json!(500), &json!(expected)));
    let admin = &mut admin.new_connection();
    let (code, message) = get_error(admin, format!("{}/log", pod_path("silent")));
    assert!(code == 500 && message.ends_with("TLS handshake timeout"), "{code} {message}");
    let (code, message) = get_error(admin, format!("{}/log", pod_path("stranger")));
    let expected = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    assert!(code == 500 && message.ends_with(expected), "{code} {message}");
    assert!(impostor.requests().is_empty());
    let response = admin.get(&format!("{}/log?insecureSkipTLSVerifyBackend=true", pod_path("stranger")));
    assert_eq!((response.status, response.text().as_str()), (200, "a stranger's log"));
}
