//! How plug-ins read other objects.

use std::cell::RefCell;
use std::rc::Rc;

use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::{Key, Object, Revision, TypeName};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::Position;

use crate::api::status::{GroupResource, Result, Status};
use crate::api::value::Value;
use crate::api::version::GroupVersion;
use crate::api::well_known;

use super::Write;

/// A type that plug-ins look things up in.
pub struct Source {
    group: &'static str,
    resource: &'static str,
    kind: &'static str,
    /// The version that is stored.
    version: &'static str,
}

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
pub const MUTATING_POLICIES: Source = Source {
    group: "admissionregistration.k8s.io",
    resource: "mutatingadmissionpolicies",
    kind: "MutatingAdmissionPolicy",
    version: "v1alpha1",
};
/// Whom pods speak for.
pub const SERVICE_ACCOUNTS: Source = Source::first("", "serviceaccounts", "ServiceAccount");

impl Source {
    /// A type that is stored in its version 1.
    const fn first(group: &'static str, resource: &'static str, kind: &'static str) -> Source {
        Source { group, resource, kind, version: "v1" }
    }

    fn store(&self) -> TypeName {
        match self.group {
            "" => TypeName::new(self.resource),
            group => TypeName::new(&format!("{}.{group}", self.resource)),
        }
    }

    fn failed(&self, error: &StoreError, name: &str) -> Box<Status> {
        Status::from_store(error, GroupResource { group: self.group, resource: self.resource }, name)
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
        let found = write.backend.stores.get(&self.store(), key, &write.call.permit).await;
        match found {
            Ok(object) => self.read(write, &object).map(Some),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(self.failed(&error, name)),
        }
    }

    /// All objects as they are now.
    pub async fn snapshot(&self, write: &Write<'_>) -> Result<Snapshot> {
        let taken = write.backend.stores.snapshot(&self.store(), &write.call.permit).await;
        taken.map_err(|error| self.failed(&error, ""))
    }

    /// Decodes a stored object.
    pub fn read(&self, write: &Write<'_>, object: &Object) -> Result<Value> {
        write.backend.objects.load_kind(&GroupVersion::new(self.group, self.version), self.kind, object)
    }
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
        let position = write.backend.stores.open_watch(&source.store(), &write.call.permit).await;
        let position = position.map_err(|error| source.failed(&error, ""))?;
        let snapshot = position.snapshot.clone();
        self.0.replace(Some(position));
        Ok(snapshot)
    }
}

/// The namespace of a write; 404 if it does not exist.
pub async fn namespace(write: &Write<'_>) -> Result<Value> {
    let name = write.call.namespace;
    let of = GroupResource { group: NAMESPACES.group, resource: NAMESPACES.resource };
    NAMESPACES.get(write, name).await?.ok_or_else(|| Status::not_found(of, name))
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
