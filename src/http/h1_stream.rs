//! Watches over HTTP/1.1. They leave the driver and are written here.
//!
//! The driver keeps 16 KiB of buffers per connection, and polls for requests, timers and its own state on every event of a body.
//! A watch needs none of that for hours. Here its connection costs only TLS and the session, and an event is one write. After the
//! last chunk the connection goes back to the driver.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_http::body::{BodySize, BoxBody, MessageBody as _};
use actix_http::{ConnectionType, Payload, Request, Response, StatusCode, Version};
use bytes::Bytes;
use pilothouse_actors::watch_memory::CutSignal;
use tokio::io::AsyncWrite as _;

use super::h2_stream::Dates;
use super::stall::Stall;
use super::tls::TlsStream;

/// Chunks up to this size are copied into one write with their framing; larger ones are written as they are.
const COPIED_BYTES: usize = 16 << 10;
const LINE_END: &[u8] = b"\r\n";
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Marks a response that may last for hours, in its extensions.
pub(super) struct Endless;

thread_local! {
    /// Assembles chunks: one buffer for all connections of the thread, so that none keeps memory for it.
    static CHUNK_BUFFER: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(COPIED_BYTES + 16));
}

/// A response that has left the driver.
pub(super) struct Streaming {
    head: Bytes,
    body: BoxBody,
    cut: Option<CutSignal>,
}

/// Whether the response to this request can be sent without the driver: the request keeps the connection alive, and
/// has no body that the driver would have to read.
pub(super) fn is_plain(request: &mut Request) -> bool {
    request.version() == Version::HTTP_11
        && request.head().connection_type() == ConnectionType::KeepAlive
        && matches!(request.payload(), Payload::None)
}

/// Whether this response may last for hours on a connection that stays open after it.
pub(super) fn is_endless(response: &Response<BoxBody>) -> bool {
    response.extensions().get::<Endless>().is_some()
        && response.head().connection_type() == ConnectionType::KeepAlive
        && response.body().size() == BodySize::Stream
        && response.status() == StatusCode::OK
}

impl Streaming {
    /// Takes a response that may last for hours.
    pub(super) fn new(response: Response<BoxBody>, dates: &Dates) -> Streaming {
        let (response, body) = response.into_parts();
        let cut = response.extensions().get::<CutSignal>().cloned();
        let headers = response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let date = dates.now();
        let date = date.iter().map(|date| ("date", date.as_bytes()));
        let chunked = [("transfer-encoding", b"chunked".as_slice())];
        let head = head("200 OK", headers.chain(date).chain(chunked));
        Streaming { head: Bytes::from(head), body, cut }
    }

    /// Sends the response until it ends. Returns the connection if it can serve more requests.
    pub(super) async fn send(self, io: TlsStream) -> Option<TlsStream> {
        let unsent = VecDeque::from([self.head]);
        let mut writer =
            ResponseWriter { io, body: Some(self.body), unsent, stall: Stall::default(), cut: self.cut };
        match poll_fn(|cx| writer.poll(cx)).await {
            Ok(()) => Some(writer.io),
            Err(error) => {
                tracing::debug!(%error, "a watch over HTTP/1.1 was cut");
                None
            }
        }
    }
}

/// The head of a response. Header names are capitalized, because some clients compare them case-sensitively.
pub(super) fn head<'a>(status: &str, headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\n").into_bytes();
    for (name, value) in headers {
        let mut is_start = true;
        head.extend(name.bytes().map(|letter| {
            let capital = if is_start { letter.to_ascii_uppercase() } else { letter };
            is_start = letter == b'-';
            capital
        }));
        head.extend_from_slice(b": ");
        head.extend_from_slice(value);
        head.extend_from_slice(LINE_END);
    }
    head.extend_from_slice(LINE_END);
    head
}

struct ResponseWriter {
    io: TlsStream,
    /// `None` once the body has ended.
    body: Option<BoxBody>,
    /// Bytes that the client has not taken yet. While there are any, the body is not polled: that is how its session learns that
    /// the client does not read.
    unsent: VecDeque<Bytes>,
    stall: Stall,
    /// Ends the response for lack of memory.
    cut: Option<CutSignal>,
}

