//! Memory accounting: what requests and watches make this process hold, and whether it may hold more.
//!
//! Each use of memory (request bodies, lists, frames of watches, ...) is a [`MemoryBudget`] with a bound of its own. All
//! budgets of a server belong to one [`MemoryLedger`]. If the process has a memory limit, a reservation must also fit below it,
//! beside everything else that the process uses: stored objects, compiled definitions, allocator overhead. That rest is not
//! counted but observed, as the difference between resident memory and reservations. So the rule is: *reserve before you
//! allocate, and refuse if it does not fit*. `docs/queues.md` lists the budgets.
//!
//! Invariant: reserved bytes are released by the drop of their [`Reservation`], on any thread and for any reason.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use std::sync::{Arc, Weak};

use bytes::Bytes;

use crate::limits::{
    LEDGER_CACHE_DIVISOR, LEDGER_RESERVE_DIVISOR, LEDGER_SETTLED_DIVISOR, SMALL_REQUEST_BYTES,
};
use crate::lock::Lock;

/// There is no memory for this at the moment. A retry may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server has no memory for this request at the moment")]
pub struct OutOfMemory;

/// The memory of one server. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct MemoryLedger(Arc<Ledger>);

#[derive(Debug, Default)]
struct Ledger {
    /// The memory limit of the process; `None` without a limit.
    limit: Option<usize>,
    /// Bytes reserved by all budgets. Counted only if there is a limit.
    reserved: AtomicUsize,
    /// Of these, bytes that are held for long and were allocated right after they were reserved.
    steady: AtomicUsize,
    /// Bytes that the process uses without a reservation, at the last observation.
    unreserved: AtomicUsize,
    /// The value of `unreserved` at the last observation with few reservations, which was exact.
    settled: AtomicUsize,
    /// Whether the process has been observed at all.
    is_observed: AtomicBool,
    budgets: Lock<Vec<Arc<Budget>>>,
}

#[derive(Debug)]
struct Budget {
    name: &'static str,
    kind: BudgetKind,
    used: AtomicUsize,
    limit: usize,
    refused: AtomicU64,
}

/// How the ledger treats the bytes of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BudgetKind {
    /// Reserved before they are allocated, and released soon.
    Transient,
    /// As transient, but held for long: connections, watches. They are allocated already, so they do not make observations
    /// inexact.
    Steady,
    /// As transient, but refused only by the bound of their own budget, so that other requests cannot push them out.
    Independent,
    /// Caches: held for long, so the observation of the process includes them. They only must not grow when memory is short.
    Cache,
}

/// The usage of a budget, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetUse {
    /// The name of the budget.
    pub name: &'static str,
    /// Bytes in use.
    pub bytes: usize,
    /// Its bound.
    pub limit: usize,
    /// Reservations that were refused.
    pub refused: u64,
}

impl MemoryLedger {
    /// The ledger of a process with this memory limit.
    pub fn new(limit: Option<usize>) -> MemoryLedger {
        MemoryLedger(Arc::new(Ledger { limit, ..Ledger::default() }))
    }

    /// A budget of at most `limit` bytes for what requests need while they run.
    pub fn budget(&self, name: &'static str, limit: usize) -> MemoryBudget {
        self.add(name, limit, BudgetKind::Transient)
    }

    /// A budget of at most `limit` bytes for what is held as long as a client is connected, and allocated as soon as it is
    /// reserved.
    pub fn steady(&self, name: &'static str, limit: usize) -> MemoryBudget {
        self.add(name, limit, BudgetKind::Steady)
    }

    /// A budget of at most `limit` bytes that other budgets cannot exhaust: audit events.
    pub fn independent(&self, name: &'static str, limit: usize) -> MemoryBudget {
        self.add(name, limit, BudgetKind::Independent)
    }

    /// A budget of at most `limit` bytes for caches: history, encodings.
    pub fn cache(&self, name: &'static str, limit: usize) -> MemoryBudget {
        self.add(name, limit, BudgetKind::Cache)
    }

    fn add(&self, name: &'static str, limit: usize, kind: BudgetKind) -> MemoryBudget {
        let budget =
            Arc::new(Budget { name, kind, used: AtomicUsize::new(0), limit, refused: AtomicU64::new(0) });
        self.0.budgets.lock().push(Arc::clone(&budget));
        MemoryBudget { budget, ledger: Arc::clone(&self.0) }
    }

