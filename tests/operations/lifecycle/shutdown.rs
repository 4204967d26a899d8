//! Graceful shutdown.

use super::*;

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

    // A request whose body is sent after the signal.
    let body = map("in-flight").to_string();
    let (first, rest) = body.as_bytes().split_at(20);
    let mut slow_connection = client.raw();
    let head = format!("{}Content-Length: {}\r\n\r\n", client.head("POST", MAPS, &JSON), body.len());
    slow_connection.send(head.as_bytes()).expect("the head");
    slow_connection.send(first).expect("a part of the body");

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
    slow_connection.send(rest).expect("the rest of the body");
    let deadline = Deadline::after(TIMEOUT);
    let response = slow_connection.head(deadline).expect("the request in flight is answered");
    assert_eq!(response.status, 201);
    slow_connection.body(Connection::framing(&response, "POST"), deadline).expect("the whole answer");

    let (status, log) = server.wait_for_exit();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    let server = Server::start_in(&data, &[]);
    for name in ["seen", "late", "in-flight"] {
        server.admin().get(&format!("{MAPS}/{name}")).ok();
    }
}
