//! The custom type of a stored definition, where objects are read without a server that serves them.

use std::sync::Arc;

use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom::definition::resources;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_kinds::definition::status;
use pilothouse_types::object::Object;

use super::stored_object::{CUSTOM_RESOURCE_DEFINITIONS, StoredObject};

/// The resource of the version in which the objects of a definition are stored; `None` if it is not established, or cannot be read.
pub(crate) fn defined_type(definition: &Object, registry: &Arc<Registry>) -> Option<Arc<Resource>> {
    let stored = StoredObject::new(&CUSTOM_RESOURCE_DEFINITIONS, definition, registry);
    let definition = stored.and_then(|stored| stored.decode()).ok()?;
    let defined = resources(&definition, registry, |count| 0..=count);
    defined.stored.filter(|_| status::is_true(&definition, status::ESTABLISHED))
}
