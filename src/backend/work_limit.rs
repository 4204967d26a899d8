//! How much work a call may do at once. A worker thread serves many connections, so a call whose work turns out to be large gives
//! up there, before it has changed anything, and is carried out again on a thread for heavy work.

use std::cell::Cell;

use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_cel::meter;

use crate::limits::{HEAVY_BYTES, HEAVY_CEL_COST, LIST_TURN_BYTES};

/// The work that a call may still do where it is carried out.
#[derive(Debug)]
pub struct WorkLimit {
    /// Whether others wait for the thread, so that the call has to give up large work.
    is_limited: Cell<bool>,
    /// The CEL cost that is left then.
    cel_cost: Cell<u64>,
    is_exceeded: Cell<bool>,
    is_cel_exceeded: Cell<bool>,
}

impl WorkLimit {
    /// For calls on a worker thread.
    pub fn of_worker() -> WorkLimit {
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

    /// Whether the call gave up: then its result means nothing, and it has to be carried out elsewhere.
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded.get()
    }

    /// Whether it gave up because of CEL: then another call like it would, too.
    pub fn is_cel_exceeded(&self) -> bool {
        self.is_cel_exceeded.get()
    }

    /// Whether the call has to give up large work: then what it works on is small.
    pub fn is_limited(&self) -> bool {
        self.is_limited.get()
    }

    /// Ends the limit, before the first of several changes: a call that gave up between them would not tell of the first.
    pub fn commit(&self) {
        self.is_limited.set(false);
    }

    /// Fails if the call gave up: nothing may be stored that was checked by half.
    pub fn check(&self) -> Result<()> {
        if self.is_exceeded() { Err(self.exceed()) } else { Ok(()) }
    }

    /// Gives up if so many bytes are too much to decode, change and encode here.
    pub fn check_bytes(&self, bytes: usize) -> Result<()> {
        if self.is_limited.get() && bytes > HEAVY_BYTES { Err(self.exceed()) } else { Ok(()) }
    }

    /// Gives up if so many bytes of objects are too much to encode in one step of a list. Lists of objects of some size are common
    /// and encoded in turns, so this is more than [`WorkLimit::check_bytes`] allows.
    pub fn check_step(&self, bytes: usize) -> Result<()> {
        if self.is_limited.get() && bytes > LIST_TURN_BYTES { Err(self.exceed()) } else { Ok(()) }
    }

    /// Evaluates CEL, and gives up if that costs too much here. The result of `evaluate` is then of no use: it may report the
    /// missing budget as an error of the object.
    pub fn metered<T>(&self, evaluate: impl FnOnce() -> T) -> Result<T> {
        if !self.is_limited.get() {
            return Ok(evaluate());
        }
        let (evaluated, rest) = meter::within(self.cel_cost.get(), evaluate);
        self.cel_cost.set(rest.unwrap_or_default());
        rest.map(|_| evaluated).ok_or_else(|| self.exceed_cel())
    }

    /// Gives up if what will be evaluated later costs too much here, before something is done that should not be done twice.
    pub fn foresee(&self, evaluate: impl FnOnce()) -> Result<()> {
        if !self.is_limited.get() {
            return Ok(());
        }
        let ((), rest) = meter::within(self.cel_cost.get(), evaluate);
        rest.map(drop).ok_or_else(|| self.exceed_cel())
    }

    fn exceed_cel(&self) -> Box<Status> {
        self.is_cel_exceeded.set(true);
        self.exceed()
    }

    /// The error that ends the call here. Clients see it only if nobody carries the call out elsewhere.
    fn exceed(&self) -> Box<Status> {
        self.is_exceeded.set(true);
        Status::too_many_requests("Too many requests, please try again later.", 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_gives_up_large_work_and_others_do_not() {
        for (limit, gives_up) in [(WorkLimit::of_worker(), true), (WorkLimit::unlimited(), false)] {
            assert!(limit.check_bytes(HEAVY_BYTES).is_ok() && !limit.is_exceeded());
            assert_eq!(limit.check_bytes(HEAVY_BYTES + 1).is_err(), gives_up);
            assert_eq!(limit.is_exceeded(), gives_up);
        }
        let committed = WorkLimit::of_worker();
        committed.commit();
        assert!(committed.check_bytes(HEAVY_BYTES + 1).is_ok() && committed.check().is_ok());
    }

    #[test]
    fn the_cost_of_several_expressions_adds_up() {
        let limit = WorkLimit::of_worker();
        assert!(limit.metered(|| meter::spend(HEAVY_CEL_COST / 2)).is_ok() && !limit.is_exceeded());
        assert!(limit.foresee(|| meter::spend(HEAVY_CEL_COST / 2)).is_ok());
        assert!(limit.metered(|| meter::spend(HEAVY_CEL_COST / 4)).is_ok(), "what is foreseen is not spent");
        assert!(limit.metered(|| meter::spend(HEAVY_CEL_COST)).is_err() && limit.is_exceeded());
        assert!(limit.is_cel_exceeded());
        let limit = WorkLimit::of_worker();
        assert!(limit.foresee(|| meter::spend(HEAVY_CEL_COST * 2)).is_err() && limit.is_cel_exceeded());
        assert!(WorkLimit::unlimited().foresee(|| meter::spend(HEAVY_CEL_COST * 2)).is_ok());
        assert!(WorkLimit::unlimited().metered(|| meter::spend(HEAVY_CEL_COST * 2)).is_ok());
    }
}
