//! Outgoing connections, for all destinations of a server: those that carry many requests at a time, and those for reuse.
//!
//! An HTTP/2 connection carries many requests at a time ([`sharing`]). Any other is kept once its response was read to the end. The key
//! of a connection ([`Origin`]) contains everything that identifies the peer, including the trusted CAs and the client certificate. Only
//! the thread that made a connection uses it, so that it ends with that thread and fails no other's request. A connection that the peer closes leaves the pool at once, an unused one after a while,
//! and those to a peer that no object names any more ([`KeepAliveHandle`]) leave with the last object.

mod http2;
mod http_connection;
mod sharing;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::HOST;
use hyper::{Method, Request, Response};
use pilothouse_types::bounded::BoundedCache;
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::host_port::HostPort;
use pilothouse_types::lock::Lock;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use self::http_connection::HttpConnection;
pub use self::http_connection::{BufferedResponse, ExchangeError, Negotiated, SendError};
use self::http2::{Http2Connection, Pings, StreamSlot, is_unprocessed};
use self::sharing::{DialPermit, Reservation, SharedKey, SharedPeer, TooManyRequests};
use super::body::RequestBody;
use super::call_observer::{CallObserver, ObservedCall};
use crate::client_tls::{Digest, TlsIdentity};
use crate::egress::Egress;
use crate::limits::{
    CONNECTION_SETTLE_TIMEOUT, EXCHANGE_ATTEMPTS, IDLE_CONNECTION_TIMEOUT, IDLE_CONNECTIONS,
    IDLE_CONNECTIONS_PER_DESTINATION, KNOWN_PROTOCOLS,
};
use crate::routes::{Route, Routes};

/// The purpose of a request. Connections are not shared between purposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Container logs.
    Kubelet,
    /// Aggregated APIs.
    Extension,
    /// Admission webhooks.
    Admission,
    /// Conversion webhooks.
    Conversion,
    /// Webhooks of the operator: authentication, authorization, audit.
    Service,
    /// The webhook that decides about images.
    ImagePolicy,
    /// OpenID providers, and the endpoints of their distributed claims.
    OpenId,
    /// Another API server, of which a command is a client.
    ApiServer,
}

impl Purpose {
    /// Whether requests may be repeated: authentication, authorization, conversion and reviews of images have no side effects. Audit
    /// events may be delivered twice in any case.
    fn may_repeat(self) -> bool {
        match self {
            Purpose::Service | Purpose::ImagePolicy | Purpose::OpenId | Purpose::Conversion => true,
            Purpose::Kubelet | Purpose::Extension | Purpose::Admission | Purpose::ApiServer => false,
        }
    }

    /// Whether requests are calls of webhooks.
    fn is_webhook(self) -> bool {
        match self {
            Purpose::Admission | Purpose::Conversion | Purpose::Service | Purpose::ImagePolicy => true,
            Purpose::Kubelet | Purpose::Extension | Purpose::OpenId | Purpose::ApiServer => false,
        }
    }

    /// The selection of the egress selector, unless the peer is a service of the cluster. As in the reference, OpenID providers and
    /// the webhook for images have none.
    pub(crate) fn egress(self) -> Option<Egress> {
        match self {
            Purpose::Kubelet | Purpose::Extension => Some(Egress::Cluster),
            Purpose::Admission | Purpose::Conversion | Purpose::Service => Some(Egress::ControlPlane),
            Purpose::ImagePolicy | Purpose::OpenId | Purpose::ApiServer => None,
        }
    }

    /// Whether objects configure the peer, so that connections depend on them.
    fn is_configured_by_objects(self) -> bool {
        match self {
            Purpose::Extension | Purpose::Admission | Purpose::Conversion => true,
            Purpose::Kubelet
            | Purpose::Service
            | Purpose::ImagePolicy
            | Purpose::OpenId
            | Purpose::ApiServer => false,
        }
    }
}

/// The key of a connection. A difference in any part means another peer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The purpose of the requests.
    pub purpose: Purpose,
    /// Where the peer is.
    pub server: HostPort,
    /// The TLS settings; `None` for plain connections.
    pub private: Option<TlsIdentity>,
    /// The route there.
    pub route: Route,
    /// Whether the peer may choose HTTP/2.
    pub offers_http2: bool,
}

