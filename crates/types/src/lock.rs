//! Locks that are never given up.
//!
//! The standard library poisons a lock when a thread panics while it holds it, and leaves it to everybody else what to make of
//! that. Here it is decided once: go on. Whoever holds one of these locks leaves the value whole between any two steps that can
//! panic, and a server that refused every later request over one panic would make a small fault a large one.

#![expect(clippy::disallowed_methods, reason = "everybody else locks through this")]

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// A value for one at a time.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// A lock that nobody holds yet.
    pub const fn new(value: T) -> Lock<T> {
        Lock(Mutex::new(value))
    }

    /// Waits until nobody else holds it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value for many who read or one who writes.
#[derive(Debug, Default)]
pub struct SharedLock<T>(RwLock<T>);

impl<T> SharedLock<T> {
    /// A lock that nobody holds yet.
    pub const fn new(value: T) -> SharedLock<T> {
        SharedLock(RwLock::new(value))
    }

    /// Waits until nobody writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody reads or writes.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives up a lock until `changed` is told of, and takes it again.
pub fn wait<'a, T>(changed: &Condvar, held: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(held).unwrap_or_else(PoisonError::into_inner)
}

/// Gives up a lock while `condition` holds, until `changed` is told of or `limit` has passed, and takes it again.
pub fn wait_while<'a, T>(
    changed: &Condvar,
    held: MutexGuard<'a, T>,
    limit: Duration,
    condition: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    changed.wait_timeout_while(held, limit, condition).unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_locks_nobody_out() {
        let (one, many) = (Lock::new(1), SharedLock::new(1));
        let fell = catch_unwind(AssertUnwindSafe(|| {
            let (_one, _many) = (one.lock(), many.write());
            panic!("while both are held");
        }));
        assert!(fell.is_err());
        assert_eq!((*one.lock(), *many.read()), (1, 1));
        *many.write() = 2;
    }
}
