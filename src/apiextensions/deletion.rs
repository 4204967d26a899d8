//! Deletes a definition: its objects are deleted first, and after the last of them the definition itself.
//!
//! Each deletion runs in a task of its own, one at a time per definition. So a definition with many objects, or with objects that
//! have finalizers, delays no other. All tasks together delete a bounded number of objects at a time.

use std::rc::Rc;
use std::sync::Arc;

use futures::StreamExt as _;
use pilothouse_actors::permit::Permit;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom::definition::store_named;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::DeleteOptions;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::definition::status::{self, DeletionProgress};
use pilothouse_types::object::{Object, Revision, TypeName};

use super::reconcile::Reconciler;
use crate::limits::DEFINITION_DELETIONS_IN_FLIGHT;
use crate::registry::{Call, CallTarget, Warnings};
use crate::verbs::delete::delete_object;
use crate::verbs::update::NewState;

/// The progress of a deletion.
#[derive(Clone, Copy, Default)]
pub(super) struct Progress {
    /// All objects up to this revision have been deleted or marked.
    through: Revision,
    /// Whether the status reports that objects are being deleted.
    is_status_written: bool,
    /// Whether it takes too long.
    pub(super) is_late: bool,
}

/// The result of a step.
pub(super) enum Deletion {
    /// The definition is removed.
    Complete,
    /// Some objects still have finalizers.
    Waiting(Progress),
}

impl Reconciler {
    /// Continues the deletion of a definition. `resource`: for deleting its objects.
    pub(super) async fn continue_deletion(
        self: Rc<Reconciler>,
        name: String,
        resource: Option<Arc<Resource>>,
        mut progress: Progress,
    ) -> Result<Deletion> {
        if !progress.is_status_written {
            self.write_progress(&name, &DeletionProgress::Deleting).await?;
            progress.is_status_written = true;
        }
        let Some(resource) = resource else {
            self.write_progress(&name, &DeletionProgress::NeverServed).await?;
            return Ok(Deletion::Complete);
        };
        let remaining = match self.delete_all(&resource, &store_named(&name), progress.through).await {
            Ok((through, remaining)) => {
                progress.through = through;
                remaining
            }
            Err(status) => {
                let error = format!("could not issue all deletes: {}", status.message);
                self.write_progress(&name, &DeletionProgress::Failed(error)).await?;
                return Err(status);
            }
        };
        if remaining == 0 {
            self.write_progress(&name, &DeletionProgress::Done).await?;
            return Ok(Deletion::Complete);
        }
        if progress.is_late {
            self.write_progress(&name, &DeletionProgress::Waiting).await?;
        }
        Ok(Deletion::Waiting(progress))
    }

    /// Deletes the objects that were written after a revision. Returns the new revision, and how many objects are left.
    async fn delete_all(
        &self,
        resource: &Arc<Resource>,
        store: &TypeName,
        after: Revision,
    ) -> Result<(Revision, usize)> {
        let snapshot = || async {
            let result = self.backend.stores.snapshot(store, &Permit::none()).await;
            result.map_err(|error| Status::from_store(&error, resource.name(), ""))
        };
        let listed = snapshot().await?;
        let new = listed.objects.values().filter(|object| object.revision > after).cloned();
        let mut deletions = futures::stream::iter(new)
            .map(|object| self.delete(resource, object))
            .buffer_unordered(DEFINITION_DELETIONS_IN_FLIGHT);
        let mut error = None;
        while let Some(deleted) = deletions.next().await {
            if let Err(status) = deleted {
                error = Some(status);
            }
        }
        drop(deletions);
        match error {
            Some(status) => Err(status),
            None => Ok((listed.revision, snapshot().await?.objects.len())),
        }
    }

    async fn delete(&self, resource: &Arc<Resource>, object: Arc<Object>) -> Result<()> {
        let _permit = self.deletions.acquire().await;
        let value = self.backend.objects.load_resource(resource, &object)?;
        if meta::is_terminating(&value) {
            return Ok(());
        }
        let key = object.key.clone();
        let (query, warnings) = (Query::default(), Warnings::default());
        let target =
            CallTarget { namespace: key.namespace(), name: key.name(), ..CallTarget::stored(resource)? };
        let call = self.call(target, &query, &warnings);
        match delete_object(&self.backend, &call, object, &DeleteOptions::default()).await {
            Ok(_) => Ok(()),
            Err(status) if status.code == 404 => Ok(()),
            Err(status) => Err(status),
        }
    }

    /// Writes the progress into the status, and removes the finalizer at the end.
    async fn write_progress(&self, name: &str, deletion_progress: &DeletionProgress) -> Result<()> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(self.status_target(name)?, &query, &warnings);
        let state = DeletionState { reconciler: self, call: &call, deletion_progress };
        match self.store_status(&call, &state).await {
            Err(status) if status.code != 404 => Err(status),
            _ => Ok(()),
        }
    }
}

/// The next state of a definition that is being deleted.
struct DeletionState<'a> {
    reconciler: &'a Reconciler,
    call: &'a Call<'a>,
    deletion_progress: &'a DeletionProgress,
}

impl NewState for DeletionState<'_> {
    fn next_state(&self, old: &Value) -> Result<Value> {
        let mut new = old.clone();
        // A new definition of the same name may exist by now, or somebody else removed the finalizer.
        if !status::has_cleanup_finalizer(old) {
            return Ok(new);
        }
        status::set_deletion_progress(&mut new, self.deletion_progress, &self.reconciler.now());
        if matches!(self.deletion_progress, DeletionProgress::Done | DeletionProgress::NeverServed) {
            status::remove_cleanup_finalizer(&mut new);
        }
        let objects = &self.reconciler.backend.objects;
        objects.record_body(self.call, &new);
        objects.record(self.call, Some(old), &mut new);
        Ok(new)
    }
}
