//! Bad input of every kind gets a clear Status or a closed connection, and the server goes on as if nothing had been.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::client::JSON;
use support::compare::text;
use support::wait::{CAP, Deadline};
use support::{Answer, Client, Server, USER_TOKEN};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// How long a client that stalls may be borne with; the server's own limits are below.
const STALL_CAP: Duration = Duration::from_secs(120);

fn server(more: &[&str]) -> (Server, Client) {
    let mut arguments = vec!["--engine=memory", "--authorization-mode=RBAC"];
    arguments.extend(more);
    let server = Server::with(&arguments);
    let client = server.admin();
    (server, client)
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

fn send(client: &mut Client, body: &[u8]) -> Answer {
    client.request("POST", MAPS, &JSON, body)
}

#[test]
fn bodies_that_are_no_object() {
    let (mut server, mut client) = server(&[]);
    let whole = map("whole").to_string();
    for end in 1..whole.len() {
        send(&mut client, &whole.as_bytes()[..end]).refused(400, "BadRequest");
    }
    let broken = [
        "",
        "{",
        "{]",
        "[]",
        "\"text\"",
        "12",
        "true",
        "{\"a\":}",
        "{\"a\" 1}",
        "{'a': 1}",
        "nul",
        "{} {}",
        "\u{0}",
    ];
    for body in broken {
        let answer = send(&mut client, body.as_bytes());
        answer.refused(400, "BadRequest");
    }
    send(&mut client, b"\xff\xfe{\x00").refused(400, "BadRequest");
    send(&mut client, b"{\"metadata\":{\"name\":\"\\ud800\"}}");
    server.unharmed();
}

#[test]
fn bodies_that_are_too_deep() {
    let (mut server, mut client) = server(&[]);
    for depth in [1_000, 10_000, 100_000, 1_000_000] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let middle = if open == "[" { "" } else { "1" };
            let deep = format!("{}{middle}{}", open.repeat(depth), close.repeat(depth));
            for field in ["unknown", "data", "metadata"] {
                let body = format!("{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"{field}\":{deep}}}");
                let answer = send(&mut client, body.as_bytes());
                assert!(matches!(answer.status, 400 | 413 | 422), "{depth} {field}: {}", answer.status);
                assert_eq!(text(&answer.json(), "/kind"), "Status");
            }
            send(&mut client, &deep.as_bytes()[..deep.len() / 2]).refused(400, "BadRequest");
        }
    }
    server.unharmed();
}

