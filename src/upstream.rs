//! Connections out of this server: to kubelets, pods and services. One connection per request, nothing is kept: what is
//! at the other end changes often and is far less busy than this server.
//!
//! A connection lives exactly as long as the [`Answer`] or [`Channel`] that was made of it. Dropped, it is cut, so that a client that
//! hangs up takes its connection along.

mod body;
mod dial;
mod failure;
mod tls;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::api::connect::{Destination, Trust};
use crate::limits;

pub use body::{AnswerBody, RequestBody};
pub use failure::Failure;
pub use tls::{Shown, TlsError, TlsFiles, read};

/// The way out. One per server.
pub struct Upstream {
    tls: tls::Contexts,
    /// How long it may take until somebody listens.
    connect_within: Duration,
    /// How long a kubelet may take to begin its answer.
    kubelet_head_within: Duration,
    /// How long anybody else may.
    proxy_head_within: Duration,
    places: Arc<Semaphore>,
    /// Those for extension servers: one that hangs leaves kubelets theirs.
    extension_places: Arc<Semaphore>,
}

/// A request to somebody else.
pub struct Ask {
    /// The method.
    pub method: Method,
    /// The headers, `Host` included.
    pub headers: HeaderMap,
    /// The body.
    pub body: RequestBody,
}

/// What keeps a connection alive, and its place among the connections.
struct Held {
    driver: JoinHandle<()>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The beginning of an answer.
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The rest. It holds the connection.
    pub body: AnswerBody,
}

/// A connection on which something else than HTTP is spoken from now on.
pub struct Channel {
    /// What the other end said when it agreed.
    pub headers: HeaderMap,
    io: TokioIo<hyper::upgrade::Upgraded>,
    _held: Held,
}

impl Channel {
    /// The bytes in both directions.
    pub fn io(&mut self) -> &mut (impl AsyncRead + AsyncWrite + Unpin + use<>) {
        &mut self.io
    }
}

/// What came of an attempt to speak something else.
pub enum Switched {
    /// Agreed.
    Channel(Channel),
    /// The other end answered instead.
    Answer(Answer),
}

impl Upstream {
    /// Connections with these certificates.
    pub fn new(files: &TlsFiles, connect_within: Duration) -> Result<Upstream, TlsError> {
        Ok(Upstream {
            tls: tls::Contexts::new(files)?,
            connect_within,
            kubelet_head_within: limits::KUBELET_HEAD,
            proxy_head_within: limits::PROXY_HEAD,
            places: Arc::new(Semaphore::new(limits::UPSTREAM_CONNECTIONS)),
            extension_places: Arc::new(Semaphore::new(limits::EXTENSION_CONNECTIONS)),
        })
    }

    /// Shows this certificate and key (PEM) to servers that extend this API from now on; `None`: nothing.
    pub fn show_to_extensions(&self, identity: Option<Shown>) -> Result<(), TlsError> {
        self.tls.show_to_extensions(identity)
    }

    /// Sends a request and waits for the beginning of the answer.
    pub async fn ask(&self, to: &Destination, ask: Ask) -> Result<Answer, Failure> {
        let (response, held) = self.send(to, ask).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Failure::Broken(
                "an answer that nobody asked for: 101 Switching Protocols".to_owned(),
            ));
        }
        Ok(answer(response, held))
    }

    /// Sends a request to speak something else.
    pub async fn switch(&self, to: &Destination, ask: Ask) -> Result<Switched, Failure> {
        let (mut response, held) = self.send(to, ask).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Switched::Answer(answer(response, held)));
        }
        let upgraded = hyper::upgrade::on(&mut response);
        let upgraded = timeout(self.connect_within, upgraded).await.map_err(|_| Failure::SlowAnswer)?;
        let io = TokioIo::new(upgraded.map_err(|error| Failure::broken(&error))?);
        Ok(Switched::Channel(Channel { headers: std::mem::take(response.headers_mut()), io, _held: held }))
    }

    async fn send(&self, to: &Destination, ask: Ask) -> Result<(Response<Incoming>, Held), Failure> {
        let places = match to.trust {
            Trust::Extension(_) => &self.extension_places,
            Trust::Nobody | Trust::Kubelet | Trust::KubeletUnverified => &self.places,
        };
        let place = places.clone().try_acquire_owned().map_err(|_| Failure::Busy)?;
        let io = dial::dial(&self.tls, to, self.connect_within).await?;
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(limits::UPSTREAM_BUFFER_BYTES)
            .max_headers(limits::UPSTREAM_HEADERS)
            .title_case_headers(true)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|error| Failure::broken(&error))?;
        let driver = tokio::task::spawn_local(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to somebody else ended");
            }
        });
        let held = Held { driver, _place: place };
        let mut request = Request::new(ask.body);
        *request.method_mut() = ask.method;
        *request.headers_mut() = ask.headers;
        *request.uri_mut() = to.location.target().parse().map_err(|_| Failure::BadTarget)?;
        let within = match to.trust {
            Trust::Nobody | Trust::Extension(_) => self.proxy_head_within,
            Trust::Kubelet | Trust::KubeletUnverified => self.kubelet_head_within,
        };
        let sent = sender.send_request(request);
        let response = match to.is_patient {
            true => sent.await,
            false => timeout(within, sent).await.map_err(|_| Failure::SlowAnswer)?,
        };
        Ok((response.map_err(|error| Failure::broken(&error))?, held))
    }
}

fn answer(response: Response<Incoming>, held: Held) -> Answer {
    let (parts, body) = response.into_parts();
    Answer { status: parts.status, headers: parts.headers, body: AnswerBody::new(body, held) }
}

/// A name and value as the other end gets them; `None` if they cannot stand in a head.
pub fn header(name: &str, value: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    Some((HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(value).ok()?))
}

/// A body that comes in pieces.
pub type Pieces = std::pin::Pin<Box<dyn futures::Stream<Item = io::Result<Bytes>>>>;

#[cfg(test)]
mod tests;
