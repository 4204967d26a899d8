//! Custom types in a log that several servers share: it has to know which keys are theirs before their objects can be served.

use std::sync::Arc;

use pilothouse_actors::shared_log::type_changes::{AddTypeError, TypeChanges};
use pilothouse_api::catalog::resource::Resource;
use pilothouse_etcd_log::Types;
use pilothouse_types::object::TypeName;

/// Adds and removes the types of definitions in the shared log. Cheap to clone.
#[derive(Clone)]
pub struct SharedTypes {
    /// Where types are added and removed: between two batches of changes, so that none of theirs is missed.
    pub type_changes: TypeChanges,
    /// Which keys of etcd are those of which type.
    pub types: Arc<Types>,
}

impl SharedTypes {
    /// The objects of this resource are kept from now on. Returns when they are here.
    pub async fn add(&self, resource: &Arc<Resource>) -> Result<(), AddTypeError> {
        let Some(stored) = resource.stored() else { return Ok(()) };
        let (types, added) = (Arc::clone(&self.types), Arc::clone(resource));
        self.type_changes.add(stored.store.clone(), Box::new(move || types.add(&added))).await
    }

    /// The objects of a type are no longer kept.
    pub async fn remove(&self, type_name: &TypeName) {
        let (types, removed) = (Arc::clone(&self.types), type_name.clone());
        self.type_changes.remove(type_name.clone(), Box::new(move || types.remove(&removed))).await;
    }
}
