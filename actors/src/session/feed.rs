//! The frames that a watch session has ready for its response body.
//!
//! Both ends run on one thread. The session adds frames until the queue is full, and the body takes chunks out. A body that finds
//! the queue empty runs the session's turn itself if there is work, see [`crate::session`]. A client that does not read costs
//! only its own queue.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures::Stream;
use pilothouse_types::frame::Frame;
use pilothouse_types::limits::LARGE_FRAME_BYTES;
use pilothouse_types::memory::OutOfMemory;

use crate::limits::{FEED_CHUNK_BYTES, SESSION_BYTES};
use crate::session::progress::WatchProgress;
use crate::session_waker::SessionWaker;
use crate::watch_memory::{CutSignal, WatchAccount};

/// The state of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Frames may be added. Next: any other.
    Open,
    /// The queue is full: the body fetches more once it has read everything. Next: open, ended, abandoned.
    Full,
    /// No frame will be added; the body reads the rest. Next: abandoned.
    Ended,
    /// The body is gone: frames are discarded.
    Abandoned,
}

struct Queue {
    frames: VecDeque<Bytes>,
    bytes: usize,
    /// Bytes of frames that nobody has reserved yet, because they are small.
    small: usize,
    /// How many of those the account has noted.
    noted: usize,
    phase: Phase,
    /// Whether the account has noted anything so far: before that nobody cuts the watch.
    can_be_cut: bool,
    /// What the watch has of the memory of all; `None` without a session. Apart from the queue, because an event that is read at
    /// once has nothing to do with it: with thousands of watches every line of memory that an event touches counts.
    account: Option<Box<WatchAccount>>,
}

/// The session's end.
pub(crate) struct FeedWriter {
    queue: Rc<RefCell<Queue>>,
    waker: Arc<SessionWaker>,
}

/// The body's end: a stream of nonempty chunks. Dropping it ends the session.
pub struct Feed {
    queue: Rc<RefCell<Queue>>,
    /// Calls the session; `None` without a session.
    waker: Option<Arc<SessionWaker>>,
    /// The session's work, for a body that has read everything; dangling once the session ended.
    progress: Weak<RefCell<WatchProgress>>,
    /// Whether the stream ends in the place of its first frame.
    is_mute: bool,
}

impl Feed {
    /// A feed without a session: one frame, and the end.
    pub fn only(frame: Bytes) -> Feed {
        let frames = VecDeque::from_iter(Some(frame).filter(|frame| !frame.is_empty()));
        let (bytes, small) = (frames.iter().map(Bytes::len).sum(), frames.iter().map(small).sum());
        let queue =
            Queue { frames, bytes, small, noted: 0, phase: Phase::Ended, can_be_cut: false, account: None };
        Feed { queue: Rc::new(RefCell::new(queue)), waker: None, progress: Weak::new(), is_mute: false }
    }

    /// For a client that asked for a form that no event has: the feed ends in the place of the first frame.
    pub fn mute(self) -> Feed {
        let mut feed = self;
        feed.is_mute = true;
        feed
    }

    /// Tells whoever sends this body when it must stop at once; `None` without a session.
    pub fn cut_signal(&self) -> Option<CutSignal> {
        self.queue.borrow().account.as_ref().map(|account| account.cut_signal())
    }

    /// The next single frame, for protocols with messages.
    pub fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.poll_with(context, Queue::pop)
    }

    /// Runs turns of this session when there is nothing to read.
    pub(crate) fn follow(&mut self, progress: Weak<RefCell<WatchProgress>>) {
        self.progress = progress;
    }

    fn poll_with(
        &mut self,
        context: &mut Context<'_>,
        next: impl Fn(&mut Queue) -> Option<Bytes>,
    ) -> Poll<Option<Bytes>> {
        loop {
            let mut queue = self.queue.borrow_mut();
            if queue.is_cut() {
                // Senders that do not look at the signal end here, when they have sent what they hold.
                return Poll::Ready(None);
            }
            if let Some(chunk) = next(&mut queue) {
                return Poll::Ready(Some(chunk).filter(|_| !self.is_mute));
            }
            if queue.phase == Phase::Ended {
                return Poll::Ready(None);
            }
            let had_more = queue.phase == Phase::Full;
            queue.phase = Phase::Open;
            drop(queue);
            let Some(waker) = &self.waker else { return Poll::Pending };
            if !had_more && !waker.has_reasons_or_parks(context.waker()) {
                return Poll::Pending;
            }
            match self.progress.upgrade() {
                // A turn clears the wake state, so this ends; longer work is left to the session.
                Some(progress) => progress.borrow_mut().run_by_body(),
                None => return Poll::Pending,
            }
        }
    }
}

