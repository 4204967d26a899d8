//! The timeout of requests. Watches and upgraded connections have none.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse};
use pilothouse_api::path::Request;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::query::{self, Query};
use pilothouse_apimachinery::status::{Result, Status};
use tokio::time::timeout;

use crate::config::values::go_duration;
use crate::metrics::requests::Sample;

/// Waits for the response, or answers 504. A write that its store has accepted is not undone.
pub async fn within(
    limit: Duration,
    sample: &Sample,
    mut handling: Pin<&mut impl Future<Output = Result<HttpResponse>>>,
) -> Result<HttpResponse> {
    match timeout(limit, handling.as_mut()).await {
        Ok(result) => result,
        Err(_) if sample.is_long_running() => handling.await,
        Err(_) => {
            sample.terminate();
            Err(Status::timed_out())
        }
    }
}

/// The `timeout` parameter of the client, if shorter than the server's limit.
pub fn limit(server_limit: Duration, request: &HttpRequest) -> Result<Duration> {
    let text = request.query_string();
    if !text.contains("timeout=") {
        return Ok(server_limit);
    }
    let query = Query::parse(text);
    let Some(requested) = query.get("timeout").filter(|requested| !requested.is_empty()) else {
        return Ok(server_limit);
    };
    match go_duration(requested.trim_start_matches('-')) {
        Ok(_) if requested.starts_with('-') => Ok(server_limit),
        Ok(requested) if !requested.is_zero() => Ok(requested.min(server_limit)),
        Ok(_) => Ok(server_limit),
        Err(_) if has_no_end(request, &query) => Ok(server_limit),
        Err(_) => {
            let lacks_unit = requested.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            let problem = if lacks_unit { "missing unit in" } else { "invalid" };
            let error = format!("time: {problem} duration {}", quoted(requested));
            Err(Status::bad_request(format!("invalid timeout specified in the request URL - {error}")))
        }
    }
}

/// Watches and connecting subresources have no timeout: behind a proxy the parameter belongs to the backend.
fn has_no_end(request: &HttpRequest, query: &Query<'_>) -> bool {
    let path = query::decode_path(request.uri().path());
    path.is_ok_and(|path| {
        let parsed = Request::parse(request.method().as_str(), &path, query);
        parsed.is_ok_and(|parsed| parsed.is_long_running())
    })
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn client_timeout_may_only_shorten_the_server_limit() {
        let server_limit = Duration::from_secs(60);
        let limit_for = |uri: &str| limit(server_limit, &TestRequest::with_uri(uri).to_http_request());
        for (query, seconds) in [
            ("", 60),
            ("?timeout=5s", 5),
            ("?timeout=0s", 60),
            ("?timeout=-3s", 60),
            ("?timeout=2h", 60),
            ("?timeout=", 60),
            ("?timeoutSeconds=5", 60),
            ("?watch=1&timeout=nonsense", 60),
        ] {
            let limit = limit_for(&format!("/api/v1/pods{query}")).unwrap();
            assert_eq!(limit, Duration::from_secs(seconds), "{query}");
        }
        for path in ["namespaces/n/services/s:1/proxy/find", "proxy/namespaces/n/services/s:1/find"] {
            let proxied = limit_for(&format!("/api/v1/{path}?timeout=5000")).unwrap();
            assert_eq!(proxied, server_limit, "the parameter is for the service");
        }
        for (query, error) in [("5", "missing unit in duration \"5\""), ("soon", "invalid duration \"soon\"")]
        {
            let status = limit_for(&format!("/api/v1/pods?timeout={query}")).unwrap_err();
            let expected = format!("invalid timeout specified in the request URL - time: {error}");
            assert_eq!((status.code, status.message), (400, expected));
        }
    }
}
