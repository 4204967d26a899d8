//! Deletes expired leases of API servers that are gone. Runs in every server, whichever loops are enabled.

use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::DeleteOptions;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::stores::LEASES;
use pilothouse_apimachinery::well_known::{SERVER_NAME, SYSTEM_NAMESPACE};
use pilothouse_types::object::{Key, Object};

use super::client::{At, Client};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, Follows, ObjectChange};

/// The name in health checks and metrics.
pub const NAME: &str = "apiserver-lease-expiry";
/// The label of such leases, and its value.
const IDENTITY: (&str, &str) = ("apiserver.kubernetes.io/identity", SERVER_NAME);

/// Deletes expired leases of API servers.
pub struct ServerLeases {
    /// Reads and deletes objects.
    pub client: Client,
}

fn is_of_server(lease: &Object) -> bool {
    lease.key.namespace() == SYSTEM_NAMESPACE && lease.labels.get(IDENTITY.0) == Some(IDENTITY.1)
}

/// The second in which a lease expires; `None` for one without renewal time or duration, which counts as expired.
fn lapses_at(lease: &Value) -> Option<i64> {
    let spec = lease.get("spec")?;
    let (renewed, _) = time::parse_micros(spec.str("renewTime")).ok()?;
    Some(renewed.saturating_add(spec.get("leaseDurationSeconds").and_then(Value::as_int)?))
}

impl ServerLeases {
    async fn look(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(LEASES)?;
        let found = self.client.get(At::of(&resource, key)).await?.filter(|lease| is_of_server(lease));
        let Some(object) = found else { return Ok(Outcome::Done) };
        let lease = self.client.load(&resource, &object)?;
        let left =
            lapses_at(&lease).map_or(0, |at| at.saturating_add(1).saturating_sub(self.client.seconds()));
        if let Some(left) = u64::try_from(left).ok().filter(|left| *left > 0) {
            return Ok(Outcome::After(Duration::from_secs(left)));
        }
        // Only this version: a server that renews its lease is alive.
        let options = DeleteOptions {
            uid: Some(meta::of(&lease).str("uid").to_owned()),
            resource_version: Some(object.revision.0.to_string()),
            ..DeleteOptions::default()
        };
        self.client.delete(&resource, object, &options).await.ignore_not_found_or_conflict()?;
        Ok(Outcome::Done)
    }
}

impl Controller for ServerLeases {
    type Key = Key;

    fn follows(&self) -> Follows {
        Follows::These(&[LEASES])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        if !change.gone && is_of_server(change.object) {
            queue.add(change.object.key.clone());
        }
    }

    fn work(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Outcome> {
        async move { self.look(&key).await.unwrap_or_else(|status| Outcome::Again(status.to_string())) }
            .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::testing::object;

    #[test]
    fn a_lease_that_does_not_say_how_long_has_lapsed() {
        let lapses = |spec: &str| lapses_at(&object(&format!(r#"{{"spec":{spec}}}"#)));
        let renewed = r#""renewTime":"1970-01-01T00:01:00.500000Z""#;
        assert_eq!(lapses(&format!(r#"{{{renewed},"leaseDurationSeconds":40}}"#)), Some(100));
        assert_eq!(lapses(&format!("{{{renewed}}}")), None);
        assert_eq!(lapses(r#"{"leaseDurationSeconds":40}"#), None);
    }
}
