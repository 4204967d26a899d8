//! Deletes a corrupt object: the last resort, behind a feature gate.
//!
//! The contents of such an object are unknown. So its finalizers, version and owners are not checked, and admission does not run.
//! Addresses and ports that it held are found by the next start.

use pilothouse_apimachinery::options::refuse_force;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::authorization::{Decision, Target};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Object;

use crate::limits::CONFLICT_ATTEMPTS;

use super::{Reply, VerbResult};
use crate::backend::objects::Objects;
use crate::backend::{Backend, Call, authorization};

/// The verb that the caller needs besides `delete`.
const VERB: &str = "unsafe-delete-ignore-read-errors";

/// Deletes the object that the path names, if it is corrupt.
pub async fn delete(backend: &Backend, call: &Call<'_>) -> VerbResult {
    authorize(backend, call).await?;
    let mut found = backend.stores.get(&call.stored.store, call.key(call.name), &call.permit).await;
    for _ in 0..CONFLICT_ATTEMPTS {
        let object = match found {
            Err(StoreError::Unreadable(object)) => object,
            Ok(object) if !is_readable(&backend.objects, call, &object) => object,
            Ok(_) | Err(StoreError::NotFound) => return Err(readable(call)),
            Err(error) => return Err(Status::from_store(&error, call.of(), call.name)),
        };
        let store = &call.stored.store;
        tracing::warn!(
            user = call.user.name,
            resource = %call.of(),
            object = object.key.as_str(),
            "an unreadable object is deleted by force"
        );
        match backend.stores.remove(store, object.key.clone(), object.revision, &call.permit).await {
            // Only the name of the object is known.
            Ok(_) | Err(StoreError::NotFound) => {
                return Ok(Reply::Status(Status::success_of(&call.resource.kind, call.name)));
            }
            Err(StoreError::Conflict(current)) => found = Ok(current),
            Err(error) => found = Err(error),
        }
    }
    Err(Status::stale(call.of(), call.name))
}

async fn authorize(backend: &Backend, call: &Call<'_>) -> Result<()> {
    let of = call.of();
    let target = Target::Resource {
        group: of.group.to_owned(),
        version: call.resource.gv.version.to_string(),
        resource: of.resource.to_owned(),
        subresource: String::new(),
        namespace: call.namespace.to_owned(),
        name: call.name.to_owned(),
    };
    match authorization::decision(&backend.access.authorizer, call.user, VERB, target).await? {
        Decision::Allowed => Ok(()),
        Decision::Denied(reason) | Decision::NoOpinion(reason) => {
            let why = format!("not permitted to do \"{VERB}\", reason: {reason}");
            Err(Status::forbidden(&why, Some((of, call.name))))
        }
    }
}

fn is_readable(objects: &Objects, call: &Call<'_>, object: &Object) -> bool {
    object.is_readable() && objects.load(call, object).is_ok()
}

/// 422 for readable objects, which are deleted normally.
fn readable(call: &Call<'_>) -> Box<Status> {
    let why = "is exclusively used to delete corrupt object(s), try again by removing this option";
    let of = call.of();
    Status::invalid(of.group, of.resource, call.name, &[refuse_force(why)])
}
