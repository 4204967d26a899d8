//! All objects of a fresh cluster, created before the server is ready.
//!
//! They pass admission like any other write, so a policy, a quota or a corrupt object may prevent them. That must not keep the
//! server from starting: nobody could remove the policy then. Refused objects are retried while the server runs.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::join;
use pilothouse_api::catalog::Catalog;
use pilothouse_apimachinery::status::Result;

use super::kubernetes_service::KubernetesService;
use super::system_config_maps::ExtensionAuthentication;
use crate::registry::Backend;

/// The delay before refused objects are retried.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// What the objects of a cluster depend on.
pub struct ClusterInputs {
    /// The served resources.
    pub catalog: Arc<dyn AsRef<Catalog>>,
    /// Whether a feature gate is enabled: some roles depend on one.
    pub is_enabled: Box<dyn Fn(&str) -> bool>,
    /// The Service of this server.
    pub kubernetes_service: KubernetesService,
    /// How extension API servers authenticate clients.
    pub authentication: ExtensionAuthentication,
    /// The current date: the first start records since when the use of tokens is tracked.
    pub today: String,
}

/// Creates the objects. If one is refused, a task retries for as long as there are `inputs`, which end with the server. Returns
/// the first refusal.
pub async fn create_objects(
    backend: Rc<Backend>,
    inputs: impl Fn() -> Option<ClusterInputs> + 'static,
) -> Result<()> {
    let Some(first_inputs) = inputs() else { return Ok(()) };
    let result = create_once(first_inputs, &backend).await;
    if let Err(status) = &result {
        tracing::warn!(%status, "bootstrap objects cannot be created; retrying");
        actix::spawn(retry(backend, inputs));
    }
    result
}

async fn retry(backend: Rc<Backend>, inputs: impl Fn() -> Option<ClusterInputs>) {
    loop {
        tokio::time::sleep(RETRY_DELAY).await;
        let Some(inputs) = inputs() else { return };
        match create_once(inputs, &backend).await {
            Ok(()) => return tracing::info!("all bootstrap objects exist"),
            Err(status) => tracing::debug!(%status, "bootstrap objects cannot be created"),
        }
    }
}

/// Creates the objects. One that is refused does not stop the others.
async fn create_once(inputs: ClusterInputs, backend: &Backend) -> Result<()> {
    let ClusterInputs { catalog, is_enabled, kubernetes_service, authentication, today } = inputs;
    let catalog = (*catalog).as_ref();
    let namespaces = super::namespaces(backend, catalog).await;
    // Some of the following objects are in those namespaces.
    let (roles, classes, flows, services, service, authentication, tracking) = join!(
        super::roles(backend, catalog, is_enabled),
        super::priority_classes(backend, catalog),
        super::flow_control(backend, catalog),
        super::api_services(backend, catalog),
        super::kubernetes_service::kubernetes(backend, catalog, &kubernetes_service),
        super::system_config_maps::authentication(backend, catalog, authentication),
        super::system_config_maps::token_tracking(backend, catalog, &today),
    );
    namespaces.and(roles).and(classes).and(flows).and(services).and(service).and(authentication).and(tracking)
}
