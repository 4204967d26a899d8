//! Bodies in both directions, streamed in pieces: nothing is buffered, so the slower side sets the pace.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;

use super::{ConnectionInUse, Pieces};

/// A piece of a body; `None` marks its end.
type Next = Option<io::Result<Bytes>>;

/// The body of a request.
pub enum RequestBody {
    /// No body.
    Empty,
    /// One piece, until it is sent.
    Whole(Option<Bytes>),
    /// Pieces of a known or unknown total length.
    Pieces(mpsc::Receiver<Next>, Option<u64>),
}

impl RequestBody {
    /// Streams pieces through a task of this thread: pooled connections must be `Send`, and a client's body is not.
    pub fn pieces(mut pieces: Pieces, length: Option<u64>) -> RequestBody {
        let (sender, receiver) = mpsc::channel(1);
        tokio::task::spawn_local(async move {
            loop {
                let piece = tokio::select! {
                    piece = pieces.next() => piece,
                    () = sender.closed() => return,
                };
                let is_last = !matches!(piece, Some(Ok(_)));
                if sender.send(piece).await.is_err() || is_last {
                    return;
                }
            }
        });
        RequestBody::Pieces(receiver, length)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            RequestBody::Empty => Poll::Ready(None),
            RequestBody::Whole(piece) => Poll::Ready(piece.take().map(|piece| Ok(Frame::data(piece)))),
            RequestBody::Pieces(pieces, _) => match ready!(pieces.poll_recv(cx)) {
                Some(next) => Poll::Ready(next.map(|piece| piece.map(Frame::data))),
                // The sender is gone without marking the end.
                None => Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, RequestBody::Empty | RequestBody::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty | RequestBody::Whole(None) => SizeHint::with_exact(0),
            RequestBody::Whole(Some(piece)) => SizeHint::with_exact(piece.len() as u64),
            RequestBody::Pieces(_, Some(length)) => SizeHint::with_exact(*length),
            RequestBody::Pieces(_, None) => SizeHint::default(),
        }
    }
}

/// The body of a response. At its end the connection is returned; dropped earlier, it is closed.
pub struct ResponseBody {
    body: Incoming,
    connection: Option<ConnectionInUse>,
}

impl ResponseBody {
    pub(super) fn new(body: Incoming, connection: ConnectionInUse) -> ResponseBody {
        ResponseBody { body, connection: Some(connection) }
    }

    /// Its length, if known.
    pub fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        // With a known length, the end is known without polling again.
        if self.body.is_end_stream()
            && let Some(connection) = self.connection.take()
        {
            connection.done();
        }
    }
}

impl Stream for ResponseBody {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => {
                    if let Some(connection) = self.connection.take() {
                        connection.done();
                    }
                    return Poll::Ready(None);
                }
                Some(Err(error)) => {
                    self.connection = None;
                    return Poll::Ready(Some(Err(io::Error::other(error))));
                }
                // Trailers and empty pieces are dropped.
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(piece) if !piece.is_empty() => return Poll::Ready(Some(Ok(piece))),
                    _ => {}
                },
            }
        }
    }
}
