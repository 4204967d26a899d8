//! Tracks the use of legacy tokens: a ConfigMap records since when, and a label on each Secret the date of its last use. Runs in
//! every server, whichever controllers are enabled: the token cleaner relies on it, ours or that of kube-controller-manager.

use std::rc::Rc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::stores::CONFIG_MAPS;
use pilothouse_types::clock::Clock;
use tokio::sync::Mutex;

use crate::auth::service_account::legacy_use::{
    LAST_USED, LegacyTokenUse, LegacyUseReceiver, day, is_day, is_outdated,
};
use crate::bootstrap::system_config_maps::{SINCE, TRACKED};

use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name in health checks and metrics.
pub const NAME: &str = "legacy-token-tracking";

/// A work item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Record since when use is tracked.
    TrackingStart,
    /// Wait for a report and write it.
    NextUse,
}

/// Tracks the use of legacy tokens.
pub struct TokenUse {
    /// Reads and writes objects.
    pub client: Client,
    /// The source of time.
    pub clock: Clock,
    /// Receives reports; a restarted controller continues with it.
    pub uses: Rc<Mutex<LegacyUseReceiver>>,
}

impl TokenUse {
    async fn record_start(&self) -> Result<Outcome> {
        let resource = self.client.resource(CONFIG_MAPS)?;
        let target = ObjectRef { resource: &resource, namespace: TRACKED.0, name: TRACKED.1 };
        let today = day(self.clock.now());
        let new = || {
            let mut map = Value::object();
            map.set("apiVersion", "v1");
            map.set("kind", "ConfigMap");
            map.entry("metadata").set("name", TRACKED.1);
            map.entry("metadata").set("namespace", TRACKED.0);
            set_start(&mut map, &today);
            map
        };
        self.client.ensure(target, new, |map| set_start(map, &today)).await?;
        Ok(Outcome::Done)
    }

    async fn record_use(&self, LegacyTokenUse { secret, uid }: &LegacyTokenUse) -> Result<()> {
        let resource = self.client.resource("secrets")?;
        let update = self.client.patch(ObjectRef::new(&resource, secret), "", |secret| {
            let now = self.clock.now();
            let label = secret.get_path(&["metadata", "labels", LAST_USED]).and_then(Value::as_str);
            if meta::metadata(secret).str("uid") != uid || !is_outdated(label, now) {
                return Ok(false);
            }
            secret.entry("metadata").entry("labels").set(LAST_USED, day(now));
            Ok(true)
        });
        update.await.ignore_not_found()?;
        Ok(())
    }
}

/// Records the start of tracking; returns whether it was missing.
fn set_start(map: &mut Value, today: &str) -> bool {
    if map.get_path(&["data", SINCE]).and_then(Value::as_str).is_some_and(is_day) {
        return false;
    }
    map.entry("data").set(SINCE, today);
    true
}

impl Controller for TokenUse {
    type Key = Work;

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[CONFIG_MAPS])
    }

    fn initial_keys(&self) -> Vec<Work> {
        vec![Work::TrackingStart, Work::NextUse]
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Work>) {
        let key = &change.object.key;
        if change.time.is_some() && (key.namespace(), key.name()) == TRACKED {
            queue.add(Work::TrackingStart);
        }
    }

    fn reconcile(self: Rc<Self>, work: Work) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move {
            match work {
                Work::TrackingStart => self.record_start().await,
                Work::NextUse => match self.uses.lock().await.recv().await {
                    // After a failed write, the next request reports the use again.
                    Some(used) => {
                        if let Err(status) = self.record_use(&used).await {
                            tracing::warn!(secret = used.secret.as_str(), %status, "the last use of a token cannot be recorded");
                        }
                        Ok(Outcome::RequeueAfter(std::time::Duration::ZERO))
                    }
                    None => Ok(Outcome::Done),
                },
            }
        }
        .boxed_local()
    }
}
