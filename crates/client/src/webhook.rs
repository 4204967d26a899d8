//! Calls to remote servers that the operator configures: one JSON object out, one back; or fetching a document. Connections are
//! kept in the server's pool.

pub mod cluster_webhooks;
pub(crate) mod connector;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Uri};
use openssl::ssl::SslContext;
use pilothouse_apimachinery::well_known::SERVER_NAME;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::connector::Connector;
use crate::kubeconfig::{Access, Credentials, PresentedCredentials};
use crate::limits::{WEBHOOK_ATTEMPTS, WEBHOOK_CALLS, WEBHOOK_RESPONSE_BYTES, WEBHOOK_TIMEOUT};
use crate::upstream::RequestBody;
use crate::upstream::pool::{ExchangeError, Pool, Purpose};

/// The pause before the second attempt; each later one is half as long again. The reference's values.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(500);

/// The error of a call that cannot even wait for a connection.
pub(crate) const TOO_MANY: &str = "too many requests wait for this server";

/// The error of a call.
#[derive(Debug, Error)]
pub enum Failure {
    /// The configuration is invalid.
    #[error("{0}")]
    Settings(String),
    /// The call timed out.
    #[error("no response within {0:?}")]
    Slow(Duration),
    /// The connection failed.
    #[error("{0}")]
    Broken(String),
    /// The response exceeds the limit.
    #[error("response body too large")]
    TooLong,
    /// The server answered with this status.
    #[error("unexpected HTTP status {0}")]
    Refused(u16),
}

impl Failure {
    /// Whether a retry may help.
    pub fn may_pass(&self) -> bool {
        matches!(self, Failure::Refused(429 | 500 | 504))
    }
}

/// Retries with growing pauses as long as that may help.
pub async fn with_retries<T, E, F>(call: impl FnMut() -> F, may_pass: impl Fn(&E) -> bool) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    with_retries_after(FIRST_RETRY_DELAY, call, may_pass).await
}

/// [`with_retries`] with another first pause.
pub async fn with_retries_after<T, E, F>(
    first_delay: Duration,
    mut call: impl FnMut() -> F,
    may_pass: impl Fn(&E) -> bool,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut delay = first_delay;
    for attempt in 1..WEBHOOK_ATTEMPTS {
        match call().await {
            Err(failure) if may_pass(&failure) => {
                tracing::debug!(attempt, "an outgoing request is retried");
                tokio::time::sleep(delay).await;
                delay = delay * 3 / 2;
            }
            result => return result,
        }
    }
    call().await
}

/// The CAs that servers are verified with, read once for all of them: reading those of the system takes longer than a worker may be
/// held.
#[derive(Clone)]
pub struct TrustAnchors {
    authority_pem: Option<Vec<u8>>,
    context: SslContext,
}

impl TrustAnchors {
    /// The CAs of this bundle; `None` for those of the system.
    pub fn load(authority_pem: Option<Vec<u8>>) -> Result<TrustAnchors, Failure> {
        let access = Access { authority_pem, ..Access::to_server("") };
        let context =
            connector::context(&access, None).map_err(|error| Failure::Settings(error.to_string()))?;
        Ok(TrustAnchors { authority_pem: access.authority_pem, context })
    }
}

/// A remote server.
pub struct Service {
    uri: Uri,
    access: Access,
    connector: Connector,
    slots: Arc<Semaphore>,
    pool: Arc<Pool>,
}

impl Service {
    /// A webhook of the operator, at the server of this kubeconfig. Connections are kept in this pool.
    pub fn new(access: &Access, pool: &Arc<Pool>) -> Result<Service, Failure> {
        Service::with_purpose(Purpose::Service, access, pool)
    }

    /// A server that is called for another purpose.
    pub fn with_purpose(purpose: Purpose, access: &Access, pool: &Arc<Pool>) -> Result<Service, Failure> {
        let (uri, connector) = Connector::for_access(purpose, access).map_err(Failure::Settings)?;
        let slots = Arc::new(Semaphore::new(WEBHOOK_CALLS));
        Ok(Service { uri, access: access.clone(), connector, slots, pool: pool.clone() })
    }

