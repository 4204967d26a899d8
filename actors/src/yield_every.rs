//! Leaves the thread to others after every so much work.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use tokio::task::yield_now;

/// Counts the work of a loop on a thread that serves others as well.
#[derive(Debug)]
pub struct YieldEvery {
    most: usize,
    done: usize,
}

impl YieldEvery {
    /// Others have their turn after this much work, in whatever unit the loop counts.
    pub fn new(most: usize) -> YieldEvery {
        YieldEvery { most, done: 0 }
    }

    /// Counts work that was done, and yields if it is enough.
    pub async fn worked(&mut self, amount: usize) {
        self.count(amount);
        poll_fn(|cx| self.poll_turn(cx)).await;
    }

    /// Counts work that was done. [`YieldEvery::poll_turn`] yields.
    pub fn count(&mut self, amount: usize) {
        self.done = self.done.saturating_add(amount);
    }

    /// Pending, once, if enough work was done. The task is woken when the others had their turn and the sockets were looked at; if
    /// it woke itself, dozens of such turns could come before the next look.
    pub fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.done < self.most {
            return Poll::Ready(());
        }
        self.done = 0;
        pin!(yield_now()).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn others_have_their_turn_after_enough_work() {
        let mut turn = YieldEvery::new(3);
        let mut is_through = |amount| turn.worked(amount).now_or_never().is_some();
        assert_eq!([1, 1, 1, 1, 5, 2].map(&mut is_through), [true, true, false, true, false, true]);
    }

    #[actix_rt::test]
    async fn a_task_that_is_polled_yields_once_and_is_woken() {
        let mut turn = YieldEvery::new(3);
        turn.count(7);
        assert!(poll_fn(|cx| Poll::Ready(turn.poll_turn(cx))).await.is_pending());
        assert!(poll_fn(|cx| Poll::Ready(turn.poll_turn(cx))).await.is_ready());
        turn.count(3);
        poll_fn(|cx| turn.poll_turn(cx)).await;
    }
}
