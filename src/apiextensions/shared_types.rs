//! Custom types in a log that several servers share: it has to know which keys are theirs before their objects can be served.

use std::sync::Arc;

use pilothouse_actors::shared_log::admission::{Admissions, AdmitError};
use pilothouse_api::catalog::resource::Resource;
use pilothouse_etcd_log::Types;
use pilothouse_types::object::TypeName;

/// The types that etcd is searched for. Cheap to clone.
#[derive(Clone)]
pub struct SharedTypes {
    /// What changes go through, so that the log is followed without a gap.
    pub admissions: Admissions,
    /// The types.
    pub types: Arc<Types>,
}

impl SharedTypes {
    /// The objects of this resource are kept from now on. Returns when they are here.
    pub async fn admit(&self, resource: &Arc<Resource>) -> Result<(), AdmitError> {
        let Some(stored) = resource.stored() else { return Ok(()) };
        let (types, added) = (Arc::clone(&self.types), Arc::clone(resource));
        self.admissions.admit(stored.store.clone(), Box::new(move || types.add(&added))).await
    }

    /// The objects of a type are no longer kept.
    pub async fn dismiss(&self, type_name: &TypeName) {
        let (types, removed) = (Arc::clone(&self.types), type_name.clone());
        self.admissions.dismiss(type_name.clone(), Box::new(move || types.remove(&removed))).await;
    }
}