#[test]
fn values_of_the_wrong_type() {
    let (mut server, mut client) = server(&[]);
    for body in [
        json!({"metadata": {"name": 5}}),
        json!({"metadata": []}),
        json!({"metadata": {"name": "a", "labels": ["x"]}}),
        json!({"metadata": {"name": "a", "labels": {"x": 1}}}),
        json!({"metadata": {"name": "a", "creationTimestamp": "notatime"}}),
        json!({"metadata": {"name": "a"}, "data": []}),
        json!({"metadata": {"name": "a"}, "data": {"x": 1}}),
        json!({"metadata": {"name": "a"}, "data": {"x": null, "y": {}}}),
        json!({"metadata": {"name": "a"}, "binaryData": {"x": "%%%"}}),
        json!({"metadata": {"name": "a"}, "immutable": "yes"}),
        json!({"apiVersion": 1, "kind": "ConfigMap"}),
        json!({"apiVersion": "v1", "kind": {}}),
        json!({"apiVersion": "v1", "kind": "Nope", "metadata": {"name": "a"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}),
        json!({"apiVersion": "v9", "kind": "ConfigMap", "metadata": {"name": "a"}}),
        json!({"apiVersion": "a/b/c", "kind": "ConfigMap", "metadata": {"name": "a"}}),
        json!({"apiVersion": "v1", "kind": "List", "items": []}),
    ] {
        send(&mut client, body.to_string().as_bytes()).refused(400, "BadRequest");
    }
    let numbers = ["1e400", "-1", "1.5", "3000000000", "99999999999999999999999999", "\"3\"", "-0.0e-9999"];
    for number in numbers {
        let body = format!("{{\"metadata\":{{\"name\":\"a\"}},\"spec\":{{\"replicas\":{number}}}}}");
        let answer =
            client.request("POST", "/apis/apps/v1/namespaces/default/deployments", &JSON, body.as_bytes());
        assert!(matches!(answer.status, 400 | 422), "{number}: {}", answer.text());
        assert_eq!(text(&answer.json(), "/kind"), "Status");
    }
    client.get(&format!("{MAPS}/a")).refused(404, "NotFound");
    server.unharmed();
}

#[test]
fn keys_that_come_twice() {
    let (mut server, mut client) = server(&[]);
    let twice = b"{\"metadata\":{\"name\":\"first\",\"name\":\"second\"},\"data\":{\"a\":\"1\",\"a\":\"2\"}}";
    let created = send(&mut client, twice).ok();
    assert_eq!(text(&created, "/metadata/name"), "second", "the last one counts: {created}");
    assert_eq!(text(&created, "/data/a"), "2", "the last one counts: {created}");
    let path = format!("{MAPS}?fieldValidation=Strict");
    let status = client.request("POST", &path, &JSON, twice).refused(400, "BadRequest");
    assert!(text(&status, "/message").contains("duplicate field"), "{status}");
    server.unharmed();
}

#[test]
fn bodies_that_are_too_large() {
    let (mut server, mut client) = server(&[]);
    let large = |size: usize| {
        let mut object = map("large");
        object["data"] = json!({"x": "x".repeat(size)});
        object.to_string()
    };
    for size in [(3 << 20) + 1, 8 << 20] {
        let answer = send(&mut client, large(size).as_bytes());
        let status = answer.refused(413, "RequestEntityTooLarge");
        assert!(text(&status, "/message").contains("3145728"), "{status}");
    }
    // Without a length: the limit holds while the body comes.
    let mut connection = client.raw();
    let head = client.head("POST", MAPS, &[JSON[0], ("Transfer-Encoding", "chunked")]);
    connection.send(format!("{head}\r\n").as_bytes()).expect("the head is taken");
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..64 {
        if connection.send(chunk.as_bytes()).is_err() {
            break;
        }
    }
    let _ = connection.send(b"0\r\n\r\n");
    match connection.head(Deadline::after(CAP)) {
        Ok(head) => assert_eq!(head.status, 413),
        Err(error) => assert_ne!(error.kind(), std::io::ErrorKind::TimedOut, "closed is fine, silent is not"),
    }
    // Just below the limit on bodies an object is too large for its kind, or taken.
    assert!(matches!(send(&mut client, large((3 << 20) - 200).as_bytes()).status, 201 | 413 | 422));
    server.unharmed();
}

#[test]
fn media_types() {
    let (mut server, mut client) = server(&[]);
    let body = map("media").to_string();
    for kind in ["text/plain", "application/xml", "application/cbor", "nonsense", ";;;"] {
        let answer = client.request("POST", MAPS, &[("Content-Type", kind)], body.as_bytes());
        answer.refused(415, "UnsupportedMediaType");
    }
    client
        .request("POST", MAPS, &[("Content-Type", "application/json; charset=utf-8")], body.as_bytes())
        .ok();
    client.request("GET", MAPS, &[("Accept", "text/html")], b"").refused(406, "NotAcceptable");
    client.request("GET", MAPS, &[("Accept", "text/html, application/json")], b"").ok();
    server.unharmed();
}

#[test]
fn paths() {
    let (mut server, mut client) = server(&[]);
    for path in ["/api/v1/nopes", "/api/v1/namespaces/default/nopes", "/api/v1/namespaces/default/nopes/a"] {
        client.get(path).refused(404, "NotFound");
    }
    for path in [
        "/nope",
        "/api/v9",
        "/apis/nope.example.com",
        "/apis/nope.example.com/v1",
        "/apis/apps/v9/deployments",
    ] {
        assert_eq!(client.get(path).status, 404, "{path}");
    }
    let long = format!("{MAPS}/{}", "n".repeat(4_000));
    let odd = [
        "/api/v1/namespaces/default/configmaps/a%2Fb",
        "/api/v1/namespaces/default%2Fconfigmaps/a",
        "/api/v1/namespaces/default/configmaps/%00",
        "/api/v1/namespaces/default/configmaps/%ff%fe",
        "/api/v1/namespaces/default/configmaps/%2e%2e",
        "/api/v1/namespaces/default/configmaps/..",
        "/api/v1/namespaces/default/configmaps/%zz",
        "/api/v1/namespaces/default/configmaps/%",
        "/api/v1/namespaces/default/configmaps/a/b/c/d/e/f",
        "/api/v1/namespaces//configmaps/a",
        "/api/v1//namespaces/default/configmaps/a",
        "//api//v1//nodes//a",
        "/api/v1/namespaces/%20/configmaps/a",
        "/apis//v1/deployments",
        "/../../../../etc/passwd",
        &long,
    ];
    for path in odd {
        let answer = client.get(path);
        assert!((300..500).contains(&answer.status), "{path}: {} {}", answer.status, answer.text());
    }
    for query in [
        "limit=x",
        "limit=-1",
        "timeoutSeconds=x&watch=1",
        "resourceVersion=x",
        "continue=%%%",
        "labelSelector=%3D%3D",
    ] {
        let answer = client.get(&format!("{MAPS}?{query}"));
        assert!((200..500).contains(&answer.status), "{query}: {}", answer.text());
    }
    client.get(&format!("{MAPS}?labelSelector=a%20b%20c")).refused(400, "BadRequest");
    client.get(&format!("{MAPS}?fieldSelector=spec.nope%3Da")).refused(400, "BadRequest");
    server.unharmed();
}

#[test]
fn verbs() {
    let (mut server, mut client) = server(&[]);
    client.post(MAPS, &map("a")).ok();
    let one = format!("{MAPS}/a");
    client.post(&one, &map("a")).refused(405, "MethodNotAllowed");
    client.put(MAPS, &map("a")).refused(405, "MethodNotAllowed");
    client.request("PATCH", MAPS, &JSON, b"{}").refused(405, "MethodNotAllowed");
    client.delete("/api/v1/namespaces").refused(405, "MethodNotAllowed");
    client.get("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").refused(405, "MethodNotAllowed");
    client.request("FOO", &one, &[], b"").refused(405, "MethodNotAllowed");
    for path in ["/version", "/api", "/api/v1/", "/apis/apps/v1", "/openid/v1/jwks"] {
        client.request("POST", path, &JSON, b"{}").refused(405, "MethodNotAllowed");
    }
    assert_eq!(
        client.request("POST", "/apis", &JSON, b"{}").status,
        200,
        "groups are told whatever the method"
    );
    for (path, accept, status) in [
        ("/apis", "application/*", 200),
        ("/apis/apps", "application/*", 200),
        ("/api", "application/*", 406),
        ("/version", "application/json;as=Table;v=v1;g=meta.k8s.io", 200),
        ("/version", "application/yaml", 406),
        ("/version/x", "*/*", 404),
        ("/healthz/", "*/*", 404),
    ] {
        assert_eq!(client.request("GET", path, &[("Accept", accept)], b"").status, status, "{path} {accept}");
    }
    let index = client.get("/").ok();
    let paths: Vec<&str> =
        index["paths"].as_array().unwrap().iter().filter_map(|path| path.as_str()).collect();
    for path in ["/api/v1", "/apis/", "/apis/apps/v1", "/livez/ping", "/readyz/shutdown", "/version"] {
        assert!(paths.contains(&path), "{path}: {paths:?}");
    }
    assert!(paths.is_sorted());
    let odd = client.get(&format!("{MAPS}/a%22b")).refused(404, "NotFound");
    assert_eq!(odd["message"], "configmaps \"a\\\"b\" not found");
    // Where nothing is mounted for any method, nothing is found.
    for nowhere in ["/api/v1/bindings", "/api/v1/namespaces/default/bindings/a", "/api/v1/proxy/nodes/a"] {
        client.get(nowhere).refused(404, "NotFound");
    }
    // Documents are read.
    for document in ["/api", "/api/v1", "/apis/apps/v1", "/version"] {
        client.get(document).ok();
        client.post(document, &map("a")).refused(405, "MethodNotAllowed");
    }
    assert_eq!(client.get("/healthz/").status, 404);
    let index = client.get("/").ok();
    assert!(index.to_string().contains("\"/apis/apps/v1\""), "{index}");
    client.get(&format!("{MAPS}/.")).refused(400, "BadRequest");
    client.get(&format!("{one}?export=true")).refused(400, "BadRequest");
    // A collection is not deleted at a version or from a place that makes no sense.
    client.delete(&format!("{MAPS}?resourceVersion=x")).refused(400, "BadRequest");
    client.delete(&format!("{MAPS}?continue=x")).refused(400, "BadRequest");
    client.get(&one).ok();
    let head = client.request("HEAD", &one, &[], b"");
    assert_eq!(head.status, 405);
    // The connection is still in step: a HEAD has no body.
    client.get(&one).ok();
    server.unharmed();
}

#[test]
fn who_is_asking() {
    let (mut server, _) = server(&[]);
    let mut anonymous = server.anonymous();
    for path in ["/version", "/healthz", "/livez", "/readyz"] {
        assert_eq!(anonymous.get(path).status, 200, "{path}");
    }
    for path in [MAPS, "/api", "/apis", "/apis/apps/v1", "/nope"] {
        let status = anonymous.get(path).refused(403, "Forbidden");
        assert!(text(&status, "/message").contains("User \"system:anonymous\" cannot"), "{status}");
    }
    let status = anonymous.post(MAPS, &map("a")).refused(403, "Forbidden");
    let message = "configmaps is forbidden: User \"system:anonymous\" cannot create resource \"configmaps\" in API group \"\" in the namespace \"default\"";
    assert_eq!(text(&status, "/message"), message);

    let mut user = anonymous.with_token(Some(USER_TOKEN));
    user.get("/api").ok();
    let status = user.get("/api/v1/nodes").refused(403, "Forbidden");
    let message = "nodes is forbidden: User \"alice\" cannot list resource \"nodes\" in API group \"\" at the cluster scope";
    assert_eq!(text(&status, "/message"), message);

    let mut stranger = anonymous.with_token(Some("no-such-token"));
    for path in [MAPS, "/healthz", "/nope"] {
        stranger.get(path).refused(401, "Unauthorized");
    }
    for header in ["Basic YWRtaW46YWRtaW4=", "Bearer", "nonsense", ""] {
        let answer = anonymous.request("GET", MAPS, &[("Authorization", header)], b"");
        answer.refused(403, "Forbidden");
    }
    server.by_certificate().get("/api/v1/nodes").ok();
    server.unharmed();
}

#[test]
fn nobody_is_anonymous_if_that_is_off() {
    let (mut server, _) = server(&["--anonymous-auth=false"]);
    let mut anonymous = server.anonymous();
    anonymous.get(MAPS).refused(401, "Unauthorized");
    anonymous.get("/version").refused(401, "Unauthorized");
    server.unharmed();
}

#[test]
fn headers_that_are_too_large() {
    let (mut server, mut client) = server(&[]);
    let large = "x".repeat(300 << 10);
    let many: String = (0..2_000).map(|at| format!("X-Header-{at}: value\r\n")).collect();
    let endless = "GET /".to_owned() + &"a".repeat(1 << 20);
    for lines in [format!("X-Large: {large}\r\n"), many, format!("{large}: x\r\n")] {
        let mut connection = client.raw();
        let _ = connection.send(format!("{}{lines}\r\n", client.head("GET", MAPS, &[])).as_bytes());
        refused_or_closed(&connection.answer_or_end());
    }
    let mut connection = client.raw();
    let _ = connection.send(endless.as_bytes());
    refused_or_closed(&connection.answer_or_end());
    client.get(MAPS).ok();
    server.unharmed();
}

#[test]
fn requests_that_are_not_http() {
    let (mut server, mut client) = server(&[]);
    for bytes in [
        &b"\x00\x01\x02\x03\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad Header\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\xff\xff",
    ] {
        let mut connection = client.raw();
        let _ = connection.send(bytes);
        connection.close_writing();
        refused_or_closed(&connection.answer_or_end());
    }
    client.get(MAPS).ok();
    server.unharmed();
}

#[test]
fn connections_that_stop_half_way() {
    let (mut server, mut client) = server(&[]);
    let body = map("half").to_string();
    let head = client.head("POST", MAPS, &JSON);
    let whole = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    // At every length: the client is gone, or only says that it will send no more.
    for end in (1..whole.len()).step_by(7) {
        let mut connection = client.raw();
        connection.send(&whole.as_bytes()[..end]).expect("bytes are taken");
        if end % 2 == 0 {
            connection.close_writing();
            connection.rest_to_end(Deadline::after(STALL_CAP)).expect("the server closes too");
        }
    }
    client.get(&format!("{MAPS}/half")).refused(404, "NotFound");
    // A whole request, then the end of what the client has to say: it is answered, or not, but the server goes on.
    let mut connection = client.raw();
    connection.send(whole.as_bytes()).expect("bytes are taken");
    connection.close_writing();
    connection.rest_to_end(Deadline::after(STALL_CAP)).expect("the server closes too");
    server.unharmed();
}

#[test]
fn clients_that_stall() {
    let (mut server, mut client) = server(&["--request-timeout=5s"]);
    let stalls = [
        "GET /api/v1".to_owned(),
        client.head("GET", MAPS, &[]),
        format!("{}Content-Length: 100\r\n\r\n", client.head("POST", MAPS, &JSON)),
        format!("{}Content-Length: 100\r\n\r\n{{\"kind\":", client.head("POST", MAPS, &JSON)),
        format!("{}Transfer-Encoding: chunked\r\n\r\n5\r\n{{", client.head("POST", MAPS, &JSON)),
    ];
    let mut stalled = Vec::new();
    for stall in stalls.iter().cycle().take(100) {
        let mut connection = client.raw();
        connection.send(stall.as_bytes()).expect("bytes are taken");
        stalled.push(connection);
    }
    // Far more of them than there are workers: nobody else waits.
    for at in 0..50 {
        client.post(MAPS, &map(&format!("busy-{at}"))).ok();
    }
    let deadline = Deadline::after(STALL_CAP);
    for mut connection in stalled {
        connection.rest_to_end(deadline).expect("the server gives up on a client that stalls");
    }
    server.unharmed();
}

/// An answer that refuses, or none at all.
fn refused_or_closed(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let status = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).map(str::to_owned);
    match status {
        None => assert!(bytes.is_empty() || bytes[0] == 0, "neither an answer nor the end: {text:?}"),
        Some(code) => assert!(code.starts_with('4') || code.starts_with('5'), "{text}"),
    }
}

#[test]
fn an_object_of_too_many_parts_is_refused_before_its_defaults_fill_the_memory() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let containers = vec!["{}"; 200_000].join(",");
    let body = format!(r#"{{"metadata":{{"name":"p"}},"spec":{{"containers":[{containers}]}}}}"#);
    let headers = [("Content-Type", "application/json")];
    let refused = client.request("POST", "/api/v1/namespaces/default/pods", &headers, body.as_bytes());
    assert_eq!(refused.status, 413, "{}", refused.text());
}
