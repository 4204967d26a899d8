//! OpenAPI documents of aggregated API servers: large, slow, endless, and more than there is memory for.

use super::*;

/// The largest OpenAPI v2 document that is read.
const DOCUMENT_LIMIT: usize = 64 << 20;
const ETAG: &str = "\"large\"";

/// The path of a resource of this group, and an OpenAPI v2 document that describes it with so many bytes, most of them in one
/// definition.
fn document_of(group: &str, bytes: usize) -> (String, Vec<u8>) {
    let path = format!("/apis/{group}/v1/things");
    let filler = "x".repeat(bytes);
    let document = json!({
        "swagger": "2.0", "info": {"title": group, "version": "1"},
        "paths": {&path: {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/io.Thing"}}}}}},
        "definitions": {"io.Thing": {"type": "object", "description": filler}},
    });
    (path, document.to_string().into_bytes())
}

/// Serves this OpenAPI v2 document, and nothing else.
fn serve_document(document: Vec<u8>) -> impl Fn(&ReceivedRequest, &mut Wire) + Send + Sync {
    move |request, wire| match request.path() {
        "/openapi/v2" if request.header("if-none-match") == Some(ETAG) => {
            wire.respond("304 Not Modified", "", b"");
        }
        "/openapi/v2" => {
            let headers = format!("Content-Type: application/json\r\nETag: {ETAG}\r\n");
            wire.respond("200 OK", &headers, &document);
        }
        _ => wire.respond("404 Not Found", "", b""),
    }
}

/// Sends the beginning of a document, and nothing more until the client goes.
fn stall(request: &ReceivedRequest, wire: &mut Wire) {
    if request.path() != "/openapi/v2" {
        return wire.respond("404 Not Found", "", b"");
    }
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 60000000\r\n\r\n{";
    if wire.send(head.as_bytes()).is_ok() {
        wire.wait_for_disconnect();
    }
}

/// Sends a document without end.
fn never_end(request: &ReceivedRequest, wire: &mut Wire) {
    if request.path() != "/openapi/v2" {
        return wire.respond("404 Not Found", "", b"");
    }
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let spaces = " ".repeat(1 << 20);
    let chunk = format!("{:x}\r\n{spaces}\r\n", spaces.len());
    let mut sent = wire.send(head.as_bytes());
    while sent.is_ok() {
        sent = wire.send(chunk.as_bytes());
    }
}

/// Announces a document of more than the limit.
fn announce_too_much(request: &ReceivedRequest, wire: &mut Wire) {
    if request.path() != "/openapi/v2" {
        return wire.respond("404 Not Found", "", b"");
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        DOCUMENT_LIMIT + 1
    );
    if wire.send(head.as_bytes()).is_ok() {
        wire.wait_for_disconnect();
    }
}

fn merged_with(fixture: &mut Fixture, path: &str) -> Option<Value> {
    poll(TIMEOUT, || {
        let response = fixture.admin.get("/openapi/v2");
        let document = (response.status == 200).then(|| response.json())?;
        (!document["paths"][path].is_null()).then_some(document)
    })
}

/// How often the log says that the document of this APIService is left out.
fn omissions(fixture: &Fixture, name: &str) -> usize {
    let log = fixture.server.log();
    log.lines().filter(|line| line.contains("is left out for now") && line.contains(name)).count()
}

/// How often an extension server was asked for its OpenAPI v2 document.
fn document_requests(extension: &Kubelet) -> usize {
    extension.requests().iter().filter(|request| request.path() == "/openapi/v2").count()
}

#[test]
fn large_openapi_documents_of_aggregated_servers_are_served() {
    const V2_BYTES: usize = 12 << 20;
    const V3_BYTES: usize = 6 << 20;
    const V3: &str = "/openapi/v3/apis/large.io/v1";
    let (path, document) = document_of("large.io", V2_BYTES);
    let serve_v2 = serve_document(document);
    let mut fixture = Fixture::with_handler("--controllers=-*", move |_, request, wire| {
        match request.path() {
            "/openapi/v3" => {
                let index =
                    json!({"paths": {"apis/large.io/v1": {"serverRelativeURL": format!("{V3}?hash=1")}}});
                let headers = "Content-Type: application/json\r\nETag: \"index\"\r\n";
                match request.header("if-none-match") {
                    Some("\"index\"") => wire.respond("304 Not Modified", "", b""),
                    _ => wire.respond("200 OK", headers, index.to_string().as_bytes()),
                }
            }
            V3 => {
                let body = json!({"openapi": "3.0.0", "x-filler": "y".repeat(V3_BYTES)}).to_string();
                wire.respond("200 OK", "Content-Type: application/json\r\n", body.as_bytes());
            }
            "/apis/large.io/v1" => {
                let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "large.io/v1", "resources": []});
                wire.respond("200 OK", "Content-Type: application/json\r\n", list.to_string().as_bytes());
            }
            _ => serve_v2(request, wire),
        }
    });
    fixture.register("large.io", "v1", &json!({}));
    let merged = merged_with(&mut fixture, &path).expect("theirs has joined");
    let description = merged["definitions"]["io.Thing"]["description"].as_str().unwrap();
    assert_eq!(description.len(), V2_BYTES);
    assert!(merged["paths"]["/api/v1/pods"].is_object(), "ours is there, too");
    fixture.wait_for("v1.large.io", "Passed");
    let part = poll(TIMEOUT, || Some(fixture.admin.get(V3)).filter(|response| response.status == 200));
    assert_eq!(part.expect("their part is served").json()["x-filler"].as_str().unwrap().len(), V3_BYTES);

    // Unchanged documents are not sent again.
    fixture.touch("v1.large.io");
    let was_conditional = |fixture: &Fixture, path: &str, etag: &str| {
        let requests = fixture.extension.requests();
        let mut for_path = requests.iter().filter(|request| request.path() == path);
        for_path.any(|request| request.header("if-none-match") == Some(etag))
    };
    for (path, etag) in [("/openapi/v2", ETAG), ("/openapi/v3", "\"index\"")] {
        assert!(poll(TIMEOUT, || was_conditional(&fixture, path, etag).then_some(())).is_some(), "{path}");
    }
    assert!(merged_with(&mut fixture, &path).is_some());
    assert_eq!(omissions(&fixture, "large.io"), 0);
}

#[test]
fn slow_and_endless_openapi_documents_hold_nothing_up() {
    let (path, document) = document_of("good.io", 1);
    let serve_v2 = serve_document(document);
    let mut fixture =
        Fixture::with_handler("--controllers=-*", move |_, request, wire| serve_v2(request, wire));
    let (slow, slow_service) = fixture.add_extension(stall);
    let (_endless, endless_service) = fixture.add_extension(never_end);
    let (large, large_service) = fixture.add_extension(announce_too_much);
    fixture.register("endless.io", "v1", &endless_service);
    fixture.register("announced.io", "v1", &large_service);
    // More than a controller usually works on at once.
    let slow_count = 8;
    for version in 1..=slow_count {
        fixture.register("slow.io", &format!("v{version}"), &slow_service);
    }
    let stalled = || (document_requests(&slow) >= slow_count).then_some(());
    assert!(poll(TIMEOUT, stalled).is_some(), "all of them are being fetched");
    fixture.register("good.io", "v1", &json!({}));
    assert!(merged_with(&mut fixture, &path).is_some(), "others are served");
    for name in ["v1.endless.io", "v1.announced.io"] {
        let is_logged = || (omissions(&fixture, name) > 0).then_some(());
        assert!(poll(TIMEOUT, is_logged).is_some(), "{name}: {}", fixture.server.log());
    }
    // The log is told once: when the document is asked for a third time, the second time is over.
    for _ in 0..2 {
        let before = document_requests(&large);
        fixture.touch("v1.announced.io");
        assert!(poll(TIMEOUT, || (document_requests(&large) > before).then_some(())).is_some());
    }
    assert_eq!(omissions(&fixture, "v1.announced.io"), 1);
    assert_eq!(omissions(&fixture, "slow.io"), 0);
    fixture.server.assert_healthy();
}

#[test]
fn openapi_document_without_memory_is_taken_later() {
    /// An eighth of it is for these documents: 48 MiB.
    const MEMORY_LIMIT: &str = "--memory-limit=384Mi";
    const FIRST_BYTES: usize = 30 << 20;
    let (_, first_document) = document_of("first.io", FIRST_BYTES);
    let (second_path, second_document) = document_of("second.io", 12 << 20);
    let serve_first = serve_document(first_document);
    let flags = ["--controllers=-*", MEMORY_LIMIT];
    let mut fixture =
        Fixture::with_flags_and_handler(&flags, move |_, request, wire| serve_first(request, wire));
    let (_second, second_service) = fixture.add_extension(serve_document(second_document));
    fixture.register("first.io", "v1", &json!({}));
    let reserved = |fixture: &mut Fixture| {
        let page = fixture.admin.get("/metrics").text();
        let line = "pilothouse_memory_reserved_bytes{budget=\"extension_openapi\"} ";
        let value = page.lines().find_map(|text| text.strip_prefix(line)).expect("the budget");
        value.parse::<usize>().unwrap()
    };
    let is_kept = |bytes: usize| (FIRST_BYTES..FIRST_BYTES + (1 << 20)).contains(&bytes);
    assert!(poll(TIMEOUT, || is_kept(reserved(&mut fixture)).then_some(())).is_some());

    fixture.register("second.io", "v1", &second_service);
    let is_logged = || (omissions(&fixture, "v1.second.io") > 0).then_some(());
    assert!(poll(TIMEOUT, is_logged).is_some(), "{}", fixture.server.log());
    assert!(is_kept(reserved(&mut fixture)), "what did not fit is not held, and what did stays");
    fixture.admin.get("/api/v1/namespaces").ok();

    fixture.admin.delete(&format!("{REGISTRATIONS}/v1.first.io")).ok();
    let merged = poll(TIMEOUT, || {
        fixture.touch("v1.second.io");
        let response = fixture.admin.get("/openapi/v2");
        let document = (response.status == 200).then(|| response.json())?;
        (!document["paths"][&second_path].is_null()).then_some(())
    });
    assert!(merged.is_some(), "{}", fixture.server.log());
    assert_eq!(omissions(&fixture, "v1.second.io"), 1, "the log is told once");
}
