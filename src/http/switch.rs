//! How a connection leaves the HTTP/1.1 driver. A switch stands between TLS and the driver. A handler that agrees to another
//! protocol turns the switch and takes the connection over. Watches do so, too, because the driver is too heavy for them. After
//! that the driver reads end-of-file and its writes are discarded, so it ends. The connection itself lives on.
//!
//! The driver's own upgrade supports only WebSocket, and hands out a connection from which it has already read ahead.

use std::cell::{Cell, RefCell};
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures::future::LocalBoxFuture;
use pilothouse_actors::watch_memory::CutSignal;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep};

use super::h1_stream::Streaming;
use super::peer::Peer;
use super::request_heads::RequestHeads;
use super::stall::{SendWithin, Stall};
use super::tls::TlsStream;
use crate::limits::REQUEST_HEAD_TIMEOUT;

/// The blank line that ends the head of a request.
const HEAD_END: [u8; HEAD_END_BYTES] = *b"\r\n\r\n";
const HEAD_END_BYTES: usize = 4;
/// Reads without anything for the driver, after which other tasks run.
const READS_PER_TURN: usize = 16;

/// What takes over a connection that leaves the driver.
pub(super) enum Handoff {
    /// For good: both ends agreed on another protocol.
    Upgrade(UpgradeHandler),
    /// For one response; the driver gets it back afterwards.
    Stream(Streaming),
}

/// Takes over a connection that has left HTTP.
pub(super) type UpgradeHandler = Box<dyn FnOnce(TlsStream) -> LocalBoxFuture<'static, ()>>;

