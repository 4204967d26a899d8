//! What the body of a watch response reads: the frames that a session has ready.
//!
//! Both ends run on one thread. The session puts frames in until the queue is full, the body takes chunks out, and each
//! tells the other when there is something to do. A body that nobody reads costs its own queue and nothing else.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use futures::Stream;

use crate::limits::{FEED_CHUNK_BYTES, SESSION_BYTES};
use crate::summons::Summons;

/// Where a queue stands between its session and its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Frames come. Next: any other.
    Open,
    /// The session found no room and waits for the body. Next: open, ended, abandoned.
    Waiting,
    /// No frame will come any more; the body reads what is left. Next: abandoned.
    Ended,
    /// The body is gone: nothing that is put in will be read.
    Abandoned,
}

struct Queue {
    frames: VecDeque<Bytes>,
    bytes: usize,
    phase: Phase,
    /// The task that waits for a frame.
    reader: Option<Waker>,
}

/// The session's end.
pub(crate) struct Outlet(Rc<RefCell<Queue>>);

/// The body's end: a stream of chunks, none of them empty. Dropping it ends the session.
pub struct Feed {
    queue: Rc<RefCell<Queue>>,
    /// How the session is called; none if there is no session.
    summons: Option<Arc<Summons>>,
}

impl Feed {
    /// A feed without a session: one frame, and the end.
    pub fn only(frame: Bytes) -> Feed {
        let frames = VecDeque::from_iter(Some(frame).filter(|frame| !frame.is_empty()));
        let bytes = frames.iter().map(Bytes::len).sum();
        let queue = Queue { frames, bytes, phase: Phase::Ended, reader: None };
        Feed { queue: Rc::new(RefCell::new(queue)), summons: None }
    }

    /// The next frame by itself, for protocols that have messages of their own.
    pub fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.poll_with(context, Queue::frame)
    }

    fn poll_with(
        &mut self,
        context: &mut Context<'_>,
        next: impl FnOnce(&mut Queue) -> Option<Bytes>,
    ) -> Poll<Option<Bytes>> {
        let mut queue = self.queue.borrow_mut();
        if let Some(chunk) = next(&mut queue) {
            if queue.offers_room() {
                self.call();
            }
            return Poll::Ready(Some(chunk));
        }
        if queue.phase == Phase::Ended {
            return Poll::Ready(None);
        }
        queue.reader = Some(context.waker().clone());
        Poll::Pending
    }

    fn call(&self) {
        if let Some(summons) = &self.summons {
            summons.resume();
        }
    }
}

/// A queue with its two ends. The body calls the session by `summons`.
pub(crate) fn feed(summons: Arc<Summons>) -> (Outlet, Feed) {
    let queue = Queue { frames: VecDeque::new(), bytes: 0, phase: Phase::Open, reader: None };
    let queue = Rc::new(RefCell::new(queue));
    (Outlet(Rc::clone(&queue)), Feed { queue, summons: Some(summons) })
}

impl Outlet {
    /// Puts a frame in, whether or not there is room: a caller that can wait asks [`Outlet::has_room`] before.
    pub(crate) fn push(&self, frame: Bytes) {
        let mut queue = self.0.borrow_mut();
        // An empty chunk would stall the stream for good at the HTTP layer.
        if frame.is_empty() || queue.phase == Phase::Abandoned {
            return;
        }
        queue.bytes += frame.len();
        queue.frames.push_back(frame);
        wake(queue.reader.take());
    }

    /// Whether the session may go on. If not, it is called when there is room again.
    pub(crate) fn has_room(&self) -> bool {
        let mut queue = self.0.borrow_mut();
        let room = queue.bytes < SESSION_BYTES;
        if !room && queue.phase == Phase::Open {
            queue.phase = Phase::Waiting;
        }
        room
    }

    /// Whether the body is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.borrow().phase == Phase::Abandoned
    }

    /// No frame will come any more.
    pub(crate) fn end(&self) {
        let mut queue = self.0.borrow_mut();
        if queue.phase != Phase::Abandoned {
            queue.phase = Phase::Ended;
            wake(queue.reader.take());
        }
    }
}

fn wake(reader: Option<Waker>) {
    if let Some(reader) = reader {
        reader.wake();
    }
}

impl Queue {
    /// The next frame.
    fn frame(&mut self) -> Option<Bytes> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    /// The next chunk: one frame as it is, or several small ones together.
    fn chunk(&mut self) -> Option<Bytes> {
        let first = self.frames.pop_front()?;
        let mut size = first.len();
        let more = self.frames.iter().take_while(|frame| {
            size += frame.len();
            size <= FEED_CHUNK_BYTES
        });
        let more = more.count();
        if more == 0 {
            self.bytes -= first.len();
            return Some(first);
        }
        let mut chunk = BytesMut::with_capacity(FEED_CHUNK_BYTES.min(self.bytes));
        chunk.extend_from_slice(&first);
        for frame in self.frames.drain(..more) {
            chunk.extend_from_slice(&frame);
        }
        self.bytes -= chunk.len();
        Some(chunk.freeze())
    }

