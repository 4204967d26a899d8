//! How plug-ins read other objects.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::Position;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object, Revision};

use crate::auth::live_index::{LiveIndex, LiveIndexes, StoreIndex};
use crate::auth::stored_object::{FollowedType, ReadError, StoredObject};

use super::Write;

/// A type that plug-ins look things up in.
pub struct Source(FollowedType);

/// What keeps names and rights apart.
pub const NAMESPACES: Source = Source::first("", well_known::NAMESPACES, "Namespace");
/// What runs.
pub const PODS: Source = Source::first("", "pods", "Pod");
/// Limits on what the pods and claims of a namespace may ask for.
pub const LIMIT_RANGES: Source = Source::first("", "limitranges", "LimitRange");
/// What the objects of a namespace may use together.
pub const QUOTAS: Source = Source::first("", "resourcequotas", "ResourceQuota");
/// How important pods are.
pub const PRIORITY_CLASSES: Source = Source::first("scheduling.k8s.io", "priorityclasses", "PriorityClass");
/// Where volumes come from.
pub const STORAGE_CLASSES: Source = Source::first("storage.k8s.io", "storageclasses", "StorageClass");
/// Who serves ingresses.
pub const INGRESS_CLASSES: Source = Source::first("networking.k8s.io", "ingressclasses", "IngressClass");
/// What runs containers.
pub const RUNTIME_CLASSES: Source = Source::first("node.k8s.io", "runtimeclasses", "RuntimeClass");
/// What may be stored, in expressions.
pub const VALIDATING_POLICIES: Source =
    Source::first("admissionregistration.k8s.io", "validatingadmissionpolicies", "ValidatingAdmissionPolicy");
/// What becomes of it before.
pub const MUTATING_POLICIES: Source = Source(FollowedType {
    group: "admissionregistration.k8s.io",
    resource: "mutatingadmissionpolicies",
    kind: "MutatingAdmissionPolicy",
    version: "v1alpha1",
});
/// What custom resources are.
pub const DEFINITIONS: Source =
    Source::first("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition");
/// Whom pods speak for.
pub const SERVICE_ACCOUNTS: Source = Source::first("", "serviceaccounts", "ServiceAccount");

impl Source {
    /// A type that is stored in its version 1.
    const fn first(group: &'static str, resource: &'static str, kind: &'static str) -> Source {
        Source(FollowedType::v1(group, resource, kind))
    }

    fn of(&self) -> GroupResource<'static> {
        GroupResource { group: self.0.group, resource: self.0.resource }
    }

    fn failed(&self, error: &StoreError, name: &str) -> Box<Status> {
        Status::from_store(error, self.of(), name)
    }

    /// A cluster-scoped object by name.
    pub async fn get(&self, write: &Write<'_>, name: &str) -> Result<Option<Value>> {
        self.find(write, Key::cluster(name), name).await
    }

    /// A namespaced object by name.
    pub async fn get_in(&self, write: &Write<'_>, namespace: &str, name: &str) -> Result<Option<Value>> {
        self.find(write, Key::namespaced(namespace, name), name).await
    }

    async fn find(&self, write: &Write<'_>, key: Key, name: &str) -> Result<Option<Value>> {
        let found = write.backend.stores.get(&self.0.type_name(), key, &write.call.permit).await;
        match found {
            Ok(object) => self.read(write, &object).map(Some),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(self.failed(&error, name)),
        }
    }

    /// All objects as they are now.
    pub async fn snapshot(&self, write: &Write<'_>) -> Result<Snapshot> {
        let taken = write.backend.stores.snapshot(&self.0.type_name(), &write.call.permit).await;
        taken.map_err(|error| self.failed(&error, ""))
    }

    /// Decodes a stored object.
    pub fn read(&self, write: &Write<'_>, object: &Object) -> Result<Value> {
        self.decode(&write.backend.objects.registry, object)
    }

    /// Decodes a stored object. The error names it: what it might refuse is refused.
    pub fn decode(&self, registry: &Registry, object: &Object) -> Result<Value> {
        read_guard(&self.0, registry, object)
            .map_err(|_| Status::unreadable_guard(self.of(), [object.key.as_str()].into_iter()))
    }
}

