//! The response body of a watch. It owns the session and runs it.
//!
//! A session is an actor whose context is polled by the body of its response, as actix does it for its own HTTP actors, and not by
//! a task of its own. New events are handled in a turn on the state in that context; the actor is polled only for futures that it
//! waits for. So a watch has one owner and one task, an event wakes one task, and a client that does not read runs no turns: its
//! session holds one chunk and resumes from its cursor when the client reads again.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use actix::dev::{AsyncContextParts, ContextFut, ContextParts, Mailbox};
use actix::{ActorContext, ActorFuture, ActorState, Addr, AsyncContext, SpawnHandle};
use bytes::Bytes;
use futures::Stream;

use super::Session;
use super::progress::WatchProgress;
use super::queue::Queue;
use crate::session_waker::SessionWaker;
use crate::watch_memory::CutSignal;

/// A stream of nonempty chunks. Dropping it ends the session.
pub struct Feed {
    source: Source,
    /// Whether the stream ends in the place of its first frame.
    is_mute: bool,
}

enum Source {
    Session {
        run: Box<ContextFut<Session, SessionContext>>,
        session_waker: Arc<SessionWaker>,
        /// The same, for the futures of the session.
        waker: Waker,
        /// Whether the session has ended: what it left in the queue is sent, then the stream ends.
        is_stopped: bool,
    },
    /// One frame instead of a watch.
    Frame(Option<Bytes>),
}

impl Feed {
    /// A feed without a session: one frame, and the end.
    pub fn single(frame: Bytes) -> Feed {
        Feed { source: Source::Frame(Some(frame).filter(|frame| !frame.is_empty())), is_mute: false }
    }

    pub(super) fn new(
        session: Session,
        progress: WatchProgress,
        queue: Queue,
        session_waker: Arc<SessionWaker>,
    ) -> Feed {
        let mailbox = Mailbox::default();
        let parts = ContextParts::new(mailbox.sender_producer());
        let context = SessionContext { progress, queue, is_turn_scheduled: false, parts };
        let run = Box::new(ContextFut::new(context, session, mailbox));
        let waker = Waker::from(Arc::clone(&session_waker));
        Feed { source: Source::Session { run, session_waker, waker, is_stopped: false }, is_mute: false }
    }

    /// For a client that requested a form that no event has: the feed ends in the place of the first frame.
    pub fn mute(mut self) -> Feed {
        self.is_mute = true;
        self
    }

    /// Tells the sender of this body when it must stop at once; `None` without a session.
    pub fn cut_signal(&mut self) -> Option<CutSignal> {
        match &mut self.source {
            Source::Session { run, .. } => Some(run.ctx().queue.cut_signal()),
            Source::Frame(_) => None,
        }
    }

    /// The next single frame, for protocols with messages.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.poll_with(cx, Queue::pop)
    }

    fn poll_with(
        &mut self,
        cx: &mut Context<'_>,
        next: impl Fn(&mut Queue) -> Option<Bytes>,
    ) -> Poll<Option<Bytes>> {
        let (run, session_waker, waker, is_stopped) = match &mut self.source {
            Source::Frame(frame) => return Poll::Ready(frame.take().filter(|_| !self.is_mute)),
            Source::Session { run, session_waker, waker, is_stopped } => {
                (run, session_waker, waker, is_stopped)
            }
        };
        if run.ctx().queue.is_cut() {
            // Senders that do not check the signal end here, after their buffered chunks.
            self.source = Source::Frame(None);
            return Poll::Ready(None);
        }
        let mut chunk = next(&mut run.ctx().queue);
        if chunk.is_none() && !*is_stopped {
            let due = session_waker.take_due(cx.waker());
            let mut must_run = due.has_ready_future;
            if let Some(reasons) = due.reasons {
                // Mostly this is all: polling the actor for every event would cost more than the turn.
                must_run |= run.ctx().take_turn(reasons);
            }
            if must_run {
                *is_stopped = Pin::new(&mut **run).poll(&mut Context::from_waker(waker)).is_ready();
            }
            chunk = next(&mut run.ctx().queue);
            if chunk.is_none() && !*is_stopped {
                return Poll::Pending;
            }
        }
        if chunk.is_none() {
            // The sender may keep a body that has ended for a while; its session is not needed.
            self.source = Source::Frame(None);
        }
        Poll::Ready(chunk.filter(|_| !self.is_mute))
    }
}

impl Stream for Feed {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.get_mut().poll_with(cx, Queue::chunk)
    }
}

/// The context of a session: that of every actor, and the state of the watch.
pub struct SessionContext {
    pub(super) progress: WatchProgress,
    pub(super) queue: Queue,
    pub(super) is_turn_scheduled: bool,
    parts: ContextParts<Session>,
}

impl AsyncContextParts<Session> for SessionContext {
    fn parts(&mut self) -> &mut ContextParts<Session> {
        &mut self.parts
    }
}

impl ActorContext for SessionContext {
    fn stop(&mut self) {
        self.parts.stop();
    }

    fn terminate(&mut self) {
        self.parts.terminate();
    }

    fn state(&self) -> ActorState {
        self.parts.state()
    }
}

impl AsyncContext<Session> for SessionContext {
    fn address(&self) -> Addr<Session> {
        self.parts.address()
    }

    fn spawn<F: ActorFuture<Session, Output = ()> + 'static>(&mut self, future: F) -> SpawnHandle {
        self.parts.spawn(future)
    }

    fn wait<F: ActorFuture<Session, Output = ()> + 'static>(&mut self, future: F) {
        self.parts.wait(future);
    }

    fn waiting(&self) -> bool {
        self.parts.waiting()
    }

    fn cancel_future(&mut self, handle: SpawnHandle) -> bool {
        self.parts.cancel_future(handle)
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    #[actix::test]
    async fn feed_without_session_ends_after_its_frame() {
        let mut only = Feed::single(Bytes::from_static(b"sorry"));
        assert_eq!(only.next().await, Some(Bytes::from_static(b"sorry")));
        assert_eq!(only.next().await, None);
    }
}
