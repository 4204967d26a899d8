//! The ledger of memory: what clients make this process hold, and whether it may hold more.
//!
//! Each sort of memory (request bodies, lists, frames of watches, ...) is a [`MemoryBudget`] with a bound of its own. All budgets of
//! a server belong to one [`MemoryLedger`]. If the process has a memory limit, a reservation must also fit below it, beside
//! everything else that the process uses: stored objects, compiled definitions, the allocator's own. Nobody counts that rest; it is
//! observed, as the difference between the resident memory and what is reserved. So the rule is: *reserve before you allocate, and
//! refuse if it does not fit*. `docs/queues.md` lists the budgets.
//!
//! Invariant: what is reserved is given back by the drop of its [`Reservation`], on whatever thread and for whatever reason.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use std::sync::{Arc, Weak};

use bytes::Bytes;

use crate::limits::{LEDGER_KEPT_PART, LEDGER_RESERVE_PART, LEDGER_SETTLED_PART, RESERVE_FOR_REQUESTS_UP_TO};
use crate::lock::Lock;

/// There is no memory for this now. Whoever asks again later may find some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server has no memory for this request at the moment")]
pub struct OutOfMemory;

/// The memory of one server. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct MemoryLedger(Arc<Ledger>);

#[derive(Debug, Default)]
struct Ledger {
    /// What the process may use; `None` without a limit.
    limit: Option<usize>,
    /// Bytes reserved by all budgets. Counted only if there is a limit: without one nobody reads it.
    reserved: AtomicUsize,
    /// Of these, what is kept for long and was allocated right after it was reserved.
    steady: AtomicUsize,
    /// Bytes that the process uses without a reservation, as last observed.
    unreserved: AtomicUsize,
    /// Of these, what was there when little was reserved: the observation is exact then.
    settled: AtomicUsize,
    /// Whether the process has been observed at all.
    is_observed: AtomicBool,
    budgets: Lock<Vec<Arc<Budget>>>,
}

#[derive(Debug)]
struct Budget {
    name: &'static str,
    sort: Sort,
    taken: AtomicUsize,
    most: usize,
    refused: AtomicU64,
}

/// What the bytes of a budget are to the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// Reserved before they are allocated, and given back soon.
    Transient,
    /// As transient ones, but kept for long: connections, watches. They are allocated, so that they make no observation inexact.
    Steady,
    /// As transient ones, but refused only by the bound of their own budget: others must not be able to push them out.
    Independent,
    /// Kept for long, so that the observation of the process includes them. They only must not grow when there is no room.
    Kept,
}

/// What a budget has given out, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetUse {
    /// The name of the budget.
    pub name: &'static str,
    /// Bytes in use.
    pub bytes: usize,
    /// Its bound.
    pub most: usize,
    /// Reservations that were refused.
    pub refused: u64,
}

impl MemoryLedger {
    /// The ledger of a process that may use so many bytes in all; `None`: as many as there are.
    pub fn new(limit: Option<usize>) -> MemoryLedger {
        MemoryLedger(Arc::new(Ledger { limit, ..Ledger::default() }))
    }

    /// A budget of this ledger, of at most `most` bytes, for what requests need while they run.
    pub fn budget(&self, name: &'static str, most: usize) -> MemoryBudget {
        self.add(name, most, Sort::Transient)
    }

    /// A budget of at most `most` bytes for what stays as long as a client does, and is allocated as soon as it is reserved.
    pub fn steady(&self, name: &'static str, most: usize) -> MemoryBudget {
        self.add(name, most, Sort::Steady)
    }

    /// A budget of at most `most` bytes for what must not be lost because others use up the memory: audit events.
    pub fn independent(&self, name: &'static str, most: usize) -> MemoryBudget {
        self.add(name, most, Sort::Independent)
    }

    /// A budget of at most `most` bytes for what is kept in order to save work: history, encodings.
    pub fn cache(&self, name: &'static str, most: usize) -> MemoryBudget {
        self.add(name, most, Sort::Kept)
    }

    fn add(&self, name: &'static str, most: usize, sort: Sort) -> MemoryBudget {
        let own =
            Arc::new(Budget { name, sort, taken: AtomicUsize::new(0), most, refused: AtomicU64::new(0) });
        self.0.budgets.lock().push(Arc::clone(&own));
        MemoryBudget { own, ledger: Arc::clone(&self.0) }
    }

    /// For those who must not keep the ledger of a server that has ended.
    pub fn downgrade(&self) -> WeakLedger {
        WeakLedger(Arc::downgrade(&self.0))
    }

    /// The limit of the process.
    pub fn limit(&self) -> Option<usize> {
        self.0.limit
    }