    /// A provider of OpenID Connect, or an endpoint of its distributed claims, at this URL and verified with these CAs.
    pub fn for_open_id(
        anchors: &TrustAnchors,
        url: &str,
        credentials: Credentials,
        pool: &Arc<Pool>,
    ) -> Result<Service, Failure> {
        let authority_pem = anchors.authority_pem.clone();
        let access = Access { authority_pem, credentials, ..Access::to_server(url) };
        let context = || Ok(anchors.context.clone());
        let connector = Connector::for_access_with(Purpose::OpenId, &access, context);
        let (uri, connector) = connector.map_err(Failure::Settings)?;
        let slots = Arc::new(Semaphore::new(WEBHOOK_CALLS));
        Ok(Service { uri, access, connector, slots, pool: pool.clone() })
    }

    /// Sends an object and returns the response.
    pub async fn send(&self, body: String) -> Result<Vec<u8>, Failure> {
        self.call_with_timeout(WEBHOOK_TIMEOUT, WEBHOOK_RESPONSE_BYTES, Some(body)).await
    }

    /// Fetches a document, up to a limit.
    pub async fn get(&self, max_bytes: usize, limit: Duration) -> Result<Vec<u8>, Failure> {
        self.call_with_timeout(limit, max_bytes, None).await
    }

    /// [`Service::send`] with retries.
    pub async fn call_with_retries(&self, body: &str) -> Result<Vec<u8>, Failure> {
        with_retries(|| self.send(body.to_owned()), Failure::may_pass).await
    }

    async fn call_with_timeout(
        &self,
        limit: Duration,
        max_bytes: usize,
        body: Option<String>,
    ) -> Result<Vec<u8>, Failure> {
        // Without a free slot the call waits. A refusal here would look like one of the remote server, and if other authorizers
        // decide then, a client could bypass it by many concurrent requests.
        let call = async {
            let _slot = self.slots.acquire().await.map_err(|error| connection_error(&error))?;
            self.exchange(body, max_bytes).await
        };
        timeout(limit, call).await.map_err(|_| Failure::Slow(limit))?
    }

    async fn exchange(&self, body: Option<String>, max_bytes: usize) -> Result<Vec<u8>, Failure> {
        let credentials = &self.access.credentials;
        let presented = credentials.present().await.map_err(Failure::Settings)?;
        let result = self.send_request(body, max_bytes, &presented).await;
        if matches!(result, Err(Failure::Refused(401))) {
            credentials.invalidate(&presented).await;
        }
        result
    }

    async fn send_request(
        &self,
        body: Option<String>,
        max_bytes: usize,
        presented: &PresentedCredentials,
    ) -> Result<Vec<u8>, Failure> {
        let target = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let request = match body {
            Some(_) => Request::post(target)
                .header(CONTENT_TYPE, "application/json")
                .header(ACCEPT, "application/json"),
            // A document may be of any type, such as a token.
            None => Request::get(target).header(ACCEPT, "*/*"),
        };
        let mut request = request
            .header(HOST, self.uri.authority().map_or("", |authority| authority.as_str()))
            .header(USER_AGENT, SERVER_NAME);
        if let Some(header) = &presented.header {
            request = request.header(AUTHORIZATION, header);
        }
        for (name, value) in self.access.impersonation.headers() {
            request = request.header(name, value);
        }
        let body = body.map_or(RequestBody::Empty, |body| RequestBody::Whole(Some(body.into())));
        let request = request.body(body).map_err(|error| Failure::Settings(error.to_string()))?;
        let dial = self.connector.prepare(self.pool.routes(), &self.access, presented, None);
        let response = self.pool.send(&dial.origin, request, max_bytes, async || dial.connect().await).await;
        let response = response.map_err(|error| match error {
            ExchangeError::Connect(reason) => Failure::Broken(reason),
            ExchangeError::Broken(error) | ExchangeError::Cut(error) => connection_error(&error),
            ExchangeError::TooLong => Failure::TooLong,
            ExchangeError::Slow | ExchangeError::Busy => Failure::Broken(TOO_MANY.to_owned()),
        })?;
        let status = response.head.status;
        if status.is_success() { Ok(response.body) } else { Err(Failure::Refused(status.as_u16())) }
    }
}

fn connection_error(error: &dyn std::fmt::Display) -> Failure {
    Failure::Broken(error.to_string())
}

#[cfg(test)]
mod tests;
