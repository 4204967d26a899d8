//! Response bodies that are held in memory as a whole, and counted against a budget until the client has read them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use bytes::Bytes;

use pilothouse_actors::memory::Reservation;

/// Bodies are sent in pieces of this size, so that the budget shrinks as the client reads.
const PIECE_BYTES: usize = 64 << 10;

/// A body, or a piece of one, with its share of the budget.
pub struct BudgetedBody {
    /// The bytes that are not sent yet.
    pub bytes: Bytes,
    /// Their share of the budget.
    pub held: Reservation,
}

impl Iterator for BudgetedBody {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let piece = self.bytes.split_to(self.bytes.len().min(PIECE_BYTES));
        if self.bytes.is_empty() {
            // Releasing budget cannot fail.
            let _ = self.held.set(0);
        }
        Some(piece).filter(|piece| !piece.is_empty())
    }
}

impl MessageBody for BudgetedBody {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.bytes.len() as u64)
    }

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        Poll::Ready(self.next().map(Ok))
    }
}

/// Keeps the budget that a body was made under, as much as it needs, until the body is sent.
pub fn counted(response: HttpResponse, mut held: Reservation) -> HttpResponse {
    response.map_body(|_, body| match body.try_into_bytes() {
        Ok(bytes) => {
            // The body exists already: if it outgrew its share and the budget is exhausted, only the share is counted.
            let _ = held.set(bytes.len());
            BoxBody::new(BudgetedBody { bytes, held })
        }
        Err(body) => body,
    })
}

#[cfg(test)]
mod tests {
    use actix_web::body::to_bytes;
    use pilothouse_actors::memory::MemoryBudget;

    use super::*;

    #[actix_rt::test]
    async fn an_answer_keeps_what_it_needs_of_its_room_until_it_is_sent() {
        let budget = MemoryBudget::alone(1 << 20);
        let text = Bytes::from(vec![b'x'; 2 * PIECE_BYTES + 1]);
        let answer = counted(HttpResponse::Ok().body(text.clone()), budget.take(1 << 20).unwrap());
        assert_eq!(budget.bytes(), text.len());
        assert_eq!(answer.body().size(), BodySize::Sized(text.len() as u64));
        assert_eq!(to_bytes(answer.into_body()).await.unwrap(), text);
        assert_eq!(budget.bytes(), 0);
        drop(counted(HttpResponse::Ok().body(text), budget.take(1).unwrap()));
        assert_eq!(budget.bytes(), 0, "nor does one that nobody reads");
    }
}
