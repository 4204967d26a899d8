//! Reads at a version and watches, against a whole server: what each combination of options means, how a watch begins,
//! goes on and ends, and what it is like to have hundreds of them on one connection.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/edge.rs"]
#[allow(dead_code, reason = "this file uses its own part of the module")]
mod edge;
mod support;

use std::time::Duration;

use pilothouse::config::Config;
use pilothouse::server::{Handle, Server};
use serde_json::{Value, json};
use support::Client;
use support::compare::{revision, text};
use support::wait::{CAP, Deadline, poll};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn start(change: impl FnOnce(&mut Config)) -> (Handle, Client) {
    let mut config = Config::ephemeral();
    // The objects are those that the tests make.
    config.api.controllers = vec!["-*".to_owned()];
    change(&mut config);
    let server = Server::start(config).unwrap();
    let (address, admin) = (server.address(), server.admin());
    let client =
        Client::new(address, server.ca_pem(), Some((&admin.certificates_pem[..], &admin.key_pem[..])));
    (server, client)
}

fn again(server: &Handle) -> Client {
    let admin = server.admin();
    let identity = Some((&admin.certificates_pem[..], &admin.key_pem[..]));
    Client::new(server.address(), server.ca_pem(), identity)
}

fn gate(config: &mut Config, setting: &str) {
    config.api.feature_gates.push(setting.parse().unwrap());
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"test": "watches"}}})
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().expect("items").iter().map(|item| text(item, "/metadata/name")).collect()
}

/// The value of a metric, all its series together.
fn metric(client: &mut Client, name: &str) -> f64 {
    let page = client.get("/metrics").text();
    let of = |line: &&str| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} "));
    page.lines().filter(of).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// What a list answers.
