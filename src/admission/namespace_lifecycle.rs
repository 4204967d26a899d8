//! NamespaceLifecycle and NamespaceExists: the namespace of an object must exist, and a terminating one accepts no new objects.

use std::sync::Arc;

use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::{IMMORTAL_NAMESPACES, NAMESPACES};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object, TypeName};

use super::{Operation, Outcome, Plugin, Write, done};

const RESOURCE: GroupResource<'_> = GroupResource { group: "", resource: NAMESPACES };

/// LocalSubjectAccessReviews.
const REVIEWS: GroupResource<'_> =
    GroupResource { group: "authorization.k8s.io", resource: "localsubjectaccessreviews" };

/// Refuses creates in a terminating namespace, writes in a missing one, and deletion of the system namespaces.
pub struct NamespaceLifecycle;

impl Plugin for NamespaceLifecycle {
    fn handles(&self, write: &Write<'_>) -> bool {
        match write.operation {
            Operation::Create | Operation::Update => {
                // An access review must not reveal whether a namespace exists.
                write.call.resource().namespaced && write.group_resource() != REVIEWS
            }
            Operation::Delete => write.is_of("", NAMESPACES),
            Operation::Connect => false,
        }
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value) -> Outcome<'a> {
        if write.operation == Operation::Delete {
            return done(check_deletable(write));
        }
        Box::pin(check_not_terminating(write, object))
    }
}

/// Refuses writes in a missing namespace.
pub struct NamespaceExists;

impl Plugin for NamespaceExists {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.call.resource().namespaced
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, _: &'a Value) -> Outcome<'a> {
        Box::pin(async { get_namespace(write).await.map(drop) })
    }
}

async fn get_namespace(write: &Write<'_>) -> Result<Arc<Object>> {
    let (store, name) = (TypeName::new(NAMESPACES), write.call.namespace());
    let namespace = write.backend.stores.get_seen(&store, Key::cluster(name), write.call.permit()).await;
    namespace.map_err(|error| match error {
        StoreError::NotFound => Status::not_found(RESOURCE, name),
        error => Status::from_store(&error, RESOURCE, name),
    })
}

async fn check_not_terminating(write: &Write<'_>, object: &Value) -> Result<()> {
    let namespace = get_namespace(write).await?;
    // The phase is an indexed field, so the namespace need not be decoded for every new object in it.
    let is_terminating = || namespace.fields.get("status.phase") == Some("Terminating");
    if write.operation == Operation::Create && is_terminating() {
        let (resource, name) = (write.group_resource(), write.name(object));
        return Err(Status::namespace_terminating(resource, name, write.call.namespace()));
    }
    Ok(())
}

fn check_deletable(write: &Write<'_>) -> Result<()> {
    if IMMORTAL_NAMESPACES.contains(&write.name(&Value::Null)) {
        return Err(write.forbidden(&Value::Null, "this namespace may not be deleted"));
    }
    Ok(())
}
