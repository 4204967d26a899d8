//! A watch event as it is sent, shared by all watches that send it.
//!
//! A frame is held by the window, with its event, and by the queues of watches that have not sent it yet. The window counts its
//! own memory. What the queues keep alive is counted here, once per frame and not once per queue.

use std::sync::{Arc, Weak};

use bytes::Bytes;

use crate::limits::LARGE_FRAME_BYTES;
use crate::lock::Lock;
use crate::memory::{MemoryBudget, OutOfMemory, Reservation};

/// An encoded event. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Frame {
    /// Too small to be counted.
    Small(Bytes),
    /// Counted while a watch is about to send it.
    Large(Arc<LargeFrame>),
}

impl From<Bytes> for Frame {
    fn from(bytes: Bytes) -> Frame {
        if bytes.len() < LARGE_FRAME_BYTES {
            return Frame::Small(bytes);
        }
        Frame::Large(Arc::new(LargeFrame { bytes, reserved: Lock::default() }))
    }
}

/// A frame whose memory is counted.
#[derive(Debug)]
pub struct LargeFrame {
    bytes: Bytes,
    /// The reservation that the watches share; dangling if none is about to send the frame.
    reserved: Lock<Weak<Reservation>>,
}

impl LargeFrame {
    /// The encoded event.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Counts the frame until the last of these reservations is dropped.
    pub fn reserve(&self, budget: &MemoryBudget) -> Result<Arc<Reservation>, OutOfMemory> {
        let mut reserved = self.reserved.lock();
        if let Some(reserved) = reserved.upgrade() {
            return Ok(reserved);
        }
        let reservation = Arc::new(budget.take(self.bytes.len())?);
        *reserved = Arc::downgrade(&reservation);
        Ok(reservation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_frame_is_reserved_once_for_all_senders() {
        let budget = MemoryBudget::standalone(3 * LARGE_FRAME_BYTES);
        let frame = Frame::from(Bytes::from(vec![b'x'; 2 * LARGE_FRAME_BYTES]));
        let (Frame::Large(frame), Frame::Small(_)) = (frame, Frame::from(Bytes::from_static(b"x"))) else {
            panic!("Frame::from decides by size");
        };
        let reservations: Vec<_> = (0..9).map(|_| frame.reserve(&budget).unwrap()).collect();
        assert_eq!(budget.bytes(), 2 * LARGE_FRAME_BYTES);
        drop(reservations);
        assert_eq!(budget.bytes(), 0, "the frame itself is still alive");
        let _other = budget.take(2 * LARGE_FRAME_BYTES).unwrap();
        assert!(frame.reserve(&budget).is_err());
    }
}
