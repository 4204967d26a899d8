//! Requests of pages in browsers from other origins.

use crate::support::{Response, Server};

const PREFLIGHT: [(&str, &str); 2] =
    [("Origin", "https://a.example.com"), ("Access-Control-Request-Method", "DELETE")];

fn allowed_origin(response: &Response) -> Option<&str> {
    response.header("access-control-allow-origin")
}

#[test]
fn pages_of_allowed_origins_may_read_responses_and_no_others() {
    let flag = r"--cors-allowed-origins=//.*\.example\.com(:|$),^http://localhost:";
    let server = Server::with_flags(&["--engine=memory", flag]);
    let mut admin = server.admin();
    for origin in ["https://a.example.com", "http://localhost:3000"] {
        for (path, status) in [("/api", 200), ("/api/v1/namespaces/none", 404)] {
            let response = admin.request("GET", path, &[("Origin", origin)], b"");
            assert_eq!((response.status, allowed_origin(&response)), (status, Some(origin)), "{path}");
            assert_eq!(response.header("access-control-allow-credentials"), Some("true"));
            assert_eq!(response.header("access-control-expose-headers"), Some("Date"));
        }
    }
    for origin in ["https://a.example.com.evil.test", "null", "https://localhost:3000"] {
        let response = admin.request("GET", "/api", &[("Origin", origin)], b"");
        assert_eq!((response.status, allowed_origin(&response)), (200, None), "{origin}");
    }
    assert_eq!(allowed_origin(&admin.get("/api")), None);
    // A browser asks without credentials.
    let mut browser = server.anonymous();
    let answer = browser.request("OPTIONS", "/api/v1/namespaces/default", &PREFLIGHT, b"");
    assert_eq!((answer.status, allowed_origin(&answer)), (204, Some("https://a.example.com")));
    let methods = answer.header("access-control-allow-methods");
    assert_eq!(methods, Some("POST, GET, OPTIONS, PUT, DELETE, PATCH"));
    let refused = browser.request("GET", "/api/v1/namespaces/default", &PREFLIGHT[..1], b"");
    assert_eq!((refused.status, allowed_origin(&refused)), (403, Some("https://a.example.com")));
}

#[test]
fn no_page_may_read_responses_by_default() {
    let server = Server::with_flags(&["--engine=memory"]);
    let answer = server.anonymous().request("OPTIONS", "/api", &PREFLIGHT, b"");
    assert_eq!(allowed_origin(&answer), None);
    assert_ne!(answer.status, 204);
}
