//! Exec, attach and port forwarding over SPDY and WebSocket.

use super::websocket::*;
use super::*;

#[test]
fn exec_is_audited_at_start_and_end() {
    let folder = crate::support::server::temp_directory();
    let (policy, log) = (folder.path().join("policy.yaml"), folder.path().join("audit.log"));
    let rules = "rules: [{level: Metadata, resources: [{resources: ['pods/*']}]}]";
    std::fs::write(&policy, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}\n")).unwrap();
    let flags =
        [format!("--audit-policy-file={}", policy.display()), format!("--audit-log-path={}", log.display())];
    let fixture = Fixture::with_kubelet_at(LOOPBACK, &[&flags[0], &flags[1]], |_, wire| {
        wire.send(SPDY_ACCEPTED).unwrap();
        wire.wait_for_disconnect();
    });
    let stages = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).unwrap();
        let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let exec_events = records.filter(|record| record["objectRef"]["subresource"] == "exec");
        exec_events.map(|record| json!([record["stage"], record["responseStatus"]["code"]])).collect()
    };
    // Repeated, because a disconnect must not overtake the audit event.
    for round in 0..20 {
        let before = round * 3;
        let upgraded = fixture.upgrade(&format!("{POD}/exec?command=x&stdin=1"), &SPDY);
        let begun = [json!(["RequestReceived", null]), json!(["ResponseStarted", 101])];
        assert_eq!(stages()[before..], begun);
        drop(upgraded);
        crate::support::wait::poll(TIMEOUT, || (stages().len() == before + 3).then_some(()))
            .expect("it has ended");
        assert_eq!(stages()[before + 2], json!(["ResponseComplete", 101]));
    }
}

