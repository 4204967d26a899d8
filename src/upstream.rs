//! Connections out of this server: to kubelets, pods, services and servers that extend this API.
//!
//! A connection belongs to the [`Answer`] or [`Channel`] that was made of it. Dropped, it is cut, so that a client that hangs up takes
//! its connection along. One whose answer was read to the end waits in the [`pool`] for the next request, if it is one to an extension
//! server or for a log; what is behind a proxy changes often and is asked seldom.

mod body;
pub(crate) mod client_tls;
mod dial;
mod failure;
mod places;
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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use self::places::{Place, Places};
use self::pool::{Connection, Origin, Pool, Purpose, Tried, Wanted};
use crate::api::connect::{Destination, Peer, Reach, Trust};
use crate::limits;

pub use body::{AnswerBody, RequestBody};
pub use dial::Stream;
pub use failure::Failure;
pub use tls::{Shown, TlsError, TlsFiles, read, unproven};

/// The way out. One per server.
pub struct Upstream {
    tls: tls::Contexts,
    pool: Arc<Pool>,
    /// How long it may take until somebody listens.
    connect_within: Duration,
    /// How long a kubelet may take to begin its answer.
    kubelet_head_within: Duration,
    /// How long anybody else may.
    proxy_head_within: Duration,
    places: Places,
    /// Those for extension servers: one that hangs leaves kubelets theirs.
    extension_places: Places,
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

/// A connection and its place among the connections.
struct Held {
    connection: Connection,
    _place: Place,
}

impl Held {
    /// Everything was said: the connection may wait for the next request, without a place.
    fn done(self) {
        self.connection.done();
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
    /// Connections with these certificates, which wait in this pool.
    pub fn new(files: &TlsFiles, connect_within: Duration, pool: Arc<Pool>) -> Result<Upstream, TlsError> {
        Ok(Upstream {
            tls: tls::Contexts::new(files)?,
            pool,
            connect_within,
            kubelet_head_within: limits::KUBELET_HEAD,
            proxy_head_within: limits::PROXY_HEAD,
            places: Places::new(limits::UPSTREAM_CONNECTIONS),
            extension_places: Places::new(limits::EXTENSION_CONNECTIONS),
        })
    }

    /// Shows this certificate and key (PEM) to servers that extend this API from now on; `None`: nothing.
    pub fn show_to_extensions(&self, identity: Option<Shown>) -> Result<(), TlsError> {
        self.tls.show_to_extensions(identity)
    }

    /// Believes and shows to kubelets from now on what these files hold now.
    pub fn show_to_kubelets(&self, files: &TlsFiles) -> Result<(), TlsError> {
        self.tls.show_to_kubelets(files)
    }

    /// Where connections wait.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Sends a request and waits for the beginning of the answer.
    pub async fn ask(&self, to: &Destination, ask: Ask) -> Result<Answer, Failure> {
        let (response, held) = self.send(to, ask, true).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Failure::Broken(
                "an answer that nobody asked for: 101 Switching Protocols".to_owned(),
            ));
        }
        Ok(answer(response, held))
    }

    /// Sends a request to speak something else. Its connection is its own.
    pub async fn switch(&self, to: &Destination, ask: Ask) -> Result<Switched, Failure> {
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
        ask: Ask,
        may_keep: bool,
    ) -> Result<(Response<Incoming>, Held), Failure> {
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
            None => Tried::Unsent(request),
        };
        let (response, connection) = match tried {
            Tried::Answered(response, connection) => (response, connection),
            Tried::Unsent(request) => {
                let io = dial::dial(tls.as_ref(), to, self.connect_within).await?;
                let opened = self.pool.open(origin, io).await;
                let mut connection = opened.map_err(|error| Failure::broken(&error))?;
                let sent = async { connection.send(request).await.map_err(|failed| failed.into_error()) };
                (self.begun(to, sent).await?, connection)
            }
        };
        Ok((response, Held { connection, _place: place }))
    }

    /// Waits until an answer begins, for as long as whoever is asked may take.
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

/// As whom a connection is kept; `None`: it is not.
fn origin(to: &Destination, tls: Option<&tls::Way>) -> Option<Arc<Origin>> {
    let purpose = match to.trust {
        Trust::Kubelet | Trust::KubeletUnverified => Purpose::Kubelet,
        Trust::Extension(_) => Purpose::Extension,
        Trust::Nobody => return None,
    };
    // Which addresses are allowed is only looked at when a connection is made.
    if to.reach != Reach::Any {
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

fn answer(response: Response<Incoming>, held: Held) -> Answer {
    let (parts, body) = response.into_parts();
    Answer { status: parts.status, headers: parts.headers, body: AnswerBody::new(body, held) }
}

/// Says that an extension server may be asked, by those who look at its certificate and by those who do not.
pub fn wanted(pool: &Arc<Pool>, peer: &Peer) -> [Wanted; 2] {
    [tls::authority(peer), pool::authority(None, false)]
        .map(|authority| pool.want(Purpose::Extension, &peer.server_name, authority))
}

/// A name and value as the other end gets them; `None` if they cannot stand in a head.
pub fn header(name: &str, value: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    Some((HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(value).ok()?))
}

/// A body that comes in pieces.
pub type Pieces = std::pin::Pin<Box<dyn futures::Stream<Item = io::Result<Bytes>>>>;

#[cfg(test)]
mod tests;
