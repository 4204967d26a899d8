//! Yields to the other tasks of a thread after a certain amount of work.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use tokio::task::yield_now;

/// Counts the work of a loop, so that it does not block the other tasks of its thread.
#[derive(Debug)]
pub struct YieldEvery {
    limit: usize,
    done: usize,
}

impl YieldEvery {
    /// Yields after `limit` of work, in whatever unit the loop counts.
    pub fn new(limit: usize) -> YieldEvery {
        YieldEvery { limit, done: 0 }
    }

    /// Counts work, and yields if the limit is reached.
    pub async fn worked(&mut self, amount: usize) {
        self.count(amount);
        poll_fn(|cx| self.poll_turn(cx)).await;
    }

    /// Counts work. [`YieldEvery::poll_turn`] yields.
    pub fn count(&mut self, amount: usize) {
        self.done = self.done.saturating_add(amount);
    }

    /// Pending, once, if enough work was done. The task is woken after the other tasks have run and the sockets were polled; if it
    /// woke itself, it could run dozens of times before the next poll of the sockets.
    pub fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.done < self.limit {
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
    fn yield_every_yields_after_limit_of_work() {
        let mut yield_every = YieldEvery::new(3);
        let mut is_ready = |amount| yield_every.worked(amount).now_or_never().is_some();
        assert_eq!([1, 1, 1, 1, 5, 2].map(&mut is_ready), [true, true, false, true, false, true]);
    }

    #[actix_rt::test]
    async fn poll_turn_is_pending_once_and_wakes_the_task() {
        let mut yield_every = YieldEvery::new(3);
        yield_every.count(7);
        assert!(poll_fn(|cx| Poll::Ready(yield_every.poll_turn(cx))).await.is_pending());
        assert!(poll_fn(|cx| Poll::Ready(yield_every.poll_turn(cx))).await.is_ready());
        yield_every.count(3);
        poll_fn(|cx| yield_every.poll_turn(cx)).await;
    }
}