impl Origin {
    /// Lets a request go through the proxy, if there is one: see [`Route::address_request`].
    pub(crate) fn address_to_proxy(&self, request: &mut Request<RequestBody>) {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let host = host.unwrap_or_default().to_owned();
        self.route.address_request(request, self.private.is_some(), &host);
    }
}

/// An idle connection.
struct IdleConnection {
    http: HttpConnection,
    since: Moment,
}

/// A peer that objects configure: purpose, name and CAs.
type PeerKey = (Purpose, String, Digest);

#[derive(Default)]
struct PoolState {
    /// Connections without a request, longest idle first.
    idle: HashMap<Arc<Origin>, Vec<IdleConnection>>,
    count: usize,
    /// The HTTP/2 connections, idle or not.
    shared: HashMap<SharedKey, SharedPeer>,
    /// Peers that may choose HTTP/2, and whether they chose HTTP/1.1.
    http1_peers: BoundedCache<Arc<Origin>, bool, KNOWN_PROTOCOLS>,
    /// The number of connections ever made.
    made: u64,
    /// The number of objects per peer.
    handles_per_peer: HashMap<PeerKey, usize>,
}

impl PoolState {
    fn remove(
        &mut self,
        origin: &Arc<Origin>,
        is_match: impl Fn(&IdleConnection) -> bool,
    ) -> Option<IdleConnection> {
        let idle = self.idle.get_mut(origin)?;
        // The most recently used one: the others may expire.
        let index = idle.iter().rposition(is_match)?;
        let connection = idle.remove(index);
        if idle.is_empty() {
            self.idle.remove(origin);
        }
        self.count -= 1;
        Some(connection)
    }

    /// Removes the connection that is idle for the longest time.
    fn remove_oldest(&mut self) -> Option<IdleConnection> {
        let oldest = |idle: &Vec<IdleConnection>| idle.first().map(|first| (first.since, first.http.number));
        let (origin, _) = self.idle.iter().min_by_key(|(_, idle)| oldest(idle))?;
        let origin = origin.clone();
        self.remove_oldest_of(&origin)
    }

    /// Removes the longest idle connection to one origin.
    fn remove_oldest_of(&mut self, origin: &Arc<Origin>) -> Option<IdleConnection> {
        let number = self.idle.get(origin)?.first()?.http.number;
        self.remove(origin, |idle| idle.http.number == number)
    }

    /// The number of idle connections.
    fn idle_count(&self) -> usize {
        self.count + self.shared.values().map(SharedPeer::idle).sum::<usize>()
    }

    fn is_wanted(&self, origin: &Origin) -> bool {
        let Some(private) = &origin.private else { return true };
        let peer = (origin.purpose, private.server_name.clone(), private.authority);
        !origin.purpose.is_configured_by_objects() || self.handles_per_peer.contains_key(&peer)
    }
}

/// The outgoing connections. See the module documentation.
pub struct Pool {
    clock: Clock,
    /// How long a connection is kept.
    idle_timeout: Duration,
    pings: Pings,
    routes: Routes,
    /// A std lock: it is held for one lookup or one change.
    state: Lock<PoolState>,
    /// Counts the calls of webhooks, if anybody does.
    observer: OnceLock<Arc<dyn CallObserver>>,
}

/// Waits for so long, if there is a limit.
async fn within<T, E>(limit: Option<Duration>, work: impl Future<Output = T>) -> Result<T, ExchangeError<E>> {
    match limit {
        Some(limit) => timeout(limit, work).await.map_err(|_| ExchangeError::Slow),
        None => Ok(work.await),
    }
}

/// Keeps connections to a peer. When the last handle is dropped, the connections are closed.
pub struct KeepAliveHandle {
    pool: Arc<Pool>,
    peer: PeerKey,
}

