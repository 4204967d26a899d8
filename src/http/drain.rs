//! Drains connections without cutting requests, and waits until all have ended.

use std::sync::Arc;

use tokio::sync::watch;

/// A flag that is set once and wakes all its waiters. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Drain(Arc<watch::Sender<bool>>);

impl Default for Drain {
    fn default() -> Drain {
        Drain(Arc::new(watch::Sender::new(false)))
    }
}

impl Drain {
    /// Asks every connection to finish its requests in flight and close.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Waits until [`Drain::begin`] was called.
    pub async fn begun(&self) {
        // `self` holds the sender, so this wait cannot fail.
        let _ = self.0.subscribe().wait_for(|begun| *begun).await;
    }
}

/// Counts open connections or started workers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tally(Arc<watch::Sender<usize>>);

impl Default for Tally {
    fn default() -> Tally {
        Tally(Arc::new(watch::Sender::new(0)))
    }
}

impl Tally {
    /// Counts one more, until the guard is dropped.
    pub fn enter(&self) -> Counted {
        self.0.send_modify(|count| *count += 1);
        Counted(self.clone())
    }

    /// The current count.
    pub fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until the count satisfies the condition.
    pub async fn until(&self, condition: impl Fn(usize) -> bool) {
        let _ = self.0.subscribe().wait_for(|count| condition(*count)).await;
    }
}

/// One unit in a [`Tally`], counted until it is dropped.
#[derive(Debug)]
pub struct Counted(Tally);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[actix_rt::test]
    async fn drain_wakes_current_and_later_waiters() {
        let drain = Drain::default();
        assert!(drain.begun().now_or_never().is_none());
        let (waiter, other) = (drain.clone(), drain.clone());
        let waiter = actix_rt::spawn(async move { waiter.begun().await });
        other.begin();
        waiter.await.unwrap();
        assert!(drain.begun().now_or_never().is_some());
    }

    #[actix_rt::test]
    async fn tally_waits_until_all_guards_are_dropped() {
        let tally = Tally::default();
        let (first, second) = (tally.enter(), tally.enter());
        assert_eq!(tally.count(), 2);
        drop(first);
        assert!(tally.until(|count| count == 0).now_or_never().is_none());
        drop(second);
        tally.until(|count| count == 0).await;
    }
}