enum Answers {
    /// These objects, at this version if it must be one.
    Names(&'static [&'static str], Option<u64>),
    /// 422, and these words.
    Invalid(&'static str),
    /// 400, and these words.
    Bad(&'static str),
}
use Answers::{Bad, Invalid, Names};

#[test]
fn every_combination_of_version_match_and_paging_means_what_it_should() {
    let (_server, mut client) = start(|_| ());
    for name in ["a", "b", "c"] {
        client.post(MAPS, &map(name)).ok();
    }
    let all: &[&str] = &["a", "b", "c"];
    let list = client.get(MAPS).ok();
    let head = revision(&list);
    let old = head - 1;
    let first = client.get(&format!("{MAPS}?limit=1")).ok();
    let token = text(&first, "/metadata/continue").to_owned();
    let unset = "resourceVersionMatch is forbidden unless resourceVersion is provided";
    let zero = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
    let with_token = "resourceVersionMatch is forbidden when continue is provided";
    let not_with_version = "specifying resource version is not allowed when using continue";
    let table = [
        // Match unset.
        (String::new(), Names(all, None)),
        ("resourceVersion=0".into(), Names(all, None)),
        (format!("resourceVersion={old}"), Names(all, Some(head))),
        ("limit=1".into(), Names(&["a"], Some(head))),
        ("limit=1&resourceVersion=0".into(), Names(all, None)),
        (format!("limit=3&resourceVersion={old}"), Names(&["a", "b"], Some(old))),
        (format!("limit=1&continue={token}"), Names(&["b"], Some(head))),
        (format!("limit=1&continue={token}&resourceVersion=0"), Names(&["b"], Some(head))),
        (format!("limit=1&continue={token}&resourceVersion={old}"), Bad(not_with_version)),
        (format!("continue={token}"), Names(&["b", "c"], Some(head))),
        // Exact.
        ("resourceVersionMatch=Exact".into(), Invalid(unset)),
        ("resourceVersionMatch=Exact&resourceVersion=0".into(), Invalid(zero)),
        (format!("resourceVersionMatch=Exact&resourceVersion={old}"), Names(&["a", "b"], Some(old))),
        ("resourceVersionMatch=Exact&limit=1".into(), Invalid(unset)),
        ("resourceVersionMatch=Exact&limit=1&resourceVersion=0".into(), Invalid(zero)),
        (format!("resourceVersionMatch=Exact&limit=1&resourceVersion={old}"), Names(&["a"], Some(old))),
        (format!("resourceVersionMatch=Exact&continue={token}"), Invalid(with_token)),
        // Not older than.
        ("resourceVersionMatch=NotOlderThan".into(), Invalid(unset)),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=0".into(), Names(all, None)),
        (format!("resourceVersionMatch=NotOlderThan&resourceVersion={old}"), Names(all, Some(head))),
        ("resourceVersionMatch=NotOlderThan&limit=1".into(), Invalid(unset)),
        ("resourceVersionMatch=NotOlderThan&limit=1&resourceVersion=0".into(), Names(all, None)),
        (
            format!("resourceVersionMatch=NotOlderThan&limit=1&resourceVersion={old}"),
            Names(&["a"], Some(head)),
        ),
        (
            format!("resourceVersionMatch=NotOlderThan&continue={token}&resourceVersion={old}"),
            Invalid(with_token),
        ),
        // What is no match, no version, no token.
        (
            format!("resourceVersionMatch=Newest&resourceVersion={old}"),
            Invalid("Unsupported value: \"Newest\""),
        ),
        ("resourceVersion=yesterday".into(), Bad("parsing \"yesterday\": invalid syntax")),
        ("continue=%21".into(), Bad("continue key is not valid: illegal base64 data at input byte 0")),
        ("limit=many".into(), Bad("parsing \"many\": invalid syntax")),
        ("sendInitialEvents=true".into(), Invalid("sendInitialEvents is forbidden for list")),
    ];
    for (query, answers) in table {
        let answer = client.get(&format!("{MAPS}?{query}"));
        match answers {
            Names(wanted, at) => {
                let list = answer.ok();
                assert_eq!(names(&list), wanted, "{query}");
                let at = at.unwrap_or(head);
                assert_eq!(revision(&list), at, "{query}");
            }
            Invalid(why) => {
                let status = answer.refused(422, "Invalid");
                assert!(text(&status, "/message").contains(why), "{query}: {status}");
            }
            Bad(why) => {
                let status = answer.refused(400, "BadRequest");
                assert!(text(&status, "/message").contains(why), "{query}: {status}");
            }
        }
    }
}

#[test]
fn a_version_that_does_not_exist_is_waited_for_and_then_refused() {
    let (server, mut client) = start(|_| ());
    client.post(MAPS, &map("a")).ok();
    let head = revision(&client.get(MAPS).ok());
    let far = head + 1_000;
    for path in [format!("{MAPS}?resourceVersion={far}"), format!("{MAPS}/a?resourceVersion={far}")] {
        let answer = client.get(&path);
        let status = answer.refused(504, "Timeout");
        let message = format!("Timeout: Too large resource version: {far}, current: {head}");
        assert_eq!(text(&status, "/message"), message);
        assert_eq!(text(&status, "/details/causes/0/reason"), "ResourceVersionTooLarge");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    let event = client.watch(MAPS, &format!("resourceVersion={far}")).next();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(504)));
    // What comes in time is served.
    let mut late = again(&server);
    let reading = std::thread::spawn(move || late.get(&format!("{MAPS}?resourceVersion={}", head + 1)).ok());
    client.post(MAPS, &map("b")).ok();
    assert_eq!(names(&reading.join().unwrap()), ["a", "b"]);
}

