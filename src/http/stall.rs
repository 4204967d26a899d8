//! Ends responses to clients that stop reading, or that read too slowly.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_http::Response;
use futures::Future as _;
use pilothouse_actors::watch_memory::CutSignal;
use tokio::time::{Sleep, sleep};

use crate::limits::RESPONSE_STALL;

/// How long it may take to send a response, in its extensions. Otherwise a client that reads a few bytes now and then would hold
/// its seat and its share of the list budget for hours.
#[derive(Clone, Copy)]
pub(super) struct SendWithin(pub(super) Duration);

impl SendWithin {
    /// The limit of this response, if it has one.
    pub(super) fn of<B>(response: &Response<B>) -> Option<SendWithin> {
        response.extensions().get::<SendWithin>().copied()
    }
}

/// Fails writes that make no progress, and those of a response that takes too long as a whole. Otherwise a client that is alive but
/// never reads would hold resources for ever, such as a slot for a followed log.
pub(super) struct Stall {
    /// How long a write may make no progress.
    patience: Duration,
    /// The timer, while a write is pending.
    over: Option<Pin<Box<Sleep>>>,
    /// The end of the time for the current response, if it is limited.
    response_over: Option<Pin<Box<Sleep>>>,
    /// Ends the current response for lack of memory.
    cut: Option<CutSignal>,
}

impl Default for Stall {
    fn default() -> Stall {
        Stall { patience: RESPONSE_STALL, over: None, response_over: None, cut: None }
    }
}

impl Stall {
    /// Begins a response, with its time limit and the signal that cuts it, if it has them.
    pub(super) fn begin_response(&mut self, within: Option<SendWithin>, cut: Option<CutSignal>) {
        self.cut = cut;
        self.response_over = within.map(|SendWithin(within)| Box::pin(sleep(within)));
    }

    /// Passes on the result of a write; an error if no write has made progress for too long, or if the time for the response is
    /// over.
    pub(super) fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.cut.as_ref().is_some_and(|cut| cut.poll_raised(cx).is_ready()) {
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        if let Some(over) = &mut self.response_over
            && over.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
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
        Stall { patience, ..Stall::default() }
    }

    #[actix_rt::test]
    async fn a_response_ends_in_its_time_however_often_its_client_reads() {
        let mut stall = stall(Duration::from_secs(60));
        stall.begin_response(Some(SendWithin(Duration::from_millis(5))), None);
        let taken = |stall: &mut Stall, cx: &mut Context<'_>| stall.judge(cx, Poll::Ready(Ok(1)));
        let failed = loop {
            match poll_fn(|cx| taken(&mut stall, cx)).await {
                Ok(_) => sleep(Duration::from_millis(1)).await,
                Err(error) => break error,
            }
        };
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        stall.begin_response(None, None);
        assert!(poll_fn(|cx| taken(&mut stall, cx)).await.is_ok(), "the next response has no limit");
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