    /// A reference that does not keep the ledger of a stopped server alive.
    pub fn downgrade(&self) -> WeakLedger {
        WeakLedger(Arc::downgrade(&self.0))
    }

    /// The limit of the process.
    pub fn limit(&self) -> Option<usize> {
        self.0.limit
    }

    /// Records the resident memory of the process, measured just now.
    ///
    /// Reserved bytes need not be allocated yet, so `resident - reserved` may be too low. While many bytes are reserved, the
    /// last exact observation is therefore the lower bound.
    pub fn observe(&self, resident: usize) {
        let Some(limit) = self.0.limit else { return };
        let reserved = self.0.reserved.load(Ordering::Relaxed);
        let steady = self.0.steady.load(Ordering::Relaxed);
        let rest = resident.saturating_sub(reserved);
        let is_first = !self.0.is_observed.swap(true, Ordering::Relaxed);
        if is_first || reserved.saturating_sub(steady) <= limit / LEDGER_SETTLED_DIVISOR {
            self.0.settled.store(rest, Ordering::Relaxed);
        }
        self.0.unreserved.store(rest.max(self.0.settled.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Bytes that the process uses without a reservation, as last observed.
    pub fn unreserved(&self) -> usize {
        self.0.unreserved.load(Ordering::Relaxed)
    }

    /// The usage of each budget.
    pub fn budgets(&self) -> Vec<BudgetUse> {
        self.0.budgets.lock().iter().map(|budget| budget.current_use()).collect()
    }
}

/// A weak reference to a [`MemoryLedger`].
#[derive(Clone, Debug)]
pub struct WeakLedger(Weak<Ledger>);

impl WeakLedger {
    /// The ledger, if its server still runs.
    pub fn upgrade(&self) -> Option<MemoryLedger> {
        self.0.upgrade().map(MemoryLedger)
    }
}

impl Ledger {
    /// Counts a reservation, and returns whether it fits. The last part of the limit is left to small requests, so that an
    /// operator can still list and delete when large ones have used the rest.
    fn reserve(&self, bytes: usize) -> bool {
        if self.limit.is_none() {
            return true;
        }
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        self.fits(bytes, self.used())
    }

    /// Reserved bytes, plus those that the process was observed to use without a reservation.
    fn used(&self) -> usize {
        self.reserved.load(Ordering::Relaxed).saturating_add(self.unreserved.load(Ordering::Relaxed))
    }

    /// Whether so many bytes fit below the limit, if `used` includes them.
    fn fits(&self, bytes: usize, used: usize) -> bool {
        let is_small = bytes <= SMALL_REQUEST_BYTES;
        self.limit
            .is_none_or(|limit| used <= limit - if is_small { 0 } else { limit / LEDGER_RESERVE_DIVISOR })
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
            bytes: self.used.load(Ordering::Relaxed),
            limit: self.limit,
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// One use of memory, on all threads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    budget: Arc<Budget>,
    ledger: Arc<Ledger>,
}

impl MemoryBudget {
    /// A budget without a ledger, for tests.
    pub fn standalone(limit: usize) -> MemoryBudget {
        MemoryLedger::default().budget("alone", limit)
    }

    /// An empty reservation, for something that grows.
    pub fn empty_reservation(&self) -> Reservation {
        Reservation { budget: self.clone(), bytes: 0 }
    }

    /// Reserves bytes. A reservation larger than the whole budget is allowed if it is the only one.
    pub fn take(&self, bytes: usize) -> Result<Reservation, OutOfMemory> {
        self.take_more(bytes, &[])
    }

    /// Reserves more bytes for something that already has these reservations.
    pub fn take_more(&self, bytes: usize, own: &[Reservation]) -> Result<Reservation, OutOfMemory> {
        // Counted first and checked afterwards: on failure the drop of `reservation` releases the bytes.
        let reservation = Reservation { budget: self.clone(), bytes };
        let before = self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        let fits = before <= own.iter().map(Reservation::bytes).sum::<usize>()
            || before.saturating_add(bytes) <= self.budget.limit;
        if self.reserve(bytes) && fits {
            return Ok(reservation);
        }
        self.budget.refused.fetch_add(1, Ordering::Relaxed);
        Err(OutOfMemory)
    }

    /// Counts bytes that cannot be refused, because they are allocated already.
    pub fn charge(&self, bytes: usize) -> Reservation {
        self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        self.reserve(bytes);
        Reservation { budget: self.clone(), bytes }
    }

    /// Counts in the ledger, and returns whether it fits there.
    fn reserve(&self, bytes: usize) -> bool {
        match self.budget.kind {
            BudgetKind::Transient => self.ledger.reserve(bytes),
            BudgetKind::Steady => {
                self.ledger.steady.fetch_add(bytes, Ordering::Relaxed);
                self.ledger.reserve(bytes)
            }
            BudgetKind::Independent => {
                self.ledger.reserve(bytes);
                true
            }
            BudgetKind::Cache => self.has_room_to_keep(),
        }
    }

    /// Counts a refusal that a caller decided without trying to reserve.
    pub fn count_refusal(&self) {
        self.budget.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether no bytes are left.
    pub fn is_exhausted(&self) -> bool {
        self.bytes() >= self.budget.limit || !self.has_room_below_limit()
    }

    /// Whether a reservation of so many bytes would succeed now.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        let used = self.bytes();
        (used == 0 || used.saturating_add(bytes) <= self.budget.limit)
            && self.ledger.fits(bytes, self.ledger.used().saturating_add(bytes))
    }

    /// Whether the process is below its limit, by reservations and observation.
    pub fn has_room_below_limit(&self) -> bool {
        self.ledger.limit.is_none_or(|limit| self.ledger.used() < limit)
    }

    /// Whether something may be cached: neither this budget nor the process is short of memory.
    pub fn may_keep(&self) -> bool {
        self.bytes() < self.budget.limit && self.has_room_to_keep()
    }

    /// Whether enough memory is free for caches. Requests come first.
    fn has_room_to_keep(&self) -> bool {
        self.ledger.limit.is_none_or(|limit| self.ledger.used() < limit - limit / LEDGER_CACHE_DIVISOR)
    }

    /// The bytes in use.
    pub fn bytes(&self) -> usize {
        self.budget.used.load(Ordering::Relaxed)
    }

    /// The bound.
    pub fn limit(&self) -> usize {
        self.budget.limit
    }
}

/// Bytes reserved from a budget, released on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: MemoryBudget,
    bytes: usize,
}

impl Reservation {
    /// The size of the reservation.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Resizes the reservation. If there is not enough memory, it keeps its size.
    pub fn set(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        if bytes > self.bytes {
            let mut more = self.budget.take_more(bytes - self.bytes, std::slice::from_ref(self))?;
            // `self` owns these bytes now, and releases them.
            more.bytes = 0;
            self.bytes = bytes;
        } else {
            self.shrink(bytes);
        }
        Ok(())
    }

    /// Resizes the reservation of something that cannot be refused, because it is allocated already.
    pub fn charge_to(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.budget.charge(bytes - self.bytes).bytes = 0;
            self.bytes = bytes;
        } else {
            self.shrink(bytes);
        }
    }

    fn shrink(&mut self, bytes: usize) {
        self.release_bytes(self.bytes - bytes);
        self.bytes = bytes;
    }

    fn release_bytes(&self, bytes: usize) {
        self.budget.budget.used.fetch_sub(bytes, Ordering::Relaxed);
        if self.budget.budget.kind == BudgetKind::Steady {
            self.budget.ledger.steady.fetch_sub(bytes, Ordering::Relaxed);
        }
        if self.budget.budget.kind != BudgetKind::Cache {
            self.budget.ledger.release(bytes);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release_bytes(self.bytes);
    }
}

/// Bytes that hold their reservation: it is released when the last slice of them is dropped.
pub fn reserved_bytes(bytes: Bytes, reservation: Reservation) -> Bytes {
    Bytes::from_owner(ReservedBytes { bytes, _reservation: reservation })
}

struct ReservedBytes {
    bytes: Bytes,
    _reservation: Reservation,
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
    fn budget_refuses_when_full_and_allows_one_oversized_reservation() {
        let budget = MemoryBudget::standalone(MOST);
        let alone = budget.take(2 * MOST).unwrap();
        assert_eq!(budget.take(1).unwrap_err(), OutOfMemory);
        drop(alone);
        assert_eq!(budget.bytes(), 0);
        let own = [budget.take(MOST / 2).unwrap(), budget.take(MOST / 2).unwrap()];
        assert!(budget.take(1).is_err());
        assert_eq!(budget.bytes(), MOST / 2 * 2);
        assert!(budget.take_more(1, &own).is_ok(), "it competes with nothing else");
        assert!(budget.take_more(1, &own[..1]).is_err());
    }

    #[test]
    fn reservation_resizes_and_releases_on_drop() {
        let budget = MemoryBudget::standalone(MOST);
        let mut first = budget.take(1).unwrap();
        let second = budget.take(MOST / 2).unwrap();
        first.set(MOST / 2).unwrap();
        assert!(first.set(MOST / 2 + 1).is_err());
        assert_eq!((first.bytes(), budget.bytes()), (MOST / 2, MOST), "as before");
        first.charge_to(MOST);
        assert_eq!(budget.bytes(), MOST + MOST / 2, "charged bytes count even above the bound");
        drop(second);
        first.set(2 * MOST).unwrap();
        first.set(7).unwrap();
        assert_eq!(budget.bytes(), 7);
        drop(first);
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn limit_bounds_all_budgets_plus_observed_memory() {
        let ledger = MemoryLedger::new(Some(LIMIT));
        let (first, second) = (ledger.budget("one", LIMIT), ledger.budget("other", LIMIT));
        ledger.observe(LIMIT / 2);
        let held = first.take(LIMIT / 4).unwrap();
        assert!(second.take(LIMIT / 4).is_err(), "the last part is left to small requests");
        assert!(second.take(SMALL_REQUEST_BYTES).is_ok());
        assert_eq!(ledger.budgets()[1].refused, 1);
        drop(held);
        assert!(second.take(LIMIT / 4).is_ok());
        assert_eq!(ledger.0.reserved.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn unallocated_reservations_do_not_lower_the_observation() {
        let ledger = MemoryLedger::new(Some(LIMIT));
        let budget = ledger.budget("bodies", LIMIT);
        ledger.observe(LIMIT / 2);
        let _held = budget.take(LIMIT / 4).unwrap();
        // None of it is allocated yet.
        ledger.observe(LIMIT / 2);
        assert_eq!(ledger.unreserved(), LIMIT / 2);
        // All of it is allocated, and as much again without a reservation.
        ledger.observe(LIMIT);
        assert_eq!(ledger.unreserved(), LIMIT * 3 / 4);
        assert!(!budget.has_room_below_limit() && budget.take(1).is_err());
        ledger.observe(LIMIT * 3 / 4);
        assert_eq!(ledger.unreserved(), LIMIT / 2, "and it recovers");
    }

    #[test]
    fn steady_reservations_keep_observations_exact() {
        let ledger = MemoryLedger::new(Some(LIMIT));
        let connections = ledger.steady("connections", LIMIT);
        let _held = connections.take(LIMIT / 4).unwrap();
        ledger.observe(LIMIT / 4 * 3);
        assert_eq!(ledger.unreserved(), LIMIT / 2);
        ledger.observe(LIMIT / 2);
        assert_eq!(ledger.unreserved(), LIMIT / 4, "objects were deleted");
    }

    #[test]
    fn cache_budget_refuses_when_memory_is_short() {
        let ledger = MemoryLedger::new(Some(LIMIT));
        let cache = ledger.cache("encodings", LIMIT / 4);
        let cached = cache.take(LIMIT / 4).unwrap();
        assert_eq!(ledger.0.reserved.load(Ordering::Relaxed), 0);
        assert!(cache.take(1).is_err());
        drop(cached);
        ledger.observe(LIMIT);
        assert!(cache.take(1).is_err());
        ledger.observe(LIMIT / 2);
        assert!(cache.take(1).is_ok());
    }

    #[test]
    fn independent_budget_is_refused_only_by_its_own_bound() {
        let ledger = MemoryLedger::new(Some(LIMIT));
        let audit = ledger.independent("audit", MOST);
        ledger.observe(2 * LIMIT);
        let held = audit.take(MOST).expect("the limit does not apply");
        assert!(audit.take(1).is_err());
        assert_eq!(ledger.0.reserved.load(Ordering::Relaxed), MOST);
        drop(held);
        assert_eq!(ledger.0.reserved.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn slices_hold_the_reservation_of_their_bytes() {
        let budget = MemoryBudget::standalone(MOST);
        let whole = reserved_bytes(Bytes::from_static(b"abcdef"), budget.take(6).unwrap());
        let slice = whole.slice(2..3);
        drop(whole);
        assert_eq!((budget.bytes(), &slice[..]), (6, b"c".as_slice()));
        drop(slice);
        assert_eq!(budget.bytes(), 0);
    }

    proptest! {
        /// After any sequence of reservations, resizes and drops, the counters are the sums of the living reservations.
        #[test]
        fn counters_equal_the_living_reservations(steps in proptest::collection::vec((0_u8..4, 0_usize..2_000, 0_usize..8), 1..60)) {
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
