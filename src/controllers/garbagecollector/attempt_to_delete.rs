//! Decides whether an object is deleted: reads it and its owners, and acts.

use std::collections::HashSet;
use std::sync::Arc;

use pilothouse_actors::yield_every::YieldEvery;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::meta::{FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
use pilothouse_apimachinery::options::{DeleteOptions, Propagation};
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::Object;

use crate::controllers::attempts;
use crate::controllers::client::ObjectRef;
use crate::controllers::object_meta::{ObjectMeta, OwnerReference};
use crate::controllers::queue::Outcome;
use crate::limits::DELETIONS_IN_FLIGHT;

use super::GarbageCollector;
use super::graph::{DeletionMode, ObjectLocation, Task, Uid};

/// Namespaces in which an owner is looked for before the other controllers have their turn.
const NAMESPACES_PER_TURN: usize = 256;

/// The state of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerState {
    /// It exists.
    Present,
    /// It is being deleted and waits for its dependents.
    WaitingForDependents,
    /// It does not exist.
    Absent,
    /// The reference is invalid and will never be right.
    InvalidReference,
    /// Its kind is not served now.
    KindNotServed,
}

/// The object of a task.
struct Item {
    resource: Arc<Resource>,
    object: Arc<Object>,
    /// Its UID as text.
    uid: String,
}

impl Item {
    fn location(&self) -> ObjectRef<'_> {
        ObjectRef::new(&self.resource, &self.object.key)
    }
}

/// An owner as a reference in this namespace describes it.
fn describe(reference: &OwnerReference<'_>, namespace: &str) -> String {
    let OwnerReference { api_version, kind, name, uid, .. } = reference;
    format!("[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]")
}

impl GarbageCollector {
    /// Deletes the object if all its owners are gone; removes references to missing owners if some are.
    pub(super) async fn attempt(&self, uid: Uid) -> Result<Outcome> {
        let deletion_mode = self.state.borrow().graph.deletion_mode(uid);
        if matches!(deletion_mode, DeletionMode::Background | DeletionMode::Orphan | DeletionMode::Deleted) {
            return Ok(Outcome::Done);
        }
        let Some(item) = self.find(uid).await? else { return Ok(Outcome::Done) };
        if deletion_mode == DeletionMode::Foreground {
            self.catch_up().await?;
            return self.release(&item, uid).await;
        }
        let metadata = ObjectMeta::from_object(&item.object);
        if metadata.owner_references.is_empty() || metadata.is_terminating() {
            return Ok(Outcome::Done);
        }
        let mut states = Vec::with_capacity(metadata.owner_references.len());
        for reference in &metadata.owner_references {
            states.push(self.owner_state(&item, reference).await?);
        }
        if states.contains(&OwnerState::InvalidReference) {
            return Ok(Outcome::Done);
        }
        if states.contains(&OwnerState::KindNotServed) {
            return Ok(Outcome::Retry("the kind of an owner is not served".to_owned()));
        }
        let owners_in = |wanted: &[OwnerState]| -> Vec<String> {
            let pairs = metadata.owner_references.iter().zip(&states);
            pairs
                .filter(|(_, state)| wanted.contains(state))
                .map(|(reference, _)| reference.uid.to_string())
                .collect()
        };
        if states.contains(&OwnerState::Present) {
            let gone = owners_in(&[OwnerState::Absent, OwnerState::WaitingForDependents]);
            return if gone.is_empty() { Ok(Outcome::Done) } else { self.remove_owners(&item, &gone).await };
        }
        if states.contains(&OwnerState::WaitingForDependents) {
            // The owner that was just read may be newer than the graph. If a cycle were overlooked for that reason, it would
            // never be broken: all its objects would wait for each other.
            self.catch_up().await?;
        }
        let dependents = self.state.borrow().graph.dependents(uid);
        if states.contains(&OwnerState::WaitingForDependents) && !dependents.is_empty() {
            let in_cycle = dependents.iter().any(|dependent| {
                self.state.borrow().graph.deletion_mode(*dependent) == DeletionMode::Foreground
            });
            if in_cycle {
                self.unblock(&item).await?;
            }
            return self.delete(item, Propagation::Foreground).await;
        }
        let propagation = if metadata.has_finalizer(ORPHAN_FINALIZER) {
            Propagation::Orphan
        } else if metadata.has_finalizer(FOREGROUND_FINALIZER) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        self.delete(item, propagation).await
    }

