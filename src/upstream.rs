//! Outgoing connections: to kubelets, pods, services and extension API servers.
//!
//! A connection belongs to its [`UpstreamResponse`] or [`Channel`]. When that is dropped, the connection is closed, so that a
//! client that disconnects closes its own. A connection whose response was read to the end goes into the [`pool`], if it is to an
//! extension API server or for a log. Proxied backends change often and are called seldom, so their connections are not kept.

mod body;
pub(crate) mod client_tls;
mod connection_limits;
mod dial;
mod failure;
pub mod pool;
mod tls;
mod verification_error;

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
use self::pool::{Connection, KeepAliveHandle, Origin, Pool, Purpose, ReuseOutcome};
use crate::limits;

pub use body::{RequestBody, ResponseBody};
pub use dial::Stream;
pub(crate) use dial::dial_tcp;
pub use failure::Failure;
pub use tls::{CertificateAndKey, TlsError, TlsFiles, read};
pub use verification_error::unproven;

/// Makes outgoing requests. One per server.
pub struct Upstream {
    tls: tls::Contexts,
    pool: Arc<Pool>,
    /// The timeout of connecting.
    connect_within: Duration,
    /// The timeout until a kubelet's response begins.
    kubelet_head_within: Duration,
    /// The timeout until other responses begin.
    proxy_head_within: Duration,
    places: ConnectionLimits,
    /// The places for extension API servers: one that hangs leaves kubelets theirs.
    extension_places: ConnectionLimits,
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

/// A connection and its place.
struct ConnectionInUse {
    connection: Connection,
    _place: ConnectionSlot,
}

impl ConnectionInUse {
    /// Everything was read: the connection may go into the pool, without its place.
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
    io: TokioIo<hyper::upgrade::Upgraded>,
    _held: ConnectionInUse,
}

impl Channel {
    /// The byte stream in both directions.
    pub fn io(&mut self) -> &mut (impl AsyncRead + AsyncWrite + Unpin + use<>) {
        &mut self.io
    }
}

/// The result of an upgrade request.
pub enum Switched {
    /// The server switched protocols.
    Channel(Channel),
    /// The server answered instead.
    Answer(UpstreamResponse),
}

impl Upstream {
    /// Connections with these certificates, kept in this pool.
    pub fn new(files: &TlsFiles, connect_within: Duration, pool: Arc<Pool>) -> Result<Upstream, TlsError> {
        Ok(Upstream {
            tls: tls::Contexts::new(files)?,
            pool,
            connect_within,
            kubelet_head_within: limits::KUBELET_HEAD_TIMEOUT,
            proxy_head_within: limits::PROXY_HEAD_TIMEOUT,
            places: ConnectionLimits::new(limits::UPSTREAM_CONNECTIONS),
            extension_places: ConnectionLimits::new(limits::EXTENSION_CONNECTIONS),
        })
    }

    /// Replaces the client certificate and key (PEM) for extension API servers; `None` for none.
    pub fn show_to_extensions(&self, identity: Option<CertificateAndKey>) -> Result<(), TlsError> {
        self.tls.show_to_extensions(identity)
    }

    /// Replaces the TLS settings for kubelets by the contents of these files.
    pub fn show_to_kubelets(&self, files: &TlsFiles) -> Result<(), TlsError> {
        self.tls.show_to_kubelets(files)
    }

