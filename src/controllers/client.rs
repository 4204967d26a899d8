//! A control loop as a client of the server's own verbs: with an identity of its own, and the same authorization, audit, admission,
//! field ownership and events as other clients.
//!
//! What the reference reads from its informers is read here without a request (`cached`, `snapshot`). What it asks the API server
//! for is a request (`get`, `list`), and so is every write: the rights of its service account must allow it.

use std::cell::RefCell;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_api::audit::Level;
use pilothouse_api::catalog::resource::{Resource, Stored};
use pilothouse_api::release::RELEASE;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::media::PatchType;
use pilothouse_apimachinery::options::{DeleteOptions, Propagation, WriteMode};
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::{GroupResource, IgnoreErrors as _, Result, Status};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::verb::Verb;
use pilothouse_apimachinery::well_known::{
    ACCOUNT_PREFIX, ALL_ACCOUNTS, AUTHENTICATED, SERVER_NAME, SYSTEM_NAMESPACE,
};
use pilothouse_apimachinery::{codec, meta};
use pilothouse_types::error::StoreError;
use pilothouse_types::identity::Identity;
use pilothouse_types::object::{Key, Object, TypeName};

use crate::backend::audit_body::note_difference;
use crate::backend::loopback::{Admitted, LoopbackRequest, Response, own_identity};
use crate::backend::services::Services;
use crate::backend::{Backend, BodylessCall, Call, Origin, Warnings};
use crate::limits::{AUDIT_BODY_BYTES, DELETIONS_IN_FLIGHT};
use crate::verbs::delete::{delete_object, reply};
use crate::verbs::update::{NewState, store_update};
use crate::verbs::{self, Reply, create, list, patch, review};

use super::attempts;
use super::object_meta::ObjectMeta;
use super::resource_index::{ResourceIndex, ResourceIndexes};

/// The user as which the controllers run that have no service account in the reference.
const MANAGER: &str = "system:kube-controller-manager";
/// The code of a response that carries an object or a list.
const OK: u16 = 200;

/// The client of one loop.
#[derive(Clone)]
pub struct Client {
    backend: Rc<Backend>,
    catalogs: Rc<ResourceIndexes>,
    user: Arc<Identity>,
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
    /// What the change is as a request: an update or a patch.
    verb: Verb,
    change: F,
    /// The state that the change was found necessary for, and the one after it.
    prepared: RefCell<Option<(Value, Value)>>,
}

