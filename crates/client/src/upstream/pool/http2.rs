//! One HTTP/2 connection, which carries many requests at a time.
//!
//! hyper drives it with h2: that honours the limits of the peer, resets the stream of a request that is given up, and asks a silent
//! peer whether it is there. Here is counted how many requests a connection has, so that others are made when it is full.

use std::error::Error as _;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::lock::Lock;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::super::body::RequestBody;
use super::PoolEntry;
use super::http_connection::{CountingStream, Received, SendError};
use crate::limits::{
    HTTP2_PING_INTERVAL, HTTP2_PING_TIMEOUT, HTTP2_STREAMS_PER_CONNECTION, HTTP2_WINDOW_BYTES,
    UPSTREAM_HEADER_BYTES,
};

/// The number of streams that a peer allows, until it has said it.
const UNKNOWN: usize = usize::MAX;
/// The window of a connection: what is not read of some responses must not hold up the others.
const CONNECTION_WINDOW_BYTES: u32 = HTTP2_WINDOW_BYTES * HTTP2_STREAMS_PER_CONNECTION as u32;

/// When a silent peer is asked whether it is there.
#[derive(Clone, Copy)]
pub(super) struct Pings {
    /// How long it may be silent.
    pub(super) interval: Duration,
    /// How long it may take to answer.
    pub(super) timeout: Duration,
}

impl Default for Pings {
    fn default() -> Pings {
        Pings { interval: HTTP2_PING_INTERVAL, timeout: HTTP2_PING_TIMEOUT }
    }
}

/// What a connection carries, known to its users and its driver.
struct Usage {
    /// The requests that have a stream, or will have one.
    streams: AtomicUsize,
    /// How many it may have at a time.
    max_streams: AtomicUsize,
    /// When the last request ended.
    idle_since: Lock<Moment>,
    received: Arc<Received>,
    /// Wakes those who wait for a stream, once others may use the connection.
    changed: OnceLock<Arc<Notify>>,
    clock: Clock,
}

impl Usage {
    /// How long no request has used it.
    fn idle_time(&self) -> Duration {
        match self.streams.load(Ordering::SeqCst) {
            0 => self.clock.elapsed(*self.idle_since.lock()),
            _ => Duration::ZERO,
        }
    }
}

/// A connection.
pub(super) struct Http2Connection {
    /// A unique number.
    pub(super) number: u64,
    sender: SendRequest<RequestBody>,
    usage: Arc<Usage>,
    /// The task that runs the connection.
    _driver: AbortOnDropHandle<()>,
}

/// One request of a connection, until this is dropped.
pub(super) struct StreamSlot(Arc<Http2Connection>);

impl Http2Connection {
    /// Starts HTTP/2, with a slot for the first request.
    pub(super) async fn open(
        number: u64,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        entry: PoolEntry,
        clock: Clock,
        pings: Pings,
    ) -> Result<(Arc<Http2Connection>, StreamSlot), hyper::Error> {
        let received = Arc::<Received>::default();
        let usage = Arc::new(Usage {
            streams: AtomicUsize::new(1),
            max_streams: AtomicUsize::new(UNKNOWN),
            idle_since: Lock::new(clock.moment()),
            received: received.clone(),
            changed: OnceLock::new(),
            clock,
        });
        let io = TokioIo::new(CountingStream::new(io, received));
        let (sender, connection) = builder(pings).handshake(io).await?;
        let driver = tokio::spawn(drive(connection, entry, usage.clone()));
        let _driver = AbortOnDropHandle::new(driver);
        let connection = Arc::new(Http2Connection { number, sender, usage, _driver });
        let slot = StreamSlot(connection.clone());
        Ok((connection, slot))
    }

    /// Wakes those who wait for a stream from now on.
    pub(super) fn notify(&self, waiting: &Arc<Notify>) {
        // It is shared once.
        let _ignored = self.usage.changed.set(waiting.clone());
    }

