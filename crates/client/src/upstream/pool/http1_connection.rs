//! One HTTP/1.1 connection.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::thread::{self, ThreadId};

use hyper::body::{Body as _, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::http::response::Parts;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::task::AbortOnDropHandle;

use super::super::body::RequestBody;
use super::PoolEntry;
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
}

/// A connection, closed on drop.
pub(super) struct Http1Connection {
    /// A unique number.
    pub(super) number: u64,
    /// The thread that made it and may use it.
    pub(super) thread: ThreadId,
    sender: SendRequest<RequestBody>,
    received: Arc<AtomicU64>,
    /// The task that runs the connection.
    _driver: AbortOnDropHandle<()>,
}

impl Http1Connection {
    /// Starts HTTP. The connection ends when either side closes it, or when it was idle for too long.
    pub(super) async fn open(
        number: u64,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        entry: Option<PoolEntry>,
    ) -> Result<Http1Connection, hyper::Error> {
        let received = Arc::<AtomicU64>::default();
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(UPSTREAM_BUFFER_BYTES)
            .max_headers(UPSTREAM_HEADERS)
            .title_case_headers(true)
            .handshake(TokioIo::new(CountingStream { io, received: received.clone() }))
            .await?;
        let driver = tokio::spawn(async move {
            let driving = async {
                if let Err(error) = connection.with_upgrades().await {
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
        });
        let (thread, _driver) = (thread::current().id(), AbortOnDropHandle::new(driver));
        Ok(Http1Connection { number, thread, sender, received, _driver })
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
        self.received.load(Ordering::Relaxed)
    }

    pub(super) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody>>> {
        self.sender.try_send_request(request).await
    }
}

/// Reads a response to its end.
pub(super) async fn read<E>(
    response: Response<Incoming>,
    max_bytes: usize,
) -> Result<BufferedResponse, ExchangeError<E>> {
    let (head, body) = response.into_parts();
    let mut body = pin!(body);
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        if let Ok(data) = frame.map_err(ExchangeError::Cut)?.into_data() {
            if bytes.len() + data.len() > max_bytes {
                return Err(ExchangeError::TooLong);
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(BufferedResponse { head, body: bytes })
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
