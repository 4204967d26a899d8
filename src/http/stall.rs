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
    pub(super) fn from_response<B>(response: &Response<B>) -> Option<SendWithin> {
        response.extensions().get::<SendWithin>().copied()
    }
}

/// Fails writes that make no progress, and those of a response that takes too long as a whole. Otherwise a client that is alive but
/// never reads would hold resources for ever, such as a slot for a followed log.
pub(super) struct Stall {
    /// How long a write may make no progress.
    stall_timeout: Duration,
    /// The timer, while a write is pending.
    stall_timer: Option<Pin<Box<Sleep>>>,
    /// The end of the time for the current response, if it is limited.
    response_timer: Option<Pin<Box<Sleep>>>,
    /// Ends the current response for lack of memory.
    cut: Option<CutSignal>,
}

impl Default for Stall {
    fn default() -> Stall {
        Stall { stall_timeout: RESPONSE_STALL, stall_timer: None, response_timer: None, cut: None }
    }
}

impl Stall {
    /// Begins a response, with its time limit and the signal that cuts it, if it has them.
    pub(super) fn begin_response(&mut self, limit: Option<SendWithin>, cut: Option<CutSignal>) {
        self.cut = cut;
        self.response_timer = limit.map(|SendWithin(limit)| Box::pin(sleep(limit)));
    }

    /// Passes on the result of a write; an error if no write has made progress for too long, or if the time for the response is
    /// over.
    pub(super) fn check<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.cut.as_ref().is_some_and(|cut| cut.poll_raised(cx).is_ready()) {
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        if let Some(timer) = &mut self.response_timer
            && timer.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if result.is_ready() {
            self.stall_timer = None;
            return result;
        }
        let timer = self.stall_timer.get_or_insert_with(|| Box::pin(sleep(self.stall_timeout)));
        timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn stall(stall_timeout: Duration) -> Stall {
        Stall { stall_timeout, ..Stall::default() }
    }

    #[actix_rt::test]
    async fn slowly_read_response_fails_at_its_deadline() {
        let mut stall = stall(Duration::from_secs(60));
        stall.begin_response(Some(SendWithin(Duration::from_millis(5))), None);
        let write_progress = |stall: &mut Stall, cx: &mut Context<'_>| stall.check(cx, Poll::Ready(Ok(1)));
        let error = loop {
            match poll_fn(|cx| write_progress(&mut stall, cx)).await {
                Ok(_) => sleep(Duration::from_millis(1)).await,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        stall.begin_response(None, None);
        assert!(poll_fn(|cx| write_progress(&mut stall, cx)).await.is_ok(), "the next response has no limit");
    }

    #[actix_rt::test]
    async fn stalled_write_fails_and_wakes_its_writer() {
        let mut stall = stall(Duration::from_millis(1));
        let result = poll_fn(|cx| stall.check::<()>(cx, Poll::Pending)).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[actix_rt::test]
    async fn stall_timer_restarts_with_progress() {
        let mut stall = stall(Duration::from_millis(1));
        for _ in 0..3 {
            let waiting = poll_fn(|cx| Poll::Ready(stall.check::<()>(cx, Poll::Pending))).await;
            assert!(waiting.is_pending());
            sleep(Duration::from_millis(3)).await;
            let progress = poll_fn(|cx| Poll::Ready(stall.check(cx, Poll::Ready(Ok(()))))).await;
            assert!(matches!(progress, Poll::Ready(Ok(()))) && stall.stall_timer.is_none());
        }
    }
}
