//! The keys of a provider. One task fetches them (`provider`), also when tokens ask for that ([`Refetches`]).

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use pilothouse_types::clock::Clock;

use crate::auth::jwt::KeySet;
use crate::auth::refetches::{RefetchLimits, Refetches};
use crate::limits::{OIDC_REFETCH_INTERVAL, OIDC_REFETCHES, OIDC_WAIT_TIMEOUT, OIDC_WAITING};

const LIMITS: RefetchLimits = RefetchLimits {
    burst: OIDC_REFETCHES,
    interval: OIDC_REFETCH_INTERVAL,
    wait: OIDC_WAIT_TIMEOUT,
    waiting: OIDC_WAITING,
};

/// The keys. Shared by the verifiers of all workers and the fetching task.
pub struct Keys {
    /// `None` until the first successful fetch.
    key_set: ArcSwapOption<KeySet>,
    refetches: Refetches,
}

impl Keys {
    /// No keys yet.
    pub fn new(clock: Clock) -> Keys {
        Keys { key_set: ArcSwapOption::empty(), refetches: Refetches::new(LIMITS, clock) }
    }

    /// The last fetched keys.
    pub(super) fn key_set(&self) -> Option<Arc<KeySet>> {
        self.key_set.load_full()
    }

    /// Waits until there are keys.
    pub(super) async fn wait_until_available(&self) {
        let mut ended = self.refetches.ended();
        while self.key_set().is_none() {
            if ended.changed().await.is_err() {
                return;
            }
        }
    }

    /// Requests a fetch and waits for that attempt, successful or not.
    pub(super) async fn refetch(&self) -> Result<(), &'static str> {
        self.refetches.refetch().await
    }

    /// Starts an attempt; it ends with [`Keys::end_attempt`].
    pub(super) fn begin_attempt(&self) {
        self.refetches.begin_attempt();
    }

    /// Ends an attempt. Without new keys the old ones stay valid.
    pub(super) fn end_attempt(&self, key_set: Option<KeySet>) {
        if let Some(key_set) = key_set {
            self.key_set.store(Some(Arc::new(key_set)));
        }
        self.refetches.end_attempt();
    }

    /// Waits until an attempt is requested, up to `limit`.
    pub(super) async fn wait_for_request(&self, limit: Duration) {
        self.refetches.wait_for_request(limit).await;
    }
}
