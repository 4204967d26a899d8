//! A control loop as a client of the server's own verbs: with an identity of its own, and the same admission, field ownership and
//! events as other clients.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pilothouse_actors::error::StoreError;
use pilothouse_actors::identity::Identity;
use pilothouse_actors::object::{Key, Object, TypeName};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::snapshot::Snapshot;

use crate::api::catalog::resource::Resource;
use crate::api::options::{DeleteOptions, PatchOptions, WriteMode};
use crate::api::query::Query;
use crate::api::release::RELEASE;
use crate::api::schema::{Registry, time};
use crate::api::status::{GroupResource, Result, Status};
use crate::api::value::Value;
use crate::api::well_known::{ACCOUNT_PREFIX, ALL_ACCOUNTS, AUTHENTICATED, SERVER_NAME, SYSTEM_NAMESPACE};
use crate::api::{codec, meta};
use crate::backend::services::Services;
use crate::backend::{Backend, BodylessCall, Call, Origin, Warnings};
use crate::bootstrap::own_identity;
use crate::verbs::delete::{Outcome, delete_object};
use crate::verbs::update::{NewState, store_update};
use crate::verbs::{apply, create};

use super::resource_index::{ResourceIndex, ResourceIndexes};

/// The client of one loop.
#[derive(Clone)]
pub struct Client {
    backend: Rc<Backend>,
    catalogs: Rc<ResourceIndexes>,
    user: Rc<Identity>,
    origin: Origin,
    agent: Rc<str>,
}

/// The place of an object, or of a collection if the name is empty.
#[derive(Clone, Copy)]
pub struct At<'a> {
    /// The resource.
    pub resource: &'a Arc<Resource>,
    /// The namespace; empty for cluster-scoped resources.
    pub namespace: &'a str,
    /// The name; empty for a collection.
    pub name: &'a str,
}

impl<'a> At<'a> {
    /// The place of a stored object.
    pub fn of(resource: &'a Arc<Resource>, key: &'a Key) -> At<'a> {
        At { resource, namespace: key.namespace(), name: key.name() }
    }
}

/// A change that is computed from the stored state.
struct Edit<'a, F> {
    client: &'a Client,
    call: &'a Call<'a>,
    change: F,
}

impl<F: Fn(&mut Value) -> Result<bool>> NewState for Edit<'_, F> {
    fn after(&self, old: &Value) -> Result<Value> {
        let mut new = old.clone();
        if (self.change)(&mut new)? {
            self.client.backend.objects.record(self.call, Some(old), &mut new);
        }
        Ok(new)
    }
}

impl Client {
    /// A client that acts as the service account `name` in kube-system.
    pub fn new(backend: Rc<Backend>, catalogs: Rc<ResourceIndexes>, name: &str) -> Client {
        let user = Identity {
            name: format!("{ACCOUNT_PREFIX}{SYSTEM_NAMESPACE}:{name}"),
            groups: vec![
                ALL_ACCOUNTS.to_owned(),
                format!("{ALL_ACCOUNTS}:{SYSTEM_NAMESPACE}"),
                AUTHENTICATED.to_owned(),
            ],
            ..Identity::default()
        };
        let agent = format!("kube-controller-manager/{RELEASE} ({}) {name}", std::env::consts::OS);
        Client { backend, catalogs, user: Rc::new(user), origin: Origin::Client, agent: agent.into() }
    }

    /// A client that acts as the server itself.
    pub fn of_server(backend: Rc<Backend>, catalogs: Rc<ResourceIndexes>) -> Client {
        let user = Rc::new(own_identity());
        Client { backend, catalogs, user, origin: Origin::Server, agent: SERVER_NAME.into() }
    }

    /// The user of its requests.
    pub fn user(&self) -> &Identity {
        &self.user
    }

    /// The dependencies of the verbs.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// The allocator of cluster IPs and node ports.
    pub fn services(&self) -> Rc<Services> {
        self.backend.services.clone()
    }

    /// The resources that are served now.
    pub fn known(&self) -> Rc<ResourceIndex> {
        self.catalogs.now()
    }

    /// The schemas of all built-in kinds.
    pub fn registry(&self) -> Arc<Registry> {
        self.backend.objects.registry.clone()
    }

    /// The resource of a store, if it is served.
    pub fn resource(&self, store: &str) -> Result<Arc<Resource>> {
        self.known().of_store(&TypeName::new(store)).cloned().ok_or_else(Status::no_such_resource)
    }

    /// The current Unix time in seconds.
    pub fn seconds(&self) -> i64 {
        self.backend.clock.now().unix_seconds()
    }

    /// The current time in the format of objects.
    pub fn now(&self) -> String {
        time::format_seconds(self.seconds())
    }

