//! Limits the work of a call on a worker thread, which serves many connections. A call that exceeds the limit stops before it has
//! changed anything, and is repeated on a thread for heavy work.

use std::cell::Cell;

use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_cel::meter;

use crate::limits::{HEAVY_BYTES, HEAVY_CEL_COST, LIST_TURN_BYTES};

/// The work that a call may still do where it is carried out.
#[derive(Debug)]
pub struct WorkLimit {
    /// Whether other connections wait for the thread.
    is_limited: Cell<bool>,
    /// The remaining CEL cost budget.
    cel_cost: Cell<u64>,
    is_exceeded: Cell<bool>,
    is_cel_exceeded: Cell<bool>,
}

impl WorkLimit {
    /// For calls on a worker thread.
    pub fn for_worker() -> WorkLimit {
        WorkLimit { is_limited: Cell::new(true), ..WorkLimit::unlimited() }
    }

    /// For calls on a thread for heavy work, and those of the server itself.
    pub fn unlimited() -> WorkLimit {
        WorkLimit {
            is_limited: Cell::new(false),
            cel_cost: Cell::new(HEAVY_CEL_COST),
            is_exceeded: Cell::new(false),
            is_cel_exceeded: Cell::new(false),
        }
    }

    /// Whether the call exceeded the limit. Then its result must be dropped, and the call repeated on a thread for heavy work.
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded.get()
    }

    /// Whether it exceeded the CEL budget: similar calls will do so, too.
    pub fn is_cel_exceeded(&self) -> bool {
        self.is_cel_exceeded.get()
    }

    /// Whether the limit applies to the call. Then the objects it works on are small.
    pub fn is_limited(&self) -> bool {
        self.is_limited.get()
    }

    /// Lifts the limit before the first of several changes: a repeated call would not report those already made.
    pub fn commit(&self) {
        self.is_limited.set(false);
    }

    /// Fails if the call has exceeded the limit: an object that was validated only in part must not be stored.
    pub fn check(&self) -> Result<()> {
        if self.is_exceeded() { Err(self.exceed()) } else { Ok(()) }
    }

    /// Fails if so many bytes are too much to decode, change and encode on this thread.
    pub fn check_bytes(&self, bytes: usize) -> Result<()> {
        if self.is_limited.get() && bytes > HEAVY_BYTES { Err(self.exceed()) } else { Ok(()) }
    }

    /// Fails if so many bytes of objects are too much to encode in one step of a list. Large lists are common and yield between
    /// steps, so this allows more than [`WorkLimit::check_bytes`].
    pub fn check_step(&self, bytes: usize) -> Result<()> {
        if self.is_limited.get() && bytes > LIST_TURN_BYTES { Err(self.exceed()) } else { Ok(()) }
    }

    /// Evaluates CEL within the budget. If it is exceeded, the result of `evaluate` is dropped: it may report the exhausted
    /// budget as an error of the object.
    pub fn metered<T>(&self, evaluate: impl FnOnce() -> T) -> Result<T> {
        if !self.is_limited.get() {
            return Ok(evaluate());
        }
        let (evaluated, rest) = meter::with_limit(self.cel_cost.get(), evaluate);
        self.cel_cost.set(rest.unwrap_or_default());
        rest.map(|_| evaluated).ok_or_else(|| self.exceed_cel())
    }

    /// Fails if a later evaluation would exceed the CEL budget, before something is done that must not be repeated.
    pub fn check_cel(&self, evaluate: impl FnOnce()) -> Result<()> {
        if !self.is_limited.get() {
            return Ok(());
        }
        let ((), rest) = meter::with_limit(self.cel_cost.get(), evaluate);
        rest.map(drop).ok_or_else(|| self.exceed_cel())
    }

    fn exceed_cel(&self) -> Box<Status> {
        self.is_cel_exceeded.set(true);
        self.exceed()
    }

    /// The error that ends the call on this thread. Clients see it only if the call is not repeated elsewhere.
    fn exceed(&self) -> Box<Status> {
        self.is_exceeded.set(true);
        Status::too_many_requests("Too many requests, please try again later.", 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_limit_applies_to_worker_threads_only() {
        for (limit, is_refused) in [(WorkLimit::for_worker(), true), (WorkLimit::unlimited(), false)] {
            assert!(limit.check_bytes(HEAVY_BYTES).is_ok() && !limit.is_exceeded());
            assert_eq!(limit.check_bytes(HEAVY_BYTES + 1).is_err(), is_refused);
            assert_eq!(limit.is_exceeded(), is_refused);
        }
        let committed = WorkLimit::for_worker();
        committed.commit();
        assert!(committed.check_bytes(HEAVY_BYTES + 1).is_ok() && committed.check().is_ok());
    }

    #[test]
    fn work_limit_sums_cel_cost() {
        let limit = WorkLimit::for_worker();
        assert!(limit.metered(|| meter::spend(HEAVY_CEL_COST / 2)).is_ok() && !limit.is_exceeded());
        assert!(limit.check_cel(|| meter::spend(HEAVY_CEL_COST / 2)).is_ok());
        assert!(limit.metered(|| meter::spend(HEAVY_CEL_COST / 4)).is_ok(), "a check spends nothing");
        assert!(limit.metered(|| meter::spend(HEAVY_CEL_COST)).is_err() && limit.is_exceeded());
        assert!(limit.is_cel_exceeded());
        let limit = WorkLimit::for_worker();
        assert!(limit.check_cel(|| meter::spend(HEAVY_CEL_COST * 2)).is_err() && limit.is_cel_exceeded());
        assert!(WorkLimit::unlimited().check_cel(|| meter::spend(HEAVY_CEL_COST * 2)).is_ok());
        assert!(WorkLimit::unlimited().metered(|| meter::spend(HEAVY_CEL_COST * 2)).is_ok());
    }
}
