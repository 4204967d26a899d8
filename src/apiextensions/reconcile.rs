//! One round over the definitions that changed: read, settle, publish, write.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt as _;
use pilothouse_actors::directory::Released;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::shared_log::type_changes::AddTypeError;
use pilothouse_actors::store::{Freshness, Position};
use pilothouse_actors::window::Read;
use pilothouse_api::catalog::Catalog;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom::definition::{is_custom, resource_of_store};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::WriteMode;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::verb::Verb;
use pilothouse_apimachinery::well_known::SERVER_NAME;
use pilothouse_types::identity::Identity;
use pilothouse_types::object::{Object, TypeName};
use tokio::sync::{Semaphore, watch};

use super::Defined;
use super::definition_set::DefinitionSet;
use super::served_revision::ServedRevision;
use super::shared_types::SharedTypes;
use crate::bootstrap::{custom_api_services, registered_versions};
use crate::limits::{DEFINITION_WRITES_IN_FLIGHT, DEFINITIONS_PER_READ};
use crate::live_index::stored_object::{CUSTOM_RESOURCE_DEFINITIONS, StoredObject};
use crate::registry::{Backend, Call, CallTarget, Origin, Requester, Warnings};
use crate::verbs;
use crate::verbs::update::{NewState, store_update};

/// The dependencies of a round.
pub(super) struct Reconciler {
    pub(super) backend: Backend,
    pub(super) resource: Arc<Resource>,
    pub(super) catalog: Catalog,
    pub(super) publish: Box<dyn Fn(Defined)>,
    pub(super) served: ServedRevision,
    pub(super) user: Arc<Identity>,
    /// Limits the concurrent deletions of objects of all terminating definitions.
    pub(super) deletions: Semaphore,
    /// The types of the shared log, if there is one.
    pub(super) shared_types: Option<SharedTypes>,
}

impl Reconciler {
    /// The store of the definitions.
    pub(super) fn store(&self) -> TypeName {
        self.resource.stored().map_or_else(|| TypeName::new(""), |stored| stored.store.clone())
    }

    pub(super) fn now(&self) -> String {
        time::format_seconds(i64::try_from(self.backend.clock.now().seconds()).unwrap_or(i64::MAX))
    }

    /// Reads the definitions that changed, publishes their resources and writes their status.
    pub(super) async fn round(&self, definition_set: &mut DefinitionSet) -> Result<()> {
        let watch = self.backend.stores.open_watch(&self.store(), Freshness::Seen, &Permit::none()).await;
        let watch = watch.map_err(|error| Status::from_store(&error, self.resource.name(), ""))?;
        for name in changed(definition_set, &watch) {
            match watch.snapshot.get(&name) {
                Some(object) => self.read(definition_set, object),
                None => definition_set.remove(&name),
            }
        }
        let is_first = definition_set.cursor.is_none();
        definition_set.cursor = Some(watch.snapshot.revision);
        let changed_names = definition_set.settle_names(&self.now());
        let Backend { objects, clock, loopback, .. } = &self.backend;
        for elapsed in definition_set.build_resources(&objects.registry, clock) {
            loopback.metrics.cel.count_compilation(elapsed);
        }
        self.backend.definitions.mark_compiled(watch.snapshot.revision);
        if let Err(status) = self.add_types(definition_set).await {
            // Their status is still to be written.
            definition_set.must_reread.extend(changed_names);
            return Err(status);
        }
        let (completion_sender, completion) = watch::channel(());
        if let Some(defined) = definition_set.take_changes(completion) {
            (self.publish)(defined);
        }
        self.served.advance(watch.snapshot.revision);
        let write_result = self.write_all(definition_set, changed_names).await;
        drop(completion_sender);
        let register_result = self.register(definition_set).await;
        if is_first {
            self.find_unused_stores(definition_set).await?;
        }
        write_result.and(register_result)
    }

