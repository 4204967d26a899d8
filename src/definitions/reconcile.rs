//! One round over the definitions that changed: read, settle, publish, write.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt as _;
use pilothouse_actors::directory::Released;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::Position;
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
use crate::backend::admission::lookup::DEFINITIONS;
use crate::backend::{Backend, BodylessCall, Call, Origin, Warnings};
use crate::bootstrap::{defined_api_services, registered_versions};
use crate::limits::{DEFINITIONS_PER_READ, DEFINITIONS_WRITTEN_AT_ONCE};
use crate::verbs;
use crate::verbs::update::{NewState, store_update};

/// What a round needs.
pub(super) struct Reconciler {
    pub(super) backend: Backend,
    pub(super) resource: Arc<Resource>,
    pub(super) catalog: Catalog,
    pub(super) publish: Box<dyn Fn(Defined)>,
    pub(super) user: Arc<Identity>,
    /// How many objects may be deleted at once, of all definitions that go.
    pub(super) deletions: Semaphore,
}

impl Reconciler {
    /// The store of the definitions.
    pub(super) fn store(&self) -> TypeName {
        self.resource.stored.as_ref().map_or_else(|| TypeName::new(""), |stored| stored.store.clone())
    }

    pub(super) fn now(&self) -> String {
        time::format_seconds(i64::try_from(self.backend.clock.now().seconds()).unwrap_or(i64::MAX))
    }

    /// Reads the definitions that changed and does what they ask for.
    pub(super) async fn round(&self, definition_set: &mut DefinitionSet) -> Result<()> {
        let position = self.backend.stores.open_watch(&self.store(), &Permit::none()).await;
        let position = position.map_err(|error| Status::from_store(&error, self.resource.name(), ""))?;
        for name in changed(definition_set, &position) {
            match position.snapshot.get(&name) {
                Some(object) => self.read(definition_set, object),
                None => definition_set.remove(&name),
            }
        }
        let is_first = definition_set.cursor.is_none();
        definition_set.cursor = Some(position.snapshot.revision);
        let settled = definition_set.settle(&self.now());
        definition_set.make(&self.backend.objects.registry);
        self.backend.definitions.note_compiled(position.snapshot.revision);
        let (writing, is_written) = watch::channel(());
        if let Some(news) = definition_set.news(is_written) {
            (self.publish)(news);
        }
        let written = self.write_all(definition_set, settled).await;
        drop(writing);
        let registered = self.register(definition_set).await;
        if is_first {
            self.find_unused(definition_set).await?;
        }
        written.and(registered)
    }

    /// Takes in a definition that is new or has changed.
    fn read(&self, definition_set: &mut DefinitionSet, object: &Arc<Object>) {
        let name = object.key.name();
        if definition_set.knows(name, object.revision) {
            return;
        }
        match DEFINITIONS.decode(&self.backend.objects.registry, object) {
            Ok(value) => definition_set.take_in(name, object.revision, value),
            // Whoever follows what plug-ins look up reports it.
            Err(_) => definition_set.cannot_read(name, object.revision),
        }
    }

    /// Writes what is said of definitions. One that cannot be written does not keep the others, and is tried again.
    async fn write_all(&self, definition_set: &mut DefinitionSet, names: Vec<String>) -> Result<()> {
        let values = names.into_iter().filter_map(|name| Some((definition_set.value(&name)?, name)));
        let values: Vec<(Arc<Value>, String)> = values.collect();
        // Several at once, so that they share a sync of the disk.
        let mut writes = futures::stream::iter(values)
            .map(|(value, name)| async move { (self.write(&value).await, name) })
            .buffer_unordered(DEFINITIONS_WRITTEN_AT_ONCE);
        let mut failed = Ok(());
        while let Some((written, name)) = writes.next().await {
            if let Err(status) = written {
                definition_set.unsure.insert(name);
                failed = Err(status);
            }
        }
        failed
    }

