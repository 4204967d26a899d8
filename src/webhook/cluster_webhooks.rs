//! Calls to webhooks that objects of the cluster configure. One set of connections per worker, so nothing is locked.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};

use super::connector::Connector;
use crate::kubeconfig::{Access, PresentedCredentials};
use crate::limits::HOOK_PEERS;
use crate::upstream::RequestBody;
use crate::upstream::pool::{self, ExchangeError, KeepAliveHandle, Pool, Purpose};

/// The User-Agent of webhook calls, as in the reference.
const AGENT: &str = "kube-apiserver-admission";

/// The address and CA of a server. A difference in any part means another server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WebhookServer {
    /// Whether TLS is used; only tests do without.
    pub secure: bool,
    /// The host name, for the certificate and the Host header.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The CA bundle as PEM; empty for the CAs of the system.
    pub authority_pem: Vec<u8>,
}

impl WebhookServer {
    /// The Host header: without a default port unless `always`.
    fn authority(&self, always: bool) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let usual = if self.secure { 443 } else { 80 };
        if always || self.port != usual { format!("{host}:{}", self.port) } else { host }
    }
}

impl WebhookServer {
    /// Keeps connections to this server as long as the result lives.
    pub fn wanted(&self, pool: &Arc<Pool>, purpose: Purpose) -> KeepAliveHandle {
        let pem = Some(self.authority_pem.as_slice()).filter(|pem| !pem.is_empty());
        pool.want(purpose, &self.host, pool::authority(pem, true))
    }
}

/// A call.
pub struct WebhookRequest {
    /// The path with its query.
    pub target: String,
    /// The request body.
    pub body: Bytes,
    /// Whether the Host header always contains the port.
    pub says_port: bool,
    /// The limit on the size of the response.
    pub most: usize,
}

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookResponse {
    /// The status code.
    pub status: u16,
    /// The Content-Type; empty if absent.
    pub content_type: String,
    /// The body of the response.
    pub body: Vec<u8>,
}

/// One server.
struct Peer {
    place: WebhookServer,
    access: Access,
    reach: Connector,
}

/// All servers that were called.
pub struct WebhookClients {
    pool: Arc<Pool>,
    purpose: Purpose,
    known: RefCell<HashMap<WebhookServer, Rc<Peer>>>,
}

impl WebhookClients {
    /// No servers yet. Connections are kept in this pool.
    pub fn new(pool: Arc<Pool>, purpose: Purpose) -> WebhookClients {
        WebhookClients { pool, purpose, known: RefCell::default() }
    }

    /// Makes a call. `access` gives the credentials, once per server; `at` is the address to connect to, if it differs. Errors
    /// are in the reference's words.
    pub async fn ask(
        &self,
        place: &WebhookServer,
        access: impl FnOnce() -> Access,
        at: Option<(String, u16)>,
        question: &WebhookRequest,
    ) -> Result<WebhookResponse, String> {
        let peer = self.peer(place, access)?;
        let shown = peer.access.credentials.show().await?;
        let request = request(&peer, &shown, question)?;
        let (origin, connecting) = peer.reach.to(&peer.access, &shown, at);
        let answer = self.pool.ask(&origin, request, question.most, connecting).await;
        let answer = answer.map_err(|unanswered| match unanswered {
            ExchangeError::Unreached(why) => why,
            ExchangeError::Broken(error) => broken(&error),
            ExchangeError::Cut(error) => cut(&error),
            ExchangeError::TooLong => format!("the answer has more than {} bytes", question.most),
        })?;
        if answer.head.status == 401 {
            peer.access.credentials.refused(&shown).await;
        }
        let content_type = answer.head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Ok(WebhookResponse {
            status: answer.head.status.as_u16(),
            content_type: content_type.unwrap_or_default().to_owned(),
            body: answer.body,
        })
    }

    fn peer(&self, place: &WebhookServer, access: impl FnOnce() -> Access) -> Result<Rc<Peer>, String> {
        if let Some(peer) = self.known.borrow().get(place) {
            return Ok(Rc::clone(peer));
        }
        let mut access = access();
        if !place.authority_pem.is_empty() {
            access.authority_pem = Some(place.authority_pem.clone());
        }
        let reach = Connector::new(self.purpose, place.secure, (place.host.clone(), place.port), &access)?;
        let peer = Rc::new(Peer { place: place.clone(), access, reach });
        let mut known = self.known.borrow_mut();
        if known.len() >= HOOK_PEERS {
            // Changed configurations leave their old servers behind; a cluster has no other reason for so many.
            known.clear();
        }
        known.insert(place.clone(), Rc::clone(&peer));
        Ok(peer)
    }
}

fn request(
    peer: &Peer,
    shown: &PresentedCredentials,
    question: &WebhookRequest,
) -> Result<Request<RequestBody>, String> {
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
    request.body(RequestBody::Whole(Some(question.body.clone()))).map_err(|error| error.to_string())
}

fn broken(error: &hyper::Error) -> String {
    use std::error::Error as _;
    if error.is_incomplete_message() || error.is_canceled() {
        return "EOF".to_owned();
    }
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    // A killed server sends no close_notify, which TLS reports.
    if cause.to_lowercase().contains("unexpected eof") {
        return "EOF".to_owned();
    }
    if cause.is_empty() { error.to_string() } else { format!("{error}: {cause}") }
}

fn cut(error: &hyper::Error) -> String {
    format!("unexpected error when reading response body. Please retry. Original error: {}", broken(error))
}

/// A timeout as the query parameter states it: whole seconds, rounded up.
pub fn seconds(timeout: Duration) -> String {
    let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
    match (seconds / 60, seconds % 60) {
        (0, rest) => format!("{rest}s"),
        (minutes, rest) => format!("{minutes}m{rest}s"),
    }
}