#[test]
fn a_list_whose_version_has_gone_can_be_continued_with_what_is_there() {
    let (_server, mut client) =
        start(|config| config.storage.etcd_compaction_interval = Duration::from_millis(1));
    for name in ["a", "b", "c"] {
        client.post(MAPS, &map(name)).ok();
    }
    let old = revision(&client.get(MAPS).ok());
    // It ends also where nothing was written since.
    let first = client.get(&format!("{MAPS}?limit=1")).ok();
    let unchanged = format!("{MAPS}?limit=1&continue={}", text(&first, "/metadata/continue"));
    poll(CAP, || (client.get(&unchanged).status == 410).then_some(())).expect("its time ends");
    let first = client.get(&format!("{MAPS}?limit=1")).ok();
    let token = text(&first, "/metadata/continue").to_owned();
    client.delete(&format!("{MAPS}/b")).ok();
    let gone = poll(CAP, || {
        let answer = client.get(&format!("{MAPS}?limit=1&continue={token}"));
        (answer.status == 410).then(|| answer.refused(410, "Expired"))
    });
    let gone = gone.expect("the history ends");
    assert!(text(&gone, "/message").contains("use the continue token in this response"), "{gone}");
    let rest = client.get(&format!("{MAPS}?continue={}", text(&gone, "/metadata/continue"))).ok();
    assert_eq!(names(&rest), ["c"], "b is gone by now");
    assert!(revision(&rest) > old);
    let exact = format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=Exact");
    let status = poll(CAP, || {
        let answer = client.get(&exact);
        (answer.status == 410).then(|| answer.refused(410, "Expired"))
    });
    let status = status.expect("the history ends");
    assert_eq!(text(&status, "/message"), "The resourceVersion for the provided list is too old.");
    let event = client.watch(MAPS, &format!("resourceVersion={old}")).next();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    let why = text(&event, "/object/message");
    assert!(why.starts_with(&format!("too old resource version: {old} (")), "{event}");
}

#[test]
fn a_watch_can_be_a_list_as_well() {
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
        let mark = watch.next();
        assert_eq!((text(&mark, "/type"), revision(&mark["object"])), ("BOOKMARK", head));
        let notes = &mark["object"]["metadata"]["annotations"];
        assert_eq!(notes["k8s.io/initial-events-end"], "true");
        let blueprint = text(notes, "/kubernetes.io~1initial-events-list-blueprint");
        let blueprint = openssl::base64::decode_block(blueprint).unwrap();
        let blueprint: Value = serde_json::from_slice(&blueprint).unwrap();
        assert_eq!(text(&blueprint, "/kind"), "ConfigMapList");
    }
    // Only what comes: nothing that is there, also not from any version.
    let mut watch =
        client.watch(MAPS, "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=0");
    client.post(MAPS, &map("new")).ok();
    assert_eq!(text(&watch.next(), "/object/metadata/name"), "new");
    let refused = |client: &mut Client, query: &str, why: &str| {
        let status = client.get(&format!("{MAPS}?watch=1&{query}")).refused(422, "Invalid");
        assert!(text(&status, "/message").contains(why), "{status}");
    };
    let needs = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
    refused(&mut client, "sendInitialEvents=true", needs);
    refused(&mut client, &format!("{streaming}&continue=x"), "forbidden when continue is provided");
    let rows = [("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")];
    let path = format!("{MAPS}?watch=1&{streaming}");
    client.request("GET", &path, &rows, b"").refused(406, "NotAcceptable");
    let (_server, mut plain) = start(|_| ());
    refused(&mut plain, streaming, "unless the WatchList feature gate is enabled");
}

#[test]
fn a_watch_ends_in_time_with_a_bookmark() {
    let (_server, mut client) = start(|_| ());
    client.post(MAPS, &map("a")).ok();
    let head = revision(&client.get(MAPS).ok());
    let mut watch = client.watch(MAPS, "allowWatchBookmarks=true&timeoutSeconds=1");
    assert_eq!(text(&watch.next(), "/type"), "ADDED");
    let mark = watch.next();
    assert_eq!((text(&mark, "/type"), revision(&mark["object"])), ("BOOKMARK", head));
    assert_eq!(watch.attempt(Deadline::after(CAP)).unwrap(), None, "a clean end");
    // Less than no time is over at once; no time at all means that none was said.
    let mut over = client.watch(MAPS, "timeoutSeconds=-1&resourceVersion=0");
    while over.attempt(Deadline::after(CAP)).unwrap().is_some() {}
}

/// A request for a watch of the maps that ends by itself.
fn watch_of_a_second(client: &Client) -> String {
    client.head("GET", &format!("{MAPS}?watch=1&timeoutSeconds=1"), &[]) + "\r\n"
}

