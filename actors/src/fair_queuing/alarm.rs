//! Wakes the task that frees lingering seats.
//!
//! One task serves all levels. It publishes when it will check them by itself, so a level wakes it only for a release that is due
//! earlier: otherwise every request that ends under load would wake it for nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use pilothouse_types::clock::Timestamp;
use tokio::sync::Notify;

/// No check is scheduled.
const NEVER: u64 = u64::MAX;

/// The alarm of the task. See the module documentation.
pub struct Alarm {
    notify: Notify,
    /// When the task checks by itself. A level changes its state before it reads this, and the task writes this before it reads
    /// the levels: so at least one of them sees the change of the other.
    next_check: AtomicU64,
}

impl Default for Alarm {
    fn default() -> Alarm {
        Alarm { notify: Notify::new(), next_check: AtomicU64::new(NEVER) }
    }
}

impl Alarm {
    /// Wakes the task, unless it checks by the time `due` anyway. Called with the lock of the level held.
    pub fn schedule(&self, due: Timestamp) {
        if due.0 < self.next_check.load(Ordering::SeqCst) {
            self.notify.notify_one();
        }
    }

    /// The task starts to check all levels: until it ends, every change must wake it again.
    pub fn begin_check(&self) {
        self.next_check.store(NEVER, Ordering::SeqCst);
    }

    /// The task has checked all levels. It checks again at `next`, or only when woken if there is no such time.
    pub fn end_check(&self, next: Option<Timestamp>) {
        self.next_check.store(next.map_or(NEVER, |next| next.0), Ordering::SeqCst);
    }

    /// Waits until the task is woken.
    pub async fn wait(&self) {
        self.notify.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    async fn is_woken(alarm: &Alarm) -> bool {
        timeout(Duration::ZERO, alarm.wait()).await.is_ok()
    }

    #[actix_rt::test]
    async fn alarm_wakes_only_for_releases_due_before_next_check() {
        let alarm = Alarm::default();
        alarm.schedule(Timestamp(50));
        assert!(is_woken(&alarm).await, "no check is scheduled");
        alarm.end_check(Some(Timestamp(50)));
        alarm.schedule(Timestamp(50));
        alarm.schedule(Timestamp(70));
        assert!(!is_woken(&alarm).await, "the scheduled check is early enough");
        alarm.schedule(Timestamp(40));
        assert!(is_woken(&alarm).await, "due before the scheduled check");
        alarm.begin_check();
        alarm.schedule(Timestamp(70));
        alarm.end_check(Some(Timestamp(50)));
        assert!(is_woken(&alarm).await, "the level may have been checked already");
        alarm.end_check(None);
        alarm.schedule(Timestamp(70));
        assert!(is_woken(&alarm).await);
    }
}
