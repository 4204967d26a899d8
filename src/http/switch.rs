//! How a connection leaves the HTTP/1.1 driver: between TLS and the driver stands a switch. A handler that has agreed to speak
//! something else turns it and says what shall happen with the connection; so does an answer that the driver is too heavy
//! for. From then on the driver reads the end of the stream and writes into the void, so it ends; the connection itself goes on,
//! in other hands.
//!
//! The driver's own upgrade knows only WebSocket, and hands out a connection that is read ahead of.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures::future::LocalBoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;

use super::h1_stream::Streaming;
use super::peer::Peer;
use super::stall::Stall;
use super::tls::TlsStream;

/// Where the head of a request ends.
const HEAD_END: [u8; HEAD_END_BYTES] = *b"\r\n\r\n";
const HEAD_END_BYTES: usize = 4;

/// What happens with a connection that has left the driver.
pub(super) enum Departure {
    /// It leaves HTTP.
    Conversation(Conversation),
    /// It comes back after this answer.
    Stream(Streaming),
}

/// What happens with a connection that has left HTTP.
pub(super) type Conversation = Box<dyn FnOnce(TlsStream) -> LocalBoxFuture<'static, ()>>;

/// What goes on around a conversation.
pub(super) type Around = Box<dyn FnOnce(LocalBoxFuture<'static, ()>) -> LocalBoxFuture<'static, ()>>;

/// The switch of one connection. Cheap to clone; handlers find it in the data of their connection.
#[derive(Clone)]
pub(super) struct Switch(Rc<State>);

struct State {
    io: RefCell<Option<TlsStream>>,
    departure: RefCell<Option<Departure>>,
    /// Wakes the driver, which may be waiting for a request that will not come.
    reader: RefCell<Option<Waker>>,
    heads: RefCell<Heads>,
    /// Whether the driver has begun to write and does not know yet that all of it has left.
    is_behind: Cell<bool>,
    stall: RefCell<Stall>,
    peer: Peer,
}

/// Counts the heads of requests in what was read, to know whether the driver has read ahead of the one that is answered. Where
/// there is doubt it counts too many: a body may hold what ends a head.
#[derive(Default)]
struct Heads {
    read: usize,
    answered: usize,
    /// How much of the end of a head stands at the end of what was read.
    matched: usize,
}

impl Heads {
    fn note(&mut self, mut read: &[u8]) {
        while !read.is_empty() {
            if matches!(self.matched, 0 | HEAD_END_BYTES) {
                self.matched = 0;
                let Some(at) = memchr::memchr(HEAD_END[0], read) else { return };
                read = &read[at..];
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

    /// Whether nothing stands behind the head of the request that is answered.
    fn is_at_end(&self) -> bool {
        self.matched == HEAD_END_BYTES && self.read == self.answered
    }
}

impl Switch {
    pub(super) fn new(io: TlsStream) -> Switch {
        let peer = io.peer.clone();
        Switch(Rc::new(State {
            io: RefCell::new(Some(io)),
            departure: RefCell::new(None),
            reader: RefCell::new(None),
            heads: RefCell::default(),
            is_behind: Cell::default(),
            stall: RefCell::default(),
            peer,
        }))
    }

    /// The connection as the driver sees it.
    pub(super) fn connection(&self) -> Connection {
        Connection(self.clone())
    }

    /// Leaves HTTP. The caller's answer is not sent: what the client shall read comes from the conversation.
    pub(super) fn turn(&self, conversation: Conversation) {
        self.depart(Departure::Conversation(conversation));
    }

    /// Lets somebody act before and after the conversation that this connection is leaving for; `false` if there is none. Whoever
    /// answers must do so before they wait for anything: the driver ends, and their task with it, as soon as it may leave.
    pub(super) fn surround(&self, around: Around) -> bool {
        let mut departure = self.0.departure.borrow_mut();
        match departure.take() {
            Some(Departure::Conversation(conversation)) => {
                *departure =
                    Some(Departure::Conversation(Box::new(move |client| around(conversation(client)))));
                true
            }
            other => {
                *departure = other;
                false
            }
        }
    }

    /// Leaves the driver for the time of this answer, instead of which the caller answers anything.
    pub(super) fn stream(&self, answer: Streaming) {
        self.depart(Departure::Stream(answer));
    }

    /// A request has come. Answers whether the connection could leave the driver with its answer: not if the driver has read more than
    /// this request, because that would be lost.
    pub(super) fn note_request(&self) -> bool {
        let mut heads = self.0.heads.borrow_mut();
        heads.answered += 1;
        heads.is_at_end()
    }

    /// Whether all earlier answers have left. The driver takes a request that came early as soon as the answer before it is encoded:
    /// what of that has not been written would be lost with the driver.
    pub(super) async fn has_answered(&self) -> bool {
        if self.0.heads.borrow().answered > 1 {
            // The driver writes whenever a handler waits.
            yield_now().await;
        }
        !self.0.is_behind.get()
    }

    /// The connection and what shall happen with it, once the driver has ended. `None`: it never left.
    pub(super) fn take(&self) -> Option<(Departure, TlsStream)> {
        Some((self.0.departure.take()?, self.0.io.take()?))
    }

    fn depart(&self, departure: Departure) {
        self.0.departure.replace(Some(departure));
        if let Some(reader) = self.0.reader.take() {
            reader.wake();
        }
    }

    fn is_turned(&self) -> bool {
        self.0.departure.borrow().is_some()
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

    /// Does something with the connection, as long as it is HTTP's.
    fn with<T>(
        &self,
        gone: T,
        act: impl FnOnce(Pin<&mut TlsStream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match self.0.0.io.borrow_mut().as_mut() {
            Some(io) if !self.0.is_turned() => act(Pin::new(io)),
            _ => Poll::Ready(Ok(gone)),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = self.with((), |io| io.poll_read(cx, buf));
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
        self.0.0.is_behind.set(true);
        self.0.0.stall.borrow_mut().judge(cx, written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.with((), |io| io.poll_flush(cx));
        self.0.0.is_behind.set(flushed.is_pending());
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
    fn what_stands_behind_a_request_is_noticed() {
        assert!(heads(&["GET / HTTP/1.1\r\nA: b\r\n\r\n"], 1));
        assert!(heads(&["GET / HTTP/1.1\r\n", "A: b\r", "\n\r", "\n"], 1));
        assert!(heads(&["GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"], 2));
        assert!(!heads(&["GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n"], 1));
        assert!(!heads(&["GET / HTTP/1.1\r\n\r\nGET /", " HTTP/1.1\r\n\r\n"], 1));
        assert!(!heads(&["GET / HTTP/1.1\r\n\r\nGET"], 1));
        assert!(!heads(&["PUT / HTTP/1.1\r\n\r\n{\r\n\r\n}", "GET / HTTP/1.1\r\n\r\n"], 2));
        assert!(heads(&["PUT / HTTP/1.1\r\n\r\n{\r\n}", "GET / HTTP/1.1\r\n\r\n"], 2));
        assert!(!heads(&["GET / HTTP/1.1\n\n"], 1), "what ends otherwise stays with the driver");
    }
}