#[test]
fn a_connection_goes_on_after_its_watch() {
    let (_server, mut client) = start(|_| ());
    client.post(MAPS, &map("a")).ok();
    let (watch, version) = (watch_of_a_second(&client), client.head("GET", "/version", &[]) + "\r\n");
    let deadline = Deadline::after(CAP);
    let read = |connection: &mut support::wire::Connection| {
        let head = connection.head(deadline).unwrap();
        let body = connection.body(support::wire::Connection::framing(&head, "GET"), deadline).unwrap();
        (head, String::from_utf8(body).unwrap())
    };

    // One request after the other, and one that comes while the watch goes on.
    for early in [false, true] {
        let mut connection = client.raw();
        for _ in 0..2 {
            connection.send(watch.as_bytes()).unwrap();
            if early {
                connection.send(version.as_bytes()).unwrap();
            }
            let (head, events) = read(&mut connection);
            assert_eq!((head.status, head.header("content-type")), (200, Some("application/json")));
            assert!(head.header("date").is_some() && head.header("audit-id").is_some(), "{head:?}");
            assert!(events.starts_with(r#"{"type":"ADDED""#) && events.ends_with("}\n"), "{events}");
            if !early {
                connection.send(version.as_bytes()).unwrap();
            }
            assert!(read(&mut connection).1.contains("gitVersion"), "early: {early}");
        }
    }

    // Both in one piece: the driver has read the second before the first is answered.
    let mut connection = client.raw();
    connection.send(format!("{watch}{version}").as_bytes()).unwrap();
    assert!(read(&mut connection).1.contains("ADDED"));
    assert!(read(&mut connection).1.contains("gitVersion"));
}

#[test]
fn a_watch_that_nobody_reads_or_wants_any_more_leaves_nothing_behind() {
    let (_server, mut client) = start(|_| ());
    let large = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"},
        "data": {"text": "x".repeat(900_000)}});
    client.post(MAPS, &large).ok();
    // Much larger than what the system takes for somebody who does not read.
    let mut watches: Vec<_> = (0..3).map(|_| client.watch(MAPS, "")).collect();
    for turn in 0..12 {
        let change = json!({"metadata": {"labels": {"turn": turn.to_string()}}});
        client.patch(&format!("{MAPS}/large"), "merge", &change).ok();
    }
    // Who reads late is told all, whole and in order.
    let mut late = watches.remove(0);
    let told = (0..13).map(|_| late.next());
    let turns: Vec<Value> = told.map(|event| event["object"]["metadata"]["labels"]["turn"].clone()).collect();
    assert_eq!(
        turns[1..].iter().map(|turn| turn.as_str().unwrap()).collect::<Vec<_>>(),
        ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"]
    );
    assert_eq!(metric(&mut client, "apiserver_longrunning_requests"), 3.0);
    // Two hang up without having read, the third in the middle of its silence.
    drop((watches, late));
    poll(CAP, || (metric(&mut client, "apiserver_longrunning_requests") == 0.0).then_some(())).unwrap();
}

#[test]
fn a_client_that_said_something_before_it_went_is_gone() {
    let (_server, mut client) = start(|_| ());
    client.post(MAPS, &map("a")).ok();
    let deadline = Deadline::after(CAP);
    let mut connection = client.raw();
    connection.send((client.head("GET", &format!("{MAPS}?watch=1"), &[]) + "\r\n").as_bytes()).unwrap();
    connection.head(deadline).unwrap();
    connection.chunk(deadline).unwrap();
    assert_eq!(metric(&mut client, "apiserver_longrunning_requests"), 1.0);
    connection.send(b"G").unwrap();
    connection.close_writing();
    poll(CAP, || (metric(&mut client, "apiserver_longrunning_requests") == 0.0).then_some(())).unwrap();
}

