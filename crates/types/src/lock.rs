//! Locks without poisoning. The locks are those of the standard library; `parking_lot` would bring others for the sake of this one
//! decision.
//!
//! The standard library poisons a lock when a thread panics while it holds it, and each caller has to decide what that means.
//! Here it is decided once: continue. The values behind these locks are consistent between any two steps that can panic, and a
//! server that refused every later request because of one panic would turn a small fault into an outage.
//!
//! If waits are measured ([`crate::contention`]), a lock is tried before it is waited for.

#![expect(clippy::disallowed_methods, reason = "all other code locks through this module")]

use std::panic::Location;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::contention::{LockKind, acquire, is_measured};

/// A mutex.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Lock<T> {
        Lock(Mutex::new(value))
    }

    /// Blocks until the mutex is free.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if is_measured() {
            return acquire(LockKind::Mutex, Location::caller(), || self.0.try_lock(), || self.0.lock());
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A readers-writer lock.
#[derive(Debug, Default)]
pub struct SharedLock<T>(RwLock<T>);

impl<T> SharedLock<T> {
    /// An unlocked readers-writer lock.
    pub const fn new(value: T) -> SharedLock<T> {
        SharedLock(RwLock::new(value))
    }

    /// Blocks while there is a writer.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        if is_measured() {
            return acquire(LockKind::Read, Location::caller(), || self.0.try_read(), || self.0.read());
        }
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks while there are readers or a writer.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        if is_measured() {
            return acquire(LockKind::Write, Location::caller(), || self.0.try_write(), || self.0.write());
        }
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Releases a mutex until the condition variable is notified, and locks it again.
pub fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Releases a mutex while `condition` holds, until the condition variable is notified or `timeout` has passed, and locks it
/// again.
pub fn wait_while<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
    condition: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    changed.wait_timeout_while(guard, timeout, condition).unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::clock::Clock;
    use crate::contention::{self, Place};

    #[test]
    fn lock_is_usable_after_a_panic_of_its_holder() {
        let (mutex, shared) = (Lock::new(1), SharedLock::new(1));
        let result = catch_unwind(AssertUnwindSafe(|| {
            let (_mutex, _shared) = (mutex.lock(), shared.write());
            panic!("while both are held");
        }));
        assert!(result.is_err());
        assert_eq!((*mutex.lock(), *shared.read()), (1, 1));
        *shared.write() = 2;
    }

    #[test]
    fn waits_are_counted_where_they_happen() {
        contention::enable(Clock::system());
        let mutex = Lock::new(());
        let line = line!() + 6;
        let is_counted = || {
            let place = Place { kind: LockKind::Mutex, file: file!(), line };
            contention::waits().get(&place).is_some_and(|waits| waits.count > 0)
        };
        let wait = || {
            drop(mutex.lock());
        };
        wait();
        assert!(!is_counted(), "the lock was free");
        // The other thread may come late and find the lock free: then it tries again.
        while !is_counted() {
            let guard = mutex.lock();
            std::thread::scope(|scope| {
                scope.spawn(wait);
                std::thread::sleep(Duration::from_millis(1));
                drop(guard);
            });
        }
    }
}
