//! NamespaceAutoProvision: a namespace is created with the first object in it.

use pilothouse_api::catalog::Catalog;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::NAMESPACES;

use super::{Kinds, MakeNamespace, Operation, Outcome, Plugin, Write};

/// Creates the namespace of a new object if it does not exist.
pub struct NamespaceAutoProvision(pub Kinds, pub MakeNamespace);

impl Plugin for NamespaceAutoProvision {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Create && write.call.resource().namespaced && !write.is_dry_run()
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value) -> Outcome<'a> {
        Box::pin(async {
            let result = self.create_namespace(write).await;
            result.map_err(|status| write.forbidden(object, &status.message))
        })
    }
}

impl NamespaceAutoProvision {
    async fn create_namespace(&self, write: &Write<'_>) -> Result<()> {
        let namespaces = (self.0)("", "v1", "Namespace");
        let catalog = Catalog::new(namespaces.into_iter().filter(|resource| &*resource.plural == NAMESPACES));
        (self.1)(write.backend, &catalog, write.call.namespace()).await
    }
}
