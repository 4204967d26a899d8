//! Request bodies that arrive too slowly end with an error instead of holding their handler for ever. The handler limits their
//! size, because it knows which error to send.

use std::cell::{Cell, RefCell};
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_http::body::{BodySize, BoxBody, MessageBody};
use actix_http::error::PayloadError;
use actix_http::{BoxedPayloadStream, HttpMessage as _, Payload, Request};
use bytes::Bytes;
use futures::Stream;
use tokio::time::Sleep;

/// A body that must be complete before a deadline.
struct BodyWithDeadline {
    body: Rc<RefCell<Payload>>,
    deadline: Pin<Box<Sleep>>,
    lift: DeadlineLift,
}

/// Lifts the deadline of a body. Handlers find it in the extensions of their request. Proxies use it: the server behind them may
/// take as long as it likes. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct DeadlineLift(Rc<Cell<bool>>);

impl DeadlineLift {
    pub(super) fn lift(&self) {
        self.0.set(true);
    }
}

/// A request body, kept until its response is sent. The HTTP/1.1 driver closes the connection after a response to a body that was
/// not read to its end. But if the body is dropped early, the driver reads the rest of a chunked body itself, without a bound on
/// time or size.
pub(super) struct Unread {
    _body: Rc<RefCell<Payload>>,
}

impl Stream for BodyWithDeadline {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Poll::Ready(chunk) = Pin::new(&mut *self.body.borrow_mut()).poll_next(cx) {
            return Poll::Ready(chunk);
        }
        if self.lift.0.get() {
            return Poll::Pending;
        }
        self.deadline.as_mut().poll(cx).map(|()| {
            let error = io::Error::new(io::ErrorKind::TimedOut, "the body did not arrive in time");
            Some(Err(PayloadError::Io(error)))
        })
    }
}

/// Puts a deadline on the body of a request.
pub(super) fn with_deadline(request: Request, timeout: Duration) -> (Request, Option<Unread>) {
    let (request, body) = request.replace_payload(Payload::None);
    if matches!(body, Payload::None) {
        return (request, None);
    }
    let is_http1 = matches!(body, Payload::H1 { .. });
    let body = Rc::new(RefCell::new(body));
    let unread = is_http1.then(|| Unread { _body: Rc::clone(&body) });
    let deadline = Box::pin(tokio::time::sleep(timeout));
    let lift = DeadlineLift::default();
    request.extensions_mut().insert(lift.clone());
    let payload: BoxedPayloadStream = Box::pin(BodyWithDeadline { body, deadline, lift });
    let (request, _) = request.replace_payload(Payload::Stream { payload });
    (request, unread)
}

/// A response body that keeps the request body alive.
pub(super) struct BodyWithUnread {
    pub(super) body: BoxBody,
    pub(super) _unread: Option<Unread>,
}

impl MessageBody for BodyWithUnread {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    const LONG_TIMEOUT: Duration = Duration::from_secs(60);

    fn request(body: impl Stream<Item = Result<Bytes, PayloadError>> + 'static) -> Request {
        Request::with_payload(Payload::Stream { payload: Box::pin(body) })
    }

    #[actix_rt::test]
    async fn unfinished_body_fails_at_its_deadline() {
        let start = futures::stream::once(async { Ok(Bytes::from_static(b"start")) });
        let body = start.chain(futures::stream::pending());
        let mut chunks = with_deadline(request(body), Duration::from_millis(1)).0.take_payload();
        assert_eq!(chunks.next().await.unwrap().unwrap(), "start");
        let error = chunks.next().await.unwrap().unwrap_err();
        assert!(matches!(error, PayloadError::Io(error) if error.kind() == io::ErrorKind::TimedOut));
    }

    #[actix_rt::test]
    async fn slowly_dripping_body_fails_at_its_deadline() {
        let drip = futures::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Some((Ok(Bytes::from_static(b"x")), ()))
        });
        let chunks = with_deadline(request(drip), Duration::from_millis(30)).0.take_payload();
        assert!(chunks.take_while(|chunk| std::future::ready(chunk.is_ok())).count().await < 60);
    }

    #[actix_rt::test]
    async fn handler_can_lift_the_body_deadline() {
        let (mut request, _) = with_deadline(request(futures::stream::pending()), Duration::from_millis(1));
        let deadline = request.extensions().get::<DeadlineLift>().cloned().unwrap();
        deadline.lift();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(futures::poll!(request.payload().next()).is_pending());
    }

    #[actix_rt::test]
    async fn body_in_time_is_unchanged() {
        let parts = ["one", "two"].map(|part| Ok(Bytes::from_static(part.as_bytes())));
        let chunks: Vec<_> = with_deadline(request(futures::stream::iter(parts)), LONG_TIMEOUT)
            .0
            .take_payload()
            .collect()
            .await;
        let text: Vec<_> = chunks.into_iter().map(Result::unwrap).collect();
        assert_eq!(text, ["one", "two"]);
        assert!(matches!(with_deadline(Request::new(), LONG_TIMEOUT).0.take_payload(), Payload::None));
    }
}
