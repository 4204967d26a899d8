//! A controller as a client of the server's own verbs: with an identity of its own, and the same authorization, audit, admission,
//! field ownership and events as other clients.
//!
//! Reads that the reference makes from its informers need no request here (`cached`, `snapshot`). Reads that it requests from the
//! API server are requests (`get`, `list`), and so is every write: the permissions of its service account must allow them.

use std::cell::RefCell;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_api::audit::Level;
use pilothouse_api::catalog::backing::Backing;
use pilothouse_api::catalog::resource::Resource;
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

use crate::limits::{AUDIT_BODY_BYTES, DELETIONS_IN_FLIGHT};
use crate::registry::audit_body::record_difference;
use crate::registry::loopback::{AdmittedRequest, LoopbackRequest, Response, own_identity};
use crate::registry::{Backend, Call, CallTarget, Origin, Requester, Warnings};
use crate::verbs::delete::{delete_object, reply};
use crate::verbs::update::{NewState, store_update};
use crate::verbs::{self, Reply, create, dispatch, list, patch};

use super::attempts;
use super::object_meta::ObjectMeta;
use super::resource_index::{ResourceIndex, ResourceIndexes};

/// The user as which the controllers run that have no service account in the reference.
const MANAGER: &str = "system:kube-controller-manager";
/// The code of a response that carries an object or a list.
const OK: u16 = 200;

/// The client of one controller.
#[derive(Clone)]
pub struct Client {
    backend: Rc<Backend>,
    catalogs: Rc<ResourceIndexes>,
    user: Arc<Identity>,
    origin: Origin,
    agent: Rc<str>,
}

/// The location of an object, or of a collection if the name is empty.
#[derive(Clone, Copy)]
pub struct ObjectRef<'a> {
    /// The resource.
    pub resource: &'a Arc<Resource>,
    /// The namespace; empty for cluster-scoped resources.
    pub namespace: &'a str,
    /// The name; empty for a collection.
    pub name: &'a str,
}

impl<'a> ObjectRef<'a> {
    /// The location of a stored object.
    pub fn new(resource: &'a Arc<Resource>, key: &'a Key) -> ObjectRef<'a> {
        ObjectRef { resource, namespace: key.namespace(), name: key.name() }
    }
}

/// A change that is computed from the stored state.
struct Edit<'a, F> {
    client: &'a Client,
    call: &'a Call<'a>,
    /// The verb of the request: update or patch.
    verb: Verb,
    change: F,
    /// The state that was read, and the changed one: the change need not be computed again if the state is still the same.
    prepared: RefCell<Option<(Value, Value)>>,
}