#[test]
fn exec_over_spdy_passes_bytes_unchanged() {
    let (disconnected, disconnects) = mpsc::channel();
    let disconnected = Lock::new(disconnected);
    let fixture = Fixture::new(move |_, wire| {
        wire.send(&[SPDY_ACCEPTED, b"\x80early"].concat()).unwrap();
        while let Ok(bytes) = wire.read_bytes(1) {
            wire.send(&[!bytes[0]]).unwrap();
        }
        disconnected.lock().send(()).unwrap();
    });
    let path = format!("{POD}/exec?command=sh&command=-c&command=a%20b&stdin=true&stdout=true&container=c");
    let mut connection = fixture.upgrade(&path, &SPDY);
    let deadline = Deadline::after(TIMEOUT);
    assert_eq!(connection.read_bytes(6, deadline).unwrap(), b"\x80early", "what came with the agreement");
    let bytes: Vec<u8> = (0..=255).collect();
    connection.send(&bytes).unwrap();
    let back: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    assert_eq!(connection.read_bytes(256, deadline).unwrap(), back);
    let request = fixture.kubelet.last_request();
    assert_eq!((request.method.as_str(), request.path()), ("POST", "/exec/default/p/c"));
    assert_eq!(request.query(), "command=sh&command=-c&command=a+b&input=1&output=1");
    assert_eq!(request.header("upgrade"), Some("SPDY/3.1"));
    assert_eq!(request.header("x-stream-protocol-version"), Some("v4.channel.k8s.io"));
    assert_eq!(request.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(request.header("authorization"), None);
    drop(connection);
    disconnects.recv_timeout(TIMEOUT).expect("the kubelet learns that the client has gone");
}

#[test]
fn upgrade_works_on_reused_connection() {
    let fixture = Fixture::new(|_, wire| {
        wire.send(SPDY_ACCEPTED).unwrap();
        wire.send(b"bye").unwrap();
    });
    let mut connection = fixture.admin.raw();
    let deadline = Deadline::after(TIMEOUT);
    let head = fixture.admin.head("GET", "/version", &[]);
    connection.send(format!("{head}\r\n").as_bytes()).unwrap();
    let response = connection.head(deadline).unwrap();
    connection.body(Connection::framing(&response, "GET"), deadline).unwrap();
    let head = fixture.admin.head("POST", &format!("{POD}/attach?stdout=1"), &SPDY);
    connection.send(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(connection.head(deadline).unwrap().status, 101);
    assert_eq!(connection.read_to_end(deadline).unwrap(), b"bye", "and ends with the kubelet");
    assert_eq!(fixture.kubelet.last_request().target, "/attach/default/p/c?output=1");
}

#[test]
fn kubelet_refusal_of_upgrade_is_returned_to_client() {
    let mut fixture = Fixture::new(|request, wire| match request.path() {
        path if path.starts_with("/exec") => {
            wire.respond("403 Forbidden", "Content-Type: text/plain\r\nX-Why: nodes\r\n", b"not you");
        }
        _ => wire.respond("200 OK", "", b"fine"),
    });
    let response = fixture.admin.request("POST", &format!("{POD}/exec?command=x"), &SPDY, b"");
    assert_eq!((response.status, response.text().as_str()), (403, "not you"));
    assert_eq!(response.header("x-why"), Some("nodes"));
    let mut admin = fixture.admin.new_connection();
    let status = admin.request("POST", &format!("{POD}/portforward"), &SPDY, b"").json();
    assert_eq!(
        (&status["code"], &status["message"]),
        (&json!(500), &json!("invalid upgrade response: status code 200"))
    );
}

/// A frame of SPDY: its kind, or none for data; the stream; its flags; its content.
fn spdy_frame(wire: &mut Wire) -> std::io::Result<(Option<u8>, u32, u8, Vec<u8>)> {
    let head = wire.read_bytes(8)?;
    let length = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
    let body = wire.read_bytes(length)?;
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
    Ok(match head[0] & 0x80 {
        0 => (None, number(&head), head[4], body),
        _ => (Some(head[3]), number(&body), head[4], body[4..].to_vec()),
    })
}

fn spdy_data(wire: &mut Wire, stream: u32, bytes: &[u8], last: bool) {
    let length = (bytes.len() as u32).to_be_bytes();
    let head = [&stream.to_be_bytes()[..], &[u8::from(last), length[1], length[2], length[3]]].concat();
    // The client may have disconnected.
    let _ = wire.send(&[&head, bytes].concat());
}

/// A kubelet that runs one command: it copies stdin in upper case to stdout, writes a word to stderr, and exits with the code
/// that the command names.
fn run_command(request: &ReceivedRequest, wire: &mut Wire) {
    assert_eq!(request.header("upgrade"), Some("SPDY/3.1"));
    wire.send(SPDY_ACCEPTED).unwrap();
    let expected = 1 + request.query().matches("=1").count();
    let mut streams = std::collections::BTreeMap::new();
    while streams.len() < expected {
        let (kind, stream, _, header) = spdy_frame(wire).unwrap();
        assert_eq!(kind, Some(1), "a new stream");
        let name = ["error", "stdin", "stdout", "stderr", "resize"]
            .into_iter()
            .find(|name| header.ends_with(&[name.as_bytes(), &[0, 0, 0, 0xff, 0xff]].concat()));
        streams.insert(name.expect("a known stream"), stream);
        wire.send(&[&[0x80, 3, 0, 2, 0, 0, 0, 4][..], &stream.to_be_bytes()].concat()).unwrap();
        // A ping in between must be ignored.
        wire.send(&[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2]).unwrap();
    }
    while let (Some(stdin), Ok((kind, stream, flags, bytes))) = (streams.get("stdin"), spdy_frame(wire)) {
        if kind.is_none() && stream == *stdin {
            spdy_data(wire, streams["stdout"], &bytes.to_ascii_uppercase(), false);
            if flags & 1 != 0 {
                break;
            }
        }
    }
    if let Some(stderr) = streams.get("stderr") {
        spdy_data(wire, *stderr, b"done\n", true);
    }
    if let Some(stdout) = streams.get("stdout") {
        spdy_data(wire, *stdout, b"", true);
    }
    let code = request.query().split("exit+").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or("0");
    let status = match code {
        "0" => json!({"status": "Success"}),
        code => json!({"status": "Failure", "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code}]}}),
    };
    spdy_data(wire, streams["error"], status.to_string().as_bytes(), true);
    wire.wait_for_disconnect();
}

#[test]
fn exec_over_websocket_is_translated_to_spdy() {
    let fixture = Fixture::new(run_command);
    let path = format!("{POD}/exec?command=exit%203&stdin=true&stdout=true&stderr=true");
    let (mut connection, protocol) = fixture.open_websocket(&path, "v5.channel.k8s.io, v4.channel.k8s.io");
    assert_eq!(protocol, "v5.channel.k8s.io");
    assert_eq!(read_frame(&mut connection), (2, vec![1]), "the first message says nothing");
    connection.send(&masked_frame(b"\x00hello ")).unwrap();
    connection.send(&[0x89, 0x81, 0, 0, 0, 0, b'?']).unwrap();
    let long = [&[0][..], &[b'x'; 40_000]].concat();
    connection.send(&masked_frame(&long)).unwrap();
    connection.send(&masked_frame(&[255, 0])).unwrap();
    let (mut stdout, mut stderr, mut status_bytes, mut pongs) = (Vec::new(), Vec::new(), Vec::new(), 0);
    loop {
        let (kind, bytes) = read_frame(&mut connection);
        match (kind, bytes.split_first()) {
            (2, Some((1, rest))) => stdout.extend_from_slice(rest),
            (2, Some((2, rest))) => stderr.extend_from_slice(rest),
            (2, Some((3, rest))) => status_bytes.extend_from_slice(rest),
            (10, _) => pongs += 1,
            (8, _) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((stdout.len(), &stdout[..7]), (40_006, &b"HELLO X"[..]));
    assert_eq!((stderr.as_slice(), pongs), (&b"done\n"[..], 1));
    let status: Value = serde_json::from_slice(&status_bytes).unwrap();
    assert_eq!(
        (&status["reason"], &status["details"]["causes"][0]["message"]),
        (&json!("NonZeroExitCode"), &json!("3"))
    );
    let request = fixture.kubelet.last_request();
    assert_eq!((request.method.as_str(), request.path()), ("POST", "/exec/default/p/c"));
}

#[test]
fn websocket_disconnect_ends_command() {
    let (disconnected, disconnects) = mpsc::channel();
    let disconnected = Lock::new(disconnected);
    let fixture = Fixture::new(move |request, wire| {
        run_command(request, wire);
        disconnected.lock().send(()).unwrap();
    });
    let path = format!("{POD}/attach?stdin=true&stdout=true&tty=true");
    for politely in [true, false] {
        let (mut connection, _) = fixture.open_websocket(&path, "v5.channel.k8s.io");
        read_frame(&mut connection);
        connection.send(&masked_frame(b"\x04{\"Width\":80,\"Height\":24}")).unwrap();
        connection.send(&masked_frame(b"\x00a")).unwrap();
        assert_eq!(read_frame(&mut connection), (2, b"\x01A".to_vec()));
        if politely {
            connection.send(&[0x88, 0x82, 0, 0, 0, 0, 3, 0xe8]).unwrap();
            assert_eq!(read_frame(&mut connection).0, 8, "a close is answered");
        }
        drop(connection);
        disconnects.recv_timeout(TIMEOUT).expect("the kubelet learns that the client has gone");
    }
}

#[test]
fn v4_websocket_is_passed_through_and_portforward_tunnel_is_unpacked() {
    let fixture = Fixture::new(|request, wire| {
        if request.header("upgrade") == Some("websocket") {
            let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n";
            wire.send(agreed.as_bytes()).unwrap();
        } else {
            assert_eq!(request.header("x-stream-protocol-version"), Some("portforward.k8s.io"));
            wire.send(SPDY_ACCEPTED).unwrap();
        }
        while let Ok(bytes) = wire.read_bytes(4) {
            wire.send(&bytes).unwrap();
        }
    });
    let (mut connection, protocol) =
        fixture.open_websocket(&format!("{POD}/exec?command=x&stdout=1"), "v4.channel.k8s.io");
    assert_eq!(protocol, "v4.channel.k8s.io");
    connection.send(b"\x82\x81raw!...").unwrap();
    assert_eq!(connection.read_bytes(8, Deadline::after(TIMEOUT)).unwrap(), b"\x82\x81raw!..");
    drop(connection);
    let (mut connection, protocol) =
        fixture.open_websocket(&format!("{POD}/portforward"), "SPDY/3.1+portforward.k8s.io");
    assert_eq!(protocol, "SPDY/3.1+v4.channel.k8s.io", "as the kubelet chose");
    connection.send(&masked_frame(b"\x80\x03ab")).unwrap();
    assert_eq!(read_frame(&mut connection), (2, b"\x80\x03ab".to_vec()));
    let request = fixture.kubelet.last_request();
    assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/portForward/default/p"));
    assert_eq!((request.header("sec-websocket-key"), request.header("upgrade")), (None, Some("SPDY/3.1")));
}

#[test]
fn kubectl_exec_runs_commands() {
    let fixture = Fixture::new(run_command);
    let (is_ok, stdout, stderr) = run_kubectl(&fixture, &["exec", "p", "--", "exit 0"]);
    assert!(is_ok && stdout.is_empty() && stderr == "done\n", "{stdout} {stderr}");
    let (is_ok, _, stderr) = run_kubectl(&fixture, &["exec", "p", "--", "exit 7"]);
    assert!(!is_ok && stderr.contains("command terminated with exit code 7"), "{stderr}");
    let mut child =
        kubectl(&fixture, &["exec", "-i", "p", "--", "exit 0"]).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"from kubectl\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "FROM KUBECTL\n", "{output:?}");
    let methods: Vec<_> = fixture.kubelet.requests().into_iter().map(|request| request.method).collect();
    assert_eq!(methods, ["POST", "POST", "POST"], "WebSocket requests without fallback to SPDY");
}
