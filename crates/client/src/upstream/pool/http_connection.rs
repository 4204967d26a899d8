//! One HTTP/1.1 connection, which carries one request at a time.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};

use futures::task::AtomicWaker;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper::http::response::Parts;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::task::AbortOnDropHandle;

use super::super::body::RequestBody;
use super::PoolEntry;
use crate::bounded_read::{BodyError, read_body};
use crate::limits::{UPSTREAM_BUFFER_BYTES, UPSTREAM_HEADERS};

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
    /// The response does not begin in time.
    Slow,
    /// Too many requests wait for this server.
    Busy,
}

/// What a stream of bytes is agreed to carry.
pub trait Negotiated {
    /// Whether it is HTTP/2 instead of HTTP/1.1.
    fn speaks_http2(&self) -> bool {
        false
    }
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

    /// The same, still within the error.
    pub(super) fn error(&self) -> &hyper::Error {
        &self.error
    }

    /// The request that was not sent.
    pub(super) fn unsent_mut(&mut self) -> Option<&mut Request<RequestBody>> {
        self.unsent.as_deref_mut()
    }

    pub(super) fn new(mut error: TrySendError<Request<RequestBody>>) -> SendError {
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
    sender: http1::SendRequest<RequestBody>,
    received: Arc<Received>,
    /// The task that runs the connection.
    _driver: AbortOnDropHandle<()>,
}

impl HttpConnection {
    /// Starts HTTP. The connection ends when either side closes it, or when it was idle for too long.
    pub(super) async fn open(
        number: u64,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        entry: Option<PoolEntry>,
    ) -> Result<HttpConnection, hyper::Error> {
        let received = Arc::<Received>::default();
        let io = TokioIo::new(CountingStream::new(io, received.clone()));
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(UPSTREAM_BUFFER_BYTES)
            .max_headers(UPSTREAM_HEADERS)
            .title_case_headers(true)
            .handshake(io)
            .await?;
        let driver = tokio::spawn(drive(connection.with_upgrades(), entry));
        let (thread, _driver) = (thread::current().id(), AbortOnDropHandle::new(driver));
        Ok(HttpConnection { number, thread, sender, received, _driver })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Whether the next request can be sent.
    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    /// Waits until the next request can be sent.
    pub(super) async fn ready(&mut self) -> Result<(), hyper::Error> {
        self.sender.ready().await
    }

    /// The number of bytes received so far.
    pub(super) fn received(&self) -> u64 {
        self.received.bytes()
    }

    pub(super) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, SendError> {
        self.sender.try_send_request(request).await.map_err(SendError::new)
    }
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

/// What was received over a connection.
#[derive(Default)]
pub(super) struct Received {
    bytes: AtomicU64,
    reader: AtomicWaker,
}

impl Received {
    /// The number of bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Wakes a task when there are more.
    pub(super) fn wake_on_read(&self, waker: &Waker) {
        self.reader.register(waker);
    }
}

/// Counts received bytes.
pub(super) struct CountingStream<S> {
    io: S,
    received: Arc<Received>,
}

impl<S> CountingStream<S> {
    pub(super) fn new(io: S, received: Arc<Received>) -> CountingStream<S> {
        CountingStream { io, received }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountingStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        let count = (buf.filled().len() - before) as u64;
        if count > 0 {
            self.received.bytes.fetch_add(count, Ordering::Relaxed);
            self.received.reader.wake();
        }
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
