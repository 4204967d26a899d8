//! Questions to servers that are asked often: connections stay open for the next question. One set per worker, so nothing
//! is locked.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::body::Body as _;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use openssl::ssl::SslConnector;
use openssl::x509::X509VerifyResult;
use pilothouse_actors::clock::{Clock, Timestamp};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

use super::{connector, tunnel};
use crate::kubeconfig::{Access, Shown};
use crate::limits::{HOOK_CONNECTION_IDLE, HOOK_CONNECTIONS_KEPT, HOOK_PEERS, UPSTREAM_BUFFER_BYTES};

/// The program that asks, as the reference server calls itself here.
const AGENT: &str = "kube-apiserver-admission";

/// Where a server is and how it is known. What differs in any of it is another server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Whether the connection is private; all but those of tests are.
    pub secure: bool,
    /// Its name, which its certificate must have and requests say.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whom it must be known to, in PEM; empty: to whom the system believes.
    pub authority_pem: Vec<u8>,
}

impl Place {
    /// As requests name it: without the port that everybody expects.
    fn authority(&self, always: bool) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let usual = if self.secure { 443 } else { 80 };
        if always || self.port != usual { format!("{host}:{}", self.port) } else { host }
    }
}

/// A question.
pub struct Question {
    /// The path with its parameters.
    pub target: String,
    /// What is sent.
    pub body: Bytes,
    /// How the address is said in requests: with a port that everybody expects, too.
    pub says_port: bool,
    /// The most bytes of the answer.
    pub most: usize,
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// What the body is; empty if nothing is said.
    pub content_type: String,
    /// The body.
    pub body: Vec<u8>,
}

type Sender = SendRequest<Once>;

/// A connection that waits for the next question.
struct Idle {
    sender: Sender,
    since: Timestamp,
}

/// One server.
struct Peer {
    place: Place,
    access: Access,
    tls: Option<SslConnector>,
    idle: RefCell<Vec<Idle>>,
}

/// All servers that are asked.
pub struct Peers {
    clock: Clock,
    known: RefCell<HashMap<Place, Rc<Peer>>>,
}

/// A body of one piece.
struct Once(Option<Bytes>);

impl hyper::body::Body for Once {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Ready(self.0.take().map(|bytes| Ok(hyper::body::Frame::data(bytes))))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

impl Peers {
    /// Nobody yet.
    pub fn new(clock: Clock) -> Peers {
        Peers { clock, known: RefCell::default() }
    }

    /// Asks. `access` is what is shown, and is made once for each place; `at` is where to connect to, if not where the place
    /// says. The error is in the words that clients know.
    pub async fn ask(
        &self,
        place: &Place,
        access: impl FnOnce() -> Access,
        at: Option<(String, u16)>,
        question: &Question,
    ) -> Result<Reply, String> {
        let peer = self.peer(place, access)?;
        let shown = peer.access.credentials.show().await?;
        let reply = self.exchange(&peer, &shown, at, question).await;
        if matches!(&reply, Ok(reply) if reply.status == 401) {
            peer.access.credentials.refused(&shown).await;
        }
        reply
    }

    fn peer(&self, place: &Place, access: impl FnOnce() -> Access) -> Result<Rc<Peer>, String> {
        if let Some(peer) = self.known.borrow().get(place) {
            return Ok(Rc::clone(peer));
        }
        let mut access = access();
        if !place.authority_pem.is_empty() {
            access.authority_pem = Some(place.authority_pem.clone());
        }
        let tls = connector(&access, access.identity_pem.as_ref());
        let tls = place.secure.then_some(tls).transpose().map_err(|error| error.to_string())?;
        let peer = Rc::new(Peer { place: place.clone(), access, tls, idle: RefCell::default() });
        let mut known = self.known.borrow_mut();
        if known.len() >= HOOK_PEERS {
            // Whoever changes a configuration leaves its old place behind: nobody else is that many.
            known.clear();
        }
        known.insert(place.clone(), Rc::clone(&peer));
        Ok(peer)
    }

    async fn exchange(
        &self,
        peer: &Peer,
        shown: &Shown,
        at: Option<(String, u16)>,
        question: &Question,
    ) -> Result<Reply, String> {
        while let Some(mut sender) = self.kept(peer) {
            match sender.try_send_request(request(peer, shown, question)?).await {
                Ok(response) => return self.read(peer, sender, response, question.most).await,
                Err(mut failed) => {
                    // One that was closed before anything was sent is as if it had not been there.
                    if failed.take_message().is_none() {
                        return Err(broken(&failed.into_error()));
                    }
                }
            }
        }
        let mut sender = peer.connect(shown, at).await?;
        let response = sender.send_request(request(peer, shown, question)?).await;
        let response = response.map_err(|error| broken(&error))?;
        self.read(peer, sender, response, question.most).await
    }

    /// A connection that waits and still stands. Those that waited for long are closed.
    fn kept(&self, peer: &Peer) -> Option<Sender> {
        let now = self.clock.now();
        let mut idle = peer.idle.borrow_mut();
        idle.retain(|kept| !kept.sender.is_closed() && kept.since.plus(HOOK_CONNECTION_IDLE) > now);
        // The one that was used last: the others may grow old.
        idle.pop().map(|kept| kept.sender)
    }

