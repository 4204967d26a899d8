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
use crate::controllers::client::At;
use crate::controllers::object_meta::{ObjectMeta, OwnerReference};
use crate::controllers::queue::Outcome;
use crate::limits::DELETIONS_IN_FLIGHT;

use super::GarbageCollector;
use super::graph::{DeletionMode, ObjectLocation, Task, Uid};

/// Namespaces in which an owner is looked for before the other controllers have their turn.
const LOOKED_AT_PER_TURN: usize = 256;

/// The state of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It exists.
    Solid,
    /// It is being deleted and waits for its dependents.
    Waiting,
    /// It does not exist.
    Absent,
    /// The reference is invalid and will never be right.
    Impossible,
    /// Its kind is not served now.
    Unknown,
}

/// The object of a task.
struct Item {
    resource: Arc<Resource>,
    object: Arc<Object>,
    /// Its UID as text.
    uid: String,
}

impl Item {
    fn at(&self) -> At<'_> {
        At::of(&self.resource, &self.object.key)
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
        let going = self.state.borrow().graph.going(uid);
        if matches!(going, DeletionMode::Plainly | DeletionMode::Orphaning | DeletionMode::Gone) {
            return Ok(Outcome::Done);
        }
        let Some(item) = self.find(uid).await? else { return Ok(Outcome::Done) };
        if going == DeletionMode::Foreground {
            self.catch_up().await?;
            return self.release(&item, uid).await;
        }
        let head = ObjectMeta::of(&item.object);
        if head.owner_references.is_empty() || head.is_terminating() {
            return Ok(Outcome::Done);
        }
        let mut standings = Vec::with_capacity(head.owner_references.len());
        for reference in &head.owner_references {
            standings.push(self.standing(&item, reference).await?);
        }
        if standings.contains(&Standing::Impossible) {
            return Ok(Outcome::Done);
        }
        if standings.contains(&Standing::Unknown) {
            return Ok(Outcome::Again("the kind of an owner is not served".to_owned()));
        }
        let lost = |wanted: &[Standing]| -> Vec<String> {
            let pairs = head.owner_references.iter().zip(&standings);
            pairs
                .filter(|(_, is)| wanted.contains(is))
                .map(|(reference, _)| reference.uid.to_string())
                .collect()
        };
        if standings.contains(&Standing::Solid) {
            let lost = lost(&[Standing::Absent, Standing::Waiting]);
            return if lost.is_empty() { Ok(Outcome::Done) } else { self.disown(&item, &lost).await };
        }
        if standings.contains(&Standing::Waiting) {
            // The owner that was just read may be newer than the graph. If a cycle were overlooked for that reason, it would
            // never be broken: all its objects would wait for each other.
            self.catch_up().await?;
        }
        let dependents = self.state.borrow().graph.dependents(uid);
        if standings.contains(&Standing::Waiting) && !dependents.is_empty() {
            let in_a_circle = dependents
                .iter()
                .any(|dependent| self.state.borrow().graph.going(*dependent) == DeletionMode::Foreground);
            if in_a_circle {
                self.unblock(&item).await?;
            }
            return self.delete(item, Propagation::Foreground).await;
        }
        let policy = if head.has_finalizer(ORPHAN_FINALIZER) {
            Propagation::Orphan
        } else if head.has_finalizer(FOREGROUND_FINALIZER) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        self.delete(item, policy).await
    }

    /// The object as it is now; `None` if it is gone: then an event about its removal follows.
    async fn find(&self, uid: Uid) -> Result<Option<Item>> {
        let place = self.state.borrow().graph.place(uid).cloned();
        let Some(place) = place else { return Ok(None) };
        let Some(resource) = self.resource(&place) else { return Ok(None) };
        let object = self.client.get(At::of(&resource, &place.key)).await?;
        Ok(object.and_then(|object| {
            let text = ObjectMeta::of(&object).uid.into_owned();
            (Uid::new(&text) == uid).then_some(Item { resource, object, uid: text })
        }))
    }

    /// Looks up one owner, by the name in the reference.
    async fn standing(&self, item: &Item, reference: &OwnerReference<'_>) -> Result<Standing> {
        let uid = Uid::new(&reference.uid);
        if self.state.borrow().graph.is_gone(uid) {
            return Ok(Standing::Absent);
        }
        let resource = self.client.known().of_kind(&reference.api_version, &reference.kind).cloned();
        let Some(resource) = resource else { return Ok(Standing::Unknown) };
        let namespace = if resource.namespaced { item.object.key.namespace() } else { "" };
        if resource.namespaced && namespace.is_empty() {
            tracing::info!(
                item = ?item.object.key, kind = %item.resource.kind, owner = %reference.name, owner_kind = %reference.kind,
                "item is cluster-scoped, but refers to a namespaced owner"
            );
            self.report_if_elsewhere(item, reference, &resource).await?;
            return Ok(Standing::Impossible);
        }
        let described = describe(reference, namespace);
        if self.state.borrow().absent.contains(&described) {
            return Ok(Standing::Absent);
        }
        let at = At { resource: &resource, namespace, name: &reference.name };
        let found = self.client.get(at).await?;
        let Some(owner) = found.filter(|owner| ObjectMeta::of(owner).uid == reference.uid) else {
            if !self.report_if_elsewhere(item, reference, &resource).await? {
                self.state.borrow_mut().absent.insert(&described);
            }
            return Ok(Standing::Absent);
        };
        let head = ObjectMeta::of(&owner);
        self.confirm(uid, &resource, &owner);
        let waits = head.is_terminating() && head.has_finalizer(FOREGROUND_FINALIZER);
        Ok(if waits { Standing::Waiting } else { Standing::Solid })
    }

    fn confirm(&self, uid: Uid, resource: &Resource, owner: &Object) {
        let Some(stored) = &resource.stored else { return };
        let mut state = self.state.borrow_mut();
        let of = state.number(&stored.store);
        state.graph.confirm(uid, ObjectLocation { of, key: owner.key.clone() });
    }

    /// Writes an event if the owner is in another namespace, where it cannot own anything. Answers whether it is.
    async fn report_if_elsewhere(
        &self,
        item: &Item,
        reference: &OwnerReference<'_>,
        resource: &Resource,
    ) -> Result<bool> {
        let Some(stored) = resource.stored.as_ref().filter(|_| resource.namespaced) else {
            return Ok(false);
        };
        let snapshot = self.client.snapshot(&stored.store).await?;
        let namespace = item.object.key.namespace();
        let is_owner = |object: &Arc<Object>| {
            object.key.namespace() != namespace && ObjectMeta::of(object).uid == reference.uid
        };
        let mut elsewhere = false;
        let mut turn = YieldEvery::new(LOOKED_AT_PER_TURN);
        for found in snapshot.in_each_namespace(&reference.name) {
            elsewhere = found.is_some_and(is_owner);
            if elsewhere {
                break;
            }
            turn.worked(1).await;
        }
        if elsewhere {
            tracing::info!(item = ?item.object.key, owner = %reference.uid, "item references an owner but does not match namespaces");
            let described = describe(reference, namespace);
            let message = format!("ownerRef {described} does not exist in namespace \"{namespace}\"");
            self.recorder
                .warn(&item.resource, &item.object.key, &item.uid, "OwnerRefInvalidNamespace", &message)
                .await;
        }
        Ok(elsewhere)
    }

    async fn delete(&self, item: Item, policy: Propagation) -> Result<Outcome> {
        let options =
            DeleteOptions { uid: Some(item.uid), propagation: Some(policy), ..DeleteOptions::default() };
        self.client.delete(&item.resource, item.object, &options).await.ignore_not_found()?;
        Ok(Outcome::Done)
    }

    /// Completes a foreground deletion without blocking dependents, or adds tasks for the remaining ones.
    async fn release(&self, item: &Item, uid: Uid) -> Result<Outcome> {
        let blocking = self.state.borrow().graph.blocking(uid);
        if blocking.is_empty() {
            return self.take_off(item, FOREGROUND_FINALIZER).await;
        }
        let state = self.state.borrow();
        let looks = blocking
            .into_iter()
            .filter(|dependent| state.graph.going(*dependent) != DeletionMode::Foreground);
        // Dependents that are being deleted already will be reported when they are gone.
        let looks = looks.filter(|dependent| state.graph.going(*dependent) == DeletionMode::No);
        self.more.borrow_mut().extend(looks.map(Task::Attempt));
        Ok(Outcome::Done)
    }

    /// Orphans all dependents, then removes the owner's finalizer.
    pub(super) async fn orphan(&self, uid: Uid) -> Result<Outcome> {
        let Some(item) = self.find(uid).await? else { return Ok(Outcome::Done) };
        self.catch_up().await?;
        let dependents = self.state.borrow().graph.dependents(uid);
        let owner = std::slice::from_ref(&item.uid);
        let let_go = dependents.into_iter().map(|dependent| async move {
            match self.find(dependent).await? {
                Some(dependent) => self.disown(&dependent, owner).await.map(drop),
                None => Ok(()),
            }
        });
        attempts::all(let_go, DELETIONS_IN_FLIGHT).await?;
        self.take_off(&item, ORPHAN_FINALIZER).await
    }

    /// Removes references to these owners from an object.
    async fn disown(&self, item: &Item, owners: &[String]) -> Result<Outcome> {
        let owners: HashSet<&str> = owners.iter().map(String::as_str).collect();
        self.change(item, |metadata| {
            let Some(Value::Array(references)) = metadata.get_mut("ownerReferences") else { return false };
            let before = references.len();
            references.retain(|reference| !owners.contains(reference.str("uid")));
            let (after, empty) = (references.len(), references.is_empty());
            if empty {
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

    async fn take_off(&self, item: &Item, finalizer: &str) -> Result<Outcome> {
        self.change(item, |metadata| {
            let Some(Value::Array(finalizers)) = metadata.get_mut("finalizers") else { return false };
            let before = finalizers.len();
            finalizers.retain(|one| one.as_str() != Some(finalizer));
            let (after, empty) = (finalizers.len(), finalizers.is_empty());
            if empty {
                metadata.remove("finalizers");
            }
            after != before
        })
        .await
    }

    /// Changes the metadata of exactly this object, if it still exists.
    async fn change(&self, item: &Item, change: impl Fn(&mut Value) -> bool) -> Result<Outcome> {
        let changed = self.client.patch(item.at(), "", |object| {
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
