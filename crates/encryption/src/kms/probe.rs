//! The last check of a plugin.

use std::future::Future;

use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::lock::SharedLock;
use tokio::sync::Mutex;

use crate::limits::{KMS_HEALTHY_TTL, KMS_UNHEALTHY_TTL};

/// Whether a plugin works, or what is wrong with it.
pub type CheckResult = Result<(), String>;

/// Makes checks, one at a time, and remembers the result.
pub struct Probe {
    clock: Clock,
    last: SharedLock<Option<(CheckResult, Moment)>>,
    /// Held during a check.
    turn: Mutex<()>,
}

impl Probe {
    /// A probe of a plugin that was not checked yet.
    pub fn new(clock: Clock) -> Probe {
        Probe { clock, last: SharedLock::new(None), turn: Mutex::new(()) }
    }

    /// The last result.
    pub fn last(&self) -> Option<CheckResult> {
        self.last.read().as_ref().map(|(result, _)| result.clone())
    }

    /// Makes a check, unless the last one is recent enough.
    pub async fn check(&self, check: impl Future<Output = CheckResult>) -> CheckResult {
        let _turn = self.turn.lock().await;
        if let Some((result, at)) = &*self.last.read() {
            let ttl = if result.is_ok() { KMS_HEALTHY_TTL } else { KMS_UNHEALTHY_TTL };
            if self.clock.elapsed(*at) < ttl {
                return result.clone();
            }
        }
        let result = check.await;
        *self.last.write() = Some((result.clone(), self.clock.moment()));
        result
    }
}