#[test]
fn an_answer_that_is_read_late_is_whole_though_a_watch_was_asked_for_behind_it() {
    let (_server, mut client) = start(|_| ());
    for number in 0..16 {
        let large = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("large-{number}")},
            "data": {"text": "x".repeat(900_000)}});
        client.post(MAPS, &large).ok();
    }
    let deadline = Deadline::after(CAP);
    let mut connection = client.raw();
    for path in [MAPS.to_owned(), format!("{MAPS}?watch=1&fieldSelector=metadata.name=large-3")] {
        connection.send((client.head("GET", &path, &[]) + "\r\n").as_bytes()).unwrap();
    }
    let head = connection.head(deadline).unwrap();
    let list = connection.body(support::wire::Connection::framing(&head, "GET"), deadline).unwrap();
    assert_eq!(names(&serde_json::from_slice(&list).unwrap()).len(), 16);
    assert_eq!(connection.head(deadline).unwrap().status, 200);
    let event = connection.chunk(deadline).unwrap().unwrap();
    assert!(event.starts_with(br#"{"type":"ADDED""#));
}

/// A frame of a WebSocket as a server sends it: opcode and payload.
fn message(connection: &mut support::wire::Connection) -> (u8, Vec<u8>) {
    let deadline = Deadline::after(CAP);
    let head = connection.exactly(2, deadline).unwrap();
    assert_eq!(head[0] & 0xf0, 0x80, "a whole message");
    let length = match head[1] {
        126 => {
            connection.exactly(2, deadline).unwrap().iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
        }
        127 => {
            connection.exactly(8, deadline).unwrap().iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
        }
        length => usize::from(length),
    };
    (head[0] & 0x0f, connection.exactly(length, deadline).unwrap())
}

#[test]
fn a_watch_speaks_websocket() {
    let (_server, mut client) = start(|_| ());
    client.post(MAPS, &map("a")).ok();
    let accepts = [("application/json", 1), ("application/vnd.kubernetes.protobuf", 2)];
    for (turn, (accept, opcode)) in accepts.into_iter().enumerate() {
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
        let head = connection.head(Deadline::after(CAP)).unwrap();
        assert_eq!(head.status, 101);
        assert_eq!(head.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(head.header("sec-websocket-protocol"), Some("binary.k8s.io"));
        let tells = |found: (u8, Vec<u8>), kind: &str| {
            assert_eq!(found.0, opcode);
            match opcode {
                1 => assert_eq!(serde_json::from_slice::<Value>(&found.1).unwrap()["type"], kind),
                // A message of a type and an object, without the length that stands before it in a stream.
                _ => assert!(
                    found.1.starts_with(&[10, kind.len() as u8]) && found.1[2..].starts_with(kind.as_bytes())
                ),
            }
        };
        tells(message(&mut connection), "ADDED");
        let mut changed = map("a");
        changed["data"] = json!({"turn": turn.to_string()});
        client.put(&format!("{MAPS}/a"), &changed).ok();
        tells(message(&mut connection), "MODIFIED");
        // A ping is answered, a message is not listened to, a goodbye is returned and ends the session.
        connection.send(b"\x81\x82\x00\x00\x00\x00hi\x89\x81\x00\x00\x00\x00x").unwrap();
        assert_eq!(message(&mut connection), (10, b"x".to_vec()));
        assert_eq!(metric(&mut client, "apiserver_longrunning_requests"), 1.0);
        connection.send(b"\x88\x82\x00\x00\x00\x00\x03\xe8").unwrap();
        assert_eq!(message(&mut connection), (8, b"\x03\xe8".to_vec()));
        poll(CAP, || (metric(&mut client, "apiserver_longrunning_requests") == 0.0).then_some(())).unwrap();
    }
    let bad = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")];
    let mut connection = client.raw();
    connection
        .send(format!("{}\r\n", client.head("GET", &format!("{MAPS}?watch=1"), &bad)).as_bytes())
        .unwrap();
    assert_eq!(connection.head(Deadline::after(CAP)).unwrap().status, 400);
}

#[test]
fn what_takes_too_long_is_told_so_and_watches_may_take_longer() {
    let (_server, mut client) = start(|config| config.limits.request_timeout = Duration::from_millis(200));
    let status = client.get(&format!("{MAPS}?resourceVersion=99999")).refused(504, "Timeout");
    let message = "Timeout: request did not complete within the allotted timeout";
    assert_eq!(text(&status, "/message"), message);
    let (_server, mut client) = start(|_| ());
    let status = client.get(&format!("{MAPS}?resourceVersion=99999&timeout=100ms")).refused(504, "Timeout");
    assert_eq!(text(&status, "/message"), message);
    let status = client.get(&format!("{MAPS}?timeout=soon")).refused(400, "BadRequest");
    assert!(text(&status, "/message").starts_with("invalid timeout specified in the request URL"));
    let mut watch = client.watch(MAPS, "timeout=1ms&timeoutSeconds=30");
    client.post(MAPS, &map("a")).ok();
    assert_eq!(text(&watch.next_of("a"), "/type"), "ADDED");
}

#[tokio::test]
async fn a_list_over_http2_that_nobody_reads_is_reset_when_its_time_is_over() {
    let starting = tokio::task::spawn_blocking(|| {
        let (server, mut admin) = start(|_| ());
        for turn in 0..20 {
            let mut large = map(&format!("large{turn}"));
            large["data"] = json!({"text": "x".repeat(500_000)});
            admin.post(MAPS, &large).ok();
        }
        (server, admin)
    });
    let (server, mut admin) = starting.await.unwrap();
    let identity = server.admin().clone();
    let mut client = edge::Client::connect(&server, Some(&identity)).await;
    let answer = client.send(edge::get(&format!("{MAPS}?timeout=2s"))).await;
    assert_eq!(answer.status(), 200);
    let mut body = answer.into_body();
    tokio::task::spawn_blocking(move || {
        poll(CAP, || (metric(&mut admin, "pilothouse_list_bytes_inflight") == 0.0).then_some(()))
            .expect("the list is given up");
    })
    .await
    .unwrap();
    let end = loop {
        match body.data().await.expect("what came does not look complete") {
            Ok(chunk) => drop(chunk),
            Err(error) => break error,
        }
    };
    assert_eq!(end.reason(), Some(h2::Reason::INTERNAL_ERROR));
    assert_eq!(client.send(edge::get("/api/v1/namespaces/default")).await.status(), 200, "others go on");
}

/// Reads a watch over HTTP/2 up to a version. Answers how many events and how many frames that were.
async fn read_until(mut body: h2::RecvStream, head: u64) -> (h2::RecvStream, u64, u64) {
    let (mut rest, mut last, mut events, mut frames) = (Vec::new(), 0, 0, 0);
    while last < head {
        let chunk = tokio::time::timeout(CAP, body.data()).await.expect("events come");
        let chunk = chunk.expect("the watch goes on").unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        frames += 1;
        rest.extend_from_slice(&chunk);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let at = revision(&serde_json::from_slice::<Value>(&line).unwrap()["object"]);
            assert!(at > last, "{at} after {last}");
            last = at;
            events += 1;
        }
    }
    assert!(rest.is_empty());
    (body, events, frames)
}

#[tokio::test]
async fn hundreds_of_watches_on_one_connection_starve_nobody_and_leave_nothing_behind() {
    const WATCHES: usize = 300;
    const WRITES: u64 = 40;
    let starting = tokio::task::spawn_blocking(|| {
        let (server, mut admin) = start(|config| config.serving.http2_max_streams_per_connection = 1_000);
        let head = revision(&admin.get(MAPS).ok()) + WRITES;
        (server, admin, head)
    });
    let (server, mut admin, head) = starting.await.unwrap();
    let identity = server.admin().clone();
    let mut client = edge::Client::connect(&server, Some(&identity)).await;
    // On a connection of its own, because those who do not read use up what the connection may carry.
    let mut idler = edge::Client::connect(&server, Some(&identity)).await;
    let (mut watches, mut silent) = (Vec::new(), Vec::new());
    for _ in 0..WATCHES {
        let answer = client.send(edge::get(&format!("{MAPS}?watch=1"))).await;
        watches.push(answer.into_body());
    }
    for _ in 0..WATCHES / 10 {
        silent.push(idler.send(edge::get(&format!("{MAPS}?watch=1"))).await.into_body());
    }
    let writing = tokio::task::spawn_blocking(move || {
        for turn in 0..WRITES {
            admin.post(MAPS, &map(&format!("m{turn}"))).ok();
        }
        admin
    });
    let reading: Vec<_> = watches.into_iter().map(|body| tokio::spawn(read_until(body, head))).collect();
    // Beside the stream of events every GET is answered.
    for _ in 0..20 {
        assert_eq!(client.send(edge::get("/api/v1/namespaces/default")).await.status(), 200);
    }
    let mut admin = writing.await.unwrap();
    let mut watches = Vec::new();
    for reading in reading {
        let (body, events, frames) = reading.await.unwrap();
        assert_eq!(events, WRITES, "each of them was told everything once");
        assert!(frames <= 2 * events, "no event is told in crumbs: {frames} frames");
        watches.push(body);
    }
    // A client that re-watches resets the stream it has; half of them do, the others are cut with the connection.
    let rest = watches.split_off(watches.len() / 2);
    drop(watches);
    let left = (rest.len() + silent.len()) as f64;
    let mut admin = tokio::task::spawn_blocking(move || {
        let sessions = |admin: &mut Client| metric(admin, "apiserver_longrunning_requests");
        poll(CAP, || (sessions(&mut admin) == left).then_some(())).expect("a reset ends a session");
        admin
    })
    .await
    .unwrap();
    client.cut().await;
    idler.cut().await;
    tokio::task::spawn_blocking(move || {
        let sessions = |admin: &mut Client| metric(admin, "apiserver_longrunning_requests");
        poll(CAP, || (sessions(&mut admin) == 0.0).then_some(()))
            .expect("a lost connection ends its sessions");
        let told = metric(&mut admin, "apiserver_watch_events_total");
        assert!(told >= (WRITES * WATCHES as u64) as f64, "{told} events were counted");
        assert_eq!(metric(&mut admin, "pilothouse_watch_stalled_sessions"), 0.0);
    })
    .await
    .unwrap();
    drop((rest, silent));
    assert_eq!(server.stop_async().await, pilothouse::server::Exit::Stopped);
}

#[tokio::test]
async fn whoever_is_not_known_gets_one_request_per_connection() {
    for (gate_setting, ends) in [(None, true), (Some("UnauthenticatedHTTP2DOSMitigation=false"), false)] {
        let starting = tokio::task::spawn_blocking(move || {
            start(|config| gate_setting.into_iter().for_each(|setting| gate(config, setting)))
        });
        let (server, _) = starting.await.unwrap();
        let identity = server.admin().clone();
        let mut known = edge::Client::connect(&server, Some(&identity)).await;
        let mut unknown = edge::Client::connect(&server, None).await;
        assert_eq!(unknown.send(edge::get("/readyz")).await.status(), 200);
        for _ in 0..3 {
            assert_eq!(known.send(edge::get("/readyz")).await.status(), 200);
        }
        if ends {
            let mut turns = 0;
            while unknown.try_send(edge::get("/readyz")).await.is_ok() {
                turns += 1;
                assert!(turns < 1_000, "the connection goes on");
            }
        } else {
            assert_eq!(unknown.send(edge::get("/readyz")).await.status(), 200);
        }
        server.stop_async().await;
    }
}

/// Nothing is written meanwhile: clients tell the two lists apart by their versions all the same.
#[test]
fn a_list_that_goes_on_after_its_version_has_expired_has_another_version() {
    let directory = support::server::directory();
    let data = directory.path().join("data");
    let short = ["--etcd-compaction-interval=1s"];
    let server = support::Server::on(&data, &short);
    let mut client = server.admin();
    for name in ["a", "b", "c"] {
        client.post(MAPS, &map(name)).ok();
    }
    let first = client.get(&format!("{MAPS}?limit=1")).ok();
    let token = text(&first, "/metadata/continue").to_owned();
    let expired = poll(CAP, || {
        let answer = client.get(&format!("{MAPS}?limit=1&continue={token}"));
        (answer.status == 410).then(|| answer.json())
    });
    let go_on = text(&expired.unwrap(), "/metadata/continue").to_owned();
    let next = client.get(&format!("{MAPS}?limit=1&continue={go_on}")).ok();
    let revision = |list: &Value| text(list, "/metadata/resourceVersion").parse::<u64>().unwrap();
    assert_eq!((revision(&next), text(&next, "/items/0/metadata/name")), (revision(&first) + 1, "b"));
    let again = client.get(&format!("{MAPS}?limit=1&continue={go_on}")).ok();
    assert_eq!(revision(&again), revision(&next), "once is enough");
    let last = client.get(&format!("{MAPS}?continue={}", text(&next, "/metadata/continue"))).ok();
    assert_eq!((revision(&last), text(&last, "/items/0/metadata/name")), (revision(&next), "c"));
    server.kill();
    let server = support::Server::on(&data, &short);
    assert_eq!(revision(&server.admin().get(MAPS).ok()), revision(&next), "it is as durable as a write");
    server.stop();
}