    /// Reads an object; `None` if it does not exist.
    pub async fn get(&self, at: At<'_>) -> Result<Option<Arc<Object>>> {
        let stored = at.resource.stored.as_ref().ok_or_else(Status::no_such_resource)?;
        let key = if at.resource.namespaced {
            Key::namespaced(at.namespace, at.name)
        } else {
            Key::cluster(at.name)
        };
        match self.backend.stores.get(&stored.store, key, &Permit::none()).await {
            Ok(object) => Ok(Some(object)),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(Status::from_store(&error, at.resource.name(), at.name)),
        }
    }

    /// Reads and decodes an object in the stored version; `None` if it does not exist.
    pub async fn read(&self, at: At<'_>) -> Result<Option<Value>> {
        match self.get(at).await? {
            Some(object) => self.load(at.resource, &object).map(Some),
            None => Ok(None),
        }
    }

    /// Decodes a stored object in the stored version.
    pub fn load(&self, resource: &Resource, object: &Object) -> Result<Value> {
        self.backend.objects.load_of(resource, object)
    }

    /// A snapshot of a store.
    pub async fn snapshot(&self, store: &TypeName) -> Result<Snapshot> {
        let nothing = GroupResource { group: "", resource: store.as_str() };
        let taken = self.backend.stores.snapshot(store, &Permit::none()).await;
        taken.map_err(|error| Status::from_store(&error, nothing, ""))
    }

    /// Every type that was ever written to.
    pub async fn written(&self) -> Result<Vec<TypeName>> {
        let nothing = GroupResource { group: "", resource: "" };
        let types = self.backend.stores.types().await;
        types.map_err(|error| Status::from_store(&error, nothing, ""))
    }

    /// Creates an object.
    pub async fn create(&self, at: At<'_>, object: &Value) -> Result<()> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let mut call = self.call(At { name: "", ..at }, "", &query, &warnings)?;
        call.body = Bytes::from(codec::to_json(object));
        create::create(&self.backend, &call).await.map(drop)
    }

    /// Updates an object or subresource. `change` answers whether it changed anything; it is called again after a conflict.
    pub async fn edit(
        &self,
        at: At<'_>,
        subresource: &str,
        change: impl Fn(&mut Value) -> Result<bool>,
    ) -> Result<()> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(at, subresource, &query, &warnings)?;
        let state = Edit { client: self, call: &call, change };
        store_update(&self.backend, &call, &state, WriteMode::Store).await.map(drop)
    }

    /// The same for an object that was read before, and only while it is at that version: what was decided about one object must not
    /// happen to another that has taken its name. Where it has changed nothing is written, and its notifier fires again.
    pub async fn edit_as_read(
        &self,
        at: At<'_>,
        subresource: &str,
        read: &Value,
        change: impl Fn(&mut Value) -> Result<bool>,
    ) -> Result<()> {
        let version = |object: &Value| meta::of(object).str("resourceVersion").to_owned();
        let read = version(read);
        self.edit(at, subresource, |object| Ok(version(object) == read && change(object)?)).await
    }

    /// Applies fields of an object or subresource with server-side apply, and takes their ownership by force.
    pub async fn apply(&self, at: At<'_>, subresource: &str, manager: &str, object: &Value) -> Result<()> {
        let query = format!("fieldManager={manager}&force=true");
        let (query, warnings) = (Query::parse(&query), Warnings::default());
        let mut call = self.call(at, subresource, &query, &warnings)?;
        call.body = Bytes::from(codec::to_json(object));
        let options = PatchOptions::parse(&query, true)?;
        apply::apply(&self.backend, &call, &options).await.map(drop)
    }

    /// Deletes an object that was read before.
    pub async fn delete(
        &self,
        resource: &Arc<Resource>,
        object: Arc<Object>,
        options: &DeleteOptions,
    ) -> Result<Outcome> {
        let key = object.key.clone();
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(At::of(resource, &key), "", &query, &warnings)?;
        delete_object(&self.backend, &call, object, options).await
    }

    /// Removes an expired object from its store without admission and finalizers. Answers whether it was still at this revision.
    pub async fn expire(&self, store: &TypeName, object: &Object) -> Result<bool> {
        let of = GroupResource { group: "", resource: store.as_str() };
        match self.backend.stores.remove(store, object.key.clone(), object.revision, &Permit::none()).await {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound | StoreError::Conflict(_)) => Ok(false),
            Err(error) => Err(Status::from_store(&error, of, object.key.name())),
        }
    }

    fn call<'a>(
        &'a self,
        at: At<'a>,
        subresource: &'a str,
        query: &'a Query<'a>,
        warnings: &'a Warnings,
    ) -> Result<Call<'a>> {
        let At { resource, namespace, name } = at;
        let (user, origin, user_agent) = (&*self.user, self.origin, &*self.agent);
        BodylessCall { resource, namespace, name, subresource, query, warnings, user, origin, user_agent }
            .call()
    }
}