/// A queue with its two ends. The body calls the session through `waker`.
pub(crate) fn feed(waker: Arc<SessionWaker>, account: WatchAccount) -> (FeedWriter, Feed) {
    let queue = Queue {
        frames: VecDeque::new(),
        bytes: 0,
        small: 0,
        noted: 0,
        phase: Phase::Open,
        can_be_cut: false,
        account: Some(Box::new(account)),
    };
    let queue = Rc::new(RefCell::new(queue));
    let writer = FeedWriter { queue: Rc::clone(&queue), waker: Arc::clone(&waker) };
    (writer, Feed { queue, waker: Some(waker), progress: Weak::new(), is_mute: false })
}

impl FeedWriter {
    /// Adds a small frame, whether or not there is room: a caller that can wait checks [`FeedWriter::has_room`] first.
    pub(crate) fn push(&self, frame: Bytes) {
        // Small frames are never refused.
        let _ = self.push_event(Frame::Small(frame));
    }

    /// Adds the frame of an event, if there is memory for it.
    pub(crate) fn push_event(&self, frame: Frame) -> Result<(), OutOfMemory> {
        let mut queue = self.queue.borrow_mut();
        if queue.phase == Phase::Abandoned {
            return Ok(());
        }
        queue.push(frame)?;
        drop(queue);
        self.waker.wake_waiting_body();
        Ok(())
    }

    /// Makes a frame of about this size, if there is memory for it.
    pub(crate) fn make(&self, bytes: usize, make: impl FnOnce() -> Bytes) -> Result<Bytes, OutOfMemory> {
        self.may_make(bytes)?;
        Ok(make())
    }

    /// Whether there is memory for a frame of about this size.
    pub(crate) fn may_make(&self, bytes: usize) -> Result<(), OutOfMemory> {
        self.queue.borrow().account.as_ref().map_or(Ok(()), |account| account.may_make(bytes))
    }

    /// Whether there is memory for more frames in this queue.
    pub(crate) fn has_memory(&self) -> bool {
        let queue = self.queue.borrow();
        queue.bytes < LARGE_FRAME_BYTES || queue.account.as_ref().is_none_or(|account| account.may_grow())
    }

    /// Whether the session may go on. If not, the body runs a turn once it has read everything.
    pub(crate) fn has_room(&self) -> bool {
        let mut queue = self.queue.borrow_mut();
        let room = queue.bytes < SESSION_BYTES;
        if !room && queue.phase == Phase::Open {
            queue.phase = Phase::Full;
        }
        room
    }

    /// Whether the body is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.queue.borrow().phase == Phase::Abandoned
    }

    /// Ends the stream after the frames that are queued.
    pub(crate) fn end(&self) {
        let mut queue = self.queue.borrow_mut();
        if queue.phase != Phase::Abandoned {
            queue.phase = Phase::Ended;
            drop(queue);
            self.waker.wake_waiting_body();
        }
    }
}

impl Queue {
    fn is_cut(&self) -> bool {
        self.can_be_cut && self.account.as_ref().is_some_and(|account| account.is_cut())
    }

