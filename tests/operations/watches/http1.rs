//! Watches over HTTP/1.1 and WebSocket.

use super::*;

#[test]
fn watch_list_streams_initial_events_and_bookmark() {
    let (_server, mut client) = start(|config| gate(config, "WatchList=true"));
    for name in ["a", "b"] {
        client.post(MAPS, &map(name)).ok();
    }
    let head = revision(&client.get(MAPS).ok());
    let streaming = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for query in
        [streaming.to_owned(), format!("{streaming}&resourceVersion={head}"), "allowWatchBookmarks=1".into()]
    {
        let mut watch = client.watch(MAPS, &query);
        for name in ["a", "b"] {
            let event = watch.next();
            assert_eq!((text(&event, "/type"), text(&event, "/object/metadata/name")), ("ADDED", name));
        }
        let bookmark = watch.next();
        assert_eq!((text(&bookmark, "/type"), revision(&bookmark["object"])), ("BOOKMARK", head));
        let notes = &bookmark["object"]["metadata"]["annotations"];
        assert_eq!(notes["k8s.io/initial-events-end"], "true");
        let blueprint = text(notes, "/kubernetes.io~1initial-events-list-blueprint");
        let blueprint = openssl::base64::decode_block(blueprint).unwrap();
        let blueprint: Value = serde_json::from_slice(&blueprint).unwrap();
        assert_eq!(text(&blueprint, "/kind"), "ConfigMapList");
    }
    // Without initial events, only new ones are sent.
    let mut watch =
        client.watch(MAPS, "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=0");
    client.post(MAPS, &map("new")).ok();
    assert_eq!(text(&watch.next(), "/object/metadata/name"), "new");
    let expect_invalid = |client: &mut Client, query: &str, reason: &str| {
        let status = client.get(&format!("{MAPS}?watch=1&{query}")).expect_error(422, "Invalid");
        assert!(text(&status, "/message").contains(reason), "{status}");
    };
    let message = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
    expect_invalid(&mut client, "sendInitialEvents=true", message);
    expect_invalid(&mut client, &format!("{streaming}&continue=x"), "forbidden when continue is provided");
    let accept_table = [("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")];
    let path = format!("{MAPS}?watch=1&{streaming}");
    client.request("GET", &path, &accept_table, b"").expect_error(406, "NotAcceptable");
    let (_server, mut plain) = start(|_| ());
    expect_invalid(&mut plain, streaming, "unless the WatchList feature gate is enabled");
}

#[test]
fn watch_timeout_ends_with_bookmark() {
    let (_server, mut client) = start(|_| ());
    client.post(MAPS, &map("a")).ok();
    let head = revision(&client.get(MAPS).ok());
    let mut watch = client.watch(MAPS, "allowWatchBookmarks=true&timeoutSeconds=1");
    assert_eq!(text(&watch.next(), "/type"), "ADDED");
    let bookmark = watch.next();
    assert_eq!((text(&bookmark, "/type"), revision(&bookmark["object"])), ("BOOKMARK", head));
    assert_eq!(watch.attempt(Deadline::after(TIMEOUT)).unwrap(), None, "a clean end");
    // A negative timeout ends the watch at once.
    let mut watch = client.watch(MAPS, "timeoutSeconds=-1&resourceVersion=0");
    while watch.attempt(Deadline::after(TIMEOUT)).unwrap().is_some() {}
}

/// A watch request with a timeout of one second.
fn watch_of_a_second(client: &Client) -> String {
    client.head("GET", &format!("{MAPS}?watch=1&timeoutSeconds=1"), &[]) + "\r\n"
}