    /// Has the objects of new types read from the shared log, before they are served.
    async fn add_types(&self, definition_set: &mut DefinitionSet) -> Result<()> {
        while let Some(name) = definition_set.new_types.first().cloned() {
            if let (Some(shared_types), Some(stored)) = (&self.shared_types, definition_set.stored(&name)) {
                match shared_types.add(&stored).await {
                    Ok(()) => {}
                    Err(AddTypeError::Refused) => {
                        tracing::error!(definition = name, "{}", AddTypeError::Refused);
                    }
                    Err(AddTypeError::Log(error)) => {
                        return Err(Status::from_store(&error.into(), self.resource.name(), &name));
                    }
                }
            }
            definition_set.new_types.remove(&name);
        }
        Ok(())
    }

    /// Adds a definition that is new or has changed.
    fn read(&self, definition_set: &mut DefinitionSet, object: &Arc<Object>) {
        let name = object.key.name();
        if definition_set.is_current(name, object.revision) {
            return;
        }
        let registry = &self.backend.objects.registry;
        let stored = StoredObject::new(&CUSTOM_RESOURCE_DEFINITIONS, object, registry);
        match stored.and_then(|stored| stored.value()) {
            Ok(value) => definition_set.put(name, object.revision, value),
            // The index for admission reports it.
            Err(_) => definition_set.mark_unreadable(name, object.revision),
        }
    }

    /// Writes the status of definitions. One that cannot be written does not stop the others, and is retried.
    async fn write_all(&self, definition_set: &mut DefinitionSet, names: Vec<String>) -> Result<()> {
        let values = names.into_iter().filter_map(|name| Some((definition_set.value(&name)?, name)));
        let values: Vec<(Arc<Value>, String)> = values.collect();
        // Concurrently, so that they share a disk sync.
        let mut writes = futures::stream::iter(values)
            .map(|(value, name)| async move { (self.write(&value).await, name) })
            .buffer_unordered(DEFINITION_WRITES_IN_FLIGHT);
        let mut result = Ok(());
        while let Some((written, name)) = writes.next().await {
            if let Err(status) = written {
                definition_set.must_reread.insert(name);
                result = Err(status);
            }
        }
        result
    }

