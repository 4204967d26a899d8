//! How much the lists in flight may hold together. What a client asks for with one line can be a hundred megabytes to make:
//! whoever would go over the bound is asked to come back before anything is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::api::status::{Result, Status};
use crate::limits::LIST_BYTES;

/// The bytes of all lists in flight, on all workers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Budget(Arc<AtomicUsize>);

impl Budget {
    /// Room for a list of so many bytes, or 429. A list that is larger than all room still gets in when it is alone.
    pub fn take(&self, bytes: usize) -> Result<Held> {
        self.take_more(bytes, &[])
    }

    /// The same for a list that has some room already.
    pub fn take_more(&self, bytes: usize, own: &[Held]) -> Result<Held> {
        let held = Held { of: self.clone(), bytes };
        // Counted first and checked after: `held` gives back what did not fit.
        let before = self.0.fetch_add(bytes, Ordering::SeqCst);
        if before <= own.iter().map(Held::bytes).sum::<usize>() || before.saturating_add(bytes) <= LIST_BYTES
        {
            return Ok(held);
        }
        Err(Status::too_many_requests("Too many requests, please try again later.", 1))
    }

    /// What is held now.
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// The room of one list, given back on drop.
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
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_comes_back_later() {
        let budget = Budget::default();
        let alone = budget.take(2 * LIST_BYTES).unwrap();
        let refused = budget.take(1).unwrap_err();
        assert_eq!((refused.code, refused.retry_after()), (429, Some(1)));
        drop(alone);
        assert_eq!(budget.bytes(), 0);
        let own = [budget.take(LIST_BYTES / 2).unwrap(), budget.take(LIST_BYTES / 2).unwrap()];
        assert!(budget.take(1).is_err());
        assert_eq!(budget.bytes(), LIST_BYTES / 2 * 2);
        assert!(budget.take_more(1, &own).is_ok(), "it is alone with what it has");
        assert!(budget.take_more(1, &own[..1]).is_err());
    }
}
