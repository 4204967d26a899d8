//! A watch event as it is sent, shared by all watches that send it.
//!
//! A frame lives in the window, with its event, and in the queues of those who have not sent it yet. The window counts what it keeps.
//! What the others keep alive is counted here: once, from the first of them to the last.

use std::sync::{Arc, Weak};

use bytes::Bytes;

use crate::limits::HELD_FROM_BYTES;
use crate::lock::Lock;
use crate::memory::{MemoryBudget, OutOfMemory, Reservation};

/// An encoded event. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Frame {
    /// Not worth counting.
    Small(Bytes),
    /// Counted while somebody is about to send it.
    Large(Arc<LargeFrame>),
}

impl From<Bytes> for Frame {
    fn from(bytes: Bytes) -> Frame {
        if bytes.len() < HELD_FROM_BYTES {
            return Frame::Small(bytes);
        }
        Frame::Large(Arc::new(LargeFrame { bytes, reserved: Lock::default() }))
    }
}

/// A frame that counts.
#[derive(Debug)]
pub struct LargeFrame {
    bytes: Bytes,
    /// What those who are about to send it have reserved for it together; dangling if nobody is.
    reserved: Lock<Weak<Reservation>>,
}

impl LargeFrame {
    /// The frame itself.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Counts the frame until the last of these reservations is dropped.
    pub fn reserve(&self, budget: &MemoryBudget) -> Result<Arc<Reservation>, OutOfMemory> {
        let mut reserved = self.reserved.lock();
        if let Some(reserved) = reserved.upgrade() {
            return Ok(reserved);
        }
        let own = Arc::new(budget.take(self.bytes.len())?);
        *reserved = Arc::downgrade(&own);
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_counts_once_while_somebody_is_about_to_send_it() {
        let budget = MemoryBudget::alone(3 * HELD_FROM_BYTES);
        let frame = Frame::from(Bytes::from(vec![b'x'; 2 * HELD_FROM_BYTES]));
        let (Frame::Large(frame), Frame::Small(_)) = (frame, Frame::from(Bytes::from_static(b"x"))) else {
            panic!("sizes decide");
        };
        let all: Vec<_> = (0..9).map(|_| frame.reserve(&budget).unwrap()).collect();
        assert_eq!(budget.bytes(), 2 * HELD_FROM_BYTES);
        drop(all);
        assert_eq!(budget.bytes(), 0, "though the frame is still there");
        let _other = budget.take(2 * HELD_FROM_BYTES).unwrap();
        assert!(frame.reserve(&budget).is_err());
    }
}
