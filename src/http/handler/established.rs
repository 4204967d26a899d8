//! Kinds that another server has established.
//!
//! A client that has read at one server that a kind is established must find it at the others, too, which learn of its definition a
//! moment later. So before a request is told that there is no such kind, and before discovery, a server on a shared log looks how new
//! the definitions are, and waits until it serves them.

use std::sync::Arc;

use pilothouse_actors::permit::Permit;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::path::Request;
use pilothouse_types::object::{Key, TypeName};

use super::worker::Worker;
use crate::live_index::stored_object::CUSTOM_RESOURCE_DEFINITIONS;

/// The resource of a request, which this server did not serve when the request came. Waits until it does, if there is a definition of it.
pub async fn find(worker: &Worker, request: &Request<'_>, permit: &Permit) -> Option<Arc<Resource>> {
    let path = request.resource().filter(|path| !path.group.is_empty())?;
    let type_name = shared_definitions(worker)?;
    let key = Key::cluster(&format!("{}.{}", path.resource, path.group));
    let definition = worker.backend.stores.get(&type_name, key, permit).await.ok()?;
    worker.shared.definitions.wait_for(definition.revision).await;
    worker.served().catalog.resource_at(path).cloned()
}

/// Waits until all definitions are served.
pub async fn wait_for_all(worker: &Worker) {
    let Some(type_name) = shared_definitions(worker) else { return };
    if let Ok(definitions) = worker.backend.stores.snapshot(&type_name, &Permit::none()).await {
        let newest = definitions.iter().map(|definition| definition.revision).max();
        worker.shared.definitions.wait_for(newest.unwrap_or_default()).await;
    }
}

/// The store of definitions, if other servers write to it.
fn shared_definitions(worker: &Worker) -> Option<TypeName> {
    let is_shared = !worker.shared.usage.etcd.is_empty();
    is_shared.then(|| CUSTOM_RESOURCE_DEFINITIONS.type_name())
}
