//! Headers of proxied requests: which of them are dropped, and which are added.

use std::rc::Rc;

use actix_web::HttpRequest;
use actix_web::http::header::HeaderMap as Incoming;
use hyper::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, USER_AGENT,
};
use pilothouse_api::connect::Location;
use pilothouse_client::upstream;

use crate::auth::front_proxy::Headers;
use crate::http::websocket::frame::TOKEN_PROTOCOL;

use super::super::worker::Worker;
use super::{client_address, host};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const WEBSOCKET_PROTOCOL: HeaderName = HeaderName::from_static("sec-websocket-protocol");

/// Headers that concern one connection only (hop-by-hop).
fn is_hop_by_hop(name: &HeaderName) -> bool {
    [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE]
        .contains(name)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection")
}

/// Credentials stay between client and this server: the backend must not be able to act as the client. Nor may it take a client's
/// header for one of a front proxy.
fn is_credential(name: &HeaderName, proxy_headers: &[&Headers]) -> bool {
    *name == AUTHORIZATION
        || name.as_str().starts_with("impersonate-")
        || proxy_headers.iter().any(|headers| headers.has(name.as_str()))
}

/// Whether the client wants to switch to a protocol other than HTTP. A switch to HTTP/2 is refused: on a connection of this
/// server's own, the client could impersonate anybody.
pub(super) fn is_upgrade_request(request: &HttpRequest) -> bool {
    let is_http = |protocol: &str| protocol.starts_with("h2") || protocol.starts_with("http");
    list_items(request.headers(), "connection").any(|part| part.contains("upgrade"))
        && !list_items(request.headers(), "upgrade").any(|protocol| is_http(&protocol))
}

/// The comma-separated items of a header, in lower case. Invalid UTF-8 is replaced rather than skipped, because the backend may
/// read the items beside it.
fn list_items(headers: &Incoming, name: &str) -> impl Iterator<Item = String> {
    let items = headers.get_all(name).flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    items.map(|part| String::from_utf8_lossy(part.trim_ascii()).to_ascii_lowercase())
}

/// The headers of a request that this server makes itself.
pub(super) fn for_own_request(location: &Location) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(host) = HeaderValue::try_from(location.authority()) {
        headers.insert(HOST, host);
    }
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("pilothouse/", env!("CARGO_PKG_VERSION"))));
    headers
}

/// The headers of a request that is passed on.
pub(super) fn for_forwarded_request(request: &HttpRequest) -> HeaderMap {
    let connection_options = named_in_connection(request.headers());
    // Subprotocols mean nothing without an upgrade, and one of them may be a bearer token.
    let mut headers = forwarded_headers(request, |name| {
        !is_hop_by_hop(name)
            && *name != WEBSOCKET_PROTOCOL
            && !connection_options.iter().any(|option| name == option.as_str())
    });
    let te = request.headers().get_all("te");
    if te.into_iter().any(|value| value.to_str().is_ok_and(|value| value.contains("trailers"))) {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    headers
}

/// The headers of an upgrade request that is passed on.
pub(super) fn for_upgrade_request(request: &HttpRequest) -> HeaderMap {
    let connection_options = named_in_connection(request.headers());
    let is_connection_option =
        |name: &HeaderName| connection_options.iter().any(|option| name == option.as_str());
    let mut headers = forwarded_headers(request, |name| {
        *name == UPGRADE || !is_hop_by_hop(name) && !is_connection_option(name)
    });
    // Other names that the client puts into Connection must not make a proxy on the way drop this server's headers.
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    let protocols: Vec<&str> = without_token(request).collect();
    headers.remove(WEBSOCKET_PROTOCOL);
    if let Some(protocols) =
        HeaderValue::try_from(protocols.join(", ")).ok().filter(|_| !protocols.is_empty())
    {
        headers.insert(WEBSOCKET_PROTOCOL, protocols);
    }
    headers
}

/// The WebSocket subprotocols that a client proposes, in order. They may stand in one header or in several.
pub(super) fn protocols(request: &HttpRequest) -> impl Iterator<Item = &str> {
    let lines = request.headers().get_all(WEBSOCKET_PROTOCOL.as_str()).filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|protocol| !protocol.is_empty())
}

/// The proposed subprotocols without bearer tokens.
pub(super) fn without_token(request: &HttpRequest) -> impl Iterator<Item = &str> {
    protocols(request).filter(|protocol| !protocol.starts_with(TOKEN_PROTOCOL))
}