    /// The object as it is now; `None` if it is gone: then an event about its removal follows.
    async fn find(&self, uid: Uid) -> Result<Option<Item>> {
        let location = self.state.borrow().graph.location(uid).cloned();
        let Some(location) = location else { return Ok(None) };
        let Some(resource) = self.resource(&location) else { return Ok(None) };
        let object = self.client.get(ObjectRef::new(&resource, &location.key)).await?;
        Ok(object.and_then(|object| {
            let text = ObjectMeta::from_object(&object).uid.into_owned();
            (Uid::new(&text) == uid).then_some(Item { resource, object, uid: text })
        }))
    }

    /// Looks up one owner, by the name in the reference.
    async fn owner_state(&self, item: &Item, reference: &OwnerReference<'_>) -> Result<OwnerState> {
        let uid = Uid::new(&reference.uid);
        if self.state.borrow().graph.is_deleted(uid) {
            return Ok(OwnerState::Absent);
        }
        let resource =
            self.client.resource_index().for_kind(&reference.api_version, &reference.kind).cloned();
        let Some(resource) = resource else { return Ok(OwnerState::KindNotServed) };
        let namespace = if resource.namespaced { item.object.key.namespace() } else { "" };
        if resource.namespaced && namespace.is_empty() {
            tracing::info!(
                item = ?item.object.key, kind = %item.resource.kind, owner = %reference.name, owner_kind = %reference.kind,
                "item is cluster-scoped, but refers to a namespaced owner"
            );
            self.report_owner_in_other_namespace(item, reference, &resource).await?;
            return Ok(OwnerState::InvalidReference);
        }
        let description = describe(reference, namespace);
        if self.state.borrow().absent.contains(&description) {
            return Ok(OwnerState::Absent);
        }
        let target = ObjectRef { resource: &resource, namespace, name: &reference.name };
        let object = self.client.get(target).await?;
        let Some(owner) = object.filter(|owner| ObjectMeta::from_object(owner).uid == reference.uid) else {
            if !self.report_owner_in_other_namespace(item, reference, &resource).await? {
                self.state.borrow_mut().absent.insert(&description);
            }
            return Ok(OwnerState::Absent);
        };
        let metadata = ObjectMeta::from_object(&owner);
        self.confirm(uid, &resource, &owner);
        let is_waiting = metadata.is_terminating() && metadata.has_finalizer(FOREGROUND_FINALIZER);
        Ok(if is_waiting { OwnerState::WaitingForDependents } else { OwnerState::Present })
    }

    fn confirm(&self, uid: Uid, resource: &Resource, owner: &Object) {
        let Some(stored) = resource.stored() else { return };
        let mut state = self.state.borrow_mut();
        let type_number = state.type_number(&stored.store);
        state.graph.confirm(uid, ObjectLocation { type_number, key: owner.key.clone() });
    }

    /// Writes an event if the owner is in another namespace, where it cannot own anything. Returns whether it is.
    async fn report_owner_in_other_namespace(
        &self,
        item: &Item,
        reference: &OwnerReference<'_>,
        resource: &Resource,
    ) -> Result<bool> {
        let Some(stored) = resource.stored().filter(|_| resource.namespaced) else {
            return Ok(false);
        };
        let snapshot = self.client.snapshot(&stored.store).await?;
        let namespace = item.object.key.namespace();
        let is_owner = |object: &Arc<Object>| {
            object.key.namespace() != namespace && ObjectMeta::from_object(object).uid == reference.uid
        };
        let mut is_elsewhere = false;
        let mut turn = YieldEvery::new(NAMESPACES_PER_TURN);
        for object in snapshot.in_each_namespace(&reference.name) {
            is_elsewhere = object.is_some_and(is_owner);
            if is_elsewhere {
                break;
            }
            turn.worked(1).await;
        }
        if is_elsewhere {
            tracing::info!(item = ?item.object.key, owner = %reference.uid, "item references an owner but does not match namespaces");
            let description = describe(reference, namespace);
            let message = format!("ownerRef {description} does not exist in namespace \"{namespace}\"");
            self.recorder
                .warn(&item.resource, &item.object.key, &item.uid, "OwnerRefInvalidNamespace", &message)
                .await;
        }
        Ok(is_elsewhere)
    }

    async fn delete(&self, item: Item, propagation: Propagation) -> Result<Outcome> {
        let options =
            DeleteOptions { uid: Some(item.uid), propagation: Some(propagation), ..DeleteOptions::default() };
        self.client.delete(&item.resource, item.object, &options).await.ignore_not_found()?;
        Ok(Outcome::Done)
    }

