//! Bad input of every kind gets a Status or a closed connection, and does not harm the server.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::JSON;
use crate::support::compare::text;
use crate::support::wait::{Deadline, TIMEOUT};
use crate::support::{Client, Response, Server, USER_TOKEN};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// The timeout for stalled clients; the server's own limits are lower.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);

fn server(flags: &[&str]) -> (Server, Client) {
    let mut arguments = vec!["--engine=memory", "--authorization-mode=RBAC"];
    arguments.extend(flags);
    let server = Server::with_flags(&arguments);
    let client = server.admin();
    (server, client)
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

fn send(client: &mut Client, body: &[u8]) -> Response {
    client.request("POST", MAPS, &JSON, body)
}

#[test]
fn malformed_bodies_are_bad_requests() {
    let (mut server, mut client) = server(&[]);
    let complete = map("whole").to_string();
    for end in 1..complete.len() {
        send(&mut client, &complete.as_bytes()[..end]).expect_error(400, "BadRequest");
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
        let response = send(&mut client, body.as_bytes());
        response.expect_error(400, "BadRequest");
    }
    send(&mut client, b"\xff\xfe{\x00").expect_error(400, "BadRequest");
    send(&mut client, b"{\"metadata\":{\"name\":\"\\ud800\"}}");
    server.assert_healthy();
}

#[test]
fn deeply_nested_bodies_are_refused() {
    let (mut server, mut client) = server(&[]);
    for depth in [1_000, 10_000, 100_000, 1_000_000] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let middle = if open == "[" { "" } else { "1" };
            let deep = format!("{}{middle}{}", open.repeat(depth), close.repeat(depth));
            for field in ["unknown", "data", "metadata"] {
                let body = format!("{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"{field}\":{deep}}}");
                let response = send(&mut client, body.as_bytes());
                assert!(matches!(response.status, 400 | 413 | 422), "{depth} {field}: {}", response.status);
                assert_eq!(text(&response.json(), "/kind"), "Status");
            }
            send(&mut client, &deep.as_bytes()[..deep.len() / 2]).expect_error(400, "BadRequest");
        }
    }
    server.assert_healthy();
}

#[test]
fn values_of_wrong_type_are_bad_requests() {
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
        send(&mut client, body.to_string().as_bytes()).expect_error(400, "BadRequest");
    }
    let numbers = ["1e400", "-1", "1.5", "3000000000", "99999999999999999999999999", "\"3\"", "-0.0e-9999"];
    for number in numbers {
        let body = format!("{{\"metadata\":{{\"name\":\"a\"}},\"spec\":{{\"replicas\":{number}}}}}");
        let response =
            client.request("POST", "/apis/apps/v1/namespaces/default/deployments", &JSON, body.as_bytes());
        assert!(matches!(response.status, 400 | 422), "{number}: {}", response.text());
        assert_eq!(text(&response.json(), "/kind"), "Status");
    }
    client.get(&format!("{MAPS}/a")).expect_error(404, "NotFound");
    server.assert_healthy();
}

#[test]
fn duplicate_keys_use_last_value_or_fail_strict_validation() {
    let (mut server, mut client) = server(&[]);
    let twice = b"{\"metadata\":{\"name\":\"first\",\"name\":\"second\"},\"data\":{\"a\":\"1\",\"a\":\"2\"}}";
    let created = send(&mut client, twice).ok();
    assert_eq!(text(&created, "/metadata/name"), "second", "the last one counts: {created}");
    assert_eq!(text(&created, "/data/a"), "2", "the last one counts: {created}");
    let path = format!("{MAPS}?fieldValidation=Strict");
    let status = client.request("POST", &path, &JSON, twice).expect_error(400, "BadRequest");
    assert!(text(&status, "/message").contains("duplicate field"), "{status}");
    server.assert_healthy();
}