    /// Writes what the actor says of a definition, unless somebody has changed it since it was read: then its notifier fires, and
    /// the next round sees to it.
    async fn write(&self, value: &Value) -> Result<()> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(&self.resource, "", meta::name(value), "status", (&query, &warnings))?;
        let state = Said { reconciler: self, call: &call, value };
        match self.store_status(&call, &state).await {
            Err(status) if !matches!(status.code, 404 | 409) => Err(status),
            _ => Ok(()),
        }
    }

    /// Stores a new status of a definition.
    pub(super) async fn store_status(&self, call: &Call<'_>, state: &dyn NewState) -> Result<()> {
        let admitted = self.backend.admit_call(Verb::Update, &self.user, call, "").await?;
        let stored = store_update(&self.backend, call, state, WriteMode::Store).await;
        verbs::end(admitted, call, stored).await.map(drop)
    }

    /// Tells clients, by APIServices, which versions there are.
    async fn register(&self, definition_set: &mut DefinitionSet) -> Result<()> {
        let mut versions = definition_set.versions();
        // The versions of a definition that cannot be read are unknown. They stay registered: nobody else may have them.
        let unreadable = definition_set.unreadable();
        if !unreadable.is_empty() {
            let registered = registered_versions(&self.backend, &self.catalog).await?;
            versions.extend(registered.into_iter().filter(|gv| definition_set.has_unreadable(&gv.group)));
        }
        if definition_set.registered.as_ref() == Some(&versions) {
            return Ok(());
        }
        defined_api_services(&self.backend, &self.catalog, &versions, definition_set.registered.as_ref())
            .await?;
        definition_set.registered = Some(versions);
        Ok(())
    }

    /// Notes the stores that definitions have left which were gone when the server started.
    async fn find_unused(&self, definition_set: &mut DefinitionSet) -> Result<()> {
        let types = self.backend.stores.types().await;
        let types = types.map_err(|error| Status::from_store(&error, self.resource.name(), ""))?;
        let names: BTreeSet<&String> = definition_set.names().collect();
        let is_left = |of: &TypeName| is_custom(of) && !names.contains(&resource_of_store(of).to_owned());
        let left: Vec<TypeName> = types.into_iter().filter(is_left).collect();
        definition_set.unreleased.extend(left);
        Ok(())
    }

    /// Lets go of the stores of definitions that are gone. Whether some are to be asked again.
    pub(super) async fn release(&self, definition_set: &mut DefinitionSet) -> bool {
        for store in std::mem::take(&mut definition_set.unreleased) {
            match self.backend.stores.release(&store).await {
                Ok(Released::Busy) => drop(definition_set.unreleased.insert(store)),
                // Whoever was about to look at it may start it once more.
                Ok(Released::Done) => drop(definition_set.released.insert(store)),
                // Somebody let a definition go without its objects. They stay, in case it comes back.
                Ok(Released::HasObjects) => {
                    let left = self.backend.stores.snapshot(&store, &Permit::none()).await;
                    let objects = left.map_or(0, |snapshot| snapshot.objects.len());
                    tracing::warn!(%store, objects, "a CustomResourceDefinition is gone but objects of it are left");
                }
                Ok(Released::Absent) => {}
                Err(error) => tracing::debug!(%store, %error, "the store of a removed type cannot be closed"),
            }
        }
        definition_set.has_releases()
    }

    pub(super) fn call<'a>(
        &'a self,
        resource: &'a Arc<Resource>,
        namespace: &'a str,
        name: &'a str,
        subresource: &'a str,
        (query, warnings): (&'a Query<'a>, &'a Warnings),
    ) -> Result<Call<'a>> {
        let (user, origin, user_agent) = (&self.user, Origin::Server, SERVER_NAME);
        BodylessCall { resource, namespace, name, subresource, query, warnings, user, origin, user_agent }
            .call()
    }
}

/// The definitions that may have changed since the last round. As long as their history reaches back that far, those are the ones
/// that were written to.
fn changed(definition_set: &DefinitionSet, position: &Position) -> BTreeSet<String> {
    let mut names = definition_set.unsure.clone();
    let read = definition_set.cursor.map(|cursor| position.window.read(cursor, DEFINITIONS_PER_READ));
    match read {
        Some(Read::Events(events)) if events.len() < DEFINITIONS_PER_READ => {
            names.extend(events.iter().map(|event| event.object.key.name().to_owned()));
        }
        _ => {
            names.extend(position.snapshot.objects.keys().map(|key| key.name().to_owned()));
            names.extend(definition_set.names().cloned());
        }
    }
    names
}

/// What the actor says of a definition that it has read.
struct Said<'a> {
    reconciler: &'a Reconciler,
    call: &'a Call<'a>,
    value: &'a Value,
}

impl NewState for Said<'_> {
    fn after(&self, old: &Value) -> Result<Value> {
        let version = |object: &Value| meta::of(object).str("resourceVersion").to_owned();
        // What others have said since is not written over, be it in the status: a version that is stored no more, an end.
        if version(old) != version(self.value) {
            return Err(Status::stale(self.call.of(), self.call.name));
        }
        let mut new = old.clone();
        if let Some(status) = self.value.get("status") {
            new.set("status", status.clone());
        }
        let objects = &self.reconciler.backend.objects;
        objects.note_body(self.call, &new);
        objects.record(self.call, Some(old), &mut new);
        Ok(new)
    }
}
