//! Deletes expired leases of API servers that are gone. Runs in every server, whichever controllers are enabled.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::DeleteOptions;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::labels::SERVER_IDENTITY;
use pilothouse_apimachinery::well_known::stores::LEASES;
use pilothouse_apimachinery::well_known::{SERVER_NAME, SYSTEM_NAMESPACE};
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::object::{Key, Object, Revision};

use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name in health checks and metrics.
pub const NAME: &str = "apiserver-lease-expiry";
/// The label of such leases, and its value.
pub(super) const IDENTITY_LABEL: (&str, &str) = (SERVER_IDENTITY, SERVER_NAME);

/// Deletes expired leases of API servers.
pub struct ServerLeases {
    /// Reads and deletes objects.
    client: Client,
    clock: Clock,
    /// Since when each lease is known at its revision: a server that renews its lease lives, whatever the wall clock says.
    observed: RefCell<HashMap<Key, (Revision, Moment)>>,
}

/// Whether a lease belongs to an API server.
pub(super) fn is_server_lease(lease: &Object) -> bool {
    lease.key.namespace() == SYSTEM_NAMESPACE && lease.labels.get(IDENTITY_LABEL.0) == Some(IDENTITY_LABEL.1)
}

/// How long a lease that seems to have expired must have been seen without a renewal, if it does not last less: servers renew theirs
/// every ten seconds.
const UNRENEWED: Duration = Duration::from_secs(25);

/// The second in which a lease expires, and how long it lasts; `None` for one without renewal time or duration, which counts as expired.
fn expiry(lease: &Value) -> Option<(i64, Duration)> {
    let spec = lease.get("spec")?;
    let (renewed, _) = time::parse_micros(spec.str("renewTime")).ok()?;
    let seconds = spec.get("leaseDurationSeconds").and_then(Value::as_int)?;
    Some((renewed.saturating_add(seconds), Duration::from_secs(seconds.try_into().unwrap_or_default())))
}

impl ServerLeases {
    /// A controller that deletes through this client.
    pub fn new(client: Client, clock: Clock) -> ServerLeases {
        ServerLeases { client, clock, observed: RefCell::default() }
    }

    /// How long the lease is known at this revision.
    fn observed_for(&self, lease: &Object) -> Duration {
        let (mut observed, now) = (self.observed.borrow_mut(), self.clock.moment());
        let entry = observed.entry(lease.key.clone()).or_insert((lease.revision, now));
        if entry.0 != lease.revision {
            *entry = (lease.revision, now);
        }
        now.since(entry.1)
    }

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(LEASES)?;
        let lease =
            self.client.get(ObjectRef::new(&resource, key)).await?.filter(|lease| is_server_lease(lease));
        let Some(object) = lease else {
            self.observed.borrow_mut().remove(key);
            return Ok(Outcome::Done);
        };
        let lease = self.client.load(&resource, &object)?;
        if let Some((expiry, duration)) = expiry(&lease) {
            let remaining = expiry.saturating_add(1).saturating_sub(self.client.seconds());
            let remaining = Duration::from_secs(remaining.try_into().unwrap_or_default());
            let unrenewed = duration.min(UNRENEWED).saturating_sub(self.observed_for(&object));
            if !remaining.max(unrenewed).is_zero() {
                return Ok(Outcome::RequeueAfter(remaining.max(unrenewed)));
            }
        }
        // Only this version: a server that renews its lease is alive.
        let options = DeleteOptions {
            uid: Some(meta::metadata(&lease).str("uid").to_owned()),
            resource_version: Some(object.revision.0.to_string()),
            ..DeleteOptions::default()
        };
        self.client.delete(&resource, object, &options).await.ignore_not_found_or_conflict()?;
        Ok(Outcome::Done)
    }
}

impl Controller for ServerLeases {
    type Key = Key;

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[LEASES])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        if change.is_deleted {
            self.observed.borrow_mut().remove(&change.object.key);
        } else if is_server_lease(change.object) {
            queue.add(change.object.key.clone());
        }
    }

    fn reconcile(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.sync(&key).await }.boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn lease_without_renewal_time_or_duration_is_expired() {
        let expiry_of = |spec: &str| expiry(&object(&format!(r#"{{"spec":{spec}}}"#)));
        let renewed = r#""renewTime":"1970-01-01T00:01:00.500000Z""#;
        let expected = Some((100, Duration::from_secs(40)));
        assert_eq!(expiry_of(&format!(r#"{{{renewed},"leaseDurationSeconds":40}}"#)), expected);
        assert_eq!(expiry_of(&format!("{{{renewed}}}")), None);
        assert_eq!(expiry_of(r#"{"leaseDurationSeconds":40}"#), None);
    }
}