/// Wraps the run of an [`UpgradeHandler`], to act before and after it.
pub(super) type UpgradeWrapper = Box<dyn FnOnce(LocalBoxFuture<'static, ()>) -> LocalBoxFuture<'static, ()>>;

/// The switch of one connection. Cheap to clone; handlers find it in their connection data.
#[derive(Clone)]
pub(super) struct Switch(Rc<State>);

struct State {
    io: RefCell<Option<TlsStream>>,
    handoff: RefCell<Option<Handoff>>,
    /// Wakes the driver, which may wait for a request that will never come.
    reader: RefCell<Option<Waker>>,
    heads: RefCell<Heads>,
    requests: RefCell<RequestHeads>,
    /// What the driver has still to read before anything else.
    unread: RefCell<Unread>,
    /// Whether the driver has written bytes that are not flushed yet.
    has_unflushed: Cell<bool>,
    stall: RefCell<Stall>,
    peer: Peer,
}

/// Bytes that the driver has not read yet, and since when it waits for the end of a head.
#[derive(Default)]
struct Unread {
    bytes: Vec<u8>,
    read: usize,
    head_deadline: Option<Pin<Box<Sleep>>>,
}

/// Counts request heads in the bytes that were read, to detect that the driver has read beyond the current request. It may count
/// too many, because a body can contain a blank line. It never counts too few.
#[derive(Default)]
struct Heads {
    read: usize,
    answered: usize,
    /// How many bytes of [`HEAD_END`] the input ends with so far.
    matched: usize,
}

impl Heads {
    fn note(&mut self, mut read: &[u8]) {
        while !read.is_empty() {
            if matches!(self.matched, 0 | HEAD_END_BYTES) {
                self.matched = 0;
                let Some(index) = memchr::memchr(HEAD_END[0], read) else { return };
                read = &read[index..];
            }
            let Some((byte, rest)) = read.split_first() else { return };
            self.matched = if HEAD_END[self.matched] == *byte {
                self.matched + 1
            } else {
                usize::from(HEAD_END[0] == *byte)
            };
            self.read += usize::from(self.matched == HEAD_END_BYTES);
            read = rest;
        }
    }

    /// Whether no byte follows the head of the current request.
    fn is_at_end(&self) -> bool {
        self.matched == HEAD_END_BYTES && self.read == self.answered
    }
}

impl Switch {
    pub(super) fn new(io: TlsStream) -> Switch {
        let peer = io.peer.clone();
        Switch(Rc::new(State {
            io: RefCell::new(Some(io)),
            handoff: RefCell::new(None),
            reader: RefCell::new(None),
            heads: RefCell::default(),
            requests: RefCell::default(),
            unread: RefCell::default(),
            has_unflushed: Cell::default(),
            stall: RefCell::default(),
            peer,
        }))
    }

    /// The driver's view of the connection.
    pub(super) fn connection(&self) -> Connection {
        Connection(self.clone())
    }

    /// Leaves HTTP. The response of the request's handler is not sent: `upgrade` writes everything that the client reads.
    pub(super) fn leave_http(&self, upgrade: UpgradeHandler) {
        self.hand_off(Handoff::Upgrade(upgrade));
    }

    /// Wraps what this connection is leaving for; `false` if there is nothing. The handler of the request must return before it
    /// awaits anything else: the driver ends as soon as it may, and the handler's task with it.
    pub(super) fn wrap_upgrade(&self, wrapper: UpgradeWrapper) -> bool {
        let mut handoff = self.0.handoff.borrow_mut();
        match handoff.take() {
            Some(Handoff::Upgrade(upgrade)) => {
                *handoff = Some(Handoff::Upgrade(Box::new(move |client| wrapper(upgrade(client)))));
                true
            }
            other => {
                *handoff = other;
                false
            }
        }
    }

    /// Leaves the driver for the time of this response. The response that the handler returns instead is not sent.
    pub(super) fn stream(&self, response: Streaming) {
        self.hand_off(Handoff::Stream(response));
    }

    /// Sets the time limit and the cut signal of the response to the current request.
    pub(super) fn begin_response(&self, within: Option<SendWithin>, cut: Option<CutSignal>) {
        self.0.stall.borrow_mut().begin_response(within, cut);
    }

    /// Notes a new request. Returns whether its connection could leave the driver: not if the driver has read beyond this
    /// request, because those bytes would be lost.
    pub(super) fn note_request(&self) -> bool {
        let mut heads = self.0.heads.borrow_mut();
        heads.answered += 1;
        heads.is_at_end() && !self.holds_input()
    }

    /// Whether input was taken from the connection that the driver has not read.
    fn holds_input(&self) -> bool {
        self.0.requests.borrow().holds_bytes() || !self.0.unread.borrow().bytes.is_empty()
    }

    /// Whether the connection can leave now, that is, all earlier responses are on the wire and nothing is read beyond the current
    /// request. The driver starts a pipelined request as soon as the previous response is encoded, and goes on reading while a
    /// handler waits: what it has not written yet, or has read ahead, would be lost.
    pub(super) async fn can_leave_now(&self) -> bool {
        if self.0.heads.borrow().answered > 1 {
            // The driver writes whenever the handler yields.
            yield_now().await;
        }
        !self.0.has_unflushed.get() && self.0.heads.borrow().is_at_end() && !self.holds_input()
    }

    /// The connection and what takes it over, once the driver has ended. `None` if it never left.
    pub(super) fn take(&self) -> Option<(Handoff, TlsStream)> {
        Some((self.0.handoff.take()?, self.0.io.take()?))
    }

    fn hand_off(&self, handoff: Handoff) {
        self.0.handoff.replace(Some(handoff));
        if let Some(reader) = self.0.reader.take() {
            reader.wake();
        }
    }

    fn has_left(&self) -> bool {
        self.0.handoff.borrow().is_some()
    }
}

/// A connection as the HTTP/1.1 driver sees it.
pub(super) struct Connection(Switch);

impl Connection {
    pub(super) fn peer(&self) -> &Peer {
        &self.0.0.peer
    }

    pub(super) fn switch(&self) -> Switch {
        self.0.clone()
    }

    /// Uses the connection, or returns `after_departure` once it has left the driver.
    fn with<T>(
        &self,
        after_departure: T,
        operation: impl FnOnce(Pin<&mut TlsStream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match self.0.0.io.borrow_mut().as_mut() {
            Some(io) if !self.0.has_left() => operation(Pin::new(io)),
            _ => Poll::Ready(Ok(after_departure)),
        }
    }

    /// Reads what the driver is to see: heads that it would refuse are changed on the way.
    fn read_requests(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let state = &*self.0.0;
        let mut unread = state.unread.borrow_mut();
        for _ in 0..READS_PER_TURN {
            if unread.give(buf) {
                return Poll::Ready(Ok(()));
            }
            let before = buf.filled().len();
            let read = self.with((), |io| io.poll_read(cx, buf));
            if read.is_pending() {
                return match unread.is_late(cx, &state.requests.borrow()) {
                    true => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                    false => Poll::Pending,
                };
            }
            let input = buf.filled().get(before..).unwrap_or_default();
            if input.is_empty() || !matches!(read, Poll::Ready(Ok(()))) {
                return read;
            }
            let mut requests = state.requests.borrow_mut();
            let passing = requests.passing(input);
            if let Some(rest) = input.get(passing..) {
                requests.push(rest, &mut unread.bytes);
            }
            buf.set_filled(before + passing);
            if passing > 0 {
                return read;
            }
        }
        // Other connections have their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Unread {
    /// Copies bytes to the driver; `false` if there are none.
    fn give(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let rest = self.bytes.get(self.read..).unwrap_or_default();
        if rest.is_empty() {
            return false;
        }
        let part = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..part]);
        self.read += part;
        if self.read == self.bytes.len() {
            *self = Unread::default();
        }
        true
    }

    /// Whether the rest of a head takes too long. The driver does not see heads that have not ended.
    fn is_late(&mut self, cx: &mut Context<'_>, requests: &RequestHeads) -> bool {
        if !requests.holds_bytes() {
            self.head_deadline = None;
            return false;
        }
        let deadline = self.head_deadline.get_or_insert_with(|| Box::pin(sleep(REQUEST_HEAD_TIMEOUT)));
        deadline.as_mut().poll(cx).is_ready()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = self.read_requests(cx, buf);
        self.0.0.heads.borrow_mut().note(buf.filled().get(before..).unwrap_or_default());
        if read.is_pending() {
            let mut reader = self.0.0.reader.borrow_mut();
            if !reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
                *reader = Some(cx.waker().clone());
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.with(buf.len(), |io| io.poll_write(cx, buf));
        self.0.0.has_unflushed.set(true);
        self.0.0.stall.borrow_mut().check(cx, written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.with((), |io| io.poll_flush(cx));
        self.0.0.has_unflushed.set(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with((), |io| io.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(read: &[&str], answered: usize) -> bool {
        let mut heads = Heads { answered, ..Heads::default() };
        read.iter().for_each(|read| heads.note(read.as_bytes()));
        heads.is_at_end()
    }

    #[test]
    fn bytes_read_beyond_the_request_are_detected() {
        assert!(heads(&["GET / HTTP/1.1\r\nA: b\r\n\r\n"], 1));
        assert!(heads(&["GET / HTTP/1.1\r\n", "A: b\r", "\n\r", "\n"], 1));
        assert!(heads(&["GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"], 2));
        assert!(!heads(&["GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n"], 1));
        assert!(!heads(&["GET / HTTP/1.1\r\n\r\nGET /", " HTTP/1.1\r\n\r\n"], 1));
        assert!(!heads(&["GET / HTTP/1.1\r\n\r\nGET"], 1));
        assert!(!heads(&["PUT / HTTP/1.1\r\n\r\n{\r\n\r\n}", "GET / HTTP/1.1\r\n\r\n"], 2));
        assert!(heads(&["PUT / HTTP/1.1\r\n\r\n{\r\n}", "GET / HTTP/1.1\r\n\r\n"], 2));
        assert!(!heads(&["GET / HTTP/1.1\n\n"], 1), "a head with other line ends stays with the driver");
    }
}
