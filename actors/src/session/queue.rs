//! The frames of a watch that its client has not taken yet.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use pilothouse_types::frame::Frame;
use pilothouse_types::limits::LARGE_FRAME_BYTES;
use pilothouse_types::memory::OutOfMemory;

use crate::limits::{FEED_CHUNK_BYTES, SESSION_BYTES};
use crate::watch_memory::{CutSignal, WatchAccount};

/// The queue of one watch. A turn of the session fills it, and the response takes everything out before the next turn.
pub(crate) struct Queue {
    frames: VecDeque<Bytes>,
    bytes: usize,
    /// Bytes of small frames, which are not reserved one by one.
    small: usize,
    /// How many of those the account has noted.
    noted: usize,
    /// Whether the account has noted anything so far: before that the watch cannot be cut.
    can_be_cut: bool,
    /// The memory of this watch. Apart from the queue, because an event that is read at once does not use it: with thousands of
    /// watches every cache line that an event touches counts.
    account: Box<WatchAccount>,
}

impl Queue {
    pub(crate) fn new(account: WatchAccount) -> Queue {
        let account = Box::new(account);
        Queue { frames: VecDeque::new(), bytes: 0, small: 0, noted: 0, can_be_cut: false, account }
    }

    /// Tells the sender of the response to stop at once.
    pub(crate) fn cut_signal(&self) -> CutSignal {
        self.account.cut_signal()
    }

    /// Adds a small frame, whether or not there is room: a caller that can wait checks [`Queue::has_room`] first.
    pub(crate) fn push(&mut self, frame: Bytes) {
        // Small frames are never refused.
        let _bytes = self.push_event(Frame::Small(frame));
    }

    /// Adds the frame of an event, if there is memory for it, and says how many bytes it has.
    pub(crate) fn push_event(&mut self, frame: Frame) -> Result<usize, OutOfMemory> {
        let frame = match frame {
            Frame::Small(bytes) => bytes,
            Frame::Large(frame) => {
                self.can_be_cut = true;
                self.account.hold(frame)?
            }
        };
        let size = frame.len();
        // An empty chunk would stall the stream for good at the HTTP layer.
        if size > 0 {
            self.bytes += size;
            self.small += small_bytes(&frame);
            self.frames.push_back(frame);
            self.count();
        }
        Ok(size)
    }

    /// Makes a frame of about this size, if there is memory for it.
    pub(crate) fn make(&self, bytes: usize, make: impl FnOnce() -> Bytes) -> Result<Bytes, OutOfMemory> {
        self.may_make(bytes)?;
        Ok(make())
    }

    /// Whether there is memory for a frame of about this size.
    pub(crate) fn may_make(&self, bytes: usize) -> Result<(), OutOfMemory> {
        self.account.may_make(bytes)
    }

    /// Whether there is memory for more frames in this queue.
    pub(crate) fn has_memory(&self) -> bool {
        self.bytes < LARGE_FRAME_BYTES || self.account.may_grow()
    }

    /// Whether the turn may go on. If not, the next one comes when everything is taken.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes < SESSION_BYTES
    }

    /// Whether the watch must end at once for lack of memory.
    pub(crate) fn is_cut(&self) -> bool {
        self.can_be_cut && self.account.is_cut()
    }

    /// Takes the next frame.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        self.small -= small_bytes(&frame);
        self.count();
        Some(frame)
    }

    /// Keeps the share of small frames near their size. In steps: a queue that is read as it grows, as most are, costs nothing.
    fn count(&mut self) {
        let size = self.small / LARGE_FRAME_BYTES * LARGE_FRAME_BYTES;
        if self.noted != size {
            self.account.hold_queued(size);
            (self.noted, self.can_be_cut) = (size, true);
        }
    }

    /// Takes the next chunk: one frame as it is, or several small ones joined.
    pub(crate) fn chunk(&mut self) -> Option<Bytes> {
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
        Some(self.account.hold_joined(chunk.freeze()))
    }
}

/// The bytes that a frame adds to those of small frames.
fn small_bytes(frame: &Bytes) -> usize {
    if frame.len() < LARGE_FRAME_BYTES { frame.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch_memory::WatchMemory;

    fn queue() -> Queue {
        Queue::new(WatchMemory::unbounded().open("user").unwrap())
    }

    #[test]
    fn chunk_joins_small_frames_and_skips_empty_ones() {
        let mut queue = queue();
        assert_eq!(queue.chunk(), None);
        for frame in ["a", "", "b", "c"] {
            queue.push(Bytes::from_static(frame.as_bytes()));
        }
        assert_eq!(queue.chunk(), Some(Bytes::from_static(b"abc")));
        assert_eq!(queue.chunk(), None);
        queue.push(Bytes::new());
        assert_eq!(queue.chunk(), None);
    }

    #[test]
    fn chunk_is_bounded_and_a_large_frame_is_not_copied() {
        let mut queue = queue();
        let large = Bytes::from(vec![b'x'; FEED_CHUNK_BYTES + 1]);
        let half = Bytes::from(vec![b'y'; FEED_CHUNK_BYTES / 2]);
        for frame in [&large, &half, &half, &half] {
            queue.push(frame.clone());
        }
        let first = queue.chunk().expect("a chunk");
        assert_eq!(first.as_ptr(), large.as_ptr());
        let sizes: Vec<usize> = std::iter::from_fn(|| queue.chunk()).map(|chunk| chunk.len()).collect();
        assert_eq!(sizes, [FEED_CHUNK_BYTES, FEED_CHUNK_BYTES / 2]);
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn frames_can_be_popped_one_by_one() {
        let mut queue = queue();
        for frame in ["a", "b"] {
            queue.push(Bytes::from_static(frame.as_bytes()));
        }
        assert_eq!((queue.pop().unwrap(), queue.pop().unwrap()), ("a".into(), "b".into()));
        assert_eq!(queue.pop(), None);
    }
}