    fn push(&mut self, frame: Frame) -> Result<(), OutOfMemory> {
        let frame = match (frame, &mut self.account) {
            (Frame::Small(bytes), _) => bytes,
            (Frame::Large(frame), Some(account)) => {
                self.can_be_cut = true;
                account.hold(frame)?
            }
            (Frame::Large(frame), None) => frame.bytes().clone(),
        };
        // An empty chunk would stall the stream for good at the HTTP layer.
        if !frame.is_empty() {
            self.bytes += frame.len();
            self.small += small(&frame);
            self.frames.push_back(frame);
            self.count();
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<Bytes> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        self.small -= small(&frame);
        self.count();
        Some(frame)
    }

    /// Keeps the share of small frames near their size. In steps: a queue that is read as it grows, as most are, costs nothing.
    fn count(&mut self) {
        let size = self.small / LARGE_FRAME_BYTES * LARGE_FRAME_BYTES;
        if self.noted != size
            && let Some(account) = &mut self.account
        {
            account.hold_queued(size);
            (self.noted, self.can_be_cut) = (size, true);
        }
    }

    /// The next chunk: one frame as it is, or several small ones joined.
    fn chunk(&mut self) -> Option<Bytes> {
        let first = self.pop()?;
        let mut size = first.len();
        let more = self.frames.iter().take_while(|frame| {
            size += frame.len();
            size <= FEED_CHUNK_BYTES
        });
        let more = more.count();
        if more == 0 {
            return Some(first);
        }
        let mut chunk = BytesMut::with_capacity(FEED_CHUNK_BYTES.min(first.len() + self.bytes));
        chunk.extend_from_slice(&first);
        for _ in 0..more {
            chunk.extend_from_slice(&self.pop().unwrap_or_default());
        }
        let chunk = chunk.freeze();
        match &mut self.account {
            Some(account) => Some(account.hold_joined(chunk)),
            None => Some(chunk),
        }
    }
}

/// What a frame adds to the bytes of small ones.
fn small(frame: &Bytes) -> usize {
    if frame.len() < LARGE_FRAME_BYTES { frame.len() } else { 0 }
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
        *queue = Queue {
            frames: VecDeque::new(),
            bytes: 0,
            small: 0,
            noted: 0,
            phase: Phase::Abandoned,
            can_be_cut: false,
            account: None,
        };
        drop(queue);
        if let Some(waker) = &self.waker {
            waker.forget_body();
            if !ended {
                waker.resume();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use actix::Actor;
    use futures::{FutureExt, StreamExt};

    use super::*;
    use crate::session_waker::tests::Counter;
    use crate::watch_memory::WatchMemory;

    fn ends() -> (FeedWriter, Feed) {
        let account = WatchMemory::unbounded().open("user").unwrap();
        feed(SessionWaker::new(Counter(Rc::new(Cell::new(0))).start().recipient()), account)
    }

    fn next(feed: &mut Feed) -> Option<Option<Bytes>> {
        feed.next().now_or_never()
    }

    #[actix::test]
    async fn small_frames_leave_together_and_empty_ones_never() {
        let (writer, mut feed) = ends();
        assert_eq!(next(&mut feed), None);
        for frame in ["a", "", "b", "c"] {
            writer.push(Bytes::from_static(frame.as_bytes()));
        }
        assert_eq!(next(&mut feed), Some(Some(Bytes::from_static(b"abc"))));
        assert_eq!(next(&mut feed), None);
        writer.push(Bytes::new());
        assert_eq!(next(&mut feed), None);
    }

    #[actix::test]
    async fn a_chunk_is_bounded_and_a_large_frame_is_not_copied() {
        let (writer, mut feed) = ends();
        let large = Bytes::from(vec![b'x'; FEED_CHUNK_BYTES + 1]);
        let half = Bytes::from(vec![b'y'; FEED_CHUNK_BYTES / 2]);
        for frame in [&large, &half, &half, &half] {
            writer.push(frame.clone());
        }
        let first = next(&mut feed).flatten().expect("a chunk");
        assert_eq!(first.as_ptr(), large.as_ptr());
        let sizes: Vec<usize> =
            std::iter::from_fn(|| next(&mut feed).flatten()).map(|chunk| chunk.len()).collect();
        assert_eq!(sizes, [FEED_CHUNK_BYTES, FEED_CHUNK_BYTES / 2]);
        assert_eq!(writer.queue.borrow().bytes, 0);
    }

    #[actix::test]
    async fn frames_can_be_taken_one_by_one() {
        let (writer, mut feed) = ends();
        for frame in ["a", "b"] {
            writer.push(Bytes::from_static(frame.as_bytes()));
        }
        writer.end();
        let mut next = async || std::future::poll_fn(|context| feed.poll_frame(context)).await;
        assert_eq!((next().await.unwrap(), next().await.unwrap()), ("a".into(), "b".into()));
        assert_eq!(next().await, None);
        let mut only = Feed::only(Bytes::from_static(b"sorry"));
        assert_eq!(only.next().await, Some(Bytes::from_static(b"sorry")));
        assert_eq!(only.next().await, None);
    }

    #[actix::test]
    async fn what_was_put_in_before_the_end_is_read() {
        let (writer, mut feed) = ends();
        writer.push(Bytes::from_static(b"last"));
        writer.end();
        assert_eq!(next(&mut feed), Some(Some(Bytes::from_static(b"last"))));
        assert_eq!(next(&mut feed), Some(None));
    }

    #[actix::test]
    async fn a_dropped_body_frees_its_frames_and_calls_the_session() {
        let (writer, feed) = ends();
        let waker = feed.waker.clone().unwrap();
        writer.push(Bytes::from_static(b"x"));
        drop(feed);
        assert!(writer.is_abandoned() && waker.take_reasons().resume);
        writer.push(Bytes::from_static(b"y"));
        writer.end();
        assert!(writer.is_abandoned() && writer.queue.borrow().frames.is_empty());
    }
}
