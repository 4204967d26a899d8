//! Pod logs: options, streaming, kubelet connections and certificates.

use super::websocket::*;
use super::*;

#[test]
fn log_request_is_forwarded_to_kubelet_with_options() {
    let mut fixture = Fixture::new(|request, wire| match request.query() {
        query if query.contains("previous=true") => wire.respond("200 OK", "", b"before\n"),
        query if query.contains("tailLines=7") => {
            wire.respond("400 Bad Request", "", b"container \"c\" in pod \"p\" is waiting to start");
        }
        query if query.contains("tailLines=8") => wire.respond("404 Not Found", "", b"gone"),
        _ => wire.respond("200 OK", "Content-Type: text/plain\r\n", b"one\ntwo\n"),
    });
    let admin = &mut fixture.admin;
    let response = admin.get(&format!("{POD}/log?tailLines=2&timestamps=true&limitBytes=100&sinceSeconds=5"));
    assert_eq!((response.status, response.text().as_str()), (200, "one\ntwo\n"));
    assert_eq!(response.header("content-type"), Some("text/plain"));
    let request = fixture.kubelet.last_request();
    assert_eq!((request.method.as_str(), request.path()), ("GET", "/containerLogs/default/p/c"));
    assert_eq!(request.query(), "limitBytes=100&sinceSeconds=5&tailLines=2&timestamps=true");
    assert_eq!(request.client.as_deref(), Some("the-server"), "the server shows its certificate");
    assert_eq!(request.header("authorization"), None, "the client's token stays here");
    assert_eq!(admin.get(&format!("{POD}/log?previous=true&container=c")).text(), "before\n");
    let status = admin.get(&format!("{POD}/log?tailLines=7")).expect_error(400, "BadRequest");
    assert_eq!(status["message"], "container \"c\" in pod \"p\" is waiting to start");
    let status = admin.get(&format!("{POD}/log?tailLines=8")).expect_error(404, "NotFound");
    assert_eq!(status["message"], "the server could not find the requested resource ( pods/log p)");
    assert_eq!(status["details"]["kind"], "pods/log");
}

#[test]
fn followed_log_is_streamed_and_cancelled_on_disconnect() {
    let (send_continue, continue_signal) = mpsc::channel::<()>();
    let (disconnected, disconnects) = mpsc::channel();
    let (continue_signal, disconnected) = (Lock::new(continue_signal), Lock::new(disconnected));
    let fixture = Fixture::new(move |_, wire| {
        wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n").unwrap();
        continue_signal.lock().recv().unwrap();
        wire.send(b"4\r\ntwo\n\r\n").unwrap();
        wire.wait_for_disconnect();
        disconnected.lock().send(()).unwrap();
    });
    let mut connection = fixture.admin.raw();
    let head = fixture.admin.head("GET", &format!("{POD}/log?follow=true"), &[]);
    connection.send(format!("{head}\r\n").as_bytes()).unwrap();
    let deadline = Deadline::after(TIMEOUT);
    assert_eq!(connection.head(deadline).unwrap().status, 200);
    assert_eq!(connection.chunk(deadline).unwrap().unwrap(), b"one\n", "before there is more");
    send_continue.send(()).unwrap();
    assert_eq!(connection.chunk(deadline).unwrap().unwrap(), b"two\n");
    drop(connection);
    disconnects.recv_timeout(TIMEOUT).expect("the connection to the kubelet is cut");
    assert_eq!(fixture.kubelet.last_request().query(), "follow=true");
}

#[test]
fn followed_logs_and_upgraded_connections_end_on_shutdown() {
    let fixture = Fixture::new(|request, wire| {
        let log = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n";
        wire.send(if request.method == "GET" { log } else { SPDY_ACCEPTED }).unwrap();
        wire.wait_for_disconnect();
    });
    let mut connection = fixture.admin.raw();
    let head = fixture.admin.head("GET", &format!("{POD}/log?follow=true"), &[]);
    connection.send(format!("{head}\r\n").as_bytes()).unwrap();
    let deadline = Deadline::after(TIMEOUT);
    connection.head(deadline).unwrap();
    connection.chunk(deadline).unwrap().unwrap();
    let mut upgraded = fixture.upgrade(&format!("{POD}/exec?command=x&stdin=1"), &SPDY);
    fixture.server.stop();
    assert_eq!(connection.chunk(deadline).unwrap(), None, "a clean end");
    assert!(upgraded.read_to_end(deadline).unwrap().is_empty(), "upgraded connections are closed");
}

#[test]
fn kubectl_logs_reads_and_follows() {
    let fixture = Fixture::new(|request, wire| {
        if !request.query().contains("follow=true") {
            return wire.respond("200 OK", "", b"one\ntwo\n");
        }
        wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n").unwrap();
        wire.send(b"6\r\nthree\n\r\n0\r\n\r\n").unwrap();
    });
    let (is_ok, stdout, stderr) = run_kubectl(&fixture, &["logs", "p", "--tail=2"]);
    assert!(is_ok && stdout == "one\ntwo\n", "{stdout} {stderr}");
    assert_eq!(fixture.kubelet.last_request().query(), "tailLines=2");
    let (is_ok, stdout, stderr) = run_kubectl(&fixture, &["logs", "-f", "p", "-c", "c"]);
    assert!(is_ok && stdout == "one\nthree\n", "{stdout} {stderr}");
    let (is_ok, stdout, stderr) =
        run_kubectl(&fixture, &["get", "--raw", &format!("{POD}/log?previous=true")]);
    assert!(is_ok && stdout == "one\ntwo\n", "{stdout} {stderr}");
    let (is_ok, _, stderr) = run_kubectl(&fixture, &["logs", "p", "-c", "x"]);
    assert!(!is_ok && stderr.contains("container x is not valid for pod p"), "{stderr}");
}