#[test]
fn connection_is_reused_after_watch() {
    let (_server, mut client) = start(|_| ());
    client.post(MAPS, &map("a")).ok();
    let (watch, version) = (watch_of_a_second(&client), client.head("GET", "/version", &[]) + "\r\n");
    let deadline = Deadline::after(TIMEOUT);
    let read = |connection: &mut crate::support::wire::Connection| {
        let head = connection.head(deadline).unwrap();
        let body =
            connection.body(crate::support::wire::Connection::framing(&head, "GET"), deadline).unwrap();
        (head, String::from_utf8(body).unwrap())
    };

    // A request after the watch, and one that is pipelined during the watch.
    for is_pipelined in [false, true] {
        let mut connection = client.raw();
        for _ in 0..2 {
            connection.send(watch.as_bytes()).unwrap();
            if is_pipelined {
                connection.send(version.as_bytes()).unwrap();
            }
            let (head, events) = read(&mut connection);
            assert_eq!((head.status, head.header("content-type")), (200, Some("application/json")));
            assert!(head.header("date").is_some() && head.header("audit-id").is_some(), "{head:?}");
            assert!(events.starts_with(r#"{"type":"ADDED""#) && events.ends_with("}\n"), "{events}");
            if !is_pipelined {
                connection.send(version.as_bytes()).unwrap();
            }
            assert!(read(&mut connection).1.contains("gitVersion"), "early: {is_pipelined}");
        }
    }

    // Both in one write: the server has read the second before it responds to the first.
    let mut connection = client.raw();
    connection.send(format!("{watch}{version}").as_bytes()).unwrap();
    assert!(read(&mut connection).1.contains("ADDED"));
    assert!(read(&mut connection).1.contains("gitVersion"));
}

#[test]
fn unread_and_closed_watches_leave_no_session() {
    let (_server, mut client) = start(|_| ());
    let large = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"},
        "data": {"text": "x".repeat(900_000)}});
    client.post(MAPS, &large).ok();
    // Much larger than the socket buffers of an unread connection.
    let mut watches: Vec<_> = (0..3).map(|_| client.watch(MAPS, "")).collect();
    for number in 0..12 {
        let change = json!({"metadata": {"labels": {"turn": number.to_string()}}});
        client.patch(&format!("{MAPS}/large"), "merge", &change).ok();
    }
    // A late reader gets all events in order.
    let mut late_watch = watches.remove(0);
    let events = (0..13).map(|_| late_watch.next());
    let labels: Vec<Value> =
        events.map(|events| events["object"]["metadata"]["labels"]["turn"].clone()).collect();
    assert_eq!(
        labels[1..].iter().map(|number| number.as_str().unwrap()).collect::<Vec<_>>(),
        ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"]
    );
    assert_eq!(metric(&mut client, "apiserver_longrunning_requests"), 3.0);
    // Two disconnect without having read, the third while idle.
    drop((watches, late_watch));
    poll(TIMEOUT, || (metric(&mut client, "apiserver_longrunning_requests") == 0.0).then_some(())).unwrap();
}

#[test]
fn pipelined_byte_before_close_still_ends_watch() {
    let (_server, mut client) = start(|_| ());
    client.post(MAPS, &map("a")).ok();
    let deadline = Deadline::after(TIMEOUT);
    let mut connection = client.raw();
    connection.send((client.head("GET", &format!("{MAPS}?watch=1"), &[]) + "\r\n").as_bytes()).unwrap();
    connection.head(deadline).unwrap();
    connection.chunk(deadline).unwrap();
    assert_eq!(metric(&mut client, "apiserver_longrunning_requests"), 1.0);
    connection.send(b"G").unwrap();
    connection.close_writing();
    poll(TIMEOUT, || (metric(&mut client, "apiserver_longrunning_requests") == 0.0).then_some(())).unwrap();
}