    async fn read(
        &self,
        peer: &Peer,
        sender: Sender,
        response: hyper::Response<hyper::body::Incoming>,
        most: usize,
    ) -> Result<Reply, String> {
        let (head, body) = response.into_parts();
        let mut body = pin!(body);
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            if let Ok(data) = frame.map_err(|error| cut(&error))?.into_data() {
                if bytes.len() + data.len() > most {
                    return Err(format!("the answer has more than {most} bytes"));
                }
                bytes.extend_from_slice(&data);
            }
        }
        let mut idle = peer.idle.borrow_mut();
        if idle.len() < HOOK_CONNECTIONS_KEPT && !sender.is_closed() {
            idle.push(Idle { sender, since: self.clock.now() });
        }
        let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Ok(Reply {
            status: head.status.as_u16(),
            content_type: content_type.unwrap_or_default().to_owned(),
            body: bytes,
        })
    }
}

fn request(peer: &Peer, shown: &Shown, question: &Question) -> Result<Request<Once>, String> {
    let mut request = Request::post(&question.target)
        .header(HOST, peer.place.authority(question.says_port))
        .header(USER_AGENT, AGENT)
        .header(ACCEPT, "application/json, */*")
        .header(CONTENT_TYPE, "application/json");
    if let Some(header) = &shown.header {
        request = request.header(AUTHORIZATION, header);
    }
    for (name, value) in peer.access.acting_as.headers() {
        request = request.header(name, value);
    }
    request.body(Once(Some(question.body.clone()))).map_err(|error| error.to_string())
}

impl Peer {
    async fn connect(&self, shown: &Shown, at: Option<(String, u16)>) -> Result<Sender, String> {
        let (host, port) = at.unwrap_or_else(|| (self.place.host.clone(), self.place.port));
        let proxy = self.access.proxy.as_ref();
        let tcp = tunnel::connect(&host, port, proxy).await.map_err(|error| dial(&host, port, &error))?;
        let _prompt = tcp.set_nodelay(true);
        let Some(tls) = &self.tls else { return speak(tcp).await };
        speak(self.private(tls, shown, tcp).await?).await
    }

    async fn private(
        &self,
        tls: &SslConnector,
        shown: &Shown,
        tcp: TcpStream,
    ) -> Result<SslStream<TcpStream>, String> {
        // A certificate that was made for this connection replaces the one of the file.
        let made = shown.made.as_ref().and_then(|made| made.identity_pem.as_ref());
        let own = made.map(|identity| connector(&self.access, Some(identity))).transpose();
        let own = own.map_err(|error| error.to_string())?;
        let name = self.access.server_name.as_deref().unwrap_or(&self.place.host);
        let ssl = own.as_ref().unwrap_or(tls).configure().and_then(|setup| setup.into_ssl(name));
        let ssl = ssl.map_err(|error| format!("tls: {error}"))?;
        let mut stream = SslStream::new(ssl, tcp).map_err(|error| format!("tls: {error}"))?;
        match Pin::new(&mut stream).connect().await {
            Ok(()) => Ok(stream),
            Err(error) => Err(unproven(stream.ssl().verify_result(), name, &error)),
        }
    }
}

/// Why nobody proved who they are, in the words that clients know.
pub(crate) fn unproven(verified: X509VerifyResult, name: &str, error: &dyn std::fmt::Display) -> String {
    let why = match verified.as_raw() {
        0 => return format!("tls: {error}"),
        // No issuer, or one that nobody believes.
        2 | 18..=21 => "certificate signed by unknown authority".to_owned(),
        9 | 10 => "certificate has expired or is not yet valid".to_owned(),
        62..=64 => format!("certificate is not valid for {name}"),
        _ => verified.error_string().to_owned(),
    };
    format!("tls: failed to verify certificate: x509: {why}")
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Unpin + 'static) -> Result<Sender, String> {
    let handshake = http1::Builder::new().max_buf_size(UPSTREAM_BUFFER_BYTES).handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.map_err(|error| broken(&error))?;
    // It ends when nobody can ask over it any more, or the other end closes it.
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a webhook ended");
        }
    });
    Ok(sender)
}

fn dial(host: &str, port: u16, error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let text = text.replacen("Connection", "connection", 1).replacen("Network", "network", 1);
    if host.parse::<std::net::IpAddr>().is_err() && error.raw_os_error().is_none() {
        return format!("dial tcp: lookup {host}: no such host");
    }
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    format!("dial tcp {host}:{port}: connect: {text}")
}

fn broken(error: &hyper::Error) -> String {
    use std::error::Error as _;
    if error.is_incomplete_message() || error.is_canceled() {
        return "EOF".to_owned();
    }
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    // Whoever is killed says no goodbye, which TLS notices.
    if cause.to_lowercase().contains("unexpected eof") {
        return "EOF".to_owned();
    }
    if cause.is_empty() { error.to_string() } else { format!("{error}: {cause}") }
}

fn cut(error: &hyper::Error) -> String {
    format!("unexpected error when reading response body. Please retry. Original error: {}", broken(error))
}

/// How long a question may take, as a parameter says it.
pub fn seconds(timeout: Duration) -> String {
    let seconds = timeout.as_secs();
    match (seconds / 60, seconds % 60) {
        (0, rest) => format!("{rest}s"),
        (minutes, rest) => format!("{minutes}m{rest}s"),
    }
}
