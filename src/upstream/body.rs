//! Bodies in both directions, one piece at a time: nothing is gathered, so whoever is slower sets the pace.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::Stream;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::{Held, Pieces};

/// The body of a request.
pub enum RequestBody {
    /// None at all.
    Empty,
    /// Pieces of a known or unknown length together.
    Pieces(Pieces, Option<u64>),
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
            RequestBody::Pieces(pieces, _) => {
                pieces.as_mut().poll_next(cx).map(|next| next.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, RequestBody::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Pieces(_, Some(length)) => SizeHint::with_exact(*length),
            RequestBody::Pieces(_, None) => SizeHint::default(),
        }
    }
}

/// The body of an answer. Dropped, it cuts the connection.
pub struct AnswerBody {
    body: Incoming,
    _held: Held,
}

impl AnswerBody {
    pub(super) fn new(body: Incoming, held: Held) -> AnswerBody {
        AnswerBody { body, _held: held }
    }

    /// Its length, if it was said.
    pub fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }
}

impl Stream for AnswerBody {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error)))),
                // Trailers are left out, and an empty piece means nothing to anybody.
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(piece) if !piece.is_empty() => return Poll::Ready(Some(Ok(piece))),
                    _ => {}
                },
            }
        }
    }
}