    /// Completes a foreground deletion without blocking dependents, or adds tasks for the remaining ones.
    async fn release(&self, item: &Item, uid: Uid) -> Result<Outcome> {
        if let Some(wait) = self.wait_for_undecryptable() {
            return Ok(wait);
        }
        let blocking = self.state.borrow().graph.blocking(uid);
        if blocking.is_empty() {
            return self.remove_finalizer(item, FOREGROUND_FINALIZER).await;
        }
        let state = self.state.borrow();
        let candidates = blocking
            .into_iter()
            .filter(|dependent| state.graph.deletion_mode(*dependent) != DeletionMode::Foreground);
        // Dependents that are being deleted already will be reported when they are gone.
        let candidates =
            candidates.filter(|dependent| state.graph.deletion_mode(*dependent) == DeletionMode::None);
        self.follow_up.borrow_mut().extend(candidates.map(Task::Attempt));
        Ok(Outcome::Done)
    }

    /// An owner with finalizers of the collector stays while there are objects that cannot be decrypted: they may be its dependents,
    /// and may come back with their key.
    fn wait_for_undecryptable(&self) -> Option<Outcome> {
        let state = self.state.borrow();
        let (type_name, _) = state.undecryptable.iter().next()?;
        Some(Outcome::Retry(format!("{type_name} that cannot be decrypted may depend on it")))
    }

    /// Orphans all dependents, then removes the owner's finalizer.
    pub(super) async fn orphan(&self, uid: Uid) -> Result<Outcome> {
        let Some(item) = self.find(uid).await? else { return Ok(Outcome::Done) };
        self.catch_up().await?;
        if let Some(wait) = self.wait_for_undecryptable() {
            return Ok(wait);
        }
        let dependents = self.state.borrow().graph.dependents(uid);
        let owners = std::slice::from_ref(&item.uid);
        let removals = dependents.into_iter().map(|dependent| async move {
            match self.find(dependent).await? {
                Some(dependent) => self.remove_owners(&dependent, owners).await.map(drop),
                None => Ok(()),
            }
        });
        attempts::all(removals, DELETIONS_IN_FLIGHT).await?;
        self.remove_finalizer(&item, ORPHAN_FINALIZER).await
    }

    /// Removes references to these owners from an object.
    async fn remove_owners(&self, item: &Item, owners: &[String]) -> Result<Outcome> {
        let owners: HashSet<&str> = owners.iter().map(String::as_str).collect();
        self.change(item, |metadata| {
            let Some(Value::Array(references)) = metadata.get_mut("ownerReferences") else { return false };
            let before = references.len();
            references.retain(|reference| !owners.contains(reference.str("uid")));
            let (after, is_empty) = (references.len(), references.is_empty());
            if is_empty {
                metadata.remove("ownerReferences");
            }
            after != before
        })
        .await
    }

    /// Clears blockOwnerDeletion: in a cycle the objects would wait for each other.
    async fn unblock(&self, item: &Item) -> Result<Outcome> {
        self.change(item, |metadata| {
            let Some(Value::Array(references)) = metadata.get_mut("ownerReferences") else { return false };
            let mut changed = false;
            for reference in references.iter_mut().filter(|reference| {
                reference.get("blockOwnerDeletion").and_then(Value::as_bool) == Some(true)
            }) {
                reference.set("blockOwnerDeletion", false);
                changed = true;
            }
            changed
        })
        .await
    }

    async fn remove_finalizer(&self, item: &Item, finalizer: &str) -> Result<Outcome> {
        self.change(item, |metadata| {
            let Some(Value::Array(finalizers)) = metadata.get_mut("finalizers") else { return false };
            let before = finalizers.len();
            finalizers.retain(|existing| existing.as_str() != Some(finalizer));
            let (after, is_empty) = (finalizers.len(), finalizers.is_empty());
            if is_empty {
                metadata.remove("finalizers");
            }
            after != before
        })
        .await
    }

    /// Changes the metadata of exactly this object, if it still exists.
    async fn change(&self, item: &Item, change: impl Fn(&mut Value) -> bool) -> Result<Outcome> {
        let changed = self.client.patch(item.location(), "", |object| {
            let metadata = object.entry("metadata");
            if metadata.str("uid") != item.uid {
                return Err(Status::not_found(item.resource.name(), item.object.key.name()));
            }
            Ok(change(metadata))
        });
        changed.await.ignore_not_found()?;
        Ok(Outcome::Done)
    }
}
