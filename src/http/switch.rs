//! How a connection leaves HTTP: between TLS and the HTTP/1.1 driver stands a switch. A handler that has agreed to speak
//! something else turns it and says what shall happen with the connection. From then on the driver reads the end of
//! the stream and writes into the void, so it ends; the connection itself goes on, in other hands.
//!
//! The driver's own upgrade knows only WebSocket, and hands out a connection that is read ahead of.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures::future::LocalBoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::peer::Peer;
use super::tls::TlsStream;

/// What happens with a connection that has left HTTP.
pub(super) type Conversation = Box<dyn FnOnce(TlsStream) -> LocalBoxFuture<'static, ()>>;

/// The switch of one connection. Cheap to clone; handlers find it in the data of their connection.
#[derive(Clone)]
pub(super) struct Switch(Rc<State>);

struct State {
    io: RefCell<Option<TlsStream>>,
    conversation: RefCell<Option<Conversation>>,
    /// Wakes the driver, which may be waiting for a request that will not come.
    reader: RefCell<Option<Waker>>,
    peer: Peer,
}

impl Switch {
    pub(super) fn new(io: TlsStream) -> Switch {
        let peer = io.peer.clone();
        Switch(Rc::new(State {
            io: RefCell::new(Some(io)),
            conversation: RefCell::new(None),
            reader: RefCell::new(None),
            peer,
        }))
    }

    /// The connection as the driver sees it.
    pub(super) fn connection(&self) -> Connection {
        Connection(self.clone())
    }

    /// Leaves HTTP. The caller's answer is not sent: what the client shall read comes from the conversation.
    pub(super) fn turn(&self, conversation: Conversation) {
        self.0.conversation.replace(Some(conversation));
        if let Some(reader) = self.0.reader.take() {
            reader.wake();
        }
    }

    /// The connection and what shall happen with it, once the driver has ended. `None`: it never left HTTP.
    pub(super) fn take(&self) -> Option<(Conversation, TlsStream)> {
        Some((self.0.conversation.take()?, self.0.io.take()?))
    }

    fn is_turned(&self) -> bool {
        self.0.conversation.borrow().is_some()
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
        let read = self.with((), |io| io.poll_read(cx, buf));
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
        self.with(buf.len(), |io| io.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with((), |io| io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with((), |io| io.poll_shutdown(cx))
    }
}