#[test]
fn kubelet_connection_is_reused() {
    let mut fixture = Fixture::new(|_, wire| wire.respond("200 OK", "", b"one\n"));
    fixture.kubelet.enable_keep_alive();
    for _ in 0..10 {
        assert_eq!(fixture.admin.get(&format!("{POD}/log")).text(), "one\n");
    }
    assert!(fixture.kubelet.requests().iter().all(|request| request.connection == 0));
    let idle_connections = |fixture: &mut Fixture| {
        let metrics = fixture.admin.get("/metrics").text();
        let found = metrics.lines().find_map(|line| line.strip_prefix("pilothouse_connections_kept "));
        found.map(str::to_owned)
    };
    assert_eq!(idle_connections(&mut fixture).as_deref(), Some("1"));
    fixture.kubelet.close_connections();
    assert_eq!(fixture.admin.get(&format!("{POD}/log")).text(), "one\n");
    assert_eq!(fixture.kubelet.last_request().connection, 1);
    fixture.kubelet.close_connections();
    assert!(
        poll(TIMEOUT, || idle_connections(&mut fixture).filter(|idle_connections| idle_connections == "0"))
            .is_some()
    );
}

#[test]
fn kubelet_client_certificate_and_ca_are_reloaded() {
    let mut fixture = Fixture::new(|_, wire| wire.respond("200 OK", "", b"one\n"));
    fixture.kubelet.enable_keep_alive();
    let log = format!("{POD}/log");
    fixture.admin.get(&log);
    assert_eq!(fixture.kubelet.last_request().client.as_deref(), Some("the-server"));
    let folder = fixture.certificate_dir.path().to_owned();
    TlsIdentity::new("another", &[]).write(&folder, "client");
    let found = poll(TIMEOUT, || {
        assert_eq!(fixture.admin.get(&log).text(), "one\n");
        (fixture.kubelet.last_request().client.as_deref() == Some("another")).then_some(())
    });
    assert!(found.is_some(), "the old certificate is still presented");
    // Broken files are not loaded.
    std::fs::write(folder.join("client.key"), "nonsense").unwrap();
    TlsIdentity::new("somebody", &[]).write(&folder, "kubelet");
    assert_eq!(fixture.admin.get(&log).text(), "one\n");
    TlsIdentity::new("third", &[]).write(&folder, "client");
    let refused = poll(TIMEOUT, || Some(fixture.admin.get(&log).status).filter(|status| *status == 500));
    assert!(refused.is_some(), "a kubelet of the old CA is still trusted");
}

#[test]
fn log_over_websocket_is_sent_in_messages() {
    let (send_continue, continue_signal) = mpsc::channel::<()>();
    let continue_signal = Lock::new(continue_signal);
    let mut fixture = Fixture::new(move |request, wire| {
        if request.query().contains("tailLines=7") {
            return wire.respond("404 Not Found", "", b"gone");
        }
        wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n").unwrap();
        continue_signal.lock().recv().unwrap();
        let long = [b"c00\r\n".as_slice(), &[b'x'; 0xc00], b"\r\n0\r\n\r\n"].concat();
        wire.send(&long).unwrap();
    });
    let path = format!("{POD}/log?follow=true");
    let long = vec![b'x'; 3_072];
    for (proposed, agreed, expected_opcode) in [
        ("binary.k8s.io", "binary.k8s.io", 2),
        ("x, base64.binary.k8s.io", "base64.binary.k8s.io", 1),
        ("", "", 2),
    ] {
        let (mut connection, protocol) = fixture.open_websocket(&path, proposed);
        assert_eq!(protocol, agreed);
        let mut next_message = || match read_frame(&mut connection) {
            (1, text) => (1, STANDARD.decode(text).unwrap()),
            other => other,
        };
        assert_eq!(next_message(), (expected_opcode, Vec::new()), "the first message is empty");
        assert_eq!(next_message(), (expected_opcode, b"one\n".to_vec()), "before there is more");
        send_continue.send(()).unwrap();
        let mut rest = Vec::new();
        while rest.len() < long.len() {
            let (opcode, bytes) = next_message();
            assert!(opcode == expected_opcode && bytes.len() <= 2_048, "{opcode} {}", bytes.len());
            rest.extend(bytes);
        }
        assert_eq!(rest, long);
        assert_eq!(next_message(), (8, vec![0x03, 0xe8]));
    }
    // Pings are answered, and a close ends the log request.
    let (mut connection, _) = fixture.open_websocket(&path, "binary.k8s.io");
    read_frame(&mut connection);
    read_frame(&mut connection);
    connection.send(&[0x89, 0x81, 0, 0, 0, 0, b'?']).unwrap();
    assert_eq!(read_frame(&mut connection), (10, b"?".to_vec()));
    connection.send(&[0x88, 0x80, 0, 0, 0, 0]).unwrap();
    assert_eq!(read_frame(&mut connection).0, 8);
    send_continue.send(()).unwrap();
    // Unsupported protocols and refusals of the kubelet are returned.
    let upgrade_status = |fixture: &mut Fixture, path: &str, protocol: &str| {
        let mut connection = fixture.admin.raw();
        let head = fixture.admin.head("GET", path, &websocket_headers(protocol));
        connection.send(format!("{head}\r\n").as_bytes()).unwrap();
        connection.head(Deadline::after(TIMEOUT)).unwrap().status
    };
    assert_eq!(upgrade_status(&mut fixture, &path, "v4.channel.k8s.io"), 403);
    assert_eq!(upgrade_status(&mut fixture, &format!("{POD}/log?tailLines=7"), "binary.k8s.io"), 404);
    send_continue.send(()).unwrap();
}
