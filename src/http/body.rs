//! Request bodies that come too slowly end with an error instead of holding their handler for ever. How large a body
//! may be is for the handler to say, who knows what to answer.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_http::error::PayloadError;
use actix_http::{BoxedPayloadStream, Payload, Request};
use bytes::Bytes;
use futures::Stream;
use tokio::time::Sleep;

use crate::limits;

/// A body that must be complete in time.
struct Timely {
    body: Payload,
    deadline: Pin<Box<Sleep>>,
}

impl Stream for Timely {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Poll::Ready(chunk) = Pin::new(&mut this.body).poll_next(cx) {
            return Poll::Ready(chunk);
        }
        this.deadline.as_mut().poll(cx).map(|()| {
            let late = io::Error::new(io::ErrorKind::TimedOut, "the body did not come in time");
            Some(Err(PayloadError::Io(late)))
        })
    }
}

/// Gives the body of a request its deadline. A request that asks for another protocol has no body but a conversation,
/// which may last.
pub(super) fn timely(request: Request) -> Request {
    if request.upgrade() {
        return request;
    }
    let (request, body) = request.replace_payload(Payload::None);
    if matches!(body, Payload::None) {
        return request;
    }
    let deadline = Box::pin(tokio::time::sleep(limits::REQUEST_BODY));
    let payload: BoxedPayloadStream = Box::pin(Timely { body, deadline });
    let (request, _) = request.replace_payload(Payload::Stream { payload });
    request
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    fn request(body: impl Stream<Item = Result<Bytes, PayloadError>> + 'static) -> Request {
        Request::with_payload(Payload::Stream { payload: Box::pin(body) })
    }

    #[actix_rt::test]
    async fn a_body_that_never_ends_ends_with_an_error() {
        tokio::time::pause();
        let drip = futures::stream::unfold((), |()| async {
            tokio::time::sleep(limits::REQUEST_BODY / 4).await;
            Some((Ok(Bytes::from_static(b"x")), ()))
        });
        let chunks: Vec<_> = timely(request(drip.take(1_000))).take_payload().take(50).collect().await;
        let good = chunks.iter().take_while(|chunk| chunk.is_ok()).count();
        assert!((2..=4).contains(&good), "{good}");
        assert!(
            matches!(&chunks[good], Err(PayloadError::Io(error)) if error.kind() == io::ErrorKind::TimedOut)
        );
    }

    #[actix_rt::test]
    async fn a_body_in_time_passes_unchanged() {
        let parts = ["one", "two"].map(|part| Ok(Bytes::from_static(part.as_bytes())));
        let chunks: Vec<_> = timely(request(futures::stream::iter(parts))).take_payload().collect().await;
        let text: Vec<_> = chunks.into_iter().map(Result::unwrap).collect();
        assert_eq!(text, ["one", "two"]);
        assert!(matches!(timely(Request::new()).take_payload(), Payload::None));
    }
}
