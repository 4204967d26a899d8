//! The removal of an object that cannot be read: the last resort, behind a gate of its own.
//!
//! Nobody knows what such an object says: its finalizers, its version and what it owns are not looked at, admission is not
//! asked, and what it held of others is found by the next start.

use actix::Addr;
use pilothouse_actors::authorizer::{Authorizer, Decision, Target};
use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::Object;

use crate::api::options::refuse_force;
use crate::api::status::{Result, Status};
use crate::limits::CONFLICT_ATTEMPTS;

use super::{Answered, Backend, Call, Reply, rights};

/// What the caller must be allowed to do besides the deletion itself.
const VERB: &str = "unsafe-delete-ignore-read-errors";

/// Who removes objects that cannot be read.
pub struct Forced {
    authorizer: Addr<Authorizer>,
}

impl Forced {
    /// Asks this authorizer for the second permission.
    pub fn asking(authorizer: &Addr<Authorizer>) -> Forced {
        Forced { authorizer: authorizer.clone() }
    }

    /// Removes the object that the path names, if it cannot be read.
    pub async fn delete(&self, backend: &Backend, call: &Call<'_>) -> Answered {
        self.authorize(call).await?;
        let mut found = backend.stores.get(&call.stored.store, call.key(call.name), &call.permit).await;
        for _ in 0..CONFLICT_ATTEMPTS {
            let object = match found {
                Err(StoreError::Unreadable(object)) => object,
                Ok(object) if !is_readable(backend, call, &object) => object,
                Ok(_) | Err(StoreError::NotFound) => return Err(readable(call)),
                Err(error) => return Err(Status::from_store(&error, call.of(), call.name)),
            };
            let store = &call.stored.store;
            tracing::warn!(
                user = call.user.name,
                resource = %call.of(),
                object = object.key.as_str(),
                "an object that cannot be read is removed"
            );
            match backend.stores.remove(store, object.key.clone(), object.revision, &call.permit).await {
                // Nothing can be shown of it but its name.
                Ok(_) | Err(StoreError::NotFound) => {
                    return Ok(Reply::Status(Status::success_of(&call.resource.kind, call.name)));
                }
                Err(StoreError::Conflict(current)) => found = Ok(current),
                Err(error) => found = Err(error),
            }
        }
        Err(Status::stale(call.of(), call.name))
    }

    async fn authorize(&self, call: &Call<'_>) -> Result<()> {
        let of = call.of();
        let target = Target::Resource {
            group: of.group.to_owned(),
            version: call.resource.gv.version.to_string(),
            resource: of.resource.to_owned(),
            subresource: String::new(),
            namespace: call.namespace.to_owned(),
            name: call.name.to_owned(),
        };
        match rights::decision(&self.authorizer, call.user, VERB, target).await? {
            Decision::Allowed => Ok(()),
            Decision::Denied(reason) | Decision::NoOpinion(reason) => {
                let why = format!("not permitted to do \"{VERB}\", reason: {reason}");
                Err(Status::forbidden(&why, Some((of, call.name))))
            }
        }
    }
}

fn is_readable(backend: &Backend, call: &Call<'_>, object: &Object) -> bool {
    object.is_readable() && backend.load(call, object).is_ok()
}

/// 422: whoever can read an object deletes it as everybody does.
fn readable(call: &Call<'_>) -> Box<Status> {
    let why = "is exclusively used to delete corrupt object(s), try again by removing this option";
    let of = call.of();
    Status::invalid(of.group, of.resource, call.name, &[refuse_force(why)])
}
