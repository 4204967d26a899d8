//! One connection: HTTP/1.1, or HTTP/2 if the server has agreed to it. Either carries one request at a time.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::thread::{self, ThreadId};

use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::header::{HOST, HeaderValue};
use hyper::http::response::Parts;
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::task::AbortOnDropHandle;

use super::super::body::RequestBody;
use super::PoolEntry;
use crate::bounded_read::{BodyError, read_body};
use crate::limits::{
    HTTP2_PING_INTERVAL, HTTP2_PING_TIMEOUT, HTTP2_WINDOW_BYTES, UPSTREAM_BUFFER_BYTES,
    UPSTREAM_HEADER_BYTES, UPSTREAM_HEADERS,
};

/// A complete response.
pub struct BufferedResponse {
    /// Status and headers.
    pub head: Parts,
    /// The whole body.
    pub body: Vec<u8>,
}

/// The error that prevented a complete response.
#[derive(Debug)]
pub enum ExchangeError<E> {
    /// Connecting failed.
    Connect(E),
    /// The request failed.
    Broken(hyper::Error),
    /// The response was cut off.
    Cut(hyper::Error),
    /// The response is too long.
    TooLong,
}

/// What a stream of bytes is agreed to carry.
pub trait Negotiated {
    /// Whether it is HTTP/2 instead of HTTP/1.1.
    fn speaks_http2(&self) -> bool {
        false
    }
}

/// Sends requests in the version of the connection.
enum Sender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>),
}

/// The error of a request.
pub struct SendError {
    error: hyper::Error,
    unsent: Option<Box<Request<RequestBody>>>,
}

impl SendError {
    /// The request, if nothing of it was sent.
    pub fn take_message(&mut self) -> Option<Request<RequestBody>> {
        self.unsent.take().map(|request| *request)
    }

    /// What went wrong.
    pub fn into_error(self) -> hyper::Error {
        self.error
    }

    fn new(mut error: TrySendError<Request<RequestBody>>) -> SendError {
        let unsent = error.take_message().map(Box::new);
        SendError { error: error.into_error(), unsent }
    }
}

/// A connection, closed on drop.
pub(super) struct HttpConnection {
    /// A unique number.
    pub(super) number: u64,
    /// The thread that made it and may use it.
    pub(super) thread: ThreadId,
    sender: Sender,
    received: Arc<AtomicU64>,
    /// The task that runs the connection.
    _driver: AbortOnDropHandle<()>,
}

impl HttpConnection {
    /// Starts HTTP. The connection ends when either side closes it, or when it was idle for too long.
    pub(super) async fn open(
        number: u64,
        io: impl Negotiated + AsyncRead + AsyncWrite + Unpin + Send + 'static,
        entry: Option<PoolEntry>,
    ) -> Result<HttpConnection, hyper::Error> {
        let (received, is_http2) = (Arc::<AtomicU64>::default(), io.speaks_http2());
        let io = TokioIo::new(CountingStream { io, received: received.clone() });
        let (sender, driver) = match is_http2 {
            true => {
                let (sender, connection) = http2_builder().handshake(io).await?;
                (Sender::Http2(sender), tokio::spawn(drive(connection, entry)))
            }
            false => {
                let (sender, connection) = http1::Builder::new()
                    .max_buf_size(UPSTREAM_BUFFER_BYTES)
                    .max_headers(UPSTREAM_HEADERS)
                    .title_case_headers(true)
                    .handshake(io)
                    .await?;
                (Sender::Http1(sender), tokio::spawn(drive(connection.with_upgrades(), entry)))
            }
        };
        let (thread, _driver) = (thread::current().id(), AbortOnDropHandle::new(driver));
        Ok(HttpConnection { number, thread, sender, received, _driver })
    }

    pub(super) fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        }
    }

    /// Whether the next request can be sent.
    pub(super) fn is_ready(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_ready(),
            Sender::Http2(sender) => sender.is_ready(),
        }
    }

    /// Waits until the next request can be sent.
    pub(super) async fn ready(&mut self) -> Result<(), hyper::Error> {
        match &mut self.sender {
            Sender::Http1(sender) => sender.ready().await,
            Sender::Http2(sender) => sender.ready().await,
        }
    }

    /// The number of bytes received so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) async fn send(
        &mut self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, SendError> {
        match &mut self.sender {
            Sender::Http1(sender) => sender.try_send_request(request).await.map_err(SendError::new),
            Sender::Http2(sender) => {
                let host = name_authority(&mut request);
                sender.try_send_request(request).await.map_err(|error| {
                    let mut error = SendError::new(error);
                    if let (Some(request), Some(host)) = (&mut error.unsent, host) {
                        name_host(request, host);
                    }
                    error
                })
            }
        }
    }
}

fn http2_builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(HTTP2_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_WINDOW_BYTES)
        .max_header_list_size(UPSTREAM_HEADER_BYTES)
        .keep_alive_interval(HTTP2_PING_INTERVAL)
        .keep_alive_timeout(HTTP2_PING_TIMEOUT)
        .keep_alive_while_idle(true);
    builder
}

/// Runs a connection until it ends, or was idle for too long.
async fn drive(connection: impl Future<Output = Result<(), hyper::Error>>, entry: Option<PoolEntry>) {
    let driving = async {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an outgoing connection ended");
        }
    };
    match entry {
        None => driving.await,
        Some(entry) => tokio::select! {
            () = driving => {}
            () = entry.wait_until_expired() => {}
        },
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

/// Reads a response to its end.
pub(super) async fn read<E>(
    response: Response<Incoming>,
    max_bytes: usize,
) -> Result<BufferedResponse, ExchangeError<E>> {
    let (head, body) = response.into_parts();
    let body = read_body(body, max_bytes).await.map_err(|error| match error {
        BodyError::Cut(error) => ExchangeError::Cut(error),
        BodyError::TooLong => ExchangeError::TooLong,
    })?;
    Ok(BufferedResponse { head, body })
}

/// Counts received bytes.
struct CountingStream<S> {
    io: S,
    received: Arc<AtomicU64>,
}

impl<S: AsyncRead + Unpin> AsyncRead for CountingStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        self.received.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountingStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
