//! Graceful shutdown.

use pilothouse_actors::limits::CLOSING_PAUSE;
use pilothouse_types::clock::Clock;

use super::*;

/// A request whose body is sent in two parts, with time in between.
struct SlowRequest {
    connection: Connection,
    rest: Vec<u8>,
}

impl SlowRequest {
    fn begin(client: &Client) -> SlowRequest {
        let body = map("in-flight").to_string();
        let (first, rest) = body.as_bytes().split_at(20);
        let mut connection = client.raw();
        let head = format!("{}Content-Length: {}\r\n\r\n", client.head("POST", MAPS, &JSON), body.len());
        connection.send(head.as_bytes()).expect("the head");
        connection.send(first).expect("a part of the body");
        SlowRequest { connection, rest: rest.to_vec() }
    }

    fn finish(mut self) {
        self.connection.send(&self.rest).expect("the rest of the body");
        let deadline = Deadline::after(TIMEOUT);
        let response = self.connection.head(deadline).expect("the request in flight is answered");
        assert_eq!(response.status, 201);
        self.connection.body(Connection::framing(&response, "POST"), deadline).expect("the whole answer");
    }
}

#[test]
fn shutdown_finishes_requests_and_watches() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    // Long enough for the requests below, also on a busy machine.
    let server = Server::start_in(&data, &["--shutdown-delay-duration=6s"]);
    let mut client = server.admin();
    let mut health = server.admin();
    let version = text(&client.get(MAPS).ok(), "/metadata/resourceVersion").to_owned();
    let mut watch = client.watch(MAPS, &format!("resourceVersion={version}"));
    client.post(MAPS, &map("seen")).ok();
    assert_eq!(text(&watch.next(), "/object/metadata/name"), "seen");

    let slow_request = SlowRequest::begin(&client);

    server.terminate();
    let failing = poll(TIMEOUT, || Some(health.get("/readyz")).filter(|response| response.status != 200));
    assert_eq!(failing.expect("/readyz fails while the server is stopping").status, 500);
    assert_eq!(health.get("/livez").status, 200, "the server is alive while it stops");
    client.post(MAPS, &map("late")).ok();
    assert_eq!(text(&watch.next(), "/object/metadata/name"), "late", "the watch lives through the delay");

    let last = watch.attempt(Deadline::after(TIMEOUT)).expect("the watch ends with its last chunk");
    assert_eq!(last, None);
    // One that was on its way when the socket was closed is reset.
    let is_refused = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
    let refusal = poll(TIMEOUT, || TcpStream::connect(server.address()).err().filter(is_refused));
    refusal.expect("a new client does not wait in vain");
    slow_request.finish();

    let (status, log) = server.wait_for_exit();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    let server = Server::start_in(&data, &[]);
    for name in ["seen", "late", "in-flight"] {
        server.admin().get(&format!("{MAPS}/{name}")).ok();
    }
}

#[test]
fn clients_are_told_to_go_elsewhere_until_the_last_request_is_answered() {
    let server = Server::with_flags(&["--shutdown-send-retry-after=true"]);
    let mut client = server.admin();
    let slow_request = SlowRequest::begin(&client);
    let mut watch = client.watch(MAPS, "");
    // Its body is waited for, so it is in flight.
    client.get(MAPS).ok();
    server.terminate();
    let refused = poll(TIMEOUT, || Some(server.admin().get(MAPS)).filter(|response| response.status == 429));
    let refused = refused.expect("new clients are refused");
    let headers = ["retry-after", "connection", "content-type", "x-content-type-options", "cache-control"];
    assert_eq!(
        headers.map(|name| refused.header(name)),
        [Some("5"), Some("close"), Some("text/plain; charset=utf-8"), Some("nosniff"), None]
    );
    assert!(refused.header("audit-id").is_some_and(|id| !id.is_empty()));
    assert_eq!(refused.text(), "The apiserver is shutting down, please try again later.\n");
    assert_eq!(watch.attempt(Deadline::after(TIMEOUT)).expect("it ends with its last chunk"), None);

    // Somebody may look on, and servers ask themselves.
    let mut other = server.admin();
    assert_eq!(other.get("/livez").status, 200);
    assert_eq!(other.get("/readyz").status, 500);
    assert_eq!(other.get("/metrics").status, 200);
    let agent = [("User-Agent", "kube-apiserver/v1.33.0")];
    assert_eq!(other.request("GET", MAPS, &agent, b"").status, 200);

    slow_request.finish();
    let (status, log) = server.wait_for_exit();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn watches_end_one_after_the_other() {
    let server = Server::with_flags(&["--shutdown-watch-termination-grace-period=2s", "--workers=1"]);
    let (mut client, clock) = (server.admin(), Clock::system());
    // More than end at once: 10, 10 and 5, with pauses.
    let mut watches: Vec<_> = (0..25).map(|_| client.watch(MAPS, "")).collect();
    client.post(MAPS, &map("seen")).ok();
    for watch in &mut watches {
        assert_eq!(text(&watch.next_for("seen"), "/object/metadata/name"), "seen");
    }
    let terminated = clock.moment();
    server.terminate();
    for watch in &mut watches {
        assert_eq!(watch.attempt(Deadline::after(TIMEOUT)).expect("it ends with its last chunk"), None);
    }
    assert!(clock.elapsed(terminated) >= CLOSING_PAUSE * 2, "the last ones had to wait");
    let (status, log) = server.wait_for_exit();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn servers_share_a_port_if_both_permit_it() {
    let directory = temp_directory();
    let first = Server::start_in(&directory.path().join("first"), &["--permit-port-sharing"]);
    let port = format!("--secure-port={}", first.address().port());
    let refused =
        Server::try_start_in(&directory.path().join("second"), &[&port]).err().expect("one does not");
    assert!(refused.stderr.contains("in use"), "{}", refused.stderr);
    // Clients of one may come to the other, so they must trust both.
    let certificates = format!("--cert-dir={}", first.data.join("pki").display());
    let flags = [port.as_str(), &certificates, "--permit-port-sharing=true"];
    let second = Server::start_in(&directory.path().join("third"), &flags);
    assert_eq!(second.address(), first.address());
}