    /// Writes the status of a definition, unless it has changed since it was read: then a notification starts the next round.
    async fn write(&self, value: &Value) -> Result<()> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(self.status_target(meta::name(value))?, &query, &warnings);
        let state = StatusUpdate { reconciler: self, call: &call, value };
        match self.store_status(&call, &state).await {
            Err(status) if !matches!(status.code, 404 | 409) => Err(status),
            _ => Ok(()),
        }
    }

    /// Stores a new status of a definition.
    pub(super) async fn store_status(&self, call: &Call<'_>, state: &dyn NewState) -> Result<()> {
        let admitted = self.backend.admit_call(Verb::Update, &self.user, call, "").await?;
        let stored = store_update(&self.backend, call, state, WriteMode::Store).await;
        verbs::end_request(admitted, call, stored).await.map(drop)
    }

    /// Creates and removes the APIServices of custom group versions.
    async fn register(&self, definition_set: &mut DefinitionSet) -> Result<()> {
        let mut versions = definition_set.versions();
        // The versions of a definition that cannot be read are unknown. They stay registered, so that nobody else can take them.
        let unreadable = definition_set.unreadable();
        if !unreadable.is_empty() {
            let registered = registered_versions(&self.backend, &self.catalog).await?;
            versions.extend(registered.into_iter().filter(|gv| definition_set.has_unreadable(&gv.group)));
        }
        if definition_set.registered.as_ref() == Some(&versions) {
            return Ok(());
        }
        custom_api_services(&self.backend, &self.catalog, &versions, definition_set.registered.as_ref())
            .await?;
        definition_set.registered = Some(versions);
        Ok(())
    }

    /// Notes the stores of definitions that were removed before the server started.
    async fn find_unused_stores(&self, definition_set: &mut DefinitionSet) -> Result<()> {
        let types = self.backend.stores.types().await;
        let types = types.map_err(|error| Status::from_store(&error, self.resource.name(), ""))?;
        let names: BTreeSet<&String> = definition_set.names().collect();
        let is_unused =
            |store: &TypeName| is_custom(store) && !names.contains(&resource_of_store(store).to_owned());
        let unused: Vec<TypeName> = types.into_iter().filter(is_unused).collect();
        definition_set.unreleased.extend(unused);
        Ok(())
    }

    /// Releases the stores of removed definitions. Returns whether some are left.
    pub(super) async fn release(&self, definition_set: &mut DefinitionSet) -> bool {
        for store in std::mem::take(&mut definition_set.unreleased) {
            if let Some(shared_types) = &self.shared_types {
                shared_types.remove(&store).await;
            }
            match self.backend.stores.release(&store).await {
                Ok(Released::Busy) => drop(definition_set.unreleased.insert(store)),
                // A reader that was about to use it may start it once more.
                Ok(Released::Done) => drop(definition_set.released.insert(store)),
                // The definition was removed without its objects. They stay, in case it is created again.
                Ok(Released::HasObjects) => {
                    let snapshot = self.backend.stores.snapshot(&store, &Permit::none()).await;
                    let objects = snapshot.map_or(0, |snapshot| snapshot.objects.len());
                    tracing::warn!(%store, objects, "a CustomResourceDefinition is gone but objects of it are left");
                }
                Ok(Released::Absent) => {}
                Err(error) => tracing::debug!(%store, %error, "the store of a removed type cannot be closed"),
            }
        }
        definition_set.has_stores_to_release()
    }

    /// A call of the server itself.
    pub(super) fn call<'a>(
        &'a self,
        target: CallTarget<'a>,
        query: &'a Query<'a>,
        warnings: &'a Warnings,
    ) -> Call<'a> {
        let requester = Requester { user: &self.user, origin: Origin::Server, user_agent: SERVER_NAME };
        Call::new(target, requester, query, warnings)
    }

    /// The status of a definition.
    pub(super) fn status_target<'a>(&'a self, name: &'a str) -> Result<CallTarget<'a>> {
        Ok(CallTarget { name, subresource: "status", ..CallTarget::stored(&self.resource)? })
    }
}

/// The definitions that may have changed since the last round. As long as their history reaches back that far, those are the ones
/// that were written to.
fn changed(definition_set: &DefinitionSet, watch: &Position) -> BTreeSet<String> {
    let mut names = definition_set.must_reread.clone();
    let read = definition_set.cursor.map(|cursor| watch.window.read(cursor, DEFINITIONS_PER_READ));
    match read {
        Some(Read::Events(events)) if events.len() < DEFINITIONS_PER_READ => {
            names.extend(events.iter().map(|event| event.object.key.name().to_owned()));
        }
        _ => {
            names.extend(watch.snapshot.objects.keys().map(|key| key.name().to_owned()));
            names.extend(definition_set.names().cloned());
        }
    }
    names
}

/// The new status of a definition.
struct StatusUpdate<'a> {
    reconciler: &'a Reconciler,
    call: &'a Call<'a>,
    value: &'a Value,
}

impl NewState for StatusUpdate<'_> {
    fn next_state(&self, old: &Value) -> Result<Value> {
        let version = |object: &Value| meta::metadata(object).str("resourceVersion").to_owned();
        // A concurrent change is not overwritten, not even one of the status: stored versions, or a deletion.
        if version(old) != version(self.value) {
            return Err(Status::stale(self.call.group_resource(), self.call.name()));
        }
        let mut new = old.clone();
        if let Some(status) = self.value.get("status") {
            new.set("status", status.clone());
        }
        let objects = &self.reconciler.backend.objects;
        objects.record_body(self.call, &new);
        objects.record(self.call, Some(old), &mut new);
        Ok(new)
    }
}