impl Drop for KeepAliveHandle {
    fn drop(&mut self) {
        let closed = {
            let mut state = self.pool.state.lock();
            if let Some(count) = state.handles_per_peer.get_mut(&self.peer) {
                *count -= 1;
                if *count > 0 {
                    return;
                }
            }
            state.handles_per_peer.remove(&self.peer);
            let unwanted: Vec<_> =
                state.idle.keys().filter(|origin| !state.is_wanted(origin)).cloned().collect();
            let closed: Vec<_> =
                unwanted.iter().filter_map(|origin| state.idle.remove(origin)).flatten().collect();
            state.count -= closed.len();
            (closed, state.remove_unwanted_http2())
        };
        drop(closed);
    }
}

/// A connection in use. Dropped, it is closed, or the stream of its request is reset; [`Connection::done`] keeps it.
pub struct Connection {
    carrier: Carrier,
    origin: Option<Arc<Origin>>,
    pool: Arc<Pool>,
}

/// What carries a request.
enum Carrier {
    Http1(HttpConnection),
    Http2(StreamSlot),
}

impl Pool {
    /// An empty pool.
    pub fn new(clock: Clock) -> Arc<Pool> {
        Pool::with_routes(clock, Routes::default())
    }

    /// An empty pool, whose connections take these routes.
    pub fn with_routes(clock: Clock, routes: Routes) -> Arc<Pool> {
        Arc::new(Pool::unshared(clock, routes))
    }

    fn unshared(clock: Clock, routes: Routes) -> Pool {
        Pool {
            clock,
            idle_timeout: IDLE_CONNECTION_TIMEOUT,
            pings: Pings::default(),
            routes,
            state: Lock::default(),
            observer: OnceLock::new(),
        }
    }

    /// The routes of connections.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Lets this observer count the calls of webhooks. The first one stays.
    pub fn set_observer(&self, observer: Arc<dyn CallObserver>) {
        let _is_observed = self.observer.set(observer);
    }

    /// The number of idle connections.
    pub fn idle_count(&self) -> usize {
        self.state.lock().idle_count()
    }

    /// Keeps connections to a peer as long as the result lives.
    pub fn keep_alive(
        self: &Arc<Self>,
        purpose: Purpose,
        server_name: &str,
        authority: Digest,
    ) -> KeepAliveHandle {
        let peer = (purpose, server_name.to_owned(), authority);
        *self.state.lock().handles_per_peer.entry(peer.clone()).or_default() += 1;
        KeepAliveHandle { pool: self.clone(), peer }
    }

