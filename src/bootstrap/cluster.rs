//! All objects of a fresh cluster, created before the server is ready.
//!
//! They pass admission like any other write, so a policy, a quota or a corrupt object may prevent them. That must not keep the
//! server from starting: nobody could remove the policy then. Refused objects are retried while the server runs.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use futures::join;
use pilothouse_actors::start_steps::{StartSteps, StepOutcome};
use pilothouse_api::catalog::Catalog;
use pilothouse_apimachinery::status::Result;

use super::kubernetes_service::{self, KubernetesService};
use super::system_config_maps::ExtensionAuthentication;
use crate::registry::Backend;

/// The delay before refused objects are retried.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// The names of the steps whose outcomes are noted.
pub mod steps {
    /// The APIServices of what this server serves.
    pub const API_SERVICES: &str = "bootstrap/apiservices";
    /// How extension API servers authenticate clients.
    pub const AUTHENTICATION: &str = "bootstrap/authentication";
    /// Flow schemas and priority levels.
    pub const FLOW_CONTROL: &str = "bootstrap/flow-control";
    /// The `kubernetes` service and its endpoints.
    pub const KUBERNETES_SERVICE: &str = "bootstrap/kubernetes-service";
    /// The system namespaces.
    pub const NAMESPACES: &str = "bootstrap/namespaces";
    /// System PriorityClasses.
    pub const PRIORITY_CLASSES: &str = "bootstrap/priority-classes";
    /// Roles and bindings.
    pub const ROLES: &str = "bootstrap/roles";
    /// The default ServiceCIDR.
    pub const SERVICE_CIDR: &str = "bootstrap/service-cidr";
}

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
    /// Where the outcome of each step is noted.
    pub steps: StartSteps,
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
    let ClusterInputs { catalog, is_enabled, kubernetes_service, authentication, steps: outcomes, today } =
        inputs;
    let catalog = (*catalog).as_ref();
    let namespaces =
        noted(&outcomes, steps::NAMESPACES, super::namespaces(backend, catalog).boxed_local()).await;
    // Some of the following objects are in those namespaces.
    let service = async {
        let cidr = kubernetes_service::default_service_cidr(backend, catalog, &kubernetes_service);
        let cidr = noted(&outcomes, steps::SERVICE_CIDR, cidr.boxed_local()).await;
        let service = kubernetes_service::service_and_endpoints(backend, catalog, &kubernetes_service);
        cidr.and(noted(&outcomes, steps::KUBERNETES_SERVICE, service.boxed_local()).await)
    };
    let authentication = super::system_config_maps::authentication(backend, catalog, authentication);
    let (roles, classes, flows, services, service, authentication, tracking) = join!(
        noted(&outcomes, steps::ROLES, super::roles(backend, catalog, is_enabled).boxed_local()),
        noted(&outcomes, steps::PRIORITY_CLASSES, super::priority_classes(backend, catalog).boxed_local()),
        noted(&outcomes, steps::FLOW_CONTROL, super::flow_control(backend, catalog).boxed_local()),
        noted(&outcomes, steps::API_SERVICES, super::api_services(backend, catalog).boxed_local()),
        service,
        noted(&outcomes, steps::AUTHENTICATION, authentication.boxed_local()),
        super::system_config_maps::token_tracking(backend, catalog, &today),
    );
    namespaces.and(roles).and(classes).and(flows).and(services).and(service).and(authentication).and(tracking)
}

/// Takes a step, and notes its outcome. Boxed: together the steps are too large for the stack of a thread.
async fn noted(
    outcomes: &StartSteps,
    step: &'static str,
    work: LocalBoxFuture<'_, Result<()>>,
) -> Result<()> {
    let result = work.await;
    outcomes.note(step, if result.is_ok() { StepOutcome::Complete } else { StepOutcome::Refused });
    result
}