#[test]
fn late_read_list_before_pipelined_watch_is_complete() {
    let (_server, mut client) = start(|_| ());
    for number in 0..16 {
        let large = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("large-{number}")},
            "data": {"text": "x".repeat(900_000)}});
        client.post(MAPS, &large).ok();
    }
    let deadline = Deadline::after(TIMEOUT);
    let mut connection = client.raw();
    for path in [MAPS.to_owned(), format!("{MAPS}?watch=1&fieldSelector=metadata.name=large-3")] {
        connection.send((client.head("GET", &path, &[]) + "\r\n").as_bytes()).unwrap();
    }
    let head = connection.head(deadline).unwrap();
    let list = connection.body(crate::support::wire::Connection::framing(&head, "GET"), deadline).unwrap();
    assert_eq!(names(&serde_json::from_slice(&list).unwrap()).len(), 16);
    assert_eq!(connection.head(deadline).unwrap().status, 200);
    let event = connection.chunk(deadline).unwrap().unwrap();
    assert!(event.starts_with(br#"{"type":"ADDED""#));
}

/// A frame of a WebSocket as a server sends it: opcode and payload.
fn read_message(connection: &mut crate::support::wire::Connection) -> (u8, Vec<u8>) {
    let deadline = Deadline::after(TIMEOUT);
    let head = connection.read_bytes(2, deadline).unwrap();
    assert_eq!(head[0] & 0xf0, 0x80, "a whole message");
    let length = match head[1] {
        126 => connection
            .read_bytes(2, deadline)
            .unwrap()
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        127 => connection
            .read_bytes(8, deadline)
            .unwrap()
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        length => usize::from(length),
    };
    (head[0] & 0x0f, connection.read_bytes(length, deadline).unwrap())
}

#[test]
fn watch_over_websocket_sends_messages() {
    let (_server, mut client) = start(|_| ());
    client.post(MAPS, &map("a")).ok();
    let accepts = [("application/json", 1), ("application/vnd.kubernetes.protobuf", 2)];
    for (number, (accept, opcode)) in accepts.into_iter().enumerate() {
        let mut connection = client.raw();
        let headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("Sec-WebSocket-Protocol", "binary.k8s.io"),
            ("Origin", "https://localhost"),
            ("Accept", accept),
        ];
        let head = client.head("GET", &format!("{MAPS}?watch=1&fieldSelector=metadata.name%3Da"), &headers);
        connection.send(format!("{head}\r\n").as_bytes()).unwrap();
        let head = connection.head(Deadline::after(TIMEOUT)).unwrap();
        assert_eq!(head.status, 101);
        assert_eq!(head.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(head.header("sec-websocket-protocol"), Some("binary.k8s.io"));
        let assert_event = |message: (u8, Vec<u8>), kind: &str| {
            assert_eq!(message.0, opcode);
            match opcode {
                1 => assert_eq!(serde_json::from_slice::<Value>(&message.1).unwrap()["type"], kind),
                // A Protobuf message of a type and an object, without the length prefix of a stream.
                _ => assert!(
                    message.1.starts_with(&[10, kind.len() as u8])
                        && message.1[2..].starts_with(kind.as_bytes())
                ),
            }
        };
        assert_event(read_message(&mut connection), "ADDED");
        let mut changed = map("a");
        changed["data"] = json!({"turn": number.to_string()});
        client.put(&format!("{MAPS}/a"), &changed).ok();
        assert_event(read_message(&mut connection), "MODIFIED");
        // A ping is answered, a message is ignored, a close frame is returned and ends the session.
        connection.send(b"\x81\x82\x00\x00\x00\x00hi\x89\x81\x00\x00\x00\x00x").unwrap();
        assert_eq!(read_message(&mut connection), (10, b"x".to_vec()));
        assert_eq!(metric(&mut client, "apiserver_longrunning_requests"), 1.0);
        connection.send(b"\x88\x82\x00\x00\x00\x00\x03\xe8").unwrap();
        assert_eq!(read_message(&mut connection), (8, b"\x03\xe8".to_vec()));
        poll(TIMEOUT, || (metric(&mut client, "apiserver_longrunning_requests") == 0.0).then_some(()))
            .unwrap();
    }
    let headers_without_key =
        [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")];
    let mut connection = client.raw();
    connection
        .send(
            format!("{}\r\n", client.head("GET", &format!("{MAPS}?watch=1"), &headers_without_key))
                .as_bytes(),
        )
        .unwrap();
    assert_eq!(connection.head(Deadline::after(TIMEOUT)).unwrap().status, 400);
}
