//! What a namespace means for the objects in it: it must exist, and while it goes nothing new comes.

use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::{Key, TypeName};

use crate::api::status::{GroupResource, Result, Status};
use crate::api::words::{IMMORTAL_NAMESPACES, NAMESPACES};

use super::{Backend, Call};

const OF: GroupResource<'_> = GroupResource { group: "", resource: NAMESPACES };

/// Refuses to create in a namespace that is not there or on its way out.
pub async fn require_live(backend: &Backend, call: &Call<'_>, name: &str) -> Result<()> {
    if !call.resource.namespaced {
        return Ok(());
    }
    let store = TypeName::new(NAMESPACES);
    let namespace = match backend.stores.get(&store, Key::cluster(call.namespace), &call.permit).await {
        Ok(namespace) => namespace,
        Err(StoreError::NotFound) => return Err(Status::not_found(OF, call.namespace)),
        Err(error) => return Err(Status::from_store(&error, OF, call.namespace)),
    };
    // The phase is an indexed field: no need to parse the namespace for every object that is created in it.
    if namespace.fields.get("status.phase") == Some("Terminating") {
        return Err(Status::namespace_terminating(call.of(), name, call.namespace));
    }
    Ok(())
}

/// Refuses to delete a namespace that the cluster cannot do without.
pub fn refuse_immortal(call: &Call<'_>, name: &str) -> Result<()> {
    if call.stored.store.as_str() == NAMESPACES && IMMORTAL_NAMESPACES.contains(&name) {
        return Err(Status::forbidden("this namespace may not be deleted", Some((call.of(), name))));
    }
    Ok(())
}