    /// The pool of idle connections.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Sends a request and waits for the head of the response.
    pub async fn ask(&self, to: &Destination, ask: UpstreamRequest) -> Result<UpstreamResponse, Failure> {
        let (response, held) = self.send(to, ask, true).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Failure::Broken(
                "an answer that nobody asked for: 101 Switching Protocols".to_owned(),
            ));
        }
        Ok(answer(response, held))
    }

    /// Sends an upgrade request, on a connection of its own.
    pub async fn switch(&self, to: &Destination, ask: UpstreamRequest) -> Result<Switched, Failure> {
        let (mut response, held) = self.send(to, ask, false).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Switched::Answer(answer(response, held)));
        }
        let upgraded = hyper::upgrade::on(&mut response);
        let upgraded = timeout(self.connect_within, upgraded).await.map_err(|_| Failure::SlowAnswer)?;
        let io = TokioIo::new(upgraded.map_err(|error| Failure::broken(&error))?);
        Ok(Switched::Channel(Channel { headers: std::mem::take(response.headers_mut()), io, _held: held }))
    }

    async fn send(
        &self,
        to: &Destination,
        ask: UpstreamRequest,
        may_keep: bool,
    ) -> Result<(Response<Incoming>, ConnectionInUse), Failure> {
        let places = match to.trust {
            Trust::Extension(_) => &self.extension_places,
            Trust::Nobody | Trust::Kubelet | Trust::KubeletUnverified => &self.places,
        };
        let place = places.take(&to.asker).ok_or(Failure::Busy)?;
        let mut request = Request::new(ask.body);
        *request.method_mut() = ask.method;
        *request.headers_mut() = ask.headers;
        *request.uri_mut() = to.location.target().parse().map_err(|_| Failure::BadTarget)?;
        let tls = self.tls.to(to)?;
        let origin = if may_keep { origin(to, tls.as_ref()) } else { None };
        let tried = match &origin {
            Some(origin) => self.begun(to, self.pool.over_waiting(origin, request)).await?,
            None => ReuseOutcome::Unsent(request),
        };
        let (response, connection) = match tried {
            ReuseOutcome::Answered(response, connection) => (response, connection),
            ReuseOutcome::Unsent(request) => {
                let io = dial::dial(tls.as_ref(), to, self.connect_within).await?;
                let opened = self.pool.open(origin, io).await;
                let mut connection = opened.map_err(|error| Failure::broken(&error))?;
                let sent = async { connection.send(request).await.map_err(|failed| failed.into_error()) };
                (self.begun(to, sent).await?, connection)
            }
        };
        Ok((response, ConnectionInUse { connection, _place: place }))
    }

    /// Waits for the head of a response, up to the destination's timeout.
    async fn begun<T>(
        &self,
        to: &Destination,
        sent: impl Future<Output = Result<T, hyper::Error>>,
    ) -> Result<T, Failure> {
        let within = match to.trust {
            Trust::Nobody | Trust::Extension(_) => self.proxy_head_within,
            Trust::Kubelet | Trust::KubeletUnverified => self.kubelet_head_within,
        };
        let begun = match to.is_patient {
            true => sent.await,
            false => timeout(within, sent).await.map_err(|_| Failure::SlowAnswer)?,
        };
        begun.map_err(|error| Failure::broken(&error))
    }
}

/// The key of a connection in the pool; `None` if it is not kept.
fn origin(to: &Destination, tls: Option<&tls::TlsSettings>) -> Option<Arc<Origin>> {
    let purpose = match to.trust {
        Trust::Kubelet | Trust::KubeletUnverified => Purpose::Kubelet,
        Trust::Extension(_) => Purpose::Extension,
        Trust::Nobody => return None,
    };
    // Restricted addresses are only checked when connecting, so such connections are not reused.
    if to.reach != AllowedAddresses::Any {
        return None;
    }
    Some(Arc::new(Origin {
        purpose,
        host: to.location.host.clone(),
        port: to.location.port,
        private: tls.map(|way| way.private.clone()),
        proxy: None,
    }))
}

fn answer(response: Response<Incoming>, held: ConnectionInUse) -> UpstreamResponse {
    let (parts, body) = response.into_parts();
    UpstreamResponse { status: parts.status, headers: parts.headers, body: ResponseBody::new(body, held) }
}

/// Keeps connections to an extension API server, for verified and unverified requests.
pub fn wanted(pool: &Arc<Pool>, peer: &ServerVerification) -> [KeepAliveHandle; 2] {
    [tls::authority(peer), pool::authority(None, false)]
        .map(|authority| pool.want(Purpose::Extension, &peer.server_name, authority))
}

/// A header; `None` if name or value is invalid.
pub fn header(name: &str, value: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    Some((HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(value).ok()?))
}

/// A body that comes in pieces.
pub type Pieces = std::pin::Pin<Box<dyn futures::Stream<Item = io::Result<Bytes>>>>;

#[cfg(test)]
mod tests;
