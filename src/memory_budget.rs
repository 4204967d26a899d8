//! The memory budget of large responses. A one-line request can ask for a response of a hundred megabytes. A request that would
//! exceed the budget gets a 429 before any work is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::api::status::{Result, Status};

/// The bytes of all responses of one kind in flight, on all workers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    taken: Arc<AtomicUsize>,
    most: usize,
}

impl MemoryBudget {
    /// A budget of so many bytes.
    pub fn new(most: usize) -> MemoryBudget {
        MemoryBudget { taken: Arc::default(), most }
    }

    /// An empty share, for a response that takes more as it grows.
    pub fn nothing(&self) -> Reservation {
        Reservation { of: self.clone(), bytes: 0 }
    }

    /// Takes a share of so many bytes, or answers 429. A response larger than the whole budget is allowed if it is alone.
    pub fn take(&self, bytes: usize) -> Result<Reservation> {
        self.take_more(bytes, &[])
    }

    /// Takes more for a response that has these shares already.
    pub fn take_more(&self, bytes: usize, own: &[Reservation]) -> Result<Reservation> {
        let held = Reservation { of: self.clone(), bytes };
        // Counted first and checked afterwards: on failure the drop of `held` gives the bytes back.
        let before = self.taken.fetch_add(bytes, Ordering::SeqCst);
        if before <= own.iter().map(Reservation::bytes).sum::<usize>()
            || before.saturating_add(bytes) <= self.most
        {
            return Ok(held);
        }
        Err(Status::too_many_requests("Too many requests, please try again later.", 1))
    }

    /// The bytes in use.
    pub fn bytes(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }
}

/// The share of one response, given back on drop.
#[derive(Debug)]
pub struct Reservation {
    of: MemoryBudget,
    bytes: usize,
}

impl Reservation {
    /// The size of the share.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Resizes the share. If the budget is exhausted, it keeps its size.
    pub fn set(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.bytes {
            let mut more = self.of.take_more(bytes - self.bytes, std::slice::from_ref(self))?;
            // `self` owns these bytes now, and gives them back.
            more.bytes = 0;
        } else {
            self.of.taken.fetch_sub(self.bytes - bytes, Ordering::SeqCst);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1_000;

    #[test]
    fn what_does_not_fit_comes_back_later() {
        let budget = MemoryBudget::new(MOST);
        let alone = budget.take(2 * MOST).unwrap();
        let refused = budget.take(1).unwrap_err();
        assert_eq!((refused.code, refused.retry_after()), (429, Some(1)));
        drop(alone);
        assert_eq!(budget.bytes(), 0);
        let own = [budget.take(MOST / 2).unwrap(), budget.take(MOST / 2).unwrap()];
        assert!(budget.take(1).is_err());
        assert_eq!(budget.bytes(), MOST / 2 * 2);
        assert!(budget.take_more(1, &own).is_ok(), "it is alone with what it has");
        assert!(budget.take_more(1, &own[..1]).is_err());
    }

    #[test]
    fn room_grows_and_shrinks_and_is_given_back() {
        let budget = MemoryBudget::new(MOST);
        let mut one = budget.take(1).unwrap();
        let other = budget.take(MOST / 2).unwrap();
        one.set(MOST / 2).unwrap();
        assert!(one.set(MOST / 2 + 1).is_err());
        assert_eq!((one.bytes(), budget.bytes()), (MOST / 2, MOST), "as before");
        drop(other);
        one.set(2 * MOST).unwrap();
        one.set(7).unwrap();
        assert_eq!(budget.bytes(), 7);
        drop(one);
        assert_eq!(budget.bytes(), 0);
    }
}
