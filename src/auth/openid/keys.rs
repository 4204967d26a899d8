//! The keys of a provider, and how to have them fetched again.
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
use crate::limits::{OIDC_REFETCH_EVERY, OIDC_REFETCHES, OIDC_WAIT_TIMEOUT, OIDC_WAITING};

/// The keys. Shared by the verifiers of all workers and the fetching task.
pub struct Keys {
    /// `None` until the first successful fetch.
    ring: ArcSwapOption<KeySet>,
    turn: Lock<FetchAttempts>,
    /// Wakes the fetching task.
    wanted: Notify,
    /// The number of finished attempts, successful or not.
    ended: watch::Sender<u64>,
    /// Bounds the number of waiters.
    places: Semaphore,
    clock: Clock,
}

/// The state of the attempts, which are numbered from one.
struct FetchAttempts {
    begun: u64,
    /// The last requested attempt.
    wanted: u64,
    /// When the budget for attempts is full again.
    free_at: Timestamp,
}

impl Keys {
    /// No keys yet.
    pub fn new(clock: Clock) -> Keys {
        Keys {
            ring: ArcSwapOption::empty(),
            turn: Lock::new(FetchAttempts { begun: 0, wanted: 0, free_at: Timestamp::default() }),
            wanted: Notify::new(),
            ended: watch::Sender::new(0),
            places: Semaphore::new(OIDC_WAITING),
            clock,
        }
    }

    /// The last fetched keys.
    pub(super) fn ring(&self) -> Option<Arc<KeySet>> {
        self.ring.load_full()
    }

    /// Waits until there are keys.
    pub(super) async fn known(&self) {
        let mut ended = self.ended.subscribe();
        while self.ring().is_none() {
            if ended.changed().await.is_err() {
                return;
            }
        }
    }

    /// Has the keys fetched and waits for that attempt. The error says why not.
    pub(super) async fn fresher(&self) -> Result<(), &'static str> {
        let _place = self.places.try_acquire().map_err(|_| "too many tokens wait for that")?;
        let attempt = self.want()?;
        let mut ended = self.ended.subscribe();
        match timeout(OIDC_WAIT_TIMEOUT, ended.wait_for(|ended| *ended >= attempt)).await {
            Ok(_) => Ok(()),
            Err(_) => Err("the provider does not answer"),
        }
    }

    /// The number of an attempt that has not begun yet.
    fn want(&self) -> Result<u64, &'static str> {
        let now = self.clock.now();
        let mut turn = self.turn.lock();
        let next = turn.begun + 1;
        if turn.wanted < next {
            let burst = OIDC_REFETCH_EVERY * OIDC_REFETCHES.saturating_sub(1);
            if now.plus(burst) < turn.free_at {
                return Err("they were fetched several times just now");
            }
            turn.free_at = turn.free_at.max(now).plus(OIDC_REFETCH_EVERY);
            turn.wanted = next;
            self.wanted.notify_one();
        }
        Ok(next)
    }

    /// Begins an attempt; it ends with [`Keys::end`].
    pub(super) fn begin(&self) {
        self.turn.lock().begun += 1;
    }

    /// Ends an attempt. Without new keys the old ones stay valid.
    pub(super) fn end(&self, found: Option<KeySet>) {
        if let Some(ring) = found {
            self.ring.store(Some(Arc::new(ring)));
        }
        let begun = self.turn.lock().begun;
        self.ended.send_replace(begun);
    }

    /// Waits until an attempt is requested, up to `most`.
    pub(super) async fn until_wanted(&self, most: Duration) {
        let wanted = async {
            loop {
                self.wanted.notified().await;
                // The wake may be left over from an attempt that began by itself.
                let turn = self.turn.lock();
                if turn.wanted > turn.begun {
                    return;
                }
            }
        };
        // After both outcomes it is time for an attempt.
        let _ = timeout(most, wanted).await;
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
    async fn all_who_ask_at_once_share_one_attempt() {
        let (keys, _) = keys();
        let task = {
            let keys = Arc::clone(&keys);
            actix::spawn(async move {
                let mut attempts = 0;
                loop {
                    keys.until_wanted(Duration::from_millis(300)).await;
                    let turn = keys.turn.lock().wanted;
                    if turn <= keys.turn.lock().begun {
                        return attempts;
                    }
                    keys.begin();
                    attempts += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    keys.end(Some(KeySet::new(Vec::new())));
                }
            })
        };
        let all = join_all((0..OIDC_WAITING + 10).map(|_| keys.fresher())).await;
        let (good, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
        assert_eq!((good.len(), refused.len()), (OIDC_WAITING, 10), "and no more than may wait");
        assert!(keys.ring().is_some());
        assert_eq!(task.await.unwrap(), 1);
    }

    #[actix::test]
    async fn an_attempt_under_way_is_not_the_one_that_was_asked_for() {
        let (keys, _) = keys();
        keys.begin();
        let asked = {
            let keys = Arc::clone(&keys);
            actix::spawn(async move { keys.fresher().await })
        };
        tokio::task::yield_now().await;
        keys.end(None);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!asked.is_finished());
        keys.until_wanted(Duration::from_secs(30)).await;
        keys.begin();
        keys.end(None);
        assert_eq!(asked.await.unwrap(), Ok(()));
    }

    #[test]
    fn tokens_cause_few_attempts() {
        let (keys, clock) = keys();
        let caused = |times: usize| {
            (0..times)
                .filter(|_| {
                    keys.want().is_ok_and(|_| {
                        keys.begin();
                        true
                    })
                })
                .count()
        };
        assert_eq!(caused(100), OIDC_REFETCHES as usize);
        clock.advance(OIDC_REFETCH_EVERY);
        assert_eq!(caused(100), 1);
        clock.advance(OIDC_REFETCH_EVERY * 100);
        assert_eq!(caused(100), OIDC_REFETCHES as usize);
    }
}