impl<F: Fn(&mut Value) -> Result<bool>> NewState for Edit<'_, F> {
    fn after(&self, old: &Value) -> Result<Value> {
        let mut new = match self.prepared.take() {
            Some((read, new)) if read == *old => new,
            _ => {
                let mut new = old.clone();
                if !(self.change)(&mut new)? {
                    return Ok(new);
                }
                new
            }
        };
        let objects = &self.client.backend.objects;
        match self.verb {
            Verb::Patch => note_difference(self.call, old, &new),
            _ => objects.note_body(self.call, &new),
        }
        objects.record(self.call, Some(old), &mut new);
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
        Client { backend, catalogs, user: Arc::new(user), origin: Origin::Client, agent: agent(name) }
    }

    /// A client that acts as kube-controller-manager itself, for its part `name`.
    pub fn of_manager(backend: Rc<Backend>, catalogs: Rc<ResourceIndexes>, name: &str) -> Client {
        let groups = vec![AUTHENTICATED.to_owned()];
        let user = Identity { name: MANAGER.to_owned(), groups, ..Identity::default() };
        Client { backend, catalogs, user: Arc::new(user), origin: Origin::Client, agent: agent(name) }
    }

    /// A client that acts as the server itself. `origin` says whether webhooks can keep it from its work.
    pub fn of_server(backend: Rc<Backend>, catalogs: Rc<ResourceIndexes>, origin: Origin) -> Client {
        Client { backend, catalogs, user: own_identity(), origin, agent: SERVER_NAME.into() }
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

    /// Reads an object as its informer would know it; `None` if it does not exist.
    pub async fn cached(&self, at: At<'_>) -> Result<Option<Arc<Object>>> {
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

    /// The same, decoded in the stored version.
    pub async fn read_cached(&self, at: At<'_>) -> Result<Option<Value>> {
        match self.cached(at).await? {
            Some(object) => self.load(at.resource, &object).map(Some),
            None => Ok(None),
        }
    }

    /// Requests an object; `None` if it does not exist.
    pub async fn get(&self, at: At<'_>) -> Result<Option<Arc<Object>>> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(at, "", &query, &warnings)?;
        let admitted = self.backend.admit_call(Verb::Get, &self.user, &call, "").await?;
        let found = self.backend.read(&call).await;
        let shown = match &found {
            Ok(object) if is_response_recorded(&call) => {
                Some(self.backend.encode_response(&call, object, call.claim()).await?)
            }
            _ => None,
        };
        let response = match (&shown, &found) {
            (Some(json), _) => Response::Object(OK, json),
            (None, Ok(_)) => Response::Code(OK),
            (None, Err(status)) => Response::Status(status),
        };
        admitted.end(&warnings, response).await;
        found.ignore_not_found()
    }

    /// The same, decoded in the stored version.
    pub async fn read(&self, at: At<'_>) -> Result<Option<Value>> {
        match self.get(at).await? {
            Some(object) => self.load(at.resource, &object).map(Some),
            None => Ok(None),
        }
    }

    /// Requests all objects of a resource in a namespace.
    pub async fn list(&self, at: At<'_>) -> Result<Vec<Arc<Object>>> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(At { name: "", ..at }, "", &query, &warnings)?;
        let admitted = self.backend.admit_call(Verb::List, &self.user, &call, "").await?;
        let objects = self
            .snapshot(&call.stored.store)
            .await
            .map(|snapshot| snapshot.scan(Some(at.namespace), Bound::Unbounded).cloned().collect::<Vec<_>>());
        let listed = self.recorded_list(&call).await;
        admitted
            .end(&warnings, collection_response(listed.as_ref(), objects.as_ref().err().map(AsRef::as_ref)))
            .await;
        objects
    }

    /// The list that a client would get, if the audit events of the call contain it.
    async fn recorded_list(&self, call: &Call<'_>) -> Option<Bytes> {
        if !is_response_recorded(call) {
            return None;
        }
        let Ok(Reply::List(mut listing)) = list::list(&self.backend, call).await else { return None };
        let mut whole = BytesMut::new();
        while let Some(chunk) = listing.next_chunk() {
            whole.extend_from_slice(&chunk.ok()?);
            // An audit event has no room for a larger one.
            if whole.len() > AUDIT_BODY_BYTES {
                return None;
            }
            tokio::task::yield_now().await;
        }
        Some(whole.freeze())
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
        let admitted = self.backend.admit_call(Verb::Create, &self.user, &call, "").await?;
        let created = create::create(&self.backend, &call).await;
        verbs::end(admitted, &call, created).await.map(drop)
    }

    /// Asks for a review, and answers it.
    pub async fn review(&self, resource: &Arc<Resource>, question: &Value) -> Result<Value> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let stored = review::place(resource).ok_or_else(Status::no_such_resource)?;
        let mut call = self.call_in(&stored, At { resource, namespace: "", name: "" }, "", &query, &warnings);
        call.body = Bytes::from(codec::to_json(question));
        let admitted = self.backend.admit_call(Verb::Create, &self.user, &call, "").await?;
        let reviewed = review::create(&self.backend, &call).await;
        match verbs::end(admitted, &call, reviewed).await? {
            Reply::Object(_, json) => json::read(&json)
                .map_err(|error| Status::internal(format!("the answer of a review cannot be read: {error}"))),
            _ => Err(Status::internal("a review has no answer")),
        }
    }

    /// Updates an object or subresource. `change` answers whether it changed anything; it is called again after a conflict. Nothing
    /// is requested where nothing is to be changed.
    pub async fn edit(
        &self,
        at: At<'_>,
        subresource: &str,
        change: impl Fn(&mut Value) -> Result<bool>,
    ) -> Result<()> {
        self.change(Verb::Update, at, subresource, change).await
    }

    /// The same as a patch, for those whom the reference gives no right to update.
    pub async fn patch(
        &self,
        at: At<'_>,
        subresource: &str,
        change: impl Fn(&mut Value) -> Result<bool>,
    ) -> Result<()> {
        self.change(Verb::Patch, at, subresource, change).await
    }

    async fn change(
        &self,
        verb: Verb,
        at: At<'_>,
        subresource: &str,
        change: impl Fn(&mut Value) -> Result<bool>,
    ) -> Result<()> {
        let Some(read) = self.read_cached(at).await? else {
            return Err(Status::not_found(at.resource.name(), at.name));
        };
        let mut new = read.clone();
        if !change(&mut new)? {
            return Ok(());
        }
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(at, subresource, &query, &warnings)?;
        let admitted = self.backend.admit_call(verb, &self.user, &call, "").await?;
        let prepared = RefCell::new(Some((read, new)));
        let state = Edit { client: self, call: &call, verb, change, prepared };
        let stored = store_update(&self.backend, &call, &state, WriteMode::Store).await;
        verbs::end(admitted, &call, stored).await.map(drop)
    }

    /// Updates an object that was read before, and only while it is at that version: what was decided about one object must not
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
        let text = format!("fieldManager={manager}&force=true");
        let (query, warnings) = (Query::parse(&text), Warnings::default());
        let mut call = self.call(at, subresource, &query, &warnings)?;
        call.body = Bytes::from(codec::to_json(object));
        call.patch = Some(PatchType::Apply);
        let admitted = self.backend.admit_call(Verb::Patch, &self.user, &call, &text).await?;
        let applied = patch::patch(&self.backend, &call).await;
        verbs::end(admitted, &call, applied).await.map(drop)
    }

    /// Deletes an object that was read before.
    pub async fn delete(
        &self,
        resource: &Arc<Resource>,
        object: Arc<Object>,
        options: &DeleteOptions,
    ) -> Result<()> {
        let key = object.key.clone();
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(At::of(resource, &key), "", &query, &warnings)?;
        let admitted = self.backend.admit_call(Verb::Delete, &self.user, &call, "").await?;
        self.note_options(&call, options);
        let outcome = match delete_object(&self.backend, &call, object, options).await {
            Ok(outcome) => outcome,
            Err(status) => {
                admitted.end(&warnings, Response::Status(&status)).await;
                return Err(status);
            }
        };
        // The reply costs decoding the object once more, and only audit events contain it.
        if call.warnings.received.is_wanted() {
            let reply = reply(&self.backend, &call, outcome, options).await;
            // The object is deleted, whether the reply can be made or not.
            let _recorded = verbs::end(admitted, &call, reply).await;
        }
        Ok(())
    }

    /// Deletes these objects of a collection as one request, several at a time, so that they share disk syncs and still let others
    /// write. One that cannot be deleted does not keep the others.
    pub async fn delete_collection(
        &self,
        at: At<'_>,
        objects: Vec<Arc<Object>>,
        propagation: Propagation,
    ) -> Result<()> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = &self.call(At { name: "", ..at }, "", &query, &warnings)?;
        let admitted = self.backend.admit_call(Verb::DeleteCollection, &self.user, call, "").await?;
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        self.note_options(call, &options);
        let listed = self.recorded_list(call).await;
        let deletions = objects.into_iter().map(|object| {
            // Exactly this object: another one may have taken its name.
            let uid = Some(ObjectMeta::of(&object).uid.into_owned());
            let options = DeleteOptions { uid, propagation: Some(propagation), ..DeleteOptions::default() };
            async move {
                let deleted = delete_object(&self.backend, call, object, &options).await;
                deleted.ignore_not_found_or_conflict().map(drop)
            }
        });
        let deleted = attempts::all(deletions, DELETIONS_IN_FLIGHT).await;
        admitted
            .end(&warnings, collection_response(listed.as_ref(), deleted.as_ref().err().map(AsRef::as_ref)))
            .await;
        deleted
    }

    fn note_options(&self, call: &Call<'_>, options: &DeleteOptions) {
        if call.warnings.received.is_wanted() {
            self.backend.objects.note_options(call, &options.to_value());
        }
    }

    /// Audits and authorizes a request that another server answers.
    pub async fn admit(
        &self,
        method: &'static str,
        (path, query): (&str, &str),
        warnings: &Warnings,
    ) -> Result<Admitted> {
        let (user, user_agent) = (&self.user, &*self.agent);
        self.backend.admit(&LoopbackRequest { user, user_agent, method, path, query, warnings }).await
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
        let stored = at.resource.stored.as_ref().ok_or_else(Status::no_such_resource)?;
        Ok(self.call_in(stored, at, subresource, query, warnings))
    }

    fn call_in<'a>(
        &'a self,
        stored: &'a Stored,
        at: At<'a>,
        subresource: &'a str,
        query: &'a Query<'a>,
        warnings: &'a Warnings,
    ) -> Call<'a> {
        let At { resource, namespace, name } = at;
        let (user, origin, user_agent) = (&*self.user, self.origin, &*self.agent);
        BodylessCall { resource, namespace, name, subresource, query, warnings, user, origin, user_agent }
            .call_in(stored)
    }
}

/// The User-Agent of a part of kube-controller-manager.
fn agent(name: &str) -> Rc<str> {
    format!("kube-controller-manager/{RELEASE} ({}) {name}", std::env::consts::OS).into()
}

/// Whether the audit events of a call contain its response.
fn is_response_recorded(call: &Call<'_>) -> bool {
    call.warnings.received.level() == Level::RequestResponse
}

fn collection_response<'a>(listed: Option<&'a Bytes>, failure: Option<&'a Status>) -> Response<'a> {
    match (failure, listed) {
        (Some(status), _) => Response::Status(status),
        (None, Some(json)) => Response::Object(OK, json.trim_ascii_end()),
        (None, None) => Response::Code(OK),
    }
}
