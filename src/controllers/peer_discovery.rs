//! Learns what the other API servers on the same etcd serve: each is asked whenever it renews its identity lease, so that one that has
//! started again as another release is known soon. Runs in every server that passes requests on to others, whichever controllers are
//! enabled.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::well_known::SYSTEM_NAMESPACE;
use pilothouse_apimachinery::well_known::stores::LEASES;
use pilothouse_types::object::TypeName;

use crate::peers::Peers;

use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};
use super::server_leases::is_server_lease;

/// The name in health checks and metrics: that of the reference's start hook.
pub const NAME: &str = "peer-discovery-cache-sync";
/// The longest pause before a server that does not answer is asked again: that of the renewals of its lease.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Asks the other servers.
pub struct PeerDiscovery {
    /// Reads leases.
    pub client: Client,
    /// What is known of the servers.
    pub peers: Arc<Peers>,
}

impl PeerDiscovery {
    async fn sync(&self, server: &str) -> Result<Outcome> {
        let resource = self.client.resource(LEASES)?;
        let target = ObjectRef { resource: &resource, namespace: SYSTEM_NAMESPACE, name: server };
        let lease = self.client.cached(target).await?;
        if !lease.is_some_and(|lease| is_server_lease(&lease)) {
            self.peers.forget(server);
            return Ok(Outcome::Done);
        }
        Ok(match self.peers.discover(server).await {
            Ok(()) => Outcome::Done,
            Err(error) => {
                tracing::debug!(server, error, "an API server does not tell what it serves");
                Outcome::Retry(error)
            }
        })
    }
}

impl Controller for PeerDiscovery {
    /// The id of a server.
    type Key = String;

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[LEASES])
    }

    fn max_retry_delay(&self) -> Duration {
        MAX_RETRY_DELAY
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<String>) {
        // One that is no such lease any more is that of a server which is forgotten.
        let is_lease =
            is_server_lease(change.object) || change.previous.is_some_and(|old| is_server_lease(old));
        let server = change.object.key.name();
        if is_lease && !self.peers.is_own(server) {
            queue.add(server.to_owned());
        }
    }

    fn on_list(&self, type_name: &TypeName, snapshot: &Snapshot, queue: &mut Queue<String>) {
        // The end of a lease may have been missed.
        self.peers.known().into_iter().for_each(|server| queue.add(server));
        self.on_each_object(type_name, snapshot, queue);
    }

    fn reconcile(self: Rc<Self>, server: String) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.sync(&server).await }.boxed_local()
    }
}
