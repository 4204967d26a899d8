//! Response bodies that are held in memory as a whole, and counted against a budget until the client has read them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, MessageBody};
use bytes::Bytes;
use pilothouse_types::memory::Reservation;

/// Bodies are sent in pieces of this size.
const PIECE_BYTES: usize = 64 << 10;

/// A body, or the rest of one, with its share of the budget.
pub struct BudgetedBody {
    /// The bytes that are not sent yet.
    pub bytes: Bytes,
    /// Their share of the budget.
    pub reservation: Reservation,
}

impl Iterator for BudgetedBody {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let piece = self.bytes.split_to(self.bytes.len().min(PIECE_BYTES));
        if self.bytes.is_empty() {
            // Releasing budget cannot fail.
            let _ = self.reservation.set(0);
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

#[cfg(test)]
mod tests {
    use actix_web::body::to_bytes;
    use pilothouse_types::memory::MemoryBudget;

    use super::*;

    #[actix_rt::test]
    async fn budgeted_body_releases_its_reservation_when_sent() {
        let budget = MemoryBudget::standalone(1 << 20);
        let bytes = Bytes::from(vec![b'x'; 2 * PIECE_BYTES + 1]);
        let mut body = BudgetedBody { reservation: budget.take(bytes.len()).unwrap(), bytes: bytes.clone() };
        assert_eq!(body.size(), BodySize::Sized(bytes.len() as u64));
        assert_eq!(body.next().map(|piece| piece.len()), Some(PIECE_BYTES));
        assert_eq!(budget.bytes(), bytes.len());
        assert_eq!(to_bytes(body).await.unwrap(), bytes.slice(PIECE_BYTES..));
        assert_eq!(budget.bytes(), 0);
        drop(BudgetedBody { reservation: budget.take(1).unwrap(), bytes });
        assert_eq!(budget.bytes(), 0, "a dropped body releases it, too");
    }
}
