//! Outgoing connections: to kubelets, pods, services and extension API servers.
//!
//! A connection belongs to its [`UpstreamResponse`] or [`Channel`]. When that is dropped, the connection is closed, so that a
//! client that disconnects closes its own. A connection whose response was read to the end goes into the [`pool`], if it is to an
//! extension API server or for a log. Proxied backends change often and are called seldom, so their connections are not kept.

mod body;
pub mod call_observer;
mod connection_limits;
mod dial;
pub mod pool;
mod tls;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use pilothouse_api::connect::{AllowedAddresses, Destination, ServerVerification, Trust};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use self::connection_limits::{ConnectionLimits, ConnectionSlot};
use self::dial::Dialer;
use self::pool::{Connection, ExchangeError, KeepAliveHandle, Origin, Pool, Purpose};
use crate::paced::Paced;
use crate::routes::Route;
use crate::{client_tls, limits};

pub use crate::direct::dial_tcp;
pub use crate::failure::Failure;
pub use crate::verification_error::verification_error;
pub use body::{RequestBody, ResponseBody};
pub use dial::Stream;
pub use tls::{CertificateAndKey, TlsError, TlsFiles, read};

/// Makes outgoing requests. One per server.
pub struct Upstream {
    tls: tls::Contexts,
    pool: Arc<Pool>,
    /// The timeout of connecting.
    connect_timeout: Duration,
    /// The timeout until a kubelet's response begins.
    kubelet_head_timeout: Duration,
    /// The timeout until other responses begin.
    proxy_head_timeout: Duration,
    slots: ConnectionLimits,
    /// The slots for extension API servers: one that hangs takes none from kubelets.
    extension_slots: ConnectionLimits,
}

/// An outgoing request.
pub struct UpstreamRequest {
    /// The HTTP method.
    pub method: Method,
    /// The headers, including `Host`.
    pub headers: HeaderMap,
    /// The body of the request.
    pub body: RequestBody,
}

/// A connection and its slot.
struct ConnectionInUse {
    connection: Connection,
    _slot: ConnectionSlot,
}

impl ConnectionInUse {
    /// Everything was read: the connection may go into the pool, without its slot.
    fn done(self) {
        self.connection.done();
    }
}

/// The head of a response.
pub struct UpstreamResponse {
    /// The status code.
    pub status: StatusCode,
    /// All headers.
    pub headers: HeaderMap,
    /// The body, which holds the connection.
    pub body: ResponseBody,
}

/// An upgraded connection.
pub struct Channel {
    /// The headers of the 101 response.
    pub headers: HeaderMap,
    io: Paced<TokioIo<hyper::upgrade::Upgraded>>,
    _connection: ConnectionInUse,
}

impl Channel {
    /// The byte stream in both directions.
    pub fn io(&mut self) -> &mut (impl AsyncRead + AsyncWrite + Unpin + use<>) {
        &mut self.io
    }

    /// The same with a bound for the bytes that it carries in a second, each way.
    #[must_use]
    pub fn with_rate(self, bytes_per_second: Option<u64>) -> Channel {
        Channel { io: self.io.with_rate(bytes_per_second), ..self }
    }
}

/// The result of an upgrade request.
pub enum UpgradeOutcome {
    /// The server switched protocols.
    Channel(Channel),
    /// The server responded without switching.
    Response(UpstreamResponse),
}

impl Upstream {
    /// Connections with these certificates, kept in this pool.
    pub fn new(files: &TlsFiles, connect_timeout: Duration, pool: Arc<Pool>) -> Result<Upstream, TlsError> {
        Ok(Upstream {
            tls: tls::Contexts::new(files)?,
            pool,
            connect_timeout,
            kubelet_head_timeout: limits::KUBELET_HEAD_TIMEOUT,
            proxy_head_timeout: limits::PROXY_HEAD_TIMEOUT,
            slots: ConnectionLimits::new(limits::UPSTREAM_CONNECTIONS),
            extension_slots: ConnectionLimits::new(limits::EXTENSION_CONNECTIONS),
        })
    }

    /// Replaces the client certificate and key (PEM) for extension API servers; `None` for none.
    pub fn set_extension_identity(&self, identity: Option<CertificateAndKey>) -> Result<(), TlsError> {
        self.tls.set_extension_identity(identity)
    }

    /// Replaces the TLS settings for kubelets by the contents of these files.
    pub fn set_kubelet_tls(&self, files: &TlsFiles) -> Result<(), TlsError> {
        self.tls.set_kubelet_tls(files)
    }