    /// Whether no more requests can be sent: the peer closes it, or has closed it.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Whether the peer has not yet said how many requests it takes.
    pub(super) fn is_opening(&self) -> bool {
        self.usage.max_streams.load(Ordering::SeqCst) == UNKNOWN
    }

    /// Whether it carries nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.usage.streams.load(Ordering::SeqCst) == 0
    }

    /// How long it has carried nothing.
    pub(super) fn idle_time(&self) -> Duration {
        self.usage.idle_time()
    }

    /// A slot for one more request, unless it has as many as it may. The caller has the lock of the pool.
    pub(super) fn reserve(self: &Arc<Self>) -> Option<StreamSlot> {
        let Usage { streams, max_streams, .. } = &*self.usage;
        let max = max_streams.load(Ordering::SeqCst);
        if max == UNKNOWN || streams.load(Ordering::SeqCst) >= max || self.is_closed() {
            return None;
        }
        streams.fetch_add(1, Ordering::SeqCst);
        Some(StreamSlot(self.clone()))
    }
}

impl StreamSlot {
    /// Sends the request, and waits for the head of the response. Dropped, the stream is reset.
    pub(super) async fn send(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, SendError> {
        let host = name_authority(&mut request);
        let mut sender = self.0.sender.clone();
        sender.try_send_request(request).await.map_err(|error| {
            let mut error = SendError::new(error);
            if let (Some(request), Some(host)) = (error.unsent_mut(), host) {
                name_host(request, host);
            }
            error
        })
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let usage = &self.0.usage;
        *usage.idle_since.lock() = usage.clock.moment();
        usage.streams.fetch_sub(1, Ordering::SeqCst);
        if let Some(changed) = usage.changed.get() {
            changed.notify_one();
        }
    }
}

/// Whether the peer has said that it has not processed a request, so that any request may be repeated.
pub(super) fn is_unprocessed(error: &hyper::Error) -> bool {
    let error = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    error.is_some_and(|error| {
        error.is_remote()
            && (error.is_go_away()
                || (error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM)))
    })
}

fn builder(pings: Pings) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(HTTP2_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(UPSTREAM_HEADER_BYTES)
        // The first request does not wait until the peer has said how many it takes.
        .initial_max_send_streams(1)
        .keep_alive_interval(pings.interval)
        .keep_alive_timeout(pings.timeout)
        .keep_alive_while_idle(true);
    builder
}

/// Runs a connection until it ends, or was idle for too long.
async fn drive<T>(
    connection: http2::Connection<T, RequestBody, TokioExecutor>,
    entry: PoolEntry,
    usage: Arc<Usage>,
) where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let mut connection = pin!(connection);
    let driving = poll_fn(|cx| {
        // Another task reads the frames, and wakes this one when there are any.
        usage.received.wake_on_read(cx.waker());
        let result = connection.as_mut().poll(cx);
        if usage.received.bytes() > 0 {
            let max = connection.current_max_send_streams().min(HTTP2_STREAMS_PER_CONNECTION);
            if usage.max_streams.swap(max, Ordering::SeqCst) != max
                && let Some(changed) = usage.changed.get()
            {
                changed.notify_waiters();
            }
        }
        result
    });
    tokio::select! {
        result = driving => if let Err(error) = result {
            tracing::debug!(%error, "an outgoing connection ended");
        },
        () = entry.wait_until_idle_for_long(|| usage.idle_time()) => {}
    }
}

/// Names the server as HTTP/2 does, in the URL, and returns the Host header that this replaces.
fn name_authority(request: &mut Request<RequestBody>) -> Option<HeaderValue> {
    let host = request.headers().get(HOST)?.clone();
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = format!("https://{}{path}", host.to_str().ok()?).parse().ok()?;
    request.headers_mut().remove(HOST)
}

/// Names the server as HTTP/1.1 does: the reverse of [`name_authority`].
fn name_host(request: &mut Request<RequestBody>, host: HeaderValue) {
    if let Some(path) = request.uri().path_and_query() {
        *request.uri_mut() = Uri::from(path.clone());
    }
    request.headers_mut().insert(HOST, host);
}
