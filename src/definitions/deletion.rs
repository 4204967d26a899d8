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
use crate::backend::{Call, Warnings};
use crate::limits::DELETIONS_AT_ONCE;
use crate::verbs::delete::delete_object;
use crate::verbs::update::NewState;

/// The progress of a deletion.
#[derive(Clone, Copy, Default)]
pub(super) struct Progress {
    /// All objects up to this revision have been deleted or marked.
    through: Revision,
    /// Whether the status says that objects are being deleted.
    is_told: bool,
    /// Whether it takes too long.
    pub(super) is_late: bool,
}

/// The result of a step.
pub(super) enum Ended {
    /// The definition is removed.
    Gone,
    /// Some objects still have finalizers.
    Waits(Progress),
}

impl Reconciler {
    /// Continues the deletion of a definition. `resource`: for deleting its objects.
    pub(super) async fn end(
        self: Rc<Reconciler>,
        name: String,
        resource: Option<Arc<Resource>>,
        mut progress: Progress,
    ) -> Result<Ended> {
        if !progress.is_told {
            self.say(&name, &DeletionProgress::Deleting).await?;
            progress.is_told = true;
        }
        let Some(resource) = resource else {
            self.say(&name, &DeletionProgress::NeverServed).await?;
            return Ok(Ended::Gone);
        };
        let left = match self.delete_all(&resource, &store_named(&name), progress.through).await {
            Ok((through, left)) => {
                progress.through = through;
                left
            }
            Err(status) => {
                let why = format!("could not issue all deletes: {}", status.message);
                self.say(&name, &DeletionProgress::Failed(why)).await?;
                return Err(status);
            }
        };
        if left == 0 {
            self.say(&name, &DeletionProgress::Done).await?;
            return Ok(Ended::Gone);
        }
        if progress.is_late {
            self.say(&name, &DeletionProgress::Waiting).await?;
        }
        Ok(Ended::Waits(progress))
    }

    /// Deletes the objects that were written after a revision. Answers the new revision, and how many objects are left.
    async fn delete_all(
        &self,
        resource: &Arc<Resource>,
        store: &TypeName,
        after: Revision,
    ) -> Result<(Revision, usize)> {
        let snapshot = || async {
            let taken = self.backend.stores.snapshot(store, &Permit::none()).await;
            taken.map_err(|error| Status::from_store(&error, resource.name(), ""))
        };
        let all = snapshot().await?;
        let new = all.objects.values().filter(|object| object.revision > after).cloned();
        let mut deletions = futures::stream::iter(new)
            .map(|object| self.delete(resource, object))
            .buffer_unordered(DELETIONS_AT_ONCE);
        let mut failed = None;
        while let Some(deleted) = deletions.next().await {
            if let Err(status) = deleted {
                failed = Some(status);
            }
        }
        drop(deletions);
        match failed {
            Some(status) => Err(status),
            None => Ok((all.revision, snapshot().await?.objects.len())),
        }
    }

    async fn delete(&self, resource: &Arc<Resource>, object: Arc<Object>) -> Result<()> {
        let _place = self.deletions.acquire().await;
        let value = self.backend.objects.load_of(resource, &object)?;
        if meta::is_terminating(&value) {
            return Ok(());
        }
        let key = object.key.clone();
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(resource, key.namespace(), key.name(), "", (&query, &warnings))?;
        match delete_object(&self.backend, &call, object, &DeleteOptions::default()).await {
            Ok(_) => Ok(()),
            Err(status) if status.code == 404 => Ok(()),
            Err(status) => Err(status),
        }
    }

    /// Writes the progress into the status, and removes the finalizer at the end.
    async fn say(&self, name: &str, how: &DeletionProgress) -> Result<()> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(&self.resource, "", name, "status", (&query, &warnings))?;
        let state = Ends { reconciler: self, call: &call, how };
        match self.store_status(&call, &state).await {
            Err(status) if status.code != 404 => Err(status),
            _ => Ok(()),
        }
    }
}

/// The next state of a definition that is being deleted.
struct Ends<'a> {
    reconciler: &'a Reconciler,
    call: &'a Call<'a>,
    how: &'a DeletionProgress,
}

impl NewState for Ends<'_> {
    fn after(&self, old: &Value) -> Result<Value> {
        let mut new = old.clone();
        // A new definition of the same name may exist by now, or somebody else removed the finalizer.
        if !status::is_kept(old) {
            return Ok(new);
        }
        status::ending(&mut new, self.how, &self.reconciler.now());
        if matches!(self.how, DeletionProgress::Done | DeletionProgress::NeverServed) {
            status::release(&mut new);
        }
        let objects = &self.reconciler.backend.objects;
        objects.note_body(self.call, &new);
        objects.record(self.call, Some(old), &mut new);
        Ok(new)
    }
}
