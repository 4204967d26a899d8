//! Publishes the storage versions of the built-in resources of this server, if the gates StorageVersionAPI and APIServerIdentity
//! are on. Runs in every server, whichever controllers are enabled.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_api::storage_versions::{ResourceVersions, new_object, resource_versions, set_server};
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::well_known::SYSTEM_NAMESPACE;
use pilothouse_apimachinery::well_known::stores::{LEASES, STORAGE_VERSIONS};
use pilothouse_types::clock::Clock;

use super::attempts::Attempts;
use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name in health checks and metrics: that of the reference's start hook.
pub const NAME: &str = "built-in-resources-storage-version-updater";
/// How often they are compared without an event; the reference's value.
const CHECK_INTERVAL: Duration = Duration::from_secs(600);
/// How soon they are compared after an event. It bounds the rate of writes if another writer disagrees.
const CHECK_DELAY: Duration = Duration::from_secs(1);

/// Publishes the storage versions of this server.
pub struct StorageVersions {
    /// Reads and writes objects.
    pub client: Client,
    /// The source of time.
    pub clock: Clock,
    /// The id of this server.
    pub server: Arc<str>,
}

impl StorageVersions {
    async fn publish(&self) -> Result<Outcome> {
        // The API may be disabled though its gate is on.
        if self.client.resource(STORAGE_VERSIONS).is_err() {
            return Ok(Outcome::Done);
        }
        let leases = self.client.resource(LEASES)?;
        let lease = ObjectRef { resource: &leases, namespace: SYSTEM_NAMESPACE, name: &self.server };
        if self.client.cached(lease).await?.is_none() {
            // The entries of a server without a lease are garbage.
            return Ok(Outcome::Retry("this server has no identity lease yet".to_owned()));
        }
        let (index, registry) = (self.client.resource_index(), self.client.registry());
        let mut attempts = Attempts::default();
        for versions in resource_versions(index.stored(), &registry) {
            attempts.take(self.publish_resource(&versions).await);
        }
        attempts.end()?;
        Ok(Outcome::RequeueAfter(CHECK_INTERVAL))
    }

    async fn publish_resource(&self, versions: &ResourceVersions) -> Result<()> {
        let resource = self.client.resource(STORAGE_VERSIONS)?;
        let target = ObjectRef { resource: &resource, namespace: "", name: &versions.name };
        if self.client.cached(target).await?.is_none() {
            match self.client.create(target, &new_object(&versions.name)).await {
                Err(status) if !status.is_already_exists() => return Err(status),
                _ => {}
            }
        }
        let now = self.client.now();
        self.client
            .edit(target, "status", |object| Ok(set_server(object, &self.server, versions, &now)))
            .await
    }
}

impl Controller for StorageVersions {
    type Key = ();

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[STORAGE_VERSIONS])
    }

    fn max_retry_delay(&self) -> Duration {
        CHECK_INTERVAL
    }

    fn initial_keys(&self) -> Vec<()> {
        vec![()]
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<()>) {
        if change.time.is_some() {
            queue.add_at((), self.clock.moment().plus(CHECK_DELAY));
        }
    }

    fn reconcile(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.publish().await }.boxed_local()
    }
}
