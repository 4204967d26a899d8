//! The requests of the command.

use std::time::Duration;

use hyper::Method;
use pilothouse_apimachinery::well_known::JSON;
use pilothouse_client::api_server::{self, ApiRequest, ApiResponse, ApiServer};
use serde_json::Value;

/// The field manager of patches.
pub(super) const FIELD_MANAGER: &str = "pilothouse-migrate";
/// Attempts of a request that the server is too busy for.
const ATTEMPTS: u32 = 10;
/// The pause between them, unless the server asks for another one.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Bytes of a response: a page of a list, with objects as large as the server stores them.
const RESPONSE_BYTES: usize = 512 << 20;
/// The longest pause that the server may ask for.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Why a migration failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Settings(String),
    #[error("{method} {path}: {source}")]
    Connection { method: Method, path: String, source: api_server::Failure },
    #[error("{method} {path}: the server answered {status}: {message}")]
    Refused { method: Method, path: String, status: u16, message: String },
    #[error("{path}: the response cannot be read: {reason}")]
    Unreadable { path: String, reason: String },
    #[error("the server has no resource \"{0}\" that can be migrated")]
    Unknown(String),
    #[error("several groups have a resource \"{name}\": {}", .groups.join(", "))]
    Ambiguous { name: String, groups: Vec<String> },
    #[error("the storage version of the definition is {0}, but the server does not use it yet")]
    NotServed(String),
    #[error("{0}")]
    Failed(String),
    #[error("{failed} of {total} resources could not be migrated")]
    Incomplete { failed: usize, total: usize },
}

/// The API server.
pub(super) struct Api {
    server: ApiServer,
}

/// A response that the caller has to look at.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Value,
}

impl Reply {
    /// The message of a Status, or the whole body.
    pub(super) fn message(&self) -> String {
        self.body["message"].as_str().map_or_else(|| self.body.to_string(), str::to_owned)
    }
}

impl Api {
    pub(super) fn new(server: ApiServer) -> Api {
        Api { server }
    }

    /// Sends a request, and again while the server is busy.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Reply, Failure> {
        let mut attempt = 1;
        loop {
            let body = body.map(|(media_type, value)| (media_type, value.to_string().into()));
            let request =
                ApiRequest { method: method.clone(), target: path, accept, body, max_bytes: RESPONSE_BYTES };
            let response = self.server.send(request).await.map_err(|source| Failure::Connection {
                method: method.clone(),
                path: path.to_owned(),
                source,
            })?;
            if !matches!(response.status, 429 | 503) || attempt == ATTEMPTS {
                return Ok(reply(&response));
            }
            attempt += 1;
            tokio::time::sleep(response.retry_after.unwrap_or(RETRY_DELAY).min(MAX_RETRY_DELAY)).await;
        }
    }

    /// Fetches an object; `None` if it does not exist.
    pub(super) async fn get(&self, path: &str, accept: &str) -> Result<Option<Value>, Failure> {
        let reply = self.send(Method::GET, path, accept, None).await?;
        match reply.status {
            404 => Ok(None),
            _ => succeed(Method::GET, path, reply).map(Some),
        }
    }

    /// Fetches a JSON object that must exist.
    pub(super) async fn get_json(&self, path: &str) -> Result<Value, Failure> {
        succeed(Method::GET, path, self.send(Method::GET, path, JSON, None).await?)
    }
}

fn reply(response: &ApiResponse) -> Reply {
    let text = || Value::String(String::from_utf8_lossy(&response.body).into_owned());
    Reply { status: response.status, body: serde_json::from_slice(&response.body).unwrap_or_else(|_| text()) }
}

/// The body of a response that must be a success.
pub(super) fn succeed(method: Method, path: &str, reply: Reply) -> Result<Value, Failure> {
    match reply.status {
        200..300 if reply.body.is_object() => Ok(reply.body),
        200..300 => Err(Failure::Unreadable { path: path.to_owned(), reason: "it is not JSON".to_owned() }),
        status => Err(Failure::Refused { method, path: path.to_owned(), status, message: reply.message() }),
    }
}

/// Reads a part of a response.
pub(super) fn parse<T: serde::de::DeserializeOwned>(path: &str, value: Value) -> Result<T, Failure> {
    serde_json::from_value(value)
        .map_err(|error| Failure::Unreadable { path: path.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn refusal_shows_the_message_of_the_status() {
        let refusal = |body: Value| {
            succeed(Method::GET, "/api", Reply { status: 403, body }).err().unwrap().to_string()
        };
        assert_eq!(refusal(json!({"message": "no"})), "GET /api: the server answered 403: no");
        assert_eq!(refusal(json!("plain")), "GET /api: the server answered 403: \"plain\"");
        let plain = Reply { status: 200, body: json!("ok") };
        assert!(matches!(succeed(Method::GET, "/api", plain), Err(Failure::Unreadable { .. })));
    }
}
