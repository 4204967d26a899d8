//! How long threads wait for the locks of [`crate::lock`], by the place in the code that waits. Off until [`enable`] is called.
//!
//! While it is off, a lock costs one more load of a flag that never changes, which no benchmark shows.

#![expect(clippy::disallowed_methods, reason = "the table of waits cannot be behind a lock that is measured")]

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LockResult, Mutex, OnceLock, PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

use crate::clock::Clock;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockKind {
    /// A mutex.
    Mutex,
    /// The reading side of a readers-writer lock.
    Read,
    /// Its writing side.
    Write,
}

impl LockKind {
    /// How profiles name it.
    pub fn name(self) -> &'static str {
        match self {
            LockKind::Mutex => "lock",
            LockKind::Read => "read",
            LockKind::Write => "write",
        }
    }
}

/// A place in the code that waits for a lock. There are no more of them than calls in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// What is waited for.
    pub kind: LockKind,
    /// The source file.
    pub file: &'static str,
    /// The line in it.
    pub line: u32,
}

/// The waits at one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// How many.
    pub count: u64,
    /// How long all of them took together.
    pub total: Duration,
}

/// The clock that waits are measured with, once they are.
static CLOCK: OnceLock<Clock> = OnceLock::new();
static IS_MEASURED: AtomicBool = AtomicBool::new(false);
static WAITS: Mutex<BTreeMap<Place, Waits>> = Mutex::new(BTreeMap::new());

/// Measures waits from now on, in the whole process.
pub fn enable(clock: Clock) {
    let _already_enabled = CLOCK.set(clock);
    IS_MEASURED.store(true, Ordering::Relaxed);
}

/// The waits at each place so far.
pub fn waits() -> BTreeMap<Place, Waits> {
    WAITS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Whether waits are measured.
pub(crate) fn is_measured() -> bool {
    IS_MEASURED.load(Ordering::Relaxed)
}

/// Takes a lock, and counts the wait if there is one.
#[cold]
pub(crate) fn acquire<G>(
    kind: LockKind,
    caller: &'static Location<'static>,
    try_acquire: impl FnOnce() -> TryLockResult<G>,
    acquire: impl FnOnce() -> LockResult<G>,
) -> G {
    match try_acquire() {
        Ok(guard) => return guard,
        Err(TryLockError::Poisoned(error)) => return error.into_inner(),
        Err(TryLockError::WouldBlock) => {}
    }
    let begin = CLOCK.get().map(Clock::moment);
    let guard = acquire().unwrap_or_else(PoisonError::into_inner);
    if let (Some(clock), Some(begin)) = (CLOCK.get(), begin) {
        let place = Place { kind, file: caller.file(), line: caller.line() };
        let mut table = WAITS.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = table.entry(place).or_default();
        waits.count += 1;
        waits.total = waits.total.saturating_add(clock.elapsed(begin));
    }
    guard
}
