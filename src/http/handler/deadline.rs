//! The timeout of requests. Watches and upgraded connections have none.

use std::future::Future;
use std::pin::pin;
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
    serving: impl Future<Output = Result<HttpResponse>>,
) -> Result<HttpResponse> {
    let mut serving = pin!(serving);
    match timeout(limit, &mut serving).await {
        Ok(answer) => answer,
        Err(_) if sample.is_long_running() => serving.await,
        Err(_) => Err(Status::timed_out()),
    }
}

/// The `timeout` parameter of the client, if shorter than the server's limit.
pub fn limit(most: Duration, request: &HttpRequest) -> Result<Duration> {
    let text = request.query_string();
    if !text.contains("timeout=") {
        return Ok(most);
    }
    let query = Query::parse(text);
    let Some(asked) = query.get("timeout").filter(|asked| !asked.is_empty()) else { return Ok(most) };
    match go_duration(asked.trim_start_matches('-')) {
        Ok(_) if asked.starts_with('-') => Ok(most),
        Ok(asked) if !asked.is_zero() => Ok(asked.min(most)),
        Ok(_) => Ok(most),
        Err(_) if has_no_end(request, &query) => Ok(most),
        Err(_) => {
            let unit = asked.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            let what = if unit { "missing unit in" } else { "invalid" };
            let why = format!("time: {what} duration {}", quoted(asked));
            Err(Status::bad_request(format!("invalid timeout specified in the request URL - {why}")))
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
    fn a_client_may_allow_less_than_the_server_and_no_more() {
        let most = Duration::from_secs(60);
        let of = |uri: &str| limit(most, &TestRequest::with_uri(uri).to_http_request());
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
            let limit = of(&format!("/api/v1/pods{query}")).unwrap();
            assert_eq!(limit, Duration::from_secs(seconds), "{query}");
        }
        for path in ["namespaces/n/services/s:1/proxy/find", "proxy/namespaces/n/services/s:1/find"] {
            let proxied = of(&format!("/api/v1/{path}?timeout=5000")).unwrap();
            assert_eq!(proxied, most, "the parameter is for the service");
        }
        for (query, why) in [("5", "missing unit in duration \"5\""), ("soon", "invalid duration \"soon\"")] {
            let status = of(&format!("/api/v1/pods?timeout={query}")).unwrap_err();
            let wanted = format!("invalid timeout specified in the request URL - time: {why}");
            assert_eq!((status.code, status.message), (400, wanted));
        }
    }
}