impl<F: Fn(&mut Value) -> Result<bool>> NewState for Edit<'_, F> {
    fn next_state(&self, old: &Value) -> Result<Value> {
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
            Verb::Patch => record_difference(self.call, old, &new),
            _ => objects.record_body(self.call, &new),
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
    pub fn for_controller_manager(backend: Rc<Backend>, catalogs: Rc<ResourceIndexes>, name: &str) -> Client {
        let groups = vec![AUTHENTICATED.to_owned()];
        let user = Identity { name: MANAGER.to_owned(), groups, ..Identity::default() };
        Client { backend, catalogs, user: Arc::new(user), origin: Origin::Client, agent: agent(name) }
    }

    /// A client that acts as the server itself. `origin` says whether webhooks can keep it from its work.
    pub fn for_server(backend: Rc<Backend>, catalogs: Rc<ResourceIndexes>, origin: Origin) -> Client {
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

    /// The resources that are served now.
    pub fn resource_index(&self) -> Rc<ResourceIndex> {
        self.catalogs.now()
    }

    /// The schemas of all built-in kinds.
    pub fn registry(&self) -> Arc<Registry> {
        self.backend.objects.registry.clone()
    }

    /// The resource of a store, if it is served.
    pub fn resource(&self, store: &str) -> Result<Arc<Resource>> {
        self.resource_index().for_store(&TypeName::new(store)).cloned().ok_or_else(Status::no_such_resource)
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
    pub async fn cached(&self, target: ObjectRef<'_>) -> Result<Option<Arc<Object>>> {
        let stored = target.resource.stored().ok_or_else(Status::no_such_resource)?;
        let key = if target.resource.namespaced {
            Key::namespaced(target.namespace, target.name)
        } else {
            Key::cluster(target.name)
        };
        match self.backend.stores.get(&stored.store, key, &Permit::none()).await {
            Ok(object) => Ok(Some(object)),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(Status::from_store(&error, target.resource.name(), target.name)),
        }
    }

    /// The same, decoded in the stored version.
    pub async fn read_cached(&self, target: ObjectRef<'_>) -> Result<Option<Value>> {
        match self.cached(target).await? {
            Some(object) => self.load(target.resource, &object).map(Some),
            None => Ok(None),
        }
    }

    /// Requests an object; `None` if it does not exist.
    pub async fn get(&self, target: ObjectRef<'_>) -> Result<Option<Arc<Object>>> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(target, "", &query, &warnings)?;
        let admitted = self.backend.admit_call(Verb::Get, &self.user, &call, "").await?;
        let result = self.backend.read(&call).await;
        let recorded = match &result {
            Ok(object) if is_response_recorded(&call) => {
                Some(self.backend.encode_response(&call, object, call.memory_priority()).await?)
            }
            _ => None,
        };
        let response = match (&recorded, &result) {
            (Some(json), _) => Response::Object(OK, json),
            (None, Ok(_)) => Response::Code(OK),
            (None, Err(status)) => Response::Status(status),
        };
        admitted.end(&warnings, response).await;
        result.ignore_not_found()
    }

    /// The same, decoded in the stored version.
    pub async fn read(&self, target: ObjectRef<'_>) -> Result<Option<Value>> {
        match self.get(target).await? {
            Some(object) => self.load(target.resource, &object).map(Some),
            None => Ok(None),
        }
    }

    /// Requests all objects of a cluster-scoped resource, or those of a namespace.
    pub async fn list(&self, target: ObjectRef<'_>) -> Result<Vec<Arc<Object>>> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(ObjectRef { name: "", ..target }, "", &query, &warnings)?;
        let admitted = self.backend.admit_call(Verb::List, &self.user, &call, "").await?;
        let namespace = target.resource.namespaced.then_some(target.namespace);
        let objects = self
            .snapshot(&call.stored().store)
            .await
            .map(|snapshot| snapshot.scan(namespace, Bound::Unbounded).cloned().collect::<Vec<_>>());
        let recorded = self.recorded_list(&call).await;
        admitted
            .end(&warnings, collection_response(recorded.as_ref(), objects.as_ref().err().map(AsRef::as_ref)))
            .await;
        objects
    }

    /// The list that a client would get, if the audit events of the call contain it.
    async fn recorded_list(&self, call: &Call<'_>) -> Option<Bytes> {
        if !is_response_recorded(call) {
            return None;
        }
        let Ok(Reply::List(mut listing)) = list::list(&self.backend, call).await else { return None };
        let mut body = BytesMut::new();
        while let Some(chunk) = listing.next_chunk() {
            body.extend_from_slice(&chunk.ok()?);
            // An audit event does not contain a larger one.
            if body.len() > AUDIT_BODY_BYTES {
                return None;
            }
            tokio::task::yield_now().await;
        }
        Some(body.freeze())
    }

    /// Decodes a stored object in the stored version.
    pub fn load(&self, resource: &Resource, object: &Object) -> Result<Value> {
        self.backend.objects.load_resource(resource, object)
    }

    /// A snapshot of a store.
    pub async fn snapshot(&self, store: &TypeName) -> Result<Snapshot> {
        let name = GroupResource { group: "", resource: store.as_str() };
        let result = self.backend.stores.snapshot(store, &Permit::none()).await;
        result.map_err(|error| Status::from_store(&error, name, ""))
    }

    /// Every type that was ever written to.
    pub async fn written_types(&self) -> Result<Vec<TypeName>> {
        let name = GroupResource { group: "", resource: "" };
        let types = self.backend.stores.types().await;
        types.map_err(|error| Status::from_store(&error, name, ""))
    }

    /// Creates an object.
    pub async fn create(&self, target: ObjectRef<'_>, object: &Value) -> Result<()> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let mut call = self.call(ObjectRef { name: "", ..target }, "", &query, &warnings)?;
        call.body.bytes = Bytes::from(codec::to_json(object));
        let admitted = self.backend.admit_call(Verb::Create, &self.user, &call, "").await?;
        let created = create::create(&self.backend, &call).await;
        verbs::end_request(admitted, &call, created).await.map(drop)
    }

    /// Creates a review, such as a SubjectAccessReview, and returns it with its status.
    pub async fn review(&self, resource: &Arc<Resource>, review: &Value) -> Result<Value> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let Backing::Computed(computed) = &resource.backing else { return Err(Status::no_such_resource()) };
        let target = CallTarget::new(resource, &computed.placeholder);
        let mut call = Call::new(target, self.requester(), &query, &warnings);
        call.body.bytes = Bytes::from(codec::to_json(review));
        let admitted = self.backend.admit_call(Verb::Create, &self.user, &call, "").await?;
        let reviewed = dispatch::dispatch(&self.backend, Verb::Create, &call).await;
        match verbs::end_request(admitted, &call, reviewed).await? {
            Reply::Object(_, json) => json::read(&json).map_err(|error| {
                Status::internal(format!("the response to a review cannot be decoded: {error}"))
            }),
            _ => Err(Status::internal("a review has no response")),
        }
    }

    /// Creates an object that is missing, as `new` makes it, or edits the existing one. What another attempt would not change,
    /// such as a namespace that is being deleted, is no error.
    pub async fn ensure(
        &self,
        target: ObjectRef<'_>,
        new: impl FnOnce() -> Value,
        fill: impl Fn(&mut Value) -> bool,
    ) -> Result<()> {
        let result = match self.cached(target).await? {
            None => self.create(target, &new()).await,
            Some(_) => self.edit(target, "", |object| Ok(fill(object))).await,
        };
        match result {
            Err(status) if !status.is_settled() => Err(status),
            _ => Ok(()),
        }
    }

    /// Updates an object or subresource. `change` returns whether it changed anything; it is called again after a conflict. Nothing
    /// is requested where nothing is to be changed.
    pub async fn edit(
        &self,
        target: ObjectRef<'_>,
        subresource: &str,
        change: impl Fn(&mut Value) -> Result<bool>,
    ) -> Result<()> {
        self.change(Verb::Update, target, subresource, change).await
    }

    /// The same as a patch, for controllers that have no permission to update in the reference.
    pub async fn patch(
        &self,
        target: ObjectRef<'_>,
        subresource: &str,
        change: impl Fn(&mut Value) -> Result<bool>,
    ) -> Result<()> {
        self.change(Verb::Patch, target, subresource, change).await
    }

    async fn change(
        &self,
        verb: Verb,
        target: ObjectRef<'_>,
        subresource: &str,
        change: impl Fn(&mut Value) -> Result<bool>,
    ) -> Result<()> {
        let Some(current) = self.read_cached(target).await? else {
            return Err(Status::not_found(target.resource.name(), target.name));
        };
        let mut new = current.clone();
        if !change(&mut new)? {
            return Ok(());
        }
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(target, subresource, &query, &warnings)?;
        let admitted = self.backend.admit_call(verb, &self.user, &call, "").await?;
        let prepared = RefCell::new(Some((current, new)));
        let state = Edit { client: self, call: &call, verb, change, prepared };
        let stored = store_update(&self.backend, &call, &state, WriteMode::Store).await;
        verbs::end_request(admitted, &call, stored).await.map(drop)
    }

    /// Updates an object that was read before, and only while it is at that version: what was decided about one object must not
    /// happen to another that has taken its name. If it has changed, nothing is written, and its event starts another
    /// reconciliation.
    pub async fn edit_if_unchanged(
        &self,
        target: ObjectRef<'_>,
        subresource: &str,
        read: &Value,
        change: impl Fn(&mut Value) -> Result<bool>,
    ) -> Result<()> {
        let version = |object: &Value| meta::metadata(object).str("resourceVersion").to_owned();
        let read = version(read);
        self.edit(target, subresource, |object| Ok(version(object) == read && change(object)?)).await
    }

    /// Applies fields of an object or subresource with server-side apply, and takes their ownership by force.
    pub async fn apply(
        &self,
        target: ObjectRef<'_>,
        subresource: &str,
        manager: &str,
        object: &Value,
    ) -> Result<()> {
        self.apply_with(target, subresource, &format!("fieldManager={manager}&force=true"), object).await
    }

    /// Applies a configuration without fields: nothing changes, and an object that is not stored as it would be now is rewritten.
    pub async fn apply_nothing(&self, target: ObjectRef<'_>, manager: &str, object: &Value) -> Result<()> {
        self.apply_with(target, "", &format!("fieldManager={manager}"), object).await
    }

    async fn apply_with(
        &self,
        target: ObjectRef<'_>,
        subresource: &str,
        query_text: &str,
        object: &Value,
    ) -> Result<()> {
        let (query, warnings) = (Query::parse(query_text), Warnings::default());
        let mut call = self.call(target, subresource, &query, &warnings)?;
        call.body.bytes = Bytes::from(codec::to_json(object));
        call.body.patch = Some(PatchType::Apply);
        let admitted = self.backend.admit_call(Verb::Patch, &self.user, &call, query_text).await?;
        let applied = patch::patch(&self.backend, &call).await;
        verbs::end_request(admitted, &call, applied).await.map(drop)
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
        let call = self.call(ObjectRef::new(resource, &key), "", &query, &warnings)?;
        let admitted = self.backend.admit_call(Verb::Delete, &self.user, &call, "").await?;
        self.record_options(&call, options);
        let outcome = match delete_object(&self.backend, &call, object, options).await {
            Ok(outcome) => outcome,
            Err(status) => {
                admitted.end(&warnings, Response::Status(&status)).await;
                return Err(status);
            }
        };
        // The reply costs decoding the object once more, and only audit events contain it.
        if call.warnings.audit_body.is_enabled() {
            let reply = reply(&self.backend, &call, outcome, options).await;
            // The object is deleted, whether the reply can be made or not.
            let _recorded = verbs::end_request(admitted, &call, reply).await;
        }
        Ok(())
    }

    /// Deletes these objects of a collection as one request, several at a time, so that they share disk syncs and still let others
    /// write. One that cannot be deleted does not keep the others.
    pub async fn delete_collection(
        &self,
        target: ObjectRef<'_>,
        objects: Vec<Arc<Object>>,
        propagation: Propagation,
    ) -> Result<()> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = &self.call(ObjectRef { name: "", ..target }, "", &query, &warnings)?;
        let admitted = self.backend.admit_call(Verb::DeleteCollection, &self.user, call, "").await?;
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        self.record_options(call, &options);
        let recorded = self.recorded_list(call).await;
        let deletions = objects.into_iter().map(|object| {
            // Exactly this object: another one may have taken its name.
            let uid = Some(ObjectMeta::from_object(&object).uid.into_owned());
            let options = DeleteOptions { uid, propagation: Some(propagation), ..DeleteOptions::default() };
            async move {
                let deleted = delete_object(&self.backend, call, object, &options).await;
                deleted.ignore_not_found_or_conflict().map(drop)
            }
        });
        let deleted = attempts::all(deletions, DELETIONS_IN_FLIGHT).await;
        admitted
            .end(&warnings, collection_response(recorded.as_ref(), deleted.as_ref().err().map(AsRef::as_ref)))
            .await;
        deleted
    }

    fn record_options(&self, call: &Call<'_>, options: &DeleteOptions) {
        if call.warnings.audit_body.is_enabled() {
            self.backend.objects.record_options(call, &options.to_value());
        }
    }

    /// Audits and authorizes a request that another server answers.
    pub async fn admit(
        &self,
        method: &'static str,
        path: &str,
        query: &str,
        warnings: &Warnings,
    ) -> Result<AdmittedRequest> {
        let (user, user_agent) = (&self.user, &*self.agent);
        self.backend.admit(&LoopbackRequest { user, user_agent, method, path, query, warnings }).await
    }

    /// Removes an expired object from its store without admission and finalizers. Returns whether it was still at this revision.
    pub async fn expire(&self, store: &TypeName, object: &Object) -> Result<bool> {
        let name = GroupResource { group: "", resource: store.as_str() };
        match self.backend.stores.remove(store, object.key.clone(), object.revision, &Permit::none()).await {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound | StoreError::Conflict(_)) => Ok(false),
            Err(error) => Err(Status::from_store(&error, name, object.key.name())),
        }
    }

    fn call<'a>(
        &'a self,
        target: ObjectRef<'a>,
        subresource: &'a str,
        query: &'a Query<'a>,
        warnings: &'a Warnings,
    ) -> Result<Call<'a>> {
        let ObjectRef { resource, namespace, name } = target;
        let target = CallTarget { namespace, name, subresource, ..CallTarget::stored(resource)? };
        Ok(Call::new(target, self.requester(), query, warnings))
    }

    fn requester(&self) -> Requester<'_> {
        Requester { user: &self.user, origin: self.origin, user_agent: &self.agent }
    }
}

/// The User-Agent of a part of kube-controller-manager.
fn agent(name: &str) -> Rc<str> {
    format!("kube-controller-manager/{RELEASE} ({}) {name}", std::env::consts::OS).into()
}

/// Whether the audit events of a call contain its response.
fn is_response_recorded(call: &Call<'_>) -> bool {
    call.warnings.audit_body.level() == Level::RequestResponse
}

fn collection_response<'a>(recorded: Option<&'a Bytes>, error: Option<&'a Status>) -> Response<'a> {
    match (error, recorded) {
        (Some(status), _) => Response::Status(status),
        (None, Some(json)) => Response::Object(OK, json.trim_ascii_end()),
        (None, None) => Response::Code(OK),
    }
}
