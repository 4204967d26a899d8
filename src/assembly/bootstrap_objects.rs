//! The objects that every cluster has, made before the server is ready.
//!
//! They pass admission like any other write, so a policy, a quota or a damaged record can stand in their way. That must not keep the
//! server from starting: nobody could take the policy away again. What was refused is tried again while the server runs.

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

/// How soon objects are tried again that were refused.
const AGAIN: Duration = Duration::from_secs(10);

/// Makes them, or sees to it that somebody goes on trying. Fails only where nothing can be written at all.
pub(super) async fn make(
    parts: &Arc<ServerParts>,
    backend: Rc<Backend>,
) -> std::result::Result<(), StartError> {
    let Err(status) = make_once(parts, &backend).await else { return Ok(()) };
    if parts.storage.fatal.is_raised() {
        return Err(StartError::part("the first objects")(&status));
    }
    tracing::warn!(%status, "bootstrap objects cannot be created; retrying");
    // Not held: the server may end before they can be made.
    actix::spawn(go_on(Arc::downgrade(parts), backend));
    Ok(())
}

async fn go_on(parts: Weak<ServerParts>, backend: Rc<Backend>) {
    loop {
        tokio::time::sleep(AGAIN).await;
        let Some(parts) = parts.upgrade() else { return };
        match make_once(&parts, &backend).await {
            Ok(()) => return tracing::info!("all bootstrap objects exist"),
            Err(status) => tracing::debug!(%status, "bootstrap objects cannot be created"),
        }
    }
}

/// Makes them. One that is refused does not keep the others.
async fn make_once(parts: &ServerParts, backend: &Backend) -> Result<()> {
    let served = parts.shared.served.load_full();
    let catalog = &served.catalog;
    let namespaces = bootstrap::namespaces(backend, catalog).await;
    // Some of these stand in those namespaces.
    let today = day(parts.context.clock.now());
    let (roles, classes, flows, services, home, trust, tracking) = join!(
        bootstrap::roles(backend, catalog, |gate| parts.gates.enabled(gate)),
        bootstrap::priority_classes(backend, catalog),
        bootstrap::flow_control(backend, catalog),
        bootstrap::api_services(backend, catalog),
        bootstrap::kubernetes_service::kubernetes(backend, catalog, &parts.addresses.home),
        bootstrap::system_config_maps::authentication(backend, catalog, extension_authentication(parts)),
        bootstrap::system_config_maps::token_tracking(backend, catalog, &today),
    );
    namespaces.and(roles).and(classes).and(flows).and(services).and(home).and(trust).and(tracking)
}
