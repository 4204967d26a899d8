//! Large response bodies: they keep the seat of their request until the client has read them, within the time of the request.
//!
//! Without the seat, clients that read slowly could have any number of lists in flight. Without the end, a few of them could hold
//! the list budget for ever, and everybody else's lists would be refused.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use bytes::Bytes;
use pilothouse_actors::permit::Permit;
use pilothouse_types::trace::OpenSpan;

use crate::http::stall::SendWithin;

/// A body up to this size fits into the buffers of the connection, which takes it at once.
const SMALL_BODY_BYTES: u64 = 64 << 10;

/// A body and the seat of its request.
struct SeatedBody {
    body: BoxBody,
    /// Only held: its drop ends the step in which the body is encoded.
    _encoding: OpenSpan,
    /// Only held: its drop frees the seat.
    _seat: Permit,
}

impl MessageBody for SeatedBody {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}

/// Keeps the seat until a large response is sent, which must be within `time_left`. `encoding`: the step in which it is encoded.
pub fn keep_seat(
    response: HttpResponse,
    seat: Permit,
    encoding: OpenSpan,
    time_left: Duration,
) -> HttpResponse {
    let is_small = match response.body().size() {
        BodySize::None => true,
        BodySize::Sized(bytes) => bytes <= SMALL_BODY_BYTES,
        BodySize::Stream => false,
    };
    if is_small {
        return response;
    }
    let mut response =
        response.map_body(|_, body| BoxBody::new(SeatedBody { body, _encoding: encoding, _seat: seat }));
    response.extensions_mut().insert(SendWithin(time_left));
    response
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const TIME_LEFT: Duration = Duration::from_secs(60);

    #[test]
    fn only_large_body_keeps_its_seat_and_has_a_deadline() {
        let seat = Arc::new(());
        let permit = Permit::holding(seat.clone());
        let small = keep_seat(HttpResponse::Ok().body("small"), permit, OpenSpan::none(), TIME_LEFT);
        assert_eq!(Arc::strong_count(&seat), 1);
        assert!(small.extensions().get::<SendWithin>().is_none());
        let text = vec![b'x'; SMALL_BODY_BYTES as usize + 1];
        let permit = Permit::holding(seat.clone());
        let large = keep_seat(HttpResponse::Ok().body(text), permit, OpenSpan::none(), TIME_LEFT);
        assert_eq!(large.body().size(), BodySize::Sized(SMALL_BODY_BYTES + 1));
        assert_eq!(large.extensions().get::<SendWithin>().map(|within| within.0), Some(TIME_LEFT));
        assert_eq!(Arc::strong_count(&seat), 2);
        drop(large);
        assert_eq!(Arc::strong_count(&seat), 1);
    }
}
