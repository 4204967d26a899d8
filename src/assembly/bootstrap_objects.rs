//! The objects that every cluster has, created before the server is ready.
//!
//! They pass admission like any other write, so a policy, a quota or a corrupt object may prevent them. That must not keep the
//! server from starting: nobody could remove the policy then. Refused objects are retried while the server runs.

use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::join;
use pilothouse_apimachinery::status::Result;

use super::{ServerParts, extension_authentication};
use crate::application::StartError;
use crate::auth::service_account::legacy_use::day;
use crate::backend::Backend;
use crate::bootstrap;

/// The delay before refused objects are retried.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Creates them, or spawns a task that retries. Fails only if the store has failed.
pub(super) async fn create(
    parts: &Arc<ServerParts>,
    backend: Rc<Backend>,
) -> std::result::Result<(), StartError> {
    let Err(status) = create_once(parts, &backend).await else { return Ok(()) };
    if parts.storage.fatal.is_raised() {
        return Err(StartError::part("the bootstrap objects")(&status));
    }
    tracing::warn!(%status, "bootstrap objects cannot be created; retrying");
    // A weak reference: the server may end before they can be created.
    actix::spawn(retry(Arc::downgrade(parts), backend));
    Ok(())
}

async fn retry(parts: Weak<ServerParts>, backend: Rc<Backend>) {
    loop {
        tokio::time::sleep(RETRY_DELAY).await;
        let Some(parts) = parts.upgrade() else { return };
        match create_once(&parts, &backend).await {
            Ok(()) => return tracing::info!("all bootstrap objects exist"),
            Err(status) => tracing::debug!(%status, "bootstrap objects cannot be created"),
        }
    }
}

/// Creates them. One that is refused does not stop the others.
async fn create_once(parts: &ServerParts, backend: &Backend) -> Result<()> {
    let served = parts.shared.served.load_full();
    let catalog = &served.catalog;
    let namespaces = bootstrap::namespaces(backend, catalog).await;
    // Some of the following objects are in those namespaces.
    let today = day(parts.context.clock.now());
    let (roles, classes, flows, services, service, authentication, tracking) = join!(
        bootstrap::roles(backend, catalog, |gate| parts.gates.enabled(gate)),
        bootstrap::priority_classes(backend, catalog),
        bootstrap::flow_control(backend, catalog),
        bootstrap::api_services(backend, catalog),
        bootstrap::kubernetes_service::kubernetes(backend, catalog, &parts.addresses.kubernetes_service),
        bootstrap::system_config_maps::authentication(backend, catalog, extension_authentication(parts)),
        bootstrap::system_config_maps::token_tracking(backend, catalog, &today),
    );
    namespaces.and(roles).and(classes).and(flows).and(services).and(service).and(authentication).and(tracking)
}