    /// Notes how much the process uses, measured a moment ago.
    ///
    /// What is reserved need not be allocated yet, so `resident - reserved` may be less than what the rest really takes. While much
    /// is reserved, the last exact observation is therefore the least that counts.
    pub fn observe(&self, resident: usize) {
        let Some(limit) = self.0.limit else { return };
        let reserved = self.0.reserved.load(Ordering::Relaxed);
        let steady = self.0.steady.load(Ordering::Relaxed);
        let rest = resident.saturating_sub(reserved);
        let is_first = !self.0.is_observed.swap(true, Ordering::Relaxed);
        if is_first || reserved.saturating_sub(steady) <= limit / LEDGER_SETTLED_PART {
            self.0.settled.store(rest, Ordering::Relaxed);
        }
        self.0.unreserved.store(rest.max(self.0.settled.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Bytes that the process uses without a reservation, as last observed.
    pub fn unreserved(&self) -> usize {
        self.0.unreserved.load(Ordering::Relaxed)
    }

    /// What each budget has given out.
    pub fn budgets(&self) -> Vec<BudgetUse> {
        self.0.budgets.lock().iter().map(|budget| budget.current_use()).collect()
    }
}

/// A ledger that goes when its server does.
#[derive(Clone, Debug)]
pub struct WeakLedger(Weak<Ledger>);

impl WeakLedger {
    /// The ledger, if its server is still there.
    pub fn upgrade(&self) -> Option<MemoryLedger> {
        self.0.upgrade().map(MemoryLedger)
    }
}

impl Ledger {
    /// Adds to what is reserved; whether it fits. The last part of the limit is kept for small requests, so that an operator can
    /// still look and delete when large ones have taken the rest.
    fn reserve(&self, bytes: usize) -> bool {
        if self.limit.is_none() {
            return true;
        }
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        self.fits(bytes, self.used())
    }

    /// Bytes that are reserved, and those that the process was observed to use beside them.
    fn used(&self) -> usize {
        self.reserved.load(Ordering::Relaxed).saturating_add(self.unreserved.load(Ordering::Relaxed))
    }

    /// Whether so many bytes fit below the limit, if `used` includes them.
    fn fits(&self, bytes: usize, used: usize) -> bool {
        let is_small = bytes <= RESERVE_FOR_REQUESTS_UP_TO;
        self.limit.is_none_or(|limit| used <= limit - if is_small { 0 } else { limit / LEDGER_RESERVE_PART })
    }

    fn release(&self, bytes: usize) {
        if self.limit.is_some() {
            self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Budget {
    fn current_use(&self) -> BudgetUse {
        BudgetUse {
            name: self.name,
            bytes: self.taken.load(Ordering::Relaxed),
            most: self.most,
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// The bytes of one sort of memory, on all threads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    own: Arc<Budget>,
    ledger: Arc<Ledger>,
}

impl MemoryBudget {
    /// A budget without a ledger, for tests.
    pub fn alone(most: usize) -> MemoryBudget {
        MemoryLedger::default().budget("alone", most)
    }

    /// An empty share, for something that takes more as it grows.
    pub fn nothing(&self) -> Reservation {
        Reservation { budget: self.clone(), bytes: 0 }
    }

    /// Takes a share of so many bytes. What is larger than the whole budget is allowed if it is alone.
    pub fn take(&self, bytes: usize) -> Result<Reservation, OutOfMemory> {
        self.take_more(bytes, &[])
    }

    /// Takes more for something that has these shares already.
    pub fn take_more(&self, bytes: usize, own: &[Reservation]) -> Result<Reservation, OutOfMemory> {
        // Counted first and checked afterwards: on failure the drop of `held` gives the bytes back.
        let held = Reservation { budget: self.clone(), bytes };
        let before = self.own.taken.fetch_add(bytes, Ordering::Relaxed);
        let fits = before <= own.iter().map(Reservation::bytes).sum::<usize>()
            || before.saturating_add(bytes) <= self.own.most;
        if self.reserve(bytes) && fits {
            return Ok(held);
        }
        self.own.refused.fetch_add(1, Ordering::Relaxed);
        Err(OutOfMemory)
    }

    /// Counts what cannot be refused, because it is there already.
    pub fn charge(&self, bytes: usize) -> Reservation {
        self.own.taken.fetch_add(bytes, Ordering::Relaxed);
        self.reserve(bytes);
        Reservation { budget: self.clone(), bytes }
    }

    /// Counts in the ledger; whether it fits there.
    fn reserve(&self, bytes: usize) -> bool {
        match self.own.sort {
            Sort::Transient => self.ledger.reserve(bytes),
            Sort::Steady => {
                self.ledger.steady.fetch_add(bytes, Ordering::Relaxed);
                self.ledger.reserve(bytes)
            }
            Sort::Independent => {
                self.ledger.reserve(bytes);
                true
            }
            Sort::Kept => self.has_room_to_keep(),
        }
    }

    /// Counts a refusal that was found without an attempt to reserve.
    pub fn count_refusal(&self) {
        self.own.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether no byte is left.
    pub fn is_exhausted(&self) -> bool {
        self.bytes() >= self.own.most || !self.has_room_below_limit()
    }

    /// Whether a reservation of so many bytes would succeed now.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        let taken = self.bytes();
        (taken == 0 || taken.saturating_add(bytes) <= self.own.most)
            && self.ledger.fits(bytes, self.ledger.used().saturating_add(bytes))
    }

    /// Whether the process is below its limit, by what is reserved and what was observed.
    pub fn has_room_below_limit(&self) -> bool {
        self.ledger.limit.is_none_or(|limit| self.ledger.used() < limit)
    }

    /// Whether something may be kept to save work: neither this budget nor the process is short of memory.
    pub fn may_keep(&self) -> bool {
        self.bytes() < self.own.most && self.has_room_to_keep()
    }

    /// Whether so much is free that something may be kept to save work. Requests come first.
    fn has_room_to_keep(&self) -> bool {
        self.ledger.limit.is_none_or(|limit| self.ledger.used() < limit - limit / LEDGER_KEPT_PART)
    }

    /// The bytes in use.
    pub fn bytes(&self) -> usize {
        self.own.taken.load(Ordering::Relaxed)
    }

    /// The bound.
    pub fn most(&self) -> usize {
        self.own.most
    }
}

/// A share of a budget, given back on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: MemoryBudget,
    bytes: usize,
}

impl Reservation {
    /// The size of the share.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Resizes the share. If there is no room, it keeps its size.
    pub fn set(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        if bytes > self.bytes {
            let mut more = self.budget.take_more(bytes - self.bytes, std::slice::from_ref(self))?;
            // `self` owns these bytes now, and gives them back.
            more.bytes = 0;
            self.bytes = bytes;
        } else {
            self.shrink(bytes);
        }
        Ok(())
    }

    /// Resizes the share of something that cannot be refused, because it is there already.
    pub fn charge_to(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.budget.charge(bytes - self.bytes).bytes = 0;
            self.bytes = bytes;
        } else {
            self.shrink(bytes);
        }
    }

    fn shrink(&mut self, bytes: usize) {
        self.give_back(self.bytes - bytes);
        self.bytes = bytes;
    }

    fn give_back(&self, bytes: usize) {
        self.budget.own.taken.fetch_sub(bytes, Ordering::Relaxed);
        if self.budget.own.sort == Sort::Steady {
            self.budget.ledger.steady.fetch_sub(bytes, Ordering::Relaxed);
        }
        if self.budget.own.sort != Sort::Kept {
            self.budget.ledger.release(bytes);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

/// Bytes that hold their reservation: it is given back when the last slice of them is dropped, wherever it went.
pub fn reserved_bytes(bytes: Bytes, held: Reservation) -> Bytes {
    Bytes::from_owner(ReservedBytes { bytes, _held: held })
}

struct ReservedBytes {
    bytes: Bytes,
    _held: Reservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 1_000;
    const LIMIT: usize = 160 << 20;

    #[test]
    fn a_full_budget_refuses_and_a_large_reservation_is_allowed_alone() {
        let budget = MemoryBudget::alone(MOST);
        let alone = budget.take(2 * MOST).unwrap();
        assert_eq!(budget.take(1).unwrap_err(), OutOfMemory);
        drop(alone);
        assert_eq!(budget.bytes(), 0);
        let own = [budget.take(MOST / 2).unwrap(), budget.take(MOST / 2).unwrap()];
        assert!(budget.take(1).is_err());
        assert_eq!(budget.bytes(), MOST / 2 * 2);
        assert!(budget.take_more(1, &own).is_ok(), "it is alone with what it has");
        assert!(budget.take_more(1, &own[..1]).is_err());
    }

    #[test]
    fn reservations_grow_and_shrink_and_are_given_back() {
        let budget = MemoryBudget::alone(MOST);
        let mut one = budget.take(1).unwrap();
        let other = budget.take(MOST / 2).unwrap();
        one.set(MOST / 2).unwrap();
        assert!(one.set(MOST / 2 + 1).is_err());
        assert_eq!((one.bytes(), budget.bytes()), (MOST / 2, MOST), "as before");
        one.charge_to(MOST);
        assert_eq!(budget.bytes(), MOST + MOST / 2, "what is there already counts, room or not");
        drop(other);
        one.set(2 * MOST).unwrap();
        one.set(7).unwrap();
        assert_eq!(budget.bytes(), 7);
        drop(one);
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn the_limit_holds_for_all_budgets_together_beside_what_was_observed() {
        let ledger = MemoryLedger::new(Some(LIMIT));
        let (one, other) = (ledger.budget("one", LIMIT), ledger.budget("other", LIMIT));
        ledger.observe(LIMIT / 2);
        let held = one.take(LIMIT / 4).unwrap();
        assert!(other.take(LIMIT / 4).is_err(), "the last part is kept for small requests");
        assert!(other.take(RESERVE_FOR_REQUESTS_UP_TO).is_ok());
        assert_eq!(ledger.budgets()[1].refused, 1);
        drop(held);
        assert!(other.take(LIMIT / 4).is_ok());
        assert_eq!(ledger.0.reserved.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn memory_that_is_reserved_and_not_allocated_yet_hides_no_other() {
        let ledger = MemoryLedger::new(Some(LIMIT));
        let budget = ledger.budget("bodies", LIMIT);
        ledger.observe(LIMIT / 2);
        let _held = budget.take(LIMIT / 4).unwrap();
        // Nothing of it is allocated yet.
        ledger.observe(LIMIT / 2);
        assert_eq!(ledger.unreserved(), LIMIT / 2);
        // All of it, and what nobody reserved.
        ledger.observe(LIMIT);
        assert_eq!(ledger.unreserved(), LIMIT * 3 / 4);
        assert!(!budget.has_room_below_limit() && budget.take(1).is_err());
        ledger.observe(LIMIT * 3 / 4);
        assert_eq!(ledger.unreserved(), LIMIT / 2, "and it recovers");
    }

    #[test]
    fn what_stays_reserved_does_not_end_exact_observations() {
        let ledger = MemoryLedger::new(Some(LIMIT));
        let connections = ledger.steady("connections", LIMIT);
        let _held = connections.take(LIMIT / 4).unwrap();
        ledger.observe(LIMIT / 4 * 3);
        assert_eq!(ledger.unreserved(), LIMIT / 2);
        ledger.observe(LIMIT / 2);
        assert_eq!(ledger.unreserved(), LIMIT / 4, "objects were deleted");
    }

    #[test]
    fn what_is_kept_counts_as_observed_and_does_not_grow_without_room() {
        let ledger = MemoryLedger::new(Some(LIMIT));
        let cache = ledger.cache("encodings", LIMIT / 4);
        let kept = cache.take(LIMIT / 4).unwrap();
        assert_eq!(ledger.0.reserved.load(Ordering::Relaxed), 0);
        assert!(cache.take(1).is_err());
        drop(kept);
        ledger.observe(LIMIT);
        assert!(cache.take(1).is_err());
        ledger.observe(LIMIT / 2);
        assert!(cache.take(1).is_ok());
    }

    #[test]
    fn an_independent_budget_is_refused_only_by_its_own_bound() {
        let ledger = MemoryLedger::new(Some(LIMIT));
        let audit = ledger.independent("audit", MOST);
        ledger.observe(2 * LIMIT);
        let held = audit.take(MOST).expect("others use up everything");
        assert!(audit.take(1).is_err());
        assert_eq!(ledger.0.reserved.load(Ordering::Relaxed), MOST);
        drop(held);
        assert_eq!(ledger.0.reserved.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn slices_keep_the_reservation_of_the_whole() {
        let budget = MemoryBudget::alone(MOST);
        let whole = reserved_bytes(Bytes::from_static(b"abcdef"), budget.take(6).unwrap());
        let slice = whole.slice(2..3);
        drop(whole);
        assert_eq!((budget.bytes(), &slice[..]), (6, b"c".as_slice()));
        drop(slice);
        assert_eq!(budget.bytes(), 0);
    }

    proptest! {
        /// Whatever is taken, resized and dropped, in whatever order: the sums are those of the living reservations.
        #[test]
        fn nothing_is_lost_or_given_back_twice(steps in proptest::collection::vec((0_u8..4, 0_usize..2_000, 0_usize..8), 1..60)) {
            let ledger = MemoryLedger::new(Some(1 << 20));
            let budgets = [ledger.budget("a", 3_000), ledger.budget("b", 1 << 20)];
            let mut held: Vec<Reservation> = Vec::new();
            for (step, bytes, which) in steps {
                let budget = &budgets[which % 2];
                match step {
                    0 => held.extend(budget.take(bytes)),
                    1 => held.push(budget.charge(bytes)),
                    2 if !held.is_empty() => { let index = which % held.len(); let _ = held[index].set(bytes); }
                    3 if !held.is_empty() => { held.swap_remove(which % held.len()); }
                    _ => {}
                }
                let sum: usize = held.iter().map(Reservation::bytes).sum();
                prop_assert_eq!(budgets.iter().map(MemoryBudget::bytes).sum::<usize>(), sum);
                prop_assert_eq!(ledger.0.reserved.load(Ordering::Relaxed), sum);
            }
        }
    }
}