    /// Makes a connection from a stream; without an origin it is never kept.
    pub async fn open(
        self: &Arc<Self>,
        origin: Option<Arc<Origin>>,
        io: impl Negotiated + AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Connection, hyper::Error> {
        let number = {
            let mut state = self.state.lock();
            state.made += 1;
            state.made
        };
        let thread = thread::current().id();
        let entry = |origin: &Arc<Origin>| PoolEntry {
            pool: Arc::downgrade(self),
            origin: origin.clone(),
            number,
            thread,
        };
        let carrier = match origin.as_ref().filter(|_| io.speaks_http2()) {
            Some(origin) => {
                let (connection, slot) =
                    Http2Connection::open(number, io, entry(origin), self.clock.clone(), self.pings).await?;
                self.share(origin, &connection);
                Carrier::Http2(slot)
            }
            None => Carrier::Http1(HttpConnection::open(number, io, origin.as_ref().map(entry)).await?),
        };
        Ok(Connection { carrier, origin, pool: self.clone() })
    }

    /// An idle connection of this thread that is still open.
    fn take(self: &Arc<Self>, origin: &Arc<Origin>) -> Option<Connection> {
        let (this_thread, now) = (thread::current().id(), self.clock.moment());
        loop {
            let idle = self.state.lock().remove(origin, |idle| idle.http.thread == this_thread)?;
            if !idle.http.is_closed() && idle.since.plus(self.idle_timeout) > now {
                return Some(Connection {
                    carrier: Carrier::Http1(idle.http),
                    origin: Some(origin.clone()),
                    pool: self.clone(),
                });
            }
        }
    }

    fn keep(&self, origin: Arc<Origin>, http: HttpConnection) {
        let connection = IdleConnection { http, since: self.clock.moment() };
        // Connections are closed after the lock is released.
        let _closed = {
            let mut state = self.state.lock();
            let is_full =
                state.idle.get(&origin).is_some_and(|idle| idle.len() >= IDLE_CONNECTIONS_PER_DESTINATION);
            if connection.http.is_closed() || !state.is_wanted(&origin) {
                Some(connection)
            } else {
                // The newest is always kept: older ones may belong to a thread that makes no more requests, and would block all
                // others.
                let evicted = match is_full {
                    true => state.remove_oldest_of(&origin),
                    false if state.idle_count() >= IDLE_CONNECTIONS => state.remove_oldest(),
                    false => None,
                };
                state.count += 1;
                state.idle.entry(origin).or_default().push(connection);
                evicted
            }
        };
    }

    /// How long this connection has been idle; `None` if it is in use.
    fn idle_time(&self, origin: &Arc<Origin>, number: u64) -> Option<Duration> {
        let state = self.state.lock();
        let idle = state.idle.get(origin)?;
        let connection = idle.iter().find(|idle| idle.http.number == number)?;
        Some(self.clock.elapsed(connection.since))
    }

    /// Sends a request and waits for the head of the response, for `limit` if there is one. `dial` is called if no connection can
    /// take the request. One that was closed before the request was sent is skipped, and so is one whose server has not processed
    /// the request; one that closes later only if the request may be repeated and no byte of a response came.
    pub async fn exchange<S, E>(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        mut request: Request<RequestBody>,
        limit: Option<Duration>,
        dial: impl AsyncFn() -> Result<S, E>,
    ) -> Result<(Response<Incoming>, Connection), ExchangeError<E>>
    where
        S: Negotiated + AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut attempts = 0;
        let mut needs_new = false;
        loop {
            let reservation = match needs_new {
                true => Reservation::Dial(DialPermit::unshared(self)),
                false => {
                    let reserved = within(limit, self.reserve(origin)).await?;
                    reserved.map_err(|TooManyRequests| ExchangeError::Busy)?
                }
            };
            let (mut connection, is_new) = match reservation {
                Reservation::Connection(connection) => (connection, false),
                Reservation::Dial(permit) => (self.dial(origin, permit, &dial).await?, true),
            };
            let (copy, received_before) = (copy(&request), connection.received());
            let mut error = match within(limit, connection.send(request)).await? {
                Ok(response) => return Ok((response, connection)),
                Err(error) => error,
            };
            attempts += usize::from(is_new);
            let may_repeat = |copy: &Request<RequestBody>| {
                !is_new && may_repeat(origin.purpose, copy) && connection.received() == received_before
            };
            match (error.take_message(), copy) {
                (Some(unsent), _) if attempts < EXCHANGE_ATTEMPTS => request = unsent,
                (None, Some(copy)) if is_unprocessed(error.error()) && attempts < EXCHANGE_ATTEMPTS => {
                    attempts += usize::from(!is_new);
                    request = copy;
                }
                (None, Some(copy)) if may_repeat(&copy) => (request, needs_new) = (copy, true),
                _ => return Err(ExchangeError::Broken(error.into_error())),
            }
        }
    }

    /// Makes a connection.
    async fn dial<S, E>(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        permit: DialPermit,
        dial: impl AsyncFn() -> Result<S, E>,
    ) -> Result<Connection, ExchangeError<E>>
    where
        S: Negotiated + AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let opening = async {
            let io = dial().await.map_err(ExchangeError::Connect)?;
            self.open(Some(origin.clone()), io).await.map_err(ExchangeError::Broken)
        };
        let result = opening.await;
        let is_http2 = result.as_ref().is_ok_and(|made| matches!(made.carrier, Carrier::Http2(_)));
        if result.is_ok() && !is_http2 && origin.offers_http2 {
            self.note_http1(origin);
        }
        if !is_http2 || !self.state.lock().is_wanted(origin) {
            permit.note_unshareable();
        }
        result
    }

    /// [`Pool::exchange`] that reads the response up to a limit.
    pub async fn send<S, E>(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        mut request: Request<RequestBody>,
        max_bytes: usize,
        dial: impl AsyncFn() -> Result<S, E>,
    ) -> Result<BufferedResponse, ExchangeError<E>>
    where
        S: Negotiated + AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let observer = self.observer.get().filter(|_| origin.purpose.is_webhook());
        let mut call = observer.map(|observer| ObservedCall::begin(observer, origin, &request, &self.clock));
        origin.address_to_proxy(&mut request);
        let (response, connection) = self.exchange(origin, request, None, dial).await?;
        let buffered = http_connection::read(response, max_bytes).await?;
        connection.done();
        if let Some(call) = &mut call {
            call.note_response(&buffered);
        }
        Ok(buffered)
    }
}

