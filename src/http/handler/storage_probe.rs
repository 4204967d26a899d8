//! Whether writes can be made durable, for the health checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pilothouse_actors::storage_health::StorageHealth;
use pilothouse_types::clock::{Clock, Moment};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::limits::STORAGE_PROBE_INTERVAL;

/// Asks the storage whether it accepts writes. Anybody may request health checks at any rate, and they must not delay writes: it is asked
/// once in a while, and never again before it has answered.
pub struct StorageProbe {
    health: StorageHealth,
    /// How long a check waits.
    timeout: Duration,
    clock: Clock,
    is_running: AtomicBool,
    /// The last result, and its time.
    last: watch::Sender<Option<(Moment, Result<(), String>)>>,
}

impl StorageProbe {
    /// A probe of this storage, which may take so long.
    pub fn new(health: StorageHealth, timeout: Duration, clock: Clock) -> Arc<StorageProbe> {
        Arc::new(StorageProbe {
            health,
            timeout,
            clock,
            is_running: AtomicBool::new(false),
            last: watch::Sender::new(None),
        })
    }

    /// The result of a probe that is not older than the interval. A disk that does not finish a write in time is one that fails.
    pub async fn check(self: &Arc<StorageProbe>) -> Result<(), String> {
        let mut last = self.last.subscribe();
        let recent = last.borrow_and_update().clone();
        if let Some((time, outcome)) = recent
            && self.clock.elapsed(time) < STORAGE_PROBE_INTERVAL
        {
            return outcome;
        }
        if !self.is_running.swap(true, Ordering::AcqRel) {
            let probe = Arc::clone(self);
            actix::spawn(async move {
                let outcome = probe.health.check(probe.timeout).await;
                probe.is_running.store(false, Ordering::Release);
                probe.publish(outcome);
            });
        }
        match timeout(self.timeout, last.changed()).await {
            Ok(_) => last.borrow().as_ref().map_or(Ok(()), |(_, outcome)| outcome.clone()),
            Err(_) => {
                let outcome = Err(format!("the storage has not answered within {:?}", self.timeout));
                self.publish(outcome.clone());
                outcome
            }
        }
    }

    fn publish(&self, outcome: Result<(), String>) {
        self.last.send_replace(Some((self.clock.moment(), outcome)));
    }
}
