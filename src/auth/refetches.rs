//! Fetches of keys that tokens cause.
//!
//! One task fetches, many verifiers wait: a token without a matching key may be signed by a newer one. A waiter needs an attempt that
//! begins after its request, because a running one may have read the old keys already. All requests before that attempt begins share
//! it. The number of attempts that tokens can cause is bounded, because anybody can make tokens with unknown keys.

use std::time::Duration;

use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::lock::Lock;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::timeout;

/// How many fetches tokens can cause, and how many tokens can wait for them.
#[derive(Clone, Copy, Debug)]
pub struct RefetchLimits {
    /// Fetches in a burst.
    pub burst: u32,
    /// The time between two fetches in the long run.
    pub interval: Duration,
    /// How long a token waits.
    pub wait: Duration,
    /// Tokens that may wait.
    pub waiting: usize,
}

/// The attempts to fetch keys. Shared by the verifiers of all workers and the fetching task.
pub struct Refetches {
    limits: RefetchLimits,
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

impl Refetches {
    /// No attempts yet.
    pub fn new(limits: RefetchLimits, clock: Clock) -> Refetches {
        Refetches {
            limits,
            attempts: Lock::new(FetchAttempts {
                started: 0,
                requested: 0,
                budget_full_at: Timestamp::default(),
            }),
            requested: Notify::new(),
            ended: watch::Sender::new(0),
            wait_slots: Semaphore::new(limits.waiting),
            clock,
        }
    }

    /// Follows the finished attempts.
    pub fn ended(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }

    /// Requests a fetch and waits for that attempt, successful or not.
    pub async fn refetch(&self) -> Result<(), &'static str> {
        let _slot = self.wait_slots.try_acquire().map_err(|_| "too many tokens wait for that")?;
        let attempt = self.request_attempt()?;
        let mut ended = self.ended.subscribe();
        match timeout(self.limits.wait, ended.wait_for(|ended| *ended >= attempt)).await {
            Ok(_) => Ok(()),
            Err(_) => Err("the provider does not answer"),
        }
    }

    /// Requests an attempt that has not started yet, and returns its number.
    fn request_attempt(&self) -> Result<u64, &'static str> {
        let RefetchLimits { burst, interval, .. } = self.limits;
        let now = self.clock.now();
        let mut attempts = self.attempts.lock();
        let next = attempts.started + 1;
        if attempts.requested < next {
            if now.plus(interval * burst.saturating_sub(1)) < attempts.budget_full_at {
                return Err("they were fetched several times just now");
            }
            attempts.budget_full_at = attempts.budget_full_at.max(now).plus(interval);
            attempts.requested = next;
            self.requested.notify_one();
        }
        Ok(next)
    }

    /// Starts an attempt; it ends with [`Refetches::end_attempt`].
    pub fn begin_attempt(&self) {
        self.attempts.lock().started += 1;
    }

    /// Ends an attempt, once its keys are in use.
    pub fn end_attempt(&self) {
        let started = self.attempts.lock().started;
        self.ended.send_replace(started);
    }

    /// Waits until an attempt is requested, up to `limit`.
    pub async fn wait_for_request(&self, limit: Duration) {
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
    use std::sync::Arc;

    use futures::future::join_all;

    use super::*;

    const LIMITS: RefetchLimits = RefetchLimits {
        burst: 3,
        interval: Duration::from_secs(10),
        wait: Duration::from_secs(10),
        waiting: 64,
    };

    fn refetches() -> (Arc<Refetches>, Clock) {
        let clock = Clock::manual(Timestamp(1_000_000_000_000));
        (Arc::new(Refetches::new(LIMITS, clock.clone())), clock)
    }

    #[actix::test]
    async fn concurrent_refetches_share_one_attempt() {
        let (refetches, _) = refetches();
        let task = {
            let refetches = Arc::clone(&refetches);
            actix::spawn(async move {
                let mut attempts = 0;
                loop {
                    refetches.wait_for_request(Duration::from_millis(300)).await;
                    let requested = refetches.attempts.lock().requested;
                    if requested <= refetches.attempts.lock().started {
                        return attempts;
                    }
                    refetches.begin_attempt();
                    attempts += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    refetches.end_attempt();
                }
            })
        };
        let all = join_all((0..LIMITS.waiting + 10).map(|_| refetches.refetch())).await;
        let (fetched, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
        assert_eq!(
            (fetched.len(), refused.len()),
            (LIMITS.waiting, 10),
            "the rest exceeds the waiters' limit"
        );
        assert_eq!(task.await.unwrap(), 1);
    }

    #[actix::test]
    async fn refetch_waits_for_an_attempt_started_after_it() {
        let (refetches, _) = refetches();
        refetches.begin_attempt();
        let waiter = {
            let refetches = Arc::clone(&refetches);
            actix::spawn(async move { refetches.refetch().await })
        };
        tokio::task::yield_now().await;
        refetches.end_attempt();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!waiter.is_finished());
        refetches.wait_for_request(Duration::from_secs(30)).await;
        refetches.begin_attempt();
        refetches.end_attempt();
        assert_eq!(waiter.await.unwrap(), Ok(()));
    }

    #[test]
    fn refetches_are_rate_limited() {
        let (refetches, clock) = refetches();
        let started_attempts = |times: usize| {
            (0..times)
                .filter(|_| {
                    refetches.request_attempt().is_ok_and(|_| {
                        refetches.begin_attempt();
                        true
                    })
                })
                .count()
        };
        assert_eq!(started_attempts(100), LIMITS.burst as usize);
        clock.advance(LIMITS.interval);
        assert_eq!(started_attempts(100), 1);
        clock.advance(LIMITS.interval * 100);
        assert_eq!(started_attempts(100), LIMITS.burst as usize);
    }
}