impl ResponseWriter {
    /// Ready when the whole response is sent, or cannot be.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Without this, a quiet watch would never notice that its client is gone.
        self.io.check_disconnect(cx)?;
        let sent = self.poll_send(cx);
        // Only while the client leaves something unread. Most watches never do, and with thousands of them each check would
        // be a cache miss for every event.
        if sent.is_pending() && !self.unsent.is_empty() && self.is_cut(cx) {
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        sent
    }

    fn is_cut(&self, cx: &mut Context<'_>) -> bool {
        self.cut.as_ref().is_some_and(|cut| cut.poll_raised(cx).is_ready())
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.flush(cx))?;
            let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
            match ready!(Pin::new(body).poll_next(cx)) {
                Some(Ok(chunk)) if chunk.is_empty() => {}
                Some(Ok(chunk)) => {
                    // Another attempt in the same turn would not let the other connections have theirs.
                    if !self.send_chunk(cx, chunk)? {
                        return Poll::Pending;
                    }
                }
                // The last chunk is missing, so the client knows that the response is incomplete.
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error.to_string()))),
                None => {
                    self.body = None;
                    self.unsent.push_back(Bytes::from_static(LAST_CHUNK));
                }
            }
        }
    }

    /// Sends a chunk, or queues it to be flushed. Returns whether the client takes more.
    fn send_chunk(&mut self, cx: &mut Context<'_>, chunk: Bytes) -> io::Result<bool> {
        if chunk.len() > COPIED_BYTES {
            let size = format!("{:x}\r\n", chunk.len());
            self.unsent.extend([Bytes::from(size), chunk, Bytes::from_static(LINE_END)]);
            return Ok(true);
        }
        CHUNK_BUFFER.with_borrow_mut(|buffer| {
            buffer.clear();
            push_hex(buffer, chunk.len());
            buffer.extend_from_slice(LINE_END);
            buffer.extend_from_slice(&chunk);
            buffer.extend_from_slice(LINE_END);
            let sent = self.write(cx, buffer)?;
            if let Some(rest) = buffer.get(sent..).filter(|rest| !rest.is_empty()) {
                self.unsent.push_back(Bytes::copy_from_slice(rest));
            }
            Ok(self.unsent.is_empty())
        })
    }

    fn flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(mut first) = self.unsent.pop_front() {
            let sent = self.write(cx, &first)?;
            if sent < first.len() {
                self.unsent.push_front(first.split_off(sent));
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes as much as the client takes now.
    fn write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            let result = Pin::new(&mut self.io).poll_write(cx, rest);
            match self.stall.check(cx, result) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(bytes)) => sent += bytes,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        Ok(sent)
    }
}

/// Writes a chunk size. The formatting machinery would take longer than everything else done per chunk.
fn push_hex(out: &mut Vec<u8>, number: usize) {
    let digits = (usize::BITS - number.leading_zeros()).div_ceil(4).max(1);
    let digit = |place: u32| b"0123456789abcdef"[(number >> (4 * place)) & 0xf];
    out.extend((0..digits).rev().map(digit));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_size_is_hexadecimal() {
        for number in [0, 1, 9, 10, 15, 16, 255, 256, 4_095, 4_096, 65_535, 1 << 20, usize::MAX] {
            let mut written = Vec::new();
            push_hex(&mut written, number);
            assert_eq!(String::from_utf8(written).unwrap(), format!("{number:x}"));
        }
    }

    #[test]
    fn header_names_are_capitalized() {
        let headers = [("audit-id", b"x".as_slice()), ("date", b"now")];
        let head = head("200 OK", headers.into_iter());
        assert_eq!(String::from_utf8(head).unwrap(), "HTTP/1.1 200 OK\r\nAudit-Id: x\r\nDate: now\r\n\r\n");
    }
}