fn read_guard(
    followed: &FollowedType,
    registry: &Registry,
    object: &Object,
) -> std::result::Result<Value, ReadError> {
    let stored = StoredObject::new(followed, object, registry)?;
    // Pods are many and guard nothing: their words do not matter.
    if followed.kind == PODS.0.kind { stored.decode() } else { stored.value() }
}

/// The types of which an object that cannot be read stands in the way of writes: whoever looks one up refuses the write.
const GUARDS: [Source; 8] = [
    NAMESPACES,
    LIMIT_RANGES,
    QUOTAS,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
    INGRESS_CLASSES,
    RUNTIME_CLASSES,
    DEFINITIONS,
];

/// Follows what plug-ins look up, and holds nothing: it only finds out what cannot be read.
pub struct LookedUp;

/// Reads everything that plug-ins look up.
pub async fn open(indexes: &LiveIndexes) -> std::result::Result<Arc<LiveIndex<LookedUp>>, StoreError> {
    indexes.open(GUARDS.map(|source| source.0), LookedUp).await
}

impl StoreIndex for LookedUp {
    const IS_GUARD: bool = true;
    type Prepared = ();

    fn put(&mut self, _: usize, object: &StoredObject<'_>) -> std::result::Result<(), ReadError> {
        object.value().map(drop)
    }

    fn remove(&mut self, _: usize, _: &Key) {}

    fn clear(&mut self, _: usize) {}

    /// Whoever looks it up refuses: see [`Source::decode`].
    fn fail_closed(&mut self, _: usize, _: &Key) {}
}

/// A cached snapshot of a type. The store is asked only after a change. The head of the type's window is readable without asking,
/// and it moves before anybody hears of a change.
#[derive(Default)]
pub struct CachedSnapshot(RefCell<Option<Position>>);

impl CachedSnapshot {
    /// The current objects.
    pub async fn get(&self, source: &Source, write: &Write<'_>) -> Result<Snapshot> {
        if let Some(known) = &*self.0.borrow()
            && known.window.head() == known.snapshot.revision
        {
            return Ok(known.snapshot.clone());
        }
        let position = write.backend.stores.open_watch(&source.0.type_name(), &write.call.permit).await;
        let position = position.map_err(|error| source.failed(&error, ""))?;
        let snapshot = position.snapshot.clone();
        self.0.replace(Some(position));
        Ok(snapshot)
    }
}

/// The namespace of a write; 404 if it does not exist.
pub async fn namespace(write: &Write<'_>) -> Result<Value> {
    let name = write.call.namespace;
    NAMESPACES.get(write, name).await?.ok_or_else(|| Status::not_found(NAMESPACES.of(), name))
}

/// A cached value computed from all objects of a type. It is valid until one of them changes, so writes do not read them all
/// again.
pub struct Memo<T>(RefCell<Option<(Revision, Rc<T>)>>);

impl<T> Default for Memo<T> {
    fn default() -> Memo<T> {
        Memo(RefCell::new(None))
    }
}

impl<T> Memo<T> {
    /// The result of `work` on the current objects.
    pub async fn get(
        &self,
        source: &Source,
        write: &Write<'_>,
        work: impl FnOnce(Vec<Value>) -> T,
    ) -> Result<Rc<T>> {
        let snapshot = source.snapshot(write).await?;
        if let Some((revision, known)) = &*self.0.borrow()
            && *revision == snapshot.revision
        {
            return Ok(known.clone());
        }
        let all = snapshot.iter().map(|object| source.read(write, object)).collect::<Result<_>>()?;
        let known = Rc::new(work(all));
        self.0.replace(Some((snapshot.revision, known.clone())));
        Ok(known)
    }
}