fn forwarded_headers(request: &HttpRequest, is_wanted: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let (usual, worker) = (Headers::standard(), request.app_data::<Rc<Worker>>());
    let configured = worker.and_then(|worker| worker.shared.authentication.front_headers.as_ref());
    let proxy_headers: Vec<&Headers> = configured.into_iter().chain([&usual]).collect();
    for (name, value) in request.headers() {
        let Some((name, value)) = upstream::header(name.as_str(), value.as_bytes()) else { continue };
        // The body knows its own length, and this server has already answered Expect.
        let is_replaced = [HOST, CONTENT_LENGTH, EXPECT].contains(&name);
        if !is_replaced && !is_credential(&name, &proxy_headers) && is_wanted(&name) {
            headers.append(name, value);
        }
    }
    if let Ok(host) = HeaderValue::try_from(host(request)) {
        headers.insert(HOST, host);
    }
    add_client(request, &mut headers);
    headers
}

/// Appends the client to X-Forwarded-For.
fn add_client(request: &HttpRequest, headers: &mut HeaderMap) {
    let Some(client) = client_address(request) else { return };
    let previous = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
    let addresses: Vec<&str> = previous.chain([client.as_str()]).collect();
    if let Ok(addresses) = HeaderValue::try_from(addresses.join(", ")) {
        headers.insert(FORWARDED_FOR, addresses);
    }
}

fn named_in_connection(headers: &Incoming) -> Vec<String> {
    list_items(headers, "connection").collect()
}

/// The headers of a backend's response that the client gets.
pub(super) fn for_response(headers: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let connection_options: Vec<String> =
        values.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect();
    headers.iter().filter(move |(name, _)| {
        !is_hop_by_hop(name)
            && **name != CONTENT_LENGTH
            && !connection_options.iter().any(|option| *name == option.as_str())
    })
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue as FromClient;
    use actix_web::test::TestRequest;

    use super::*;

    fn request() -> HttpRequest {
        TestRequest::get()
            .insert_header(("Host", "here:6443"))
            .insert_header(("Authorization", "Bearer secret"))
            .insert_header(("Impersonate-User", "root"))
            .insert_header(("Connection", "Upgrade, X-Hop"))
            .insert_header(("Upgrade", "websocket"))
            .insert_header(("X-Hop", "1"))
            .insert_header(("X-Kept", "2"))
            .insert_header(("Content-Length", "5"))
            .insert_header((
                "Sec-WebSocket-Protocol",
                "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
            ))
            .to_http_request()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn forwarded_request_has_no_credentials_or_hop_by_hop_headers() {
        let headers = for_forwarded_request(&request());
        assert_eq!(names(&headers), ["host", "x-kept"]);
        assert_eq!(headers[HOST], "here:6443");
    }

    #[test]
    fn upgrade_request_is_forwarded_without_its_token() {
        assert!(is_upgrade_request(&request()));
        let headers = for_upgrade_request(&request());
        assert_eq!(names(&headers), ["connection", "host", "sec-websocket-protocol", "upgrade", "x-kept"]);
        assert_eq!(headers[CONNECTION], "Upgrade");
        assert_eq!(headers[UPGRADE], "websocket");
        assert_eq!(headers[WEBSOCKET_PROTOCOL], "v4.channel.k8s.io");
        assert!(!is_upgrade_request(&TestRequest::get().to_http_request()));
    }

    #[test]
    fn upgrade_to_http_is_refused() {
        for (protocol, is_upgrade) in [
            (&b"websocket"[..], true),
            (b"SPDY/3.1", true),
            (b"h2c", false),
            (b"H2C", false),
            (b"websocket, h2c", false),
            (b"h2c, \x80", false),
            (b"HTTP/2.0", false),
        ] {
            let request = TestRequest::get()
                .insert_header(("Connection", "Upgrade, HTTP2-Settings"))
                .insert_header((UPGRADE.as_str(), FromClient::from_bytes(protocol).unwrap()))
                .insert_header(("HTTP2-Settings", "AAMAAABk"));
            let request = request.to_http_request();
            assert_eq!(is_upgrade_request(&request), is_upgrade, "{}", protocol.escape_ascii());
            assert_eq!(
                names(&for_forwarded_request(&request)),
                ["host"],
                "the backend does not see the upgrade"
            );
        }
    }

    #[test]
    fn subprotocols_of_several_header_lines_are_forwarded() {
        let with_line = |request: TestRequest, text| request.append_header(("Sec-WebSocket-Protocol", text));
        let mut request = TestRequest::get().insert_header(("Connection", "Upgrade"));
        for text in ["a.example, ", "base64url.bearer.authorization.k8s.io.c2VjcmV0", "b.example,c.example"] {
            request = with_line(request, text);
        }
        let headers = for_upgrade_request(&request.to_http_request());
        let lines: Vec<&HeaderValue> = headers.get_all(WEBSOCKET_PROTOCOL).iter().collect();
        assert_eq!(lines, ["a.example, b.example, c.example"]);
        let token = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
        let only_token = with_line(TestRequest::get(), token).to_http_request();
        assert_eq!(for_upgrade_request(&only_token).get(WEBSOCKET_PROTOCOL), None, "no subprotocol is left");
    }
}
