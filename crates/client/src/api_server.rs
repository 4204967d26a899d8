//! Requests to another API server, of which a command is a client. A request is sent once: whether it may be repeated depends on
//! what it asks for, so that is up to the caller.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Body as _;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, RETRY_AFTER, USER_AGENT, WARNING};
use hyper::{Method, Request, Uri};
use pilothouse_types::clock::Clock;
use thiserror::Error;
use tokio::time::timeout;

use crate::kubeconfig::{Access, PresentedCredentials};
use crate::limits::{API_REQUEST_TIMEOUT, API_WARNINGS};
use crate::routes::Routes;
use crate::upstream::RequestBody;
use crate::upstream::pool::{ExchangeError, Pool, Purpose};
use crate::webhook::TOO_MANY;
use crate::webhook::connector::Connector;

/// The name of this client.
const USER_AGENT_NAME: &str = concat!("pilothouse/", env!("CARGO_PKG_VERSION"));

/// Why there is no response.
#[derive(Debug, Error)]
pub enum Failure {
    /// The address or the credentials cannot be used.
    #[error("{0}")]
    Settings(String),
    /// There is no connection, so nothing was sent.
    #[error("cannot connect to {0}: {1}")]
    Unsent(String, String),
    /// The connection ended before the whole response was there: the server may have carried the request out.
    #[error("the connection to {0} ended early: {1}")]
    Broken(String, String),
    /// The server did not respond in time, and may have carried the request out.
    #[error("no response within {0:?}")]
    Slow(Duration),
    /// The caller cannot take the response.
    #[error("cannot write what the server sends: {0}")]
    Output(String),
    /// The response has more bytes than the caller accepts.
    #[error("the response is too large")]
    TooLong,
}

/// A request.
pub struct ApiRequest<'a> {
    /// The method.
    pub method: Method,
    /// The path and the query.
    pub target: &'a str,
    /// The accepted media types.
    pub accept: &'a str,
    /// The body and its media type.
    pub body: Option<(&'a str, Bytes)>,
    /// The longest response body that is read.
    pub max_bytes: usize,
}

/// A response, whatever its status.
#[derive(Debug)]
pub struct ApiResponse {
    /// The status code.
    pub status: u16,
    /// When a refused request may be repeated.
    pub retry_after: Option<Duration>,
    /// The texts of the warnings.
    pub warnings: Vec<String>,
    /// The whole body.
    pub body: Vec<u8>,
}

/// An API server. Its connections are kept for further requests from the same thread.
pub struct ApiServer {
    uri: Uri,
    access: Access,
    connector: Connector,
    pool: Arc<Pool>,
}

impl ApiServer {
    /// The server of this kubeconfig. It is not connected to yet.
    pub fn new(access: Access) -> Result<ApiServer, Failure> {
        let (uri, connector) =
            Connector::for_access(Purpose::ApiServer, &access).map_err(Failure::Settings)?;
        Ok(ApiServer {
            uri,
            access,
            connector,
            pool: Pool::with_routes(Clock::system(), Routes::from_env().map_err(Failure::Settings)?),
        })
    }

    /// The URL of the server.
    pub fn url(&self) -> &str {
        &self.access.server
    }

    /// Sends a request and reads the response.
    pub async fn send(&self, request: ApiRequest<'_>) -> Result<ApiResponse, Failure> {
        let exchange = self.exchange(request);
        timeout(API_REQUEST_TIMEOUT, exchange).await.map_err(|_| Failure::Slow(API_REQUEST_TIMEOUT))?
    }

