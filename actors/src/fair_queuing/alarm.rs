//! What wakes whoever frees seats that nobody gives back.
//!
//! One task of all levels frees them. It says when it will look by itself, so a level wakes it only for something that is due
//! before: under load every request that ends would wake it otherwise, and it has nothing to do.

use std::sync::atomic::{AtomicU64, Ordering};

use pilothouse_types::clock::Timestamp;
use tokio::sync::Notify;

/// Nothing is due, as far as anybody knows.
const NEVER: u64 = u64::MAX;

/// See the module text.
pub struct Alarm {
    bell: Notify,
    /// When the task looks by itself. A level sets its state before it reads this, the task does it the other way around: one of
    /// them sees what the other did.
    next_look: AtomicU64,
}

impl Default for Alarm {
    fn default() -> Alarm {
        Alarm { bell: Notify::new(), next_look: AtomicU64::new(NEVER) }
    }
}

impl Alarm {
    /// Something is due then: rings unless somebody looks by that time anyway. Called with the lock of the level held.
    pub fn mind(&self, due: Timestamp) {
        if due.0 < self.next_look.load(Ordering::SeqCst) {
            self.bell.notify_one();
        }
    }

    /// The task is about to look at all levels: whatever changes behind its back must ring.
    pub fn begin_look(&self) {
        self.next_look.store(NEVER, Ordering::SeqCst);
    }

    /// The task has looked, and looks again then; without a time, when it is woken.
    pub fn end_look(&self, next: Option<Timestamp>) {
        self.next_look.store(next.map_or(NEVER, |next| next.0), Ordering::SeqCst);
    }

    /// Waits until it rings.
    pub async fn rung(&self) {
        self.bell.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    async fn has_rung(alarm: &Alarm) -> bool {
        timeout(Duration::ZERO, alarm.rung()).await.is_ok()
    }

    #[actix_rt::test]
    async fn it_rings_only_for_what_is_due_before_somebody_looks() {
        let alarm = Alarm::default();
        alarm.mind(Timestamp(50));
        assert!(has_rung(&alarm).await, "nobody said that they would look");
        alarm.end_look(Some(Timestamp(50)));
        alarm.mind(Timestamp(50));
        alarm.mind(Timestamp(70));
        assert!(!has_rung(&alarm).await, "somebody looks then");
        alarm.mind(Timestamp(40));
        assert!(has_rung(&alarm).await, "that is too early for them");
        alarm.begin_look();
        alarm.mind(Timestamp(70));
        alarm.end_look(Some(Timestamp(50)));
        assert!(has_rung(&alarm).await, "they may have looked there already");
        alarm.end_look(None);
        alarm.mind(Timestamp(70));
        assert!(has_rung(&alarm).await);
    }
}