#[test]
fn bodies_over_limit_are_too_large() {
    let (mut server, mut client) = server(&[]);
    let large = |size: usize| {
        let mut object = map("large");
        object["data"] = json!({"x": "x".repeat(size)});
        object.to_string()
    };
    for size in [(3 << 20) + 1, 8 << 20] {
        let response = send(&mut client, large(size).as_bytes());
        let status = response.expect_error(413, "RequestEntityTooLarge");
        assert!(text(&status, "/message").contains("3145728"), "{status}");
    }
    // Without Content-Length the limit applies while the body is received.
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
    match connection.head(Deadline::after(TIMEOUT)) {
        Ok(head) => assert_eq!(head.status, 413),
        Err(error) => assert_ne!(error.kind(), std::io::ErrorKind::TimedOut, "closed is fine, silent is not"),
    }
    // Just below the body limit an object may be too large for its kind, or accepted.
    assert!(matches!(send(&mut client, large((3 << 20) - 200).as_bytes()).status, 201 | 413 | 422));
    server.assert_healthy();
}

#[test]
fn unsupported_media_types_are_refused() {
    let (mut server, mut client) = server(&[]);
    let body = map("media").to_string();
    for kind in ["text/plain", "application/xml", "application/cbor", "nonsense", ";;;"] {
        let response = client.request("POST", MAPS, &[("Content-Type", kind)], body.as_bytes());
        response.expect_error(415, "UnsupportedMediaType");
    }
    client
        .request("POST", MAPS, &[("Content-Type", "application/json; charset=utf-8")], body.as_bytes())
        .ok();
    client.request("GET", MAPS, &[("Accept", "text/html")], b"").expect_error(406, "NotAcceptable");
    client.request("GET", MAPS, &[("Accept", "text/html, application/json")], b"").ok();
    server.assert_healthy();
}

