//! Requests that are repeated if the server asks for that, and the errors of those that it refused.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::JSON;
use pilothouse_client::api_server::{ApiRequest, ApiResponse, ApiServer, Failure};

use crate::limits;

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// There is no response.
    #[error("{0}")]
    Transport(Failure),
    /// The server refused it.
    #[error("{message}")]
    Status { code: u16, reason: String, message: String },
    /// A list can no longer be continued as it was, but perhaps with another token.
    #[error("{message}")]
    Expired { next: Option<String>, message: String },
}

/// Sends requests to a server.
pub(super) struct Requests {
    server: ApiServer,
}

impl Requests {
    pub(super) fn new(server: ApiServer) -> Requests {
        Requests { server }
    }

    /// Sends a request for JSON and returns a response that is a success.
    pub(super) async fn send(
        &self,
        method: Method,
        target: &str,
        body: Option<(&str, Bytes)>,
        max_bytes: usize,
    ) -> Result<ApiResponse, Error> {
        self.send_accepting(JSON, method, target, body, max_bytes).await
    }

    /// The same with other accepted media types.
    pub(super) async fn send_accepting(
        &self,
        accept: &str,
        method: Method,
        target: &str,
        body: Option<(&str, Bytes)>,
        max_bytes: usize,
    ) -> Result<ApiResponse, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let request =
                ApiRequest { method: method.clone(), target, accept, body: body.clone(), max_bytes };
            let result = self.server.send(request).await;
            let pause = pause_before_repeating(&method, &result, attempts);
            let Some(pause) = pause.filter(|_| attempts < limits::CLIENT_ATTEMPTS) else {
                return accept_success(result);
            };
            tokio::time::sleep(pause).await;
        }
    }
}

/// How long to wait before the request is sent again; `None` if that would not help, or if it may have been carried out.
fn pause_before_repeating(
    method: &Method,
    result: &Result<ApiResponse, Failure>,
    attempts: u32,
) -> Option<Duration> {
    let pause = limits::CLIENT_FIRST_PAUSE * 2_u32.saturating_pow(attempts.saturating_sub(1));
    let pause = match result {
        // The server says that it did nothing.
        Ok(response) if matches!(response.status, 429 | 503) => response.retry_after?,
        Err(Failure::Unsent(..)) => pause,
        Err(Failure::Broken(..) | Failure::Slow(_)) if *method == Method::GET => pause,
        _ => return None,
    };
    Some(pause.min(limits::CLIENT_MAX_PAUSE))
}

fn accept_success(result: Result<ApiResponse, Failure>) -> Result<ApiResponse, Error> {
    let response = result.map_err(Error::Transport)?;
    if (200..300).contains(&response.status) {
        return Ok(response);
    }
    let status = json::read(&response.body).unwrap_or_default();
    let message = match status.str("message") {
        "" => {
            let body = String::from_utf8_lossy(&response.body);
            let body: String = body.trim().chars().take(limits::CLIENT_MESSAGE_CHARS).collect();
            format!("the server answered {} {body}", response.status).trim_end().to_owned()
        }
        message => message.to_owned(),
    };
    if response.status == 410 {
        let next = status.get_path(&["metadata", "continue"]).and_then(Value::as_str);
        let next = next.filter(|token| !token.is_empty()).map(str::to_owned);
        return Err(Error::Expired { next, message });
    }
    Err(Error::Status { code: response.status, reason: status.str("reason").to_owned(), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, retry_after: Option<u64>, body: &str) -> ApiResponse {
        ApiResponse {
            status,
            retry_after: retry_after.map(Duration::from_secs),
            warnings: Vec::new(),
            body: body.as_bytes().to_vec(),
        }
    }

    #[test]
    fn only_requests_without_effect_are_repeated() {
        let pause = |method: Method, result| pause_before_repeating(&method, &result, 1);
        let broken = || Err(Failure::Broken(String::new(), String::new()));
        let unsent = || Err(Failure::Unsent(String::new(), String::new()));
        assert_eq!(pause(Method::POST, Ok(response(429, Some(2), ""))), Some(Duration::from_secs(2)));
        assert_eq!(pause(Method::POST, Ok(response(429, Some(9_999), ""))), Some(limits::CLIENT_MAX_PAUSE));
        assert_eq!(pause(Method::POST, Ok(response(429, None, ""))), None);
        assert_eq!(pause(Method::POST, Ok(response(500, Some(1), ""))), None);
        assert_eq!(pause(Method::POST, unsent()), Some(limits::CLIENT_FIRST_PAUSE));
        assert_eq!(pause(Method::POST, broken()), None);
        assert_eq!(pause(Method::GET, broken()), Some(limits::CLIENT_FIRST_PAUSE));
        assert_eq!(pause(Method::GET, Err(Failure::TooLong)), None);
    }

    #[test]
    fn errors_have_the_message_of_the_server() {
        let status = r#"{"kind":"Status","message":"pods \"a\" is bad","reason":"Invalid"}"#;
        assert_eq!(
            accept_success(Ok(response(422, None, status))).unwrap_err().to_string(),
            "pods \"a\" is bad"
        );
        let error = accept_success(Ok(response(502, None, "upstream\n"))).unwrap_err();
        assert_eq!(error.to_string(), "the server answered 502 upstream");
        let expired = r#"{"kind":"Status","message":"m","metadata":{"continue":"t"}}"#;
        let error = accept_success(Ok(response(410, None, expired))).unwrap_err();
        assert!(matches!(error, Error::Expired { next: Some(token), .. } if token == "t"));
    }
}
