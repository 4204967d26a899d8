//! Restores the objects of the server itself when they are changed or deleted: the `kubernetes` service,
//! extension-apiserver-authentication, and the system namespaces. Runs in every server, whichever controllers are enabled.

use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::well_known::{NAMESPACES, SYSTEM_NAMESPACE, SYSTEM_NAMESPACES};
use pilothouse_types::clock::Clock;

use crate::bootstrap::kubernetes_service::KUBERNETES;
use crate::bootstrap::system_config_maps;

use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name in health checks and metrics.
pub const NAME: &str = "own-objects";
/// How often they are checked without an event; the reference's value.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// How soon they are checked after an event. It bounds the rate of writes if another writer disagrees.
const CHECK_DELAY: Duration = Duration::from_secs(1);

/// Restores the objects.
pub type Reconcile = Rc<dyn Fn() -> LocalBoxFuture<'static, Result<()>>>;

/// Restores the server's own objects.
pub struct OwnObjects {
    /// The source of time.
    pub clock: Clock,
    /// Does the work.
    pub reconcile: Reconcile,
}

/// Whether this is one of those objects.
fn is_own(store: &str, namespace: &str, name: &str) -> bool {
    match store {
        NAMESPACES => SYSTEM_NAMESPACES.contains(&name),
        "configmaps" => (namespace, name) == (SYSTEM_NAMESPACE, system_config_maps::NAME),
        "servicecidrs.networking.k8s.io" => name == KUBERNETES,
        _ => (namespace, name) == ("default", KUBERNETES),
    }
}

impl Controller for OwnObjects {
    type Key = ();

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[
            NAMESPACES,
            "configmaps",
            "services",
            "endpoints",
            "endpointslices.discovery.k8s.io",
            "servicecidrs.networking.k8s.io",
        ])
    }

    fn max_retry_delay(&self) -> Duration {
        CHECK_INTERVAL
    }

    fn initial_keys(&self) -> Vec<()> {
        vec![()]
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<()>) {
        let key = &change.object.key;
        if change.time.is_some() && is_own(change.type_name.as_str(), key.namespace(), key.name()) {
            queue.add_at((), self.clock.moment().plus(CHECK_DELAY));
        }
    }

    fn reconcile(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move {
            let reconciled = (self.reconcile)().await.inspect_err(|status| {
                tracing::warn!(%status, "the objects that describe this server cannot be maintained; retrying");
            });
            reconciled.map(|()| Outcome::RequeueAfter(CHECK_INTERVAL))
        }
        .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_of_the_server_are_restored() {
        assert!(is_own("services", "default", "kubernetes") && !is_own("services", "other", "kubernetes"));
        assert!(is_own(NAMESPACES, "", "kube-node-lease") && !is_own(NAMESPACES, "", "kubernetes"));
        assert!(is_own("configmaps", "kube-system", "extension-apiserver-authentication"));
        assert!(!is_own("configmaps", "default", "kubernetes"));
        assert!(is_own("servicecidrs.networking.k8s.io", "", "kubernetes"));
    }
}
