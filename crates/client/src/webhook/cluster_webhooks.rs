//! Calls to webhooks that objects of the cluster configure. One set of connections per worker, so nothing is locked.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use pilothouse_types::bounded::BoundedCache;
use pilothouse_types::host_port::{HostPort, bracketed};

use super::TOO_MANY;
use super::connector::Connector;
use crate::client_tls;
use crate::failure::is_unanswered;
use crate::kubeconfig::{Access, PresentedCredentials};
use crate::limits::HOOK_PEERS;
use crate::upstream::RequestBody;
use crate::upstream::pool::{ExchangeError, KeepAliveHandle, Pool, Purpose};

/// The User-Agent of webhook calls, as in the reference.
const AGENT: &str = "kube-apiserver-admission";

/// The address and CA of a server. A difference in any part means another server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WebhookServer {
    /// Whether TLS is used; only tests do without.
    pub secure: bool,
    /// Where it is. The host is that of its certificate and of the Host header.
    pub address: HostPort,
    /// The CA bundle as PEM; empty for the CAs of the system.
    pub authority_pem: Vec<u8>,
}

impl WebhookServer {
    /// The Host header: without a default port unless `always`.
    fn authority(&self, always: bool) -> String {
        let default_port = if self.secure { 443 } else { 80 };
        match always || self.address.port != default_port {
            true => self.address.to_string(),
            false => bracketed(&self.address.host).into_owned(),
        }
    }
}

impl WebhookServer {
    /// Keeps connections to this server as long as the result lives.
    pub fn keep_alive(&self, pool: &Arc<Pool>, purpose: Purpose) -> KeepAliveHandle {
        let pem = Some(self.authority_pem.as_slice()).filter(|pem| !pem.is_empty());
        pool.keep_alive(purpose, &self.address.host, client_tls::authority(pem, true))
    }
}

/// A call.
pub struct WebhookRequest {
    /// The path with its query.
    pub target: String,
    /// The request body.
    pub body: Bytes,
    /// Whether the Host header always contains the port.
    pub includes_port: bool,
    /// Other headers: those by which the server continues a trace.
    pub headers: Vec<(&'static str, String)>,
    /// The limit on the size of the response.
    pub max_response_bytes: usize,
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
    server: WebhookServer,
    access: Access,
    connector: Connector,
}

/// All servers that were called.
pub struct WebhookClients {
    pool: Arc<Pool>,
    purpose: Purpose,
    /// Changed configurations leave their old servers behind; a cluster has no other reason for so many.
    peers: RefCell<BoundedCache<WebhookServer, Rc<Peer>, HOOK_PEERS>>,
}

impl WebhookClients {
    /// No servers yet. Connections are kept in this pool.
    pub fn new(pool: Arc<Pool>, purpose: Purpose) -> WebhookClients {
        WebhookClients { pool, purpose, peers: RefCell::default() }
    }

    /// Makes a call. `access` gives the credentials, once per server; `address` is that of a service of the cluster, if the
    /// server is one. Errors
    /// have the reference's texts.
    pub async fn send(
        &self,
        server: &WebhookServer,
        access: impl FnOnce() -> Access,
        address: Option<HostPort>,
        request: &WebhookRequest,
    ) -> Result<WebhookResponse, String> {
        let peer = self.peer(server, access)?;
        let presented = peer.access.credentials.present().await?;
        let http_request = make_request(&peer, &presented, request)?;
        let routes = self.pool.routes();
        let dial = peer.connector.prepare(routes, &peer.access, &presented, address);
        let connect = async || dial.connect().await;
        let response = self.pool.send(&dial.origin, http_request, request.max_response_bytes, connect).await;
        let response = response.map_err(|error| match error {
            ExchangeError::Connect(reason) => reason,
            ExchangeError::Broken(error) => connection_error(&error),
            ExchangeError::Cut(error) => body_error(&error),
            ExchangeError::TooLong => {
                format!("the response has more than {} bytes", request.max_response_bytes)
            }
            ExchangeError::Slow | ExchangeError::Busy => TOO_MANY.to_owned(),
        })?;
        if response.head.status == 401 {
            peer.access.credentials.invalidate(&presented).await;
        }
        let content_type = response.head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Ok(WebhookResponse {
            status: response.head.status.as_u16(),
            content_type: content_type.unwrap_or_default().to_owned(),
            body: response.body,
        })
    }

    fn peer(&self, server: &WebhookServer, access: impl FnOnce() -> Access) -> Result<Rc<Peer>, String> {
        if let Some(peer) = self.peers.borrow().get(server) {
            return Ok(Rc::clone(peer));
        }
        let mut access = access();
        if !server.authority_pem.is_empty() {
            access.authority_pem = Some(server.authority_pem.clone());
        }
        let connector = Connector::new(self.purpose, server.secure, server.address.clone(), &access)?;
        let peer = Rc::new(Peer { server: server.clone(), access, connector });
        let evicted = self.peers.borrow_mut().insert(server.clone(), Rc::clone(&peer));
        drop(evicted);
        Ok(peer)
    }
}

fn make_request(
    peer: &Peer,
    presented: &PresentedCredentials,
    webhook_request: &WebhookRequest,
) -> Result<Request<RequestBody>, String> {
    let mut request = Request::post(&webhook_request.target)
        .header(HOST, peer.server.authority(webhook_request.includes_port))
        .header(USER_AGENT, AGENT)
        .header(ACCEPT, "application/json, */*")
        .header(CONTENT_TYPE, "application/json");
    if let Some(header) = &presented.header {
        request = request.header(AUTHORIZATION, header);
    }
    for (name, value) in peer.access.impersonation.headers() {
        request = request.header(name, value);
    }
    for (name, value) in &webhook_request.headers {
        request = request.header(*name, value);
    }
    request.body(RequestBody::Whole(Some(webhook_request.body.clone()))).map_err(|error| error.to_string())
}

fn connection_error(error: &hyper::Error) -> String {
    use std::error::Error as _;
    if is_unanswered(error) {
        return "EOF".to_owned();
    }
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    // A killed server sends no close_notify, which TLS reports.
    if cause.to_lowercase().contains("unexpected eof") {
        return "EOF".to_owned();
    }
    if cause.is_empty() { error.to_string() } else { format!("{error}: {cause}") }
}

fn body_error(error: &hyper::Error) -> String {
    format!(
        "unexpected error when reading response body. Please retry. Original error: {}",
        connection_error(error)
    )
}

/// A timeout as the query parameter states it: whole seconds, rounded up.
pub fn seconds(timeout: Duration) -> String {
    let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
    match (seconds / 60, seconds % 60) {
        (0, rest) => format!("{rest}s"),
        (minutes, rest) => format!("{minutes}m{rest}s"),
    }
}
