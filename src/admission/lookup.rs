//! Lookups of other objects by plug-ins.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::{Freshness, Position};
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object, Revision};

use crate::live_index::stored_object::{CUSTOM_RESOURCE_DEFINITIONS, ReadError, StoredObject};
use crate::live_index::{LiveIndex, LiveIndexes, StoreIndex};

use super::Write;

/// A type that plug-ins look up.
pub struct Source(StoredType);

/// Namespaces.
pub const NAMESPACES: Source = Source::v1("", well_known::NAMESPACES, "Namespace");
/// Pods.
pub const PODS: Source = Source::v1("", "pods", "Pod");
/// LimitRanges.
pub const LIMIT_RANGES: Source = Source::v1("", "limitranges", "LimitRange");
/// ResourceQuotas.
pub const QUOTAS: Source = Source::v1("", "resourcequotas", "ResourceQuota");
/// PriorityClasses.
pub const PRIORITY_CLASSES: Source = Source::v1("scheduling.k8s.io", "priorityclasses", "PriorityClass");
/// StorageClasses.
pub const STORAGE_CLASSES: Source = Source::v1("storage.k8s.io", "storageclasses", "StorageClass");
/// IngressClasses.
pub const INGRESS_CLASSES: Source = Source::v1("networking.k8s.io", "ingressclasses", "IngressClass");
/// RuntimeClasses.
pub const RUNTIME_CLASSES: Source = Source::v1("node.k8s.io", "runtimeclasses", "RuntimeClass");
/// ValidatingAdmissionPolicies.
pub const VALIDATING_POLICIES: Source =
    Source::v1("admissionregistration.k8s.io", "validatingadmissionpolicies", "ValidatingAdmissionPolicy");
/// MutatingAdmissionPolicies.
pub const MUTATING_POLICIES: Source = Source(StoredType {
    group: "admissionregistration.k8s.io",
    resource: "mutatingadmissionpolicies",
    kind: "MutatingAdmissionPolicy",
    version: "v1alpha1",
});
/// CustomResourceDefinitions.
pub const DEFINITIONS: Source = Source(CUSTOM_RESOURCE_DEFINITIONS);
/// ServiceAccounts.
pub const SERVICE_ACCOUNTS: Source = Source::v1("", "serviceaccounts", "ServiceAccount");

impl Source {
    /// A type that is stored as v1.
    const fn v1(group: &'static str, resource: &'static str, kind: &'static str) -> Source {
        Source(StoredType::v1(group, resource, kind))
    }

    fn to_status(&self, error: &StoreError, name: &str) -> Box<Status> {
        Status::from_store(error, self.0.group_resource(), name)
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
        let result = write.backend.stores.get(&self.0.type_name(), key, write.call.permit()).await;
        match result {
            Ok(object) => self.read(write, &object).map(Some),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(self.to_status(&error, name)),
        }
    }

    /// All objects as they are now.
    pub async fn snapshot(&self, write: &Write<'_>) -> Result<Snapshot> {
        let result = write.backend.stores.snapshot(&self.0.type_name(), write.call.permit()).await;
        result.map_err(|error| self.to_status(&error, ""))
    }

    /// Decodes a stored object.
    pub fn read(&self, write: &Write<'_>, object: &Object) -> Result<Value> {
        self.decode(&write.backend.objects.registry, object)
    }

    /// Decodes a stored object. The error names it: an unreadable object refuses the write.
    pub fn decode(&self, registry: &Registry, object: &Object) -> Result<Value> {
        decode_guard(&self.0, registry, object)
            .map_err(|_| Status::unreadable_guard(self.0.group_resource(), [object.key.as_str()].into_iter()))
    }
}

fn decode_guard(
    followed: &StoredType,
    registry: &Registry,
    object: &Object,
) -> std::result::Result<Value, ReadError> {
    let stored = StoredObject::new(followed, object, registry)?;
    // Pods are many and no plug-in depends on all of their fields: they are decoded leniently.
    if followed.kind == PODS.0.kind { stored.decode() } else { stored.value() }
}

/// The types whose unreadable objects block writes: a plug-in that looks one up refuses the write.
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

/// Follows [`GUARDS`] to report unreadable objects. It stores nothing.
pub struct LookupGuards;

/// Reads all objects of [`GUARDS`].
pub async fn open(indexes: &LiveIndexes) -> std::result::Result<Arc<LiveIndex<LookupGuards>>, StoreError> {
    indexes.open(GUARDS.map(|source| source.0), LookupGuards).await
}

impl StoreIndex for LookupGuards {
    const IS_GUARD: bool = true;
    type Prepared = ();

    fn put(&mut self, _: usize, object: &StoredObject<'_>) -> std::result::Result<(), ReadError> {
        object.value().map(drop)
    }

    fn remove(&mut self, _: usize, _: &Key) {}

    fn clear(&mut self, _: usize) {}

    /// A plug-in that looks it up refuses the write: see [`Source::decode`].
    fn fail_closed(&mut self, _: usize, _: &Key) {}
}

/// A cached snapshot of a type. The store is queried only after a change: the head of the type's window is readable without a
/// message, and it moves before any watcher sees the change.
#[derive(Default)]
pub struct CachedSnapshot(RefCell<Option<Position>>);

impl CachedSnapshot {
    /// The current objects.
    pub async fn get(&self, source: &Source, write: &Write<'_>) -> Result<Snapshot> {
        if let Some(cached) = &*self.0.borrow()
            && cached.window.head() <= cached.snapshot.revision
        {
            return Ok(cached.snapshot.clone());
        }
        let position = write
            .backend
            .stores
            .open_watch(&source.0.type_name(), Freshness::Seen, write.call.permit())
            .await;
        let position = position.map_err(|error| source.to_status(&error, ""))?;
        let snapshot = position.snapshot.clone();
        self.0.replace(Some(position));
        Ok(snapshot)
    }
}

/// The namespace of a write; 404 if it does not exist.
pub async fn namespace(write: &Write<'_>) -> Result<Value> {
    let name = write.call.namespace();
    NAMESPACES.get(write, name).await?.ok_or_else(|| Status::not_found(NAMESPACES.0.group_resource(), name))
}

/// A cached value computed from all objects of a type. It is valid until one of them changes, so writes do not read them all
/// again.
pub struct Memo<T> {
    snapshot: CachedSnapshot,
    computed: RefCell<Option<(Revision, Rc<T>)>>,
}

impl<T> Default for Memo<T> {
    fn default() -> Memo<T> {
        Memo { snapshot: CachedSnapshot::default(), computed: RefCell::new(None) }
    }
}

impl<T> Memo<T> {
    /// The result of `compute` on the current objects.
    pub async fn get(
        &self,
        source: &Source,
        write: &Write<'_>,
        compute: impl FnOnce(Vec<Value>) -> T,
    ) -> Result<Rc<T>> {
        let snapshot = self.snapshot.get(source, write).await?;
        if let Some((revision, cached)) = &*self.computed.borrow()
            && *revision == snapshot.revision
        {
            return Ok(cached.clone());
        }
        let all = snapshot.iter().map(|object| source.read(write, object)).collect::<Result<_>>()?;
        let cached = Rc::new(compute(all));
        self.computed.replace(Some((snapshot.revision, cached.clone())));
        Ok(cached)
    }
}
