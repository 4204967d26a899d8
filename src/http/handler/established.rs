//! Kinds that another server has established.
//!
//! A client that has read at one server that a kind is established must find it at the others, too, which learn of its definition a
//! moment later. So before a request is told that there is no such kind, and before discovery, a server on a shared log looks how new
//! the definitions are, and waits until it serves them. Whether there is a kind is never guessed: a client takes objects for deleted
//! whose kind does not exist.

use std::sync::Arc;

use pilothouse_actors::permit::Permit;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::path::Request;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, TypeName};
use tokio::time::timeout;

use super::worker::Worker;
use crate::limits::DEFINITIONS_READ_TIMEOUT;
use crate::live_index::stored_object::CUSTOM_RESOURCE_DEFINITIONS;

/// The resource of a request, which this server did not serve when the request came. Waits until it does, if there is a definition of it.
/// Fails if that is not known, or the definition is not served in time.
pub async fn find_once_served(
    worker: &Worker,
    request: &Request<'_>,
    permit: &Permit,
) -> Result<Option<Arc<Resource>>> {
    let Some(path) = request.resource().filter(|path| !path.group.is_empty()) else { return Ok(None) };
    let Some(type_name) = shared_definitions(worker) else { return Ok(None) };
    let extensions = &worker.shared.aggregation.extensions;
    if !matches!(extensions.find(path.group, path.version).await, Ok(None)) {
        return Ok(None);
    }
    let name = format!("{}.{}", path.resource, path.group);
    let definition = worker.backend.stores.get(&type_name, Key::cluster(&name), permit);
    let revision = match timeout(DEFINITIONS_READ_TIMEOUT, definition).await {
        Ok(Ok(definition)) => definition.revision,
        Ok(Err(StoreError::NotFound)) => return Ok(None),
        Ok(Err(_)) | Err(_) => {
            return Err(Status::unavailable(format!(
                "it is not known now whether there is a resource {name}"
            )));
        }
    };
    if worker.shared.served_definitions.wait_for(revision).await.is_err() {
        return Err(Status::unavailable(format!("the definition {name} is not served yet")));
    }
    Ok(worker.served().catalog.resource_at(path).cloned())
}

/// Waits until all definitions are served, or nobody tells how new they are: discovery says what this server knows then.
pub async fn wait_until_all_served(worker: &Worker) {
    let Some(type_name) = shared_definitions(worker) else { return };
    let permit = Permit::none();
    let definitions = timeout(DEFINITIONS_READ_TIMEOUT, worker.backend.stores.snapshot(&type_name, &permit));
    if let Ok(Ok(definitions)) = definitions.await {
        let newest = definitions.iter().map(|definition| definition.revision).max();
        let _late = worker.shared.served_definitions.wait_for(newest.unwrap_or_default()).await;
    }
}

/// The store of definitions, if other servers write to it.
fn shared_definitions(worker: &Worker) -> Option<TypeName> {
    let is_shared = !worker.shared.usage.etcd.is_empty();
    is_shared.then(|| CUSTOM_RESOURCE_DEFINITIONS.type_name())
}