impl Connection {
    /// Sends a request and waits for the head of the response.
    pub async fn send(&mut self, request: Request<RequestBody>) -> Result<Response<Incoming>, SendError> {
        match &mut self.carrier {
            Carrier::Http1(connection) => connection.send(request).await,
            Carrier::Http2(slot) => slot.send(request).await,
        }
    }

    /// The bytes that were received on behalf of requests that others do not share.
    fn received(&self) -> u64 {
        match &self.carrier {
            Carrier::Http1(connection) => connection.received(),
            // An error before the head of the response means that none of it came.
            Carrier::Http2(_) => 0,
        }
    }

    /// The response was read to its end: the connection is kept, unless the peer closes it.
    pub fn done(self) {
        let Connection { carrier, origin, pool } = self;
        let (Carrier::Http1(mut http), Some(origin)) = (carrier, origin) else { return };
        if http.is_ready() {
            return pool.keep(origin, http);
        }
        // The request is still being sent, or the peer is about to close. Without a runtime the server is stopping.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Ok(Ok(())) = tokio::time::timeout(CONNECTION_SETTLE_TIMEOUT, http.ready()).await {
                    pool.keep(origin, http);
                }
            });
        }
    }
}

/// The entry of a kept connection in the pool, owned by its driver.
struct PoolEntry {
    /// A weak reference, because the pool owns the connection.
    pool: Weak<Pool>,
    origin: Arc<Origin>,
    number: u64,
    thread: ThreadId,
}

impl PoolEntry {
    /// Waits until the connection was idle for too long.
    async fn wait_until_expired(&self) {
        let idle_time = || self.pool.upgrade()?.idle_time(&self.origin, self.number);
        self.wait_until_idle_for_long(|| idle_time().unwrap_or_default()).await;
    }

    /// Waits until a connection that says how long it is idle was that for too long.
    async fn wait_until_idle_for_long(&self, idle_time: impl Fn() -> Duration) {
        // It was not kept yet.
        let mut remaining = self.pool.upgrade().map_or(Duration::ZERO, |pool| pool.idle_timeout);
        while !remaining.is_zero() {
            tokio::time::sleep(remaining).await;
            let Some(pool) = self.pool.upgrade() else { return };
            remaining = pool.idle_timeout.saturating_sub(idle_time());
        }
    }
}

/// The connection has ended, with its thread or before: it leaves the pool.
impl Drop for PoolEntry {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            let closed = pool.state.lock().remove(&self.origin, |idle| idle.http.number == self.number);
            drop(closed);
            pool.forget_http2(&self.origin, self.number, self.thread);
        }
    }
}

/// Whether a request may be repeated that its server may have processed.
fn may_repeat(purpose: Purpose, request: &Request<RequestBody>) -> bool {
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
    match request.body() {
        RequestBody::Empty => is_safe,
        RequestBody::Whole(_) => purpose.may_repeat(),
        RequestBody::Pieces(..) => false,
    }
}

/// A copy of a request, unless its body comes in pieces.
fn copy(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    let body = match request.body() {
        RequestBody::Empty => RequestBody::Empty,
        RequestBody::Whole(body) => RequestBody::Whole(body.clone()),
        RequestBody::Pieces(..) => return None,
    };
    let mut copy = Request::new(body);
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    Some(copy)
}

#[cfg(test)]
mod http2_tests;
#[cfg(test)]
mod tests;
