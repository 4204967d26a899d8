//! Ends responses to clients that stop reading.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Future as _;
use tokio::time::{Sleep, sleep};

use crate::limits::RESPONSE_STALL;

/// Fails writes that make no progress. Otherwise a client that is alive but never reads would hold resources for ever: its share
/// of the list budget, or a slot for a followed log.
pub(super) struct Stall {
    /// How long a write may make no progress.
    patience: Duration,
    /// The timer, while a write is pending.
    over: Option<Pin<Box<Sleep>>>,
}

impl Default for Stall {
    fn default() -> Stall {
        Stall { patience: RESPONSE_STALL, over: None }
    }
}

impl Stall {
    /// Passes on the result of a write; an error if no write has made progress for too long.
    pub(super) fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.over = None;
            return written;
        }
        let over = self.over.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        over.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn stall(patience: Duration) -> Stall {
        Stall { patience, over: None }
    }

    #[actix_rt::test]
    async fn a_write_that_waits_too_long_is_an_error_and_wakes_its_writer() {
        let mut stall = stall(Duration::from_millis(1));
        let ended = poll_fn(|cx| stall.judge::<()>(cx, Poll::Pending)).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[actix_rt::test]
    async fn the_time_begins_anew_with_whatever_is_taken() {
        let mut stall = stall(Duration::from_millis(1));
        for _ in 0..3 {
            let waiting = poll_fn(|cx| Poll::Ready(stall.judge::<()>(cx, Poll::Pending))).await;
            assert!(waiting.is_pending());
            sleep(Duration::from_millis(3)).await;
            let taken = poll_fn(|cx| Poll::Ready(stall.judge(cx, Poll::Ready(Ok(()))))).await;
            assert!(matches!(taken, Poll::Ready(Ok(()))) && stall.over.is_none());
        }
    }
}
