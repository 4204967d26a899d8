//! Requests over HTTP/1.1 that few clients send: many headers, URLs that are not escaped, expectations, strange hosts.

use serde_json::json;

use crate::support::compare::text;
use crate::support::wait::{Deadline, TIMEOUT, poll};
use crate::support::{Client, Server};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// The response to this text on a connection of its own.
fn response_to(admin: &Client, request: &str) -> String {
    let mut connection = admin.raw();
    connection.send(request.as_bytes()).unwrap();
    String::from_utf8(connection.read_to_end(Deadline::after(TIMEOUT)).unwrap()).unwrap()
}

#[test]
fn headers_are_bounded_by_their_bytes_and_not_by_their_number() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let names: Vec<String> = (0..1_000).map(|index| format!("group-{index}")).collect();
    let mut headers = vec![("Content-Type", "application/json"), ("Impersonate-User", "ann")];
    headers.extend(names.iter().map(|name| ("Impersonate-Group", name.as_str())));
    // Twice on one connection, with a body each.
    for _ in 0..2 {
        let created = admin.request("POST", REVIEWS, &headers, review.as_bytes()).ok();
        let groups = created["status"]["userInfo"]["groups"].as_array().unwrap().clone();
        assert_eq!(groups.len(), 1_001, "and system:authenticated");
        assert_eq!((&groups[0], &groups[999]), (&json!("group-0"), &json!("group-999")));
    }
    let long = "x".repeat(200 << 10);
    let refused = admin.new_connection().request("GET", "/version", &[("X-Long", &long)], b"");
    assert_eq!((refused.status, refused.header("connection")), (431, Some("close")));
    assert_eq!(text(&refused.json(), "/reason"), "RequestHeaderFieldsTooLarge");
    let is_logged = || server.log().contains("its head is too large").then_some(());
    poll(TIMEOUT, is_logged).expect("the refusal is logged");
}

#[test]
fn urls_that_are_not_escaped_are_understood() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let nodes = "/api/v1/nodes";
    for (name, rank) in [("low", "4"), ("high", "6")] {
        let node =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"rank": rank}}});
        admin.post(nodes, &node).ok();
    }
    let selected = admin.get(&format!("{nodes}?labelSelector=rank>5")).ok();
    assert_eq!(selected["items"].as_array().unwrap().len(), 1);
    assert_eq!(selected["items"][0]["metadata"]["name"], "high");
    for selector in ["rank<\"5\"", "`rank`", "ränge=5"] {
        admin.get(&format!("{nodes}?labelSelector={selector}")).expect_error(400, "BadRequest");
    }
    let missing = admin.get(&format!("{nodes}/größe")).expect_error(404, "NotFound");
    assert_eq!(text(&missing, "/message"), "nodes \"größe\" not found");
    let refused = response_to(&admin, "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(
        refused.starts_with("HTTP/1.1 400 ") && refused.contains("\"malformed HTTP request\""),
        "{refused}"
    );
}

#[test]
fn expectations_and_hosts_that_make_no_sense_are_refused() {
    let server = Server::with_flags(&["--engine=memory"]);
    let admin = server.admin();
    let refused = response_to(&admin, "GET /version HTTP/1.1\r\nHost: x\r\nExpect: foo\r\n\r\n");
    assert!(refused.starts_with("HTTP/1.1 417 ") && refused.contains("onnection: close"), "{refused}");
    let refused = response_to(&admin, "GET /version HTTP/1.1\r\nHost: a b\r\n\r\n");
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    assert!(refused.ends_with("400 Bad Request: malformed Host header"), "{refused}");
    let continued = "GET /version HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\nConnection: close\r\n\r\n";
    assert!(response_to(&admin, continued).contains("HTTP/1.1 200 OK"));

    // A line of our own names the client; that of the HTTP library does not.
    let refused = response_to(&admin, "GET /version HTTP/1.1\r\nHost: x\r\nBad Name: x\r\n\r\n");
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    let is_logged = || server.log().contains("a malformed HTTP/1.1 request was refused").then_some(());
    poll(TIMEOUT, is_logged).expect("the refusal is logged");
    assert!(!server.log().contains("actix_http"), "{}", server.log());
}