#[test]
fn unknown_and_malformed_paths_and_queries_are_refused() {
    let (mut server, mut client) = server(&[]);
    for path in ["/api/v1/nopes", "/api/v1/namespaces/default/nopes", "/api/v1/namespaces/default/nopes/a"] {
        client.get(path).expect_error(404, "NotFound");
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
    let odd_paths = [
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
    for path in odd_paths {
        let response = client.get(path);
        assert!((300..500).contains(&response.status), "{path}: {} {}", response.status, response.text());
    }
    for query in [
        "limit=x",
        "limit=-1",
        "timeoutSeconds=x&watch=1",
        "resourceVersion=x",
        "continue=%%%",
        "labelSelector=%3D%3D",
    ] {
        let response = client.get(&format!("{MAPS}?{query}"));
        assert!((200..500).contains(&response.status), "{query}: {}", response.text());
    }
    client.get(&format!("{MAPS}?labelSelector=a%20b%20c")).expect_error(400, "BadRequest");
    client.get(&format!("{MAPS}?fieldSelector=spec.nope%3Da")).expect_error(400, "BadRequest");
    server.assert_healthy();
}

#[test]
fn unsupported_methods_are_refused() {
    let (mut server, mut client) = server(&[]);
    client.post(MAPS, &map("a")).ok();
    let object_path = format!("{MAPS}/a");
    client.post(&object_path, &map("a")).expect_error(405, "MethodNotAllowed");
    client.put(MAPS, &map("a")).expect_error(405, "MethodNotAllowed");
    client.request("PATCH", MAPS, &JSON, b"{}").expect_error(405, "MethodNotAllowed");
    client.delete("/api/v1/namespaces").expect_error(405, "MethodNotAllowed");
    client
        .get("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        .expect_error(405, "MethodNotAllowed");
    client.request("FOO", &object_path, &[], b"").expect_error(405, "MethodNotAllowed");
    for path in ["/version", "/api", "/api/v1/", "/apis/apps/v1", "/openid/v1/jwks"] {
        client.request("POST", path, &JSON, b"{}").expect_error(405, "MethodNotAllowed");
    }
    assert_eq!(
        client.request("POST", "/apis", &JSON, b"{}").status,
        200,
        "the group list accepts any method"
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
    let status = client.get(&format!("{MAPS}/a%22b")).expect_error(404, "NotFound");
    assert_eq!(status["message"], "configmaps \"a\\\"b\" not found");
    client.get(&format!("{MAPS}/.")).expect_error(400, "BadRequest");
    client.get(&format!("{object_path}?export=true")).expect_error(400, "BadRequest");
    // A collection delete with an invalid version or continue token is refused.
    client.delete(&format!("{MAPS}?resourceVersion=x")).expect_error(400, "BadRequest");
    client.delete(&format!("{MAPS}?continue=x")).expect_error(400, "BadRequest");
    client.get(&object_path).ok();
    let head = client.request("HEAD", &object_path, &[], b"");
    assert_eq!(head.status, 405);
    // The response to HEAD has no body, so the connection is still in sync.
    client.get(&object_path).ok();
    server.assert_healthy();
}

#[test]
fn documents_are_read_only_and_index_lists_paths() {
    let (mut server, mut client) = server(&[]);
    let index = client.get("/").ok();
    let paths: Vec<&str> =
        index["paths"].as_array().unwrap().iter().filter_map(|path| path.as_str()).collect();
    for path in ["/api/v1", "/apis/", "/apis/apps/v1", "/livez/ping", "/readyz/shutdown", "/version"] {
        assert!(paths.contains(&path), "{path}: {paths:?}");
    }
    assert!(paths.is_sorted());
    // Unrouted paths are not found, whatever the method.
    for unrouted in ["/api/v1/bindings", "/api/v1/namespaces/default/bindings/a", "/api/v1/proxy/nodes/a"] {
        client.get(unrouted).expect_error(404, "NotFound");
    }
    // Discovery documents are read-only.
    for document in ["/api", "/api/v1", "/apis/apps/v1", "/version"] {
        client.get(document).ok();
        client.post(document, &map("a")).expect_error(405, "MethodNotAllowed");
    }
    assert_eq!(client.get("/healthz/").status, 404);
    let index = client.get("/").ok();
    assert!(index.to_string().contains("\"/apis/apps/v1\""), "{index}");
    server.assert_healthy();
}

#[test]
fn unauthenticated_and_unauthorized_requests_are_refused() {
    let (mut server, _) = server(&[]);
    let mut anonymous = server.anonymous();
    for path in ["/version", "/healthz", "/livez", "/readyz"] {
        assert_eq!(anonymous.get(path).status, 200, "{path}");
    }
    for path in [MAPS, "/api", "/apis", "/apis/apps/v1", "/nope"] {
        let status = anonymous.get(path).expect_error(403, "Forbidden");
        assert!(text(&status, "/message").contains("User \"system:anonymous\" cannot"), "{status}");
    }
    let status = anonymous.post(MAPS, &map("a")).expect_error(403, "Forbidden");
    let message = "configmaps is forbidden: User \"system:anonymous\" cannot create resource \"configmaps\" in API group \"\" in the namespace \"default\"";
    assert_eq!(text(&status, "/message"), message);

    let mut user = anonymous.with_token(Some(USER_TOKEN));
    user.get("/api").ok();
    let status = user.get("/api/v1/nodes").expect_error(403, "Forbidden");
    let message = "nodes is forbidden: User \"alice\" cannot list resource \"nodes\" in API group \"\" at the cluster scope";
    assert_eq!(text(&status, "/message"), message);

    let mut unknown_user = anonymous.with_token(Some("no-such-token"));
    for path in [MAPS, "/healthz", "/nope"] {
        unknown_user.get(path).expect_error(401, "Unauthorized");
    }
    for header in ["Basic YWRtaW46YWRtaW4=", "Bearer", "nonsense", ""] {
        let response = anonymous.request("GET", MAPS, &[("Authorization", header)], b"");
        response.expect_error(403, "Forbidden");
    }
    server.kubeconfig_client().get("/api/v1/nodes").ok();
    server.assert_healthy();
}

#[test]
fn anonymous_request_is_unauthorized_when_disabled() {
    let (mut server, _) = server(&["--anonymous-auth=false"]);
    let mut anonymous = server.anonymous();
    anonymous.get(MAPS).expect_error(401, "Unauthorized");
    anonymous.get("/version").expect_error(401, "Unauthorized");
    server.assert_healthy();
}

#[test]
fn oversized_headers_are_refused_or_closed() {
    let (mut server, mut client) = server(&[]);
    let large = "x".repeat(300 << 10);
    let many: String = (0..20_000).map(|number| format!("X-Header-{number}: value\r\n")).collect();
    let endless = "GET /".to_owned() + &"a".repeat(1 << 20);
    for lines in [format!("X-Large: {large}\r\n"), many, format!("{large}: x\r\n")] {
        let mut connection = client.raw();
        let _ = connection.send(format!("{}{lines}\r\n", client.head("GET", MAPS, &[])).as_bytes());
        refused_or_closed(&connection.read_response_or_end());
    }
    let mut connection = client.raw();
    let _ = connection.send(endless.as_bytes());
    refused_or_closed(&connection.read_response_or_end());
    client.get(MAPS).ok();
    server.assert_healthy();
}

#[test]
fn malformed_http_is_refused_or_closed() {
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
        refused_or_closed(&connection.read_response_or_end());
    }
    client.get(MAPS).ok();
    server.assert_healthy();
}

#[test]
fn truncated_requests_do_not_harm_server() {
    let (mut server, mut client) = server(&[]);
    let body = map("half").to_string();
    let head = client.head("POST", MAPS, &JSON);
    let complete = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    // Truncated at many lengths: the client disconnects, or closes its writing half.
    for end in (1..complete.len()).step_by(7) {
        let mut connection = client.raw();
        connection.send(&complete.as_bytes()[..end]).expect("bytes are taken");
        if end % 2 == 0 {
            connection.close_writing();
            connection.read_to_end(Deadline::after(STALL_TIMEOUT)).expect("the server closes too");
        }
    }
    client.get(&format!("{MAPS}/half")).expect_error(404, "NotFound");
    // A complete request followed by a half-close may or may not be answered.
    let mut connection = client.raw();
    connection.send(complete.as_bytes()).expect("bytes are taken");
    connection.close_writing();
    connection.read_to_end(Deadline::after(STALL_TIMEOUT)).expect("the server closes too");
    server.assert_healthy();
}

#[test]
fn stalled_clients_are_disconnected_without_blocking_others() {
    let (mut server, mut client) = server(&["--request-timeout=5s"]);
    let partial_requests = [
        "GET /api/v1".to_owned(),
        client.head("GET", MAPS, &[]),
        format!("{}Content-Length: 100\r\n\r\n", client.head("POST", MAPS, &JSON)),
        format!("{}Content-Length: 100\r\n\r\n{{\"kind\":", client.head("POST", MAPS, &JSON)),
        format!("{}Transfer-Encoding: chunked\r\n\r\n5\r\n{{", client.head("POST", MAPS, &JSON)),
    ];
    let mut stalled = Vec::new();
    for partial_request in partial_requests.iter().cycle().take(100) {
        let mut connection = client.raw();
        connection.send(partial_request.as_bytes()).expect("bytes are taken");
        stalled.push(connection);
    }
    // Far more of them than workers: other clients do not wait.
    for number in 0..50 {
        client.post(MAPS, &map(&format!("busy-{number}"))).ok();
    }
    let deadline = Deadline::after(STALL_TIMEOUT);
    for mut connection in stalled {
        connection.read_to_end(deadline).expect("the server gives up on a client that stalls");
    }
    server.assert_healthy();
}

/// Expects an error response, or a closed connection.
fn refused_or_closed(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let status = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).map(str::to_owned);
    match status {
        None => assert!(bytes.is_empty() || bytes[0] == 0, "neither a response nor the end: {text:?}"),
        Some(code) => assert!(code.starts_with('4') || code.starts_with('5'), "{text}"),
    }
}

#[test]
fn object_with_too_many_parts_is_refused_before_defaulting() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let containers = vec!["{}"; 200_000].join(",");
    let body = format!(r#"{{"metadata":{{"name":"p"}},"spec":{{"containers":[{containers}]}}}}"#);
    let headers = [("Content-Type", "application/json")];
    let refused = client.request("POST", "/api/v1/namespaces/default/pods", &headers, body.as_bytes());
    assert_eq!(refused.status, 413, "{}", refused.text());
}