    /// Sends a request and passes the response on piece by piece, however long it is. A response that is not 200 is read up to
    /// `max_bytes` and returned.
    pub async fn download(
        &self,
        request: ApiRequest<'_>,
        mut on_piece: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Option<ApiResponse>, Failure> {
        let presented = self.access.credentials.present().await.map_err(Failure::Settings)?;
        let max_bytes = request.max_bytes;
        let mut request = self.http_request(request, &presented)?;
        let dial = self.connector.prepare(self.pool.routes(), &self.access, &presented, None);
        dial.origin.address_to_proxy(&mut request);
        let server = || self.access.server.clone();
        let io = dial.connect().await.map_err(|reason| Failure::Unsent(server(), reason))?;
        let broken = |error: &dyn std::fmt::Display| Failure::Broken(server(), error.to_string());
        let mut connection = self.pool.open(None, io).await.map_err(|error| broken(&error))?;
        let response = timeout(API_REQUEST_TIMEOUT, connection.send(request)).await;
        let response = response.map_err(|_| Failure::Slow(API_REQUEST_TIMEOUT))?;
        let (head, mut body) = response.map_err(|error| broken(&error.into_error()))?.into_parts();
        let status = head.status.as_u16();
        let mut refusal = Vec::new();
        loop {
            let piece = timeout(API_REQUEST_TIMEOUT, poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))).await;
            let Some(frame) = piece.map_err(|_| Failure::Slow(API_REQUEST_TIMEOUT))? else { break };
            let frame = frame.map_err(|error| broken(&error))?;
            let Ok(piece) = frame.into_data() else { continue };
            match status {
                200 => on_piece(&piece).map_err(|error| Failure::Output(error.to_string()))?,
                _ if refusal.len() + piece.len() > max_bytes => return Err(Failure::TooLong),
                _ => refusal.extend_from_slice(&piece),
            }
        }
        Ok((status != 200).then(|| ApiResponse {
            status,
            retry_after: retry_after(&head.headers),
            warnings: warnings(&head.headers),
            body: refusal,
        }))
    }

    async fn exchange(&self, request: ApiRequest<'_>) -> Result<ApiResponse, Failure> {
        let credentials = &self.access.credentials;
        let presented = credentials.present().await.map_err(Failure::Settings)?;
        let max_bytes = request.max_bytes;
        let request = self.http_request(request, &presented)?;
        let dial = self.connector.prepare(self.pool.routes(), &self.access, &presented, None);
        let response = self.pool.send(&dial.origin, request, max_bytes, async || dial.connect().await).await;
        let response = response.map_err(|error| match error {
            ExchangeError::Connect(reason) => Failure::Unsent(self.access.server.clone(), reason),
            ExchangeError::Broken(error) | ExchangeError::Cut(error) => {
                Failure::Broken(self.access.server.clone(), error.to_string())
            }
            ExchangeError::TooLong => Failure::TooLong,
            ExchangeError::Slow | ExchangeError::Busy => {
                Failure::Unsent(self.access.server.clone(), TOO_MANY.to_owned())
            }
        })?;
        let status = response.head.status.as_u16();
        if status == 401 {
            credentials.invalidate(&presented).await;
        }
        Ok(ApiResponse {
            status,
            retry_after: retry_after(&response.head.headers),
            warnings: warnings(&response.head.headers),
            body: response.body,
        })
    }

    fn http_request(
        &self,
        request: ApiRequest<'_>,
        presented: &PresentedCredentials,
    ) -> Result<Request<RequestBody>, Failure> {
        // A server behind a proxy may have a path of its own in front of all others.
        let target = format!("{}{}", self.uri.path().trim_end_matches('/'), request.target);
        let mut builder = Request::builder()
            .method(request.method)
            .uri(target)
            .header(HOST, self.uri.authority().map_or("", |authority| authority.as_str()))
            .header(ACCEPT, request.accept)
            .header(USER_AGENT, USER_AGENT_NAME);
        if let Some(header) = &presented.header {
            builder = builder.header(AUTHORIZATION, header);
        }
        for (name, value) in self.access.impersonation.headers() {
            builder = builder.header(name, value);
        }
        let body = match request.body {
            None => RequestBody::Empty,
            Some((media_type, bytes)) => {
                builder = builder.header(CONTENT_TYPE, media_type);
                RequestBody::Whole(Some(bytes))
            }
        };
        builder.body(body).map_err(|error| Failure::Settings(error.to_string()))
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The texts of warnings in the form `299 - "text"`.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    let text = |value: &str| {
        let quoted = value.split_once('"')?.1.rsplit_once('"')?.0;
        Some(quoted.replace("\\\"", "\"").replace("\\\\", "\\"))
    };
    let values = headers.get_all(WARNING).iter().filter_map(|value| value.to_str().ok());
    values.filter_map(text).take(API_WARNINGS).collect()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn warnings_and_retry_after_are_parsed() {
        let mut headers = HeaderMap::new();
        headers.append(WARNING, HeaderValue::from_static("299 - \"unknown field \\\"spec.a\\\"\""));
        headers.append(WARNING, HeaderValue::from_static("nonsense"));
        headers.append(RETRY_AFTER, HeaderValue::from_static("7"));
        assert_eq!(warnings(&headers), ["unknown field \"spec.a\""]);
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(7)));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("Wed, 21 Oct 2015 07:28:00 GMT"));
        assert_eq!(retry_after(&headers), None);
    }

    #[test]
    fn path_of_server_url_precedes_target() {
        let server = ApiServer::new(Access::to_server("http://127.0.0.1:1/clusters/a/")).unwrap();
        let request = ApiRequest {
            method: Method::GET,
            target: "/api/v1/pods?limit=1",
            accept: "application/json",
            body: None,
            max_bytes: 1,
        };
        let request = server.http_request(request, &PresentedCredentials::default()).unwrap();
        assert_eq!(request.uri(), "/clusters/a/api/v1/pods?limit=1");
        assert_eq!(request.headers()[HOST], "127.0.0.1:1");
        assert!(ApiServer::new(Access::to_server("ftp://127.0.0.1")).is_err());
    }
}
