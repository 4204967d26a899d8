//! The keys of a provider, and requests to fetch them again.
//!
//! One task fetches (`provider`), many verifiers wait: a token without a matching key may be signed by a newer one. A waiter
//! needs an attempt that begins after its request, because a running one may have read the old keys already. All requests before
//! that attempt begins share it. The number of attempts that tokens can cause is bounded, because anybody can make tokens with
//! unknown keys.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::lock::Lock;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::timeout;

use crate::auth::jwt::KeySet;
use crate::limits::{OIDC_REFETCH_INTERVAL, OIDC_REFETCHES, OIDC_WAIT_TIMEOUT, OIDC_WAITING};

/// The keys. Shared by the verifiers of all workers and the fetching task.
pub struct Keys {
    /// `None` until the first successful fetch.
    key_set: ArcSwapOption<KeySet>,
    attempts: Lock<FetchAttempts>,
    /// Wakes the fetching task.
    requested: Notify,
    /// The number of finished attempts, successful or not.
    ended: watch::Sender<u64>,
    /// Bounds the number of waiters.
    wait_slots: Semaphore,
    clock: Clock,
}

/// The state of the attempts, which are numbered from one.
struct FetchAttempts {
    started: u64,
    /// The last requested attempt.
    requested: u64,
    /// When the budget for attempts is full again.
    budget_full_at: Timestamp,
}

impl Keys {
    /// No keys yet.
    pub fn new(clock: Clock) -> Keys {
        Keys {
            key_set: ArcSwapOption::empty(),
            attempts: Lock::new(FetchAttempts {
                started: 0,
                requested: 0,
                budget_full_at: Timestamp::default(),
            }),
            requested: Notify::new(),
            ended: watch::Sender::new(0),
            wait_slots: Semaphore::new(OIDC_WAITING),
            clock,
        }
    }

    /// The last fetched keys.
    pub(super) fn key_set(&self) -> Option<Arc<KeySet>> {
        self.key_set.load_full()
    }

    /// Waits until there are keys.
    pub(super) async fn wait_until_available(&self) {
        let mut ended = self.ended.subscribe();
        while self.key_set().is_none() {
            if ended.changed().await.is_err() {
                return;
            }
        }
    }

    /// Requests a fetch and waits for that attempt, successful or not.
    pub(super) async fn refetch(&self) -> Result<(), &'static str> {
        let _slot = self.wait_slots.try_acquire().map_err(|_| "too many tokens wait for that")?;
        let attempt = self.request_attempt()?;
        let mut ended = self.ended.subscribe();
        match timeout(OIDC_WAIT_TIMEOUT, ended.wait_for(|ended| *ended >= attempt)).await {
            Ok(_) => Ok(()),
            Err(_) => Err("the provider does not answer"),
        }
    }

    /// Requests an attempt that has not started yet, and returns its number.
    fn request_attempt(&self) -> Result<u64, &'static str> {
        let now = self.clock.now();
        let mut attempts = self.attempts.lock();
        let next = attempts.started + 1;
        if attempts.requested < next {
            let burst = OIDC_REFETCH_INTERVAL * OIDC_REFETCHES.saturating_sub(1);
            if now.plus(burst) < attempts.budget_full_at {
                return Err("they were fetched several times just now");
            }
            attempts.budget_full_at = attempts.budget_full_at.max(now).plus(OIDC_REFETCH_INTERVAL);
            attempts.requested = next;
            self.requested.notify_one();
        }
        Ok(next)
    }

    /// Starts an attempt; it ends with [`Keys::end_attempt`].
    pub(super) fn begin_attempt(&self) {
        self.attempts.lock().started += 1;
    }

    /// Ends an attempt. Without new keys the old ones stay valid.
    pub(super) fn end_attempt(&self, key_set: Option<KeySet>) {
        if let Some(key_set) = key_set {
            self.key_set.store(Some(Arc::new(key_set)));
        }
        let started = self.attempts.lock().started;
        self.ended.send_replace(started);
    }

    /// Waits until an attempt is requested, up to `limit`.
    pub(super) async fn wait_for_request(&self, limit: Duration) {
        let request = async {
            loop {
                self.requested.notified().await;
                // The wake may be left over from an attempt that began by itself.
                let attempts = self.attempts.lock();
                if attempts.requested > attempts.started {
                    return;
                }
            }
        };
        // After both outcomes it is time for an attempt.
        let _ = timeout(limit, request).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    fn keys() -> (Arc<Keys>, Clock) {
        let clock = Clock::manual(Timestamp(1_000_000_000_000));
        (Arc::new(Keys::new(clock.clone())), clock)
    }

    #[actix::test]
    async fn concurrent_refetches_share_one_attempt() {
        let (keys, _) = keys();
        let task = {
            let keys = Arc::clone(&keys);
            actix::spawn(async move {
                let mut attempts = 0;
                loop {
                    keys.wait_for_request(Duration::from_millis(300)).await;
                    let requested = keys.attempts.lock().requested;
                    if requested <= keys.attempts.lock().started {
                        return attempts;
                    }
                    keys.begin_attempt();
                    attempts += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    keys.end_attempt(Some(KeySet::new(Vec::new())));
                }
            })
        };
        let all = join_all((0..OIDC_WAITING + 10).map(|_| keys.refetch())).await;
        let (fetched, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
        assert_eq!((fetched.len(), refused.len()), (OIDC_WAITING, 10), "the rest exceeds the waiters' limit");
        assert!(keys.key_set().is_some());
        assert_eq!(task.await.unwrap(), 1);
    }

    #[actix::test]
    async fn refetch_waits_for_an_attempt_started_after_it() {
        let (keys, _) = keys();
        keys.begin_attempt();
        let waiter = {
            let keys = Arc::clone(&keys);
            actix::spawn(async move { keys.refetch().await })
        };
        tokio::task::yield_now().await;
        keys.end_attempt(None);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!waiter.is_finished());
        keys.wait_for_request(Duration::from_secs(30)).await;
        keys.begin_attempt();
        keys.end_attempt(None);
        assert_eq!(waiter.await.unwrap(), Ok(()));
    }

    #[test]
    fn refetches_are_rate_limited() {
        let (keys, clock) = keys();
        let started_attempts = |times: usize| {
            (0..times)
                .filter(|_| {
                    keys.request_attempt().is_ok_and(|_| {
                        keys.begin_attempt();
                        true
                    })
                })
                .count()
        };
        assert_eq!(started_attempts(100), OIDC_REFETCHES as usize);
        clock.advance(OIDC_REFETCH_INTERVAL);
        assert_eq!(started_attempts(100), 1);
        clock.advance(OIDC_REFETCH_INTERVAL * 100);
        assert_eq!(started_attempts(100), OIDC_REFETCHES as usize);
    }
}
