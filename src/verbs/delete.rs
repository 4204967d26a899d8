//! delete: two phases. The first marks the object; it goes when its last finalizer has gone and its grace is over.

use std::sync::Arc;

use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::Object;

use crate::api::deletion::{self, Deletion};
use crate::api::kinds;
use crate::api::meta;
use crate::api::options::DeleteOptions;
use crate::api::status::{Result, Status};

use super::{Answer, Answered, Backend, Call, Reply, namespaces};

/// How often a deletion is tried again when others write the same object.
const ATTEMPTS: usize = 16;

/// What became of the object.
pub enum Outcome {
    /// It is gone; its last state.
    Gone(Arc<Object>),
    /// It stays until others are done with it; its state now.
    Marked(Arc<Object>),
}

/// Deletes the object that the path names.
pub async fn delete(backend: &Backend, call: &Call<'_>) -> Answered {
    let options = backend.delete_options(call)?;
    let object = backend.read(call).await?;
    let outcome = delete_object(backend, call, object, &options).await?;
    reply(backend, call, outcome, &options).map(Answer::from)
}

fn reply(backend: &Backend, call: &Call<'_>, outcome: Outcome, options: &DeleteOptions) -> Result<Reply> {
    match outcome {
        Outcome::Gone(object) if kinds::shows_deleted(&call.stored.version.group, &call.resource.kind) => {
            Ok(Reply::Object(200, backend.serve(call.resource, &object)?))
        }
        Outcome::Gone(object) => {
            let value = backend.load(call, &object)?;
            Ok(Reply::Status(Status::success(call.of(), object.key.name(), meta::of(&value).str("uid"))))
        }
        Outcome::Marked(object) => {
            let code = if options.orphan_dependents == Some(false) { 202 } else { 200 };
            Ok(Reply::Object(code, backend.serve(call.resource, &object)?))
        }
    }
}

/// Deletes one object that was read before.
pub async fn delete_object(
    backend: &Backend,
    call: &Call<'_>,
    mut object: Arc<Object>,
    options: &DeleteOptions,
) -> Result<Outcome> {
    namespaces::refuse_immortal(call, object.key.name())?;
    let store = &call.stored.store;
    for _ in 0..ATTEMPTS {
        let mut value = backend.load(call, &object)?;
        deletion::check_preconditions(options, &value, call.of())?;
        let decision = deletion::begin(call.kind().rules, &mut value, options, backend.clock.now());
        let draft = match decision {
            Deletion::Mark => Some(backend.draft(call, object.key.clone(), &value)?),
            Deletion::Now | Deletion::Pending => None,
        };
        let done = match draft {
            _ if decision == Deletion::Pending => return Ok(Outcome::Marked(object)),
            Some(draft) if options.dry_run => {
                return Ok(Outcome::Marked(Arc::new(Object::new(draft, object.revision))));
            }
            None if options.dry_run => return Ok(Outcome::Gone(object)),
            Some(draft) if unchanged(backend, call, &object, &draft)? => return Ok(Outcome::Marked(object)),
            Some(draft) => {
                backend.stores.replace(store, draft, object.revision, &call.permit).await.map(Outcome::Marked)
            }
            None => {
                let gone =
                    backend.stores.remove(store, object.key.clone(), object.revision, &call.permit).await;
                gone.map(Outcome::Gone)
            }
        };
        match done {
            Ok(outcome) => return Ok(outcome),
            Err(StoreError::Conflict(current)) => object = current,
            Err(error) => return Err(Status::from_store(&error, call.of(), object.key.name())),
        }
    }
    Err(Status::stale(call.of(), object.key.name()))
}

/// Whether a second deletion would write what is there already.
fn unchanged(
    backend: &Backend,
    call: &Call<'_>,
    object: &Object,
    draft: &pilothouse_actors::object::Draft,
) -> Result<bool> {
    let present = backend.load(call, object)?;
    Ok(*draft == backend.draft(call, object.key.clone(), &present)?)
}
