//! delete: marks the object as being deleted. It is removed once its last finalizer is removed and its grace period is over.

use std::sync::Arc;

use pilothouse_api::deletion::{self, Deletion};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::DeleteOptions;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Object};

use crate::limits::CONFLICT_ATTEMPTS;

use super::{Reply, Success, VerbResult};
use crate::registry::request_memory::MemoryPriority;
use crate::registry::rewrite::WriteTarget;
use crate::registry::write_hooks::WriteEnd;
use crate::registry::{Backend, Call};

/// The result of a deletion.
pub enum Outcome {
    /// The object is removed; its last state.
    Removed(Arc<Object>),
    /// The object stays until its finalizers are removed and its grace period is over; its current state.
    Marked(Arc<Object>),
}

/// Deletes the object that the path names.
pub async fn delete(backend: &Backend, call: &Call<'_>) -> VerbResult {
    let options = backend.objects.delete_options(call)?;
    if options.unreadable {
        return super::unsafe_delete::delete(backend, call).await;
    }
    warn_of_dependents(call, &options);
    if let Some(reason) = (call.kind().rules.deletion.undeletable_reason)(call.name()) {
        return Err(Status::forbidden(reason, Some((call.group_resource(), call.name()))));
    }
    let object = backend.read(call).await?;
    call.work().check_bytes(object.bytes.len())?;
    let outcome = delete_object(backend, call, object, &options).await?;
    reply(backend, call, outcome, &options).await
}

/// Warns about dependents that are orphaned by default.
pub fn warn_of_dependents(call: &Call<'_>, options: &DeleteOptions) {
    if options.propagation.is_none() && options.orphan_dependents.is_none() {
        call.warn(call.kind().rules.deletion.warning.into_iter().map(str::to_owned).collect());
    }
}

/// The response of a deletion.
pub async fn reply(
    backend: &Backend,
    call: &Call<'_>,
    outcome: Outcome,
    options: &DeleteOptions,
) -> Result<Reply> {
    match outcome {
        Outcome::Removed(object) if call.kind().rules.deletion.returns_object => Ok(Reply::Object(
            Success::Ok,
            backend.encode_response(call, &object, MemoryPriority::Granted).await?,
        )),
        Outcome::Removed(object) => {
            let value = backend.objects.load(call, &object)?;
            Ok(Reply::Status(Status::success(
                call.group_resource(),
                object.key.name(),
                meta::metadata(&value).str("uid"),
            )))
        }
        Outcome::Marked(object) => {
            let success =
                if options.orphan_dependents == Some(false) { Success::Accepted } else { Success::Ok };
            Ok(Reply::Object(success, backend.encode_response(call, &object, MemoryPriority::Granted).await?))
        }
    }
}

/// Deletes one object that was read before.
pub async fn delete_object(
    backend: &Backend,
    call: &Call<'_>,
    object: Arc<Object>,
    options: &DeleteOptions,
) -> Result<Outcome> {
    let key = object.key.clone();
    let target =
        WriteTarget { store: &call.stored().store, permit: call.permit(), attempts: CONFLICT_ATTEMPTS };
    // The object as this call has marked it. If another call removes it then, this deletion succeeds all the same.
    let mut marked = None;
    let attempt =
        async |object: &Arc<Object>| attempt_deletion(backend, call, object, options, &mut marked).await;
    let error = match backend.stores.retry_on_conflict(&target, object, attempt).await? {
        Ok(outcome) => return Ok(outcome),
        Err(error) => error,
    };
    match (error, marked) {
        (StoreError::NotFound, Some(last)) => Ok(Outcome::Removed(last)),
        (error, _) => Err(Status::from_store(&error, call.group_resource(), key.name())),
    }
}

type StoreOutcome = std::result::Result<Outcome, StoreError>;

/// Deletes an object in this state.
async fn attempt_deletion(
    backend: &Backend,
    call: &Call<'_>,
    object: &Arc<Object>,
    options: &DeleteOptions,
    marked: &mut Option<Arc<Object>>,
) -> Result<StoreOutcome> {
    let mut value = backend.load_converted(call, object, MemoryPriority::Granted).await?;
    let rules = &call.kind().rules.deletion;
    let resource = GroupResource { group: &call.stored().version.group, ..call.group_resource() };
    deletion::check_preconditions(rules, options, &value, resource)?;
    // Deletions by another request (eviction) were admitted as that request.
    if call.subresource().is_empty() {
        backend.admission.delete(backend, call, &value).await?;
    }
    // A deletion takes several changes, and a repeated call would not report those already made.
    call.work().check()?;
    call.work().commit();
    let decision = deletion::prepare(
        rules,
        &mut value,
        options,
        backend.deletions.collects_garbage,
        backend.clock.now(),
    );
    match decision {
        Deletion::Pending => Ok(Ok(Outcome::Marked(object.clone()))),
        Deletion::Now if options.dry_run => Ok(Ok(Outcome::Removed(object.clone()))),
        Deletion::Now => Ok(remove(backend, call, object).await),
        Deletion::Mark | Deletion::MarkThenRemove => {
            let removes = decision == Deletion::MarkThenRemove;
            let draft =
                backend.stored_draft(call, object.key.clone(), &value, MemoryPriority::Granted).await?;
            mark(backend, call, Marking { object, draft, removes, dry_run: options.dry_run }, marked).await
        }
    }
}

async fn remove(backend: &Backend, call: &Call<'_>, object: &Object) -> StoreOutcome {
    let mut pending = backend.write_hooks.begin_removal(call, object);
    pending.propose();
    let result =
        backend.stores.remove(&call.stored().store, object.key.clone(), object.revision, call.permit()).await;
    let end = result.as_ref().map_or_else(WriteEnd::of_error, |_| WriteEnd::Stored);
    pending.finish(end).await;
    result.map(Outcome::Removed)
}

/// The first phase of a deletion.
struct Marking<'a> {
    object: &'a Arc<Object>,
    /// Its marked state.
    draft: Draft,
    /// Whether nothing blocks the removal, so that it follows at once.
    removes: bool,
    dry_run: bool,
}

/// Marks the object as being deleted, and removes it if nothing blocks that.
async fn mark(
    backend: &Backend,
    call: &Call<'_>,
    Marking { object, draft, removes, dry_run }: Marking<'_>,
    marked_by_call: &mut Option<Arc<Object>>,
) -> Result<StoreOutcome> {
    let marked = if is_unchanged(backend, call, object, &draft).await? {
        object.clone()
    } else if dry_run {
        Arc::new(Object::new(draft, object.revision))
    } else {
        match backend.stores.replace(&call.stored().store, draft, object.revision, call.permit()).await {
            Ok(marked) => marked_by_call.insert(marked).clone(),
            Err(error) => return Ok(Err(error)),
        }
    };
    if !removes {
        return Ok(Ok(Outcome::Marked(marked)));
    }
    if dry_run {
        return Ok(Ok(Outcome::Removed(marked)));
    }
    Ok(remove(backend, call, &marked).await)
}

/// Whether a repeated deletion would change nothing.
async fn is_unchanged(backend: &Backend, call: &Call<'_>, object: &Object, draft: &Draft) -> Result<bool> {
    let current = backend.load_converted(call, object, MemoryPriority::Granted).await?;
    Ok(*draft == backend.stored_draft(call, object.key.clone(), &current, MemoryPriority::Granted).await?)
}
