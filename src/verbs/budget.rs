//! How much the large answers in flight may hold together. What a client asks for with one line can be a hundred megabytes
//! to make: whoever would go over the bound is asked to come back before anything is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::api::status::{Result, Status};

/// The bytes of all answers of one sort in flight, on all workers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Budget {
    taken: Arc<AtomicUsize>,
    most: usize,
}

impl Budget {
    /// Room for so many bytes.
    pub fn new(most: usize) -> Budget {
        Budget { taken: Arc::default(), most }
    }

    /// No room yet, for an answer that asks for it as it grows.
    pub fn nothing(&self) -> Held {
        Held { of: self.clone(), bytes: 0 }
    }

    /// Room for an answer of so many bytes, or 429. One that is larger than all room still gets in when it is alone.
    pub fn take(&self, bytes: usize) -> Result<Held> {
        self.take_more(bytes, &[])
    }

    /// The same for an answer that has some room already.
    pub fn take_more(&self, bytes: usize, own: &[Held]) -> Result<Held> {
        let held = Held { of: self.clone(), bytes };
        // Counted first and checked after: `held` gives back what did not fit.
        let before = self.taken.fetch_add(bytes, Ordering::SeqCst);
        if before <= own.iter().map(Held::bytes).sum::<usize>() || before.saturating_add(bytes) <= self.most {
            return Ok(held);
        }
        Err(Status::too_many_requests("Too many requests, please try again later.", 1))
    }

    /// What is held now.
    pub fn bytes(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }
}

/// The room of one answer, given back on drop.
#[derive(Debug)]
pub struct Held {
    of: Budget,
    bytes: usize,
}

impl Held {
    /// How much it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes it this much, more or less. If there is no room for more it stays as it is.
    pub fn set(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.bytes {
            let mut more = self.of.take_more(bytes - self.bytes, std::slice::from_ref(self))?;
            // What was taken is this one's now, and given back with it.
            more.bytes = 0;
        } else {
            self.of.taken.fetch_sub(self.bytes - bytes, Ordering::SeqCst);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Held {
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
        let budget = Budget::new(MOST);
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
        let budget = Budget::new(MOST);
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