    /// Whether the session waits for room and half of the queue is free. Not before, so that it comes for more than a
    /// frame.
    fn offers_room(&mut self) -> bool {
        let offers = self.phase == Phase::Waiting && self.bytes <= SESSION_BYTES / 2;
        if offers {
            self.phase = Phase::Open;
        }
        offers
    }
}

impl Stream for Feed {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.get_mut().poll_with(context, Queue::chunk)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut queue = self.queue.borrow_mut();
        let ended = queue.phase == Phase::Ended;
        *queue = Queue { frames: VecDeque::new(), bytes: 0, phase: Phase::Abandoned, reader: None };
        if !ended {
            self.call();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use actix::Actor;
    use futures::{FutureExt, StreamExt};

    use super::*;
    use crate::summons::tests::Counter;

    fn ends() -> (Outlet, Feed) {
        feed(Summons::new(Counter(Rc::new(Cell::new(0))).start().recipient()))
    }

    fn next(feed: &mut Feed) -> Option<Option<Bytes>> {
        feed.next().now_or_never()
    }

    #[actix::test]
    async fn small_frames_leave_together_and_empty_ones_never() {
        let (outlet, mut feed) = ends();
        assert_eq!(next(&mut feed), None);
        for frame in ["a", "", "b", "c"] {
            outlet.push(Bytes::from_static(frame.as_bytes()));
        }
        assert_eq!(next(&mut feed), Some(Some(Bytes::from_static(b"abc"))));
        assert_eq!(next(&mut feed), None);
        outlet.push(Bytes::new());
        assert_eq!(next(&mut feed), None);
    }

    #[actix::test]
    async fn a_chunk_is_bounded_and_a_large_frame_is_not_copied() {
        let (outlet, mut feed) = ends();
        let large = Bytes::from(vec![b'x'; FEED_CHUNK_BYTES + 1]);
        let half = Bytes::from(vec![b'y'; FEED_CHUNK_BYTES / 2]);
        for frame in [&large, &half, &half, &half] {
            outlet.push(frame.clone());
        }
        let first = next(&mut feed).flatten().expect("a chunk");
        assert_eq!(first.as_ptr(), large.as_ptr());
        let sizes: Vec<usize> =
            std::iter::from_fn(|| next(&mut feed).flatten()).map(|chunk| chunk.len()).collect();
        assert_eq!(sizes, [FEED_CHUNK_BYTES, FEED_CHUNK_BYTES / 2]);
        assert_eq!(outlet.0.borrow().bytes, 0);
    }

    #[actix::test]
    async fn who_found_no_room_is_called_when_half_is_free() {
        let (outlet, mut feed) = ends();
        let quarter = Bytes::from(vec![b'x'; SESSION_BYTES / 4]);
        for _ in 0..4 {
            assert!(outlet.has_room());
            outlet.push(quarter.clone());
        }
        assert!(!outlet.has_room());
        next(&mut feed);
        assert!(!feed.summons.as_ref().unwrap().answer().resume);
        next(&mut feed);
        assert!(feed.summons.as_ref().unwrap().answer().resume);
        next(&mut feed);
        assert!(!feed.summons.as_ref().unwrap().answer().resume, "once is enough");
    }

    #[actix::test]
    async fn frames_can_be_taken_one_by_one() {
        let (outlet, mut feed) = ends();
        for frame in ["a", "b"] {
            outlet.push(Bytes::from_static(frame.as_bytes()));
        }
        outlet.end();
        let mut next = async || std::future::poll_fn(|context| feed.poll_frame(context)).await;
        assert_eq!((next().await.unwrap(), next().await.unwrap()), ("a".into(), "b".into()));
        assert_eq!(next().await, None);
        let mut only = Feed::only(Bytes::from_static(b"sorry"));
        assert_eq!(only.next().await, Some(Bytes::from_static(b"sorry")));
        assert_eq!(only.next().await, None);
    }

    #[actix::test]
    async fn what_was_put_in_before_the_end_is_read() {
        let (outlet, mut feed) = ends();
        outlet.push(Bytes::from_static(b"last"));
        outlet.end();
        assert_eq!(next(&mut feed), Some(Some(Bytes::from_static(b"last"))));
        assert_eq!(next(&mut feed), Some(None));
    }

    #[actix::test]
    async fn a_dropped_body_frees_its_frames_and_calls_the_session() {
        let (outlet, feed) = ends();
        let summons = feed.summons.clone().unwrap();
        outlet.push(Bytes::from_static(b"x"));
        drop(feed);
        assert!(outlet.is_abandoned() && summons.answer().resume);
        outlet.push(Bytes::from_static(b"y"));
        outlet.end();
        assert!(outlet.is_abandoned() && outlet.0.borrow().frames.is_empty());
    }
}