    /// The pool of idle connections.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Sends a request and waits for the head of the response.
    pub async fn send(
        &self,
        destination: &Destination,
        request: UpstreamRequest,
    ) -> Result<UpstreamResponse, Failure> {
        let (response, connection) = self.exchange(destination, request, true).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Failure::Broken("an unsolicited response: 101 Switching Protocols".to_owned()));
        }
        Ok(into_response(response, connection))
    }

    /// Sends an upgrade request, on a connection of its own.
    pub async fn switch(
        &self,
        destination: &Destination,
        request: UpstreamRequest,
    ) -> Result<UpgradeOutcome, Failure> {
        let (mut response, connection) = self.exchange(destination, request, false).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(UpgradeOutcome::Response(into_response(response, connection)));
        }
        let upgraded = hyper::upgrade::on(&mut response);
        let upgraded = timeout(self.connect_timeout, upgraded).await.map_err(|_| Failure::SlowResponse)?;
        let io = TokioIo::new(upgraded.map_err(|error| Failure::broken(&error))?);
        Ok(UpgradeOutcome::Channel(Channel {
            headers: std::mem::take(response.headers_mut()),
            io: Paced::new(io),
            _connection: connection,
        }))
    }

    async fn exchange(
        &self,
        destination: &Destination,
        request: UpstreamRequest,
        is_reusable: bool,
    ) -> Result<(Response<Incoming>, ConnectionInUse), Failure> {
        let slots = match destination.trust {
            Trust::Extension(_) => &self.extension_slots,
            Trust::Unverified | Trust::Kubelet | Trust::KubeletUnverified => &self.slots,
        };
        let slot = slots.take(&destination.user).ok_or(Failure::Busy)?;
        let mut http_request = Request::new(request.body);
        *http_request.method_mut() = request.method;
        *http_request.headers_mut() = request.headers;
        *http_request.uri_mut() = destination.location.target().parse().map_err(|_| Failure::BadTarget)?;
        let tls = self.tls.for_destination(destination)?;
        let route = self.route(destination, is_reusable);
        let dialer = Dialer::new(destination, self.pool.routes(), route, self.connect_timeout).await?;
        let (secure, server) = (destination.location.secure, dialer.server().to_string());
        dialer.route().address_request(&mut http_request, secure, &server);
        let origin = if is_reusable { origin(destination, tls.as_ref(), dialer.route()) } else { None };
        let limit = self.head_timeout(destination);
        let (response, connection) = match &origin {
            Some(origin) => {
                let dial = async || dialer.connect(tls.as_ref(), origin.offers_http2).await;
                self.pool.exchange(origin, http_request, limit, dial).await.map_err(exchange_failure)?
            }
            None => {
                let io = dialer.connect(tls.as_ref(), false).await?;
                let opened = self.pool.open(None, io).await;
                let mut connection = opened.map_err(|error| Failure::broken(&error))?;
                let sending = connection.send(http_request);
                let result = match limit {
                    Some(limit) => timeout(limit, sending).await.map_err(|_| Failure::SlowResponse)?,
                    None => sending.await,
                };
                (result.map_err(|error| Failure::broken(&error.into_error()))?, connection)
            }
        };
        Ok((response, ConnectionInUse { connection, _slot: slot }))
    }

    /// The route to a destination. As in the reference, upgrades do not go through proxies of the environment.
    fn route(&self, destination: &Destination, is_reusable: bool) -> Route {
        let (secure, server) = (destination.location.secure, destination.location.host_port());
        let proxy = match is_reusable {
            true => self.pool.routes().environment.proxy(secure, &server),
            false => None,
        };
        Route { proxy: proxy.cloned(), egress: destination.egress }
    }

    /// How long the head of a response may take; `None` for any time.
    fn head_timeout(&self, destination: &Destination) -> Option<Duration> {
        let limit = match destination.trust {
            Trust::Unverified | Trust::Extension(_) => self.proxy_head_timeout,
            Trust::Kubelet | Trust::KubeletUnverified => self.kubelet_head_timeout,
        };
        (!destination.has_no_deadline).then_some(limit)
    }
}

fn exchange_failure(error: ExchangeError<Failure>) -> Failure {
    match error {
        ExchangeError::Connect(failure) => failure,
        ExchangeError::Broken(error) | ExchangeError::Cut(error) => Failure::broken(&error),
        ExchangeError::TooLong => Failure::Broken("the response is too large".to_owned()),
        ExchangeError::Slow => Failure::SlowResponse,
        ExchangeError::Busy => Failure::Busy,
    }
}

/// The key of a connection in the pool; `None` if it is not kept.
fn origin(destination: &Destination, tls: Option<&tls::TlsSettings>, route: &Route) -> Option<Arc<Origin>> {
    let purpose = match destination.trust {
        Trust::Kubelet | Trust::KubeletUnverified => Purpose::Kubelet,
        Trust::Extension(_) => Purpose::Extension,
        Trust::Unverified => return None,
    };
    // Restricted addresses are only checked when connecting, so such connections are not reused.
    if destination.reach != AllowedAddresses::Any {
        return None;
    }
    Some(Arc::new(Origin {
        purpose,
        server: destination.location.host_port(),
        private: tls.map(|settings| settings.peer.identity.clone()),
        route: route.clone(),
        offers_http2: tls.is_some() && matches!(destination.trust, Trust::Extension(_)),
    }))
}

fn into_response(response: Response<Incoming>, connection: ConnectionInUse) -> UpstreamResponse {
    let (parts, body) = response.into_parts();
    UpstreamResponse {
        status: parts.status,
        headers: parts.headers,
        body: ResponseBody::new(body, connection),
    }
}

/// Keeps connections to an extension API server, for verified and unverified requests.
pub fn keep_alive(pool: &Arc<Pool>, peer: &ServerVerification) -> [KeepAliveHandle; 2] {
    [tls::authority(peer), client_tls::authority(None, false)]
        .map(|authority| pool.keep_alive(Purpose::Extension, &peer.server_name, authority))
}

/// A header; `None` if name or value is invalid.
pub fn header(name: &str, value: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    Some((HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(value).ok()?))
}

/// A body that comes in pieces.
pub type Pieces = std::pin::Pin<Box<dyn futures::Stream<Item = io::Result<Bytes>>>>;

#[cfg(test)]
mod tests;
