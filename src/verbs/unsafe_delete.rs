//! Deletes a corrupt object: the last resort, behind a feature gate.
//!
//! The contents of such an object are unknown. So its finalizers, version and owners are not checked, and admission does not run.
//! Addresses and ports that it held are released by the next start or periodic check.

use std::sync::Arc;

use pilothouse_apimachinery::options::refuse_force;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::authorization::{Decision, Target};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Object;

use crate::limits::CONFLICT_ATTEMPTS;

use super::{Reply, VerbResult};
use crate::registry::objects::Objects;
use crate::registry::rewrite::WriteTarget;
use crate::registry::{Backend, Call, authorization};

/// The verb that the caller needs besides `delete`.
const VERB: &str = "unsafe-delete-ignore-read-errors";

/// Deletes the object that the path names, if it is corrupt.
pub async fn delete(backend: &Backend, call: &Call<'_>) -> VerbResult {
    check_right(backend, call).await?;
    let (store, permit) = (&call.stored().store, call.permit());
    let to_status = |error: StoreError| Status::from_store(&error, call.group_resource(), call.name());
    let object = match backend.stores.get(store, call.key(call.name()), permit).await {
        Ok(object) | Err(StoreError::Unreadable(object)) => object,
        Err(StoreError::NotFound) => return Err(readable_error(call)),
        Err(error) => return Err(to_status(error)),
    };
    let target = WriteTarget { store, permit, attempts: CONFLICT_ATTEMPTS };
    let attempt = async |object: &Arc<Object>| {
        if is_readable(&backend.objects, call, object) {
            return Err(readable_error(call));
        }
        tracing::warn!(
            user = call.user().name,
            resource = %call.group_resource(),
            object = object.key.as_str(),
            "deleting an unreadable object by force"
        );
        Ok(backend.stores.remove(store, object.key.clone(), object.revision, permit).await)
    };
    match backend.stores.retry_on_conflict(&target, object, attempt).await? {
        // Only the name of the object is known.
        Ok(_) | Err(StoreError::NotFound) => {
            Ok(Reply::Status(Status::success_for_kind(&call.resource().kind, call.name())))
        }
        Err(error) => Err(to_status(error)),
    }
}

async fn check_right(backend: &Backend, call: &Call<'_>) -> Result<()> {
    let resource = call.group_resource();
    let target = Target::Resource {
        group: resource.group.to_owned(),
        version: call.resource().gv.version.to_string(),
        resource: resource.resource.to_owned(),
        subresource: String::new(),
        namespace: call.namespace().to_owned(),
        name: call.name().to_owned(),
    };
    match authorization::authorize(&backend.access.authorizer, call.user(), VERB, target).await? {
        Decision::Allowed => Ok(()),
        Decision::Denied(reason) | Decision::NoOpinion(reason) => {
            let reason = format!("not permitted to do \"{VERB}\", reason: {reason}");
            Err(Status::forbidden(&reason, Some((resource, call.name()))))
        }
    }
}

fn is_readable(objects: &Objects, call: &Call<'_>, object: &Object) -> bool {
    object.is_readable() && objects.load(call, object).is_ok()
}

/// 422 for readable objects, which are deleted normally.
fn readable_error(call: &Call<'_>) -> Box<Status> {
    let reason = "is exclusively used to delete corrupt object(s), try again by removing this option";
    let resource = call.group_resource();
    Status::invalid(resource.group, resource.resource, call.name(), &[refuse_force(reason)])
}
