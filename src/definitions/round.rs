//! One round over all definitions: read, settle, publish, write, and take away what goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt as _;
use pilothouse_actors::error::StoreError;
use pilothouse_actors::identity::Identity;
use pilothouse_actors::object::{Object, Revision, TypeName};
use pilothouse_actors::permit::Permit;

use super::Defined;
use crate::api::catalog::Catalog;
use crate::api::catalog::resource::Resource;
use crate::api::custom::definition::{Made, resources, store_of};
use crate::api::custom::status::{self, Ending, Taken};
use crate::api::meta;
use crate::api::options::DeleteOptions;
use crate::api::query::Query;
use crate::api::schema::time;
use crate::api::status::{Result, Status};
use crate::api::value::Value;
use crate::limits::DELETIONS_AT_ONCE;
use crate::verbs::bootstrap::defined_api_services;
use crate::verbs::delete::delete_object;
use crate::verbs::update::{NewState, store_update};
use crate::verbs::{Backend, Call, Warnings};

/// The numbers of resources begin anew after this one: what is made from objects is numbered by them, several to each.
const LAST_ORDINAL: u32 = 10_000_000;

/// One definition.
pub(super) struct Definition {
    revision: Revision,
    /// As it is, or as it is about to be written.
    value: Arc<Value>,
    /// What its resources are made of: when that changes they are made anew.
    basis: Value,
    resources: Vec<Arc<Resource>>,
    /// What its objects are taken away as; none before it is established.
    stored: Option<Arc<Resource>>,
}

/// What is defined. It moves into each round and back.
#[derive(Default)]
pub(super) struct Book {
    pub(super) definitions: BTreeMap<String, Definition>,
    pub(super) first_ordinal: u32,
    pub(super) next_ordinal: u32,
    /// The stores of definitions that wait for their objects to go.
    pub(super) waited_for: BTreeSet<TypeName>,
    /// Those of them whose patience is over.
    pub(super) told: BTreeSet<TypeName>,
    /// Whether clients have not been told yet, by APIServices, which versions there are.
    pub(super) unregistered: bool,
}

/// What a round needs.
pub(super) struct Tools {
    pub(super) backend: Backend,
    pub(super) resource: Arc<Resource>,
    pub(super) catalog: Catalog,
    pub(super) publish: Box<dyn Fn(Defined)>,
    pub(super) user: Identity,
}

impl Tools {
    /// The store of the definitions.
    pub(super) fn store(&self) -> TypeName {
        self.resource.stored.as_ref().map_or_else(|| TypeName::new(""), |stored| stored.store.clone())
    }

    fn now(&self) -> String {
        time::format_seconds(i64::try_from(self.backend.clock.now().seconds()).unwrap_or(i64::MAX))
    }

    /// Reads the definitions as they are and does what they ask for. `ends`: also for those that go, which may take long.
    pub(super) async fn round(&self, book: &mut Book, ends: bool) -> Result<()> {
        let snapshot = self.backend.stores.snapshot(&self.store(), &Permit::none()).await;
        let snapshot = snapshot.map_err(|error| Status::from_store(&error, self.resource.name(), ""))?;
        let mut gone: BTreeSet<String> = book.definitions.keys().cloned().collect();
        let mut changed = BTreeSet::new();
        let mut news = false;
        for object in snapshot.objects.values() {
            gone.remove(object.key.name());
            self.read(book, object);
        }
        for name in gone {
            if let Some(definition) = book.definitions.remove(&name) {
                let store = store_of(&definition.value);
                book.waited_for.remove(&store);
                book.told.remove(&store);
                if !definition.resources.is_empty() {
                    news = true;
                    changed.insert(store);
                }
            }
        }
        let settled = self.settle(book);
        news |= self.make(book, &mut changed);
        if news {
            (self.publish)(book.defined(changed));
        }
        // One that cannot be written does not keep the others.
        let mut failed = Ok(());
        for name in settled {
            if let Some(definition) = book.definitions.get_mut(&name)
                && let Err(status) = self.write(definition).await
            {
                // Read and settled anew in the next round.
                definition.revision = Revision::default();
                failed = Err(status);
            }
        }
        book.unregistered |= news;
        if book.unregistered {
            let versions = book.definitions.values().flat_map(|one| &one.resources);
            let versions = versions.map(|resource| resource.gv.clone()).collect();
            defined_api_services(&self.backend, &self.catalog, &versions).await?;
            book.unregistered = false;
        }
        if ends {
            self.end(book).await?;
        }
        failed
    }

    /// Takes in a definition that is new or has changed.
    fn read(&self, book: &mut Book, object: &Arc<Object>) {
        let name = object.key.name();
        if book.definitions.get(name).is_some_and(|known| known.revision == object.revision) {
            return;
        }
        let value = match self.backend.load_of(&self.resource, object) {
            Ok(value) => Arc::new(value),
            Err(status) => {
                tracing::error!(name, %status, "a definition cannot be read");
                return;
            }
        };
        match book.definitions.get_mut(name) {
            Some(known) => {
                known.revision = object.revision;
                known.value = value;
            }
            None => {
                let definition = Definition {
                    revision: object.revision,
                    value,
                    basis: Value::Null,
                    resources: Vec::new(),
                    stored: None,
                };
                book.definitions.insert(name.to_owned(), definition);
            }
        }
    }

    /// Gives definitions their names, the oldest first. Answers the names of those that are to be written.
    fn settle(&self, book: &mut Book) -> Vec<String> {
        let now = self.now();
        let mut groups: BTreeMap<String, Taken> = BTreeMap::new();
        let group = |value: &Value| value.get("spec").map_or("", |spec| spec.str("group")).to_owned();
        for definition in book.definitions.values() {
            groups.entry(group(&definition.value)).or_default().add(&definition.value);
        }
        let mut in_order: Vec<(Revision, String)> =
            book.definitions.iter().map(|(name, one)| (one.revision, name.clone())).collect();
        in_order.sort();
        let mut written = Vec::new();
        for (_, name) in in_order {
            let Some(definition) = book.definitions.get_mut(&name) else { continue };
            let taken = groups.entry(group(&definition.value)).or_default();
            let mut value = Value::clone(&definition.value);
            if status::settle(&mut value, taken, &now) {
                taken.add(&value);
                definition.value = Arc::new(value);
                written.push(name);
            }
        }
        written
    }

    /// Makes the resources of definitions whose basis has changed. Whether there are any.
    fn make(&self, book: &mut Book, changed: &mut BTreeSet<TypeName>) -> bool {
        let Book { definitions, first_ordinal, next_ordinal, .. } = book;
        let mut news = false;
        for definition in definitions.values_mut() {
            let basis = basis(&definition.value);
            if basis == definition.basis {
                continue;
            }
            let same = ["spec", "names"].iter().all(|part| definition.basis.get(part) == basis.get(part));
            definition.basis = basis;
            let before = !definition.resources.is_empty();
            let made = if status::is_true(&definition.value, status::ESTABLISHED) {
                resources(&definition.value, &self.backend.registry, || {
                    *next_ordinal =
                        if *next_ordinal < LAST_ORDINAL { *next_ordinal + 1 } else { *first_ordinal };
                    *next_ordinal
                })
            } else {
                Made::default()
            };
            (definition.resources, definition.stored) = (made.served, made.stored);
            news |= before || !definition.resources.is_empty();
            if before && (!same || definition.resources.is_empty()) {
                changed.insert(store_of(&definition.value));
            }
        }
        news
    }

    /// Takes the objects of definitions away that go, and lets those go that have none left. One that cannot go does not keep the
    /// others, and is tried again.
    async fn end(&self, book: &mut Book) -> Result<()> {
        let Book { definitions, waited_for, told, .. } = book;
        let mut failed = Ok(());
        for definition in definitions.values_mut().filter(|one| status::is_kept(&one.value)) {
            if let Err(status) = self.end_one(definition, waited_for, told).await {
                // Read anew in the next round: what was to be written may not be there.
                definition.revision = Revision::default();
                failed = Err(status);
            }
        }
        failed
    }

    async fn end_one(
        &self,
        definition: &mut Definition,
        waited_for: &mut BTreeSet<TypeName>,
        told: &mut BTreeSet<TypeName>,
    ) -> Result<()> {
        let store = store_of(&definition.value);
        let Some(resource) = definition.stored.clone() else {
            return self.finish(definition, &Ending::NeverServed).await;
        };
        if !waited_for.contains(&store) {
            self.tell(definition, &Ending::Deleting).await?;
        }
        match self.delete_all(&resource, &store).await {
            Ok(0) => {
                waited_for.remove(&store);
                told.remove(&store);
                return self.finish(definition, &Ending::Done).await;
            }
            Ok(_) if told.contains(&store) => self.tell(definition, &Ending::Waiting).await?,
            Ok(_) => {}
            Err(status) => {
                let why = format!("could not issue all deletes: {}", status.message);
                self.tell(definition, &Ending::Failed(why)).await?;
                return Err(status);
            }
        }
        waited_for.insert(store);
        Ok(())
    }

    /// Deletes the objects of a store, as far as nobody holds them. Answers how many are left.
    async fn delete_all(&self, resource: &Arc<Resource>, store: &TypeName) -> Result<usize> {
        let snapshot = || async {
            let taken = self.backend.stores.snapshot(store, &Permit::none()).await;
            taken.map_err(|error| Status::from_store(&error, resource.name(), ""))
        };
        let all = snapshot().await?;
        let mut deletions = futures::stream::iter(all.objects.values().cloned())
            .map(|object| self.delete(resource, object))
            .buffer_unordered(DELETIONS_AT_ONCE);
        let mut failed = None;
        while let Some(deleted) = deletions.next().await {
            if let Err(status) = deleted {
                failed = Some(status);
            }
        }
        drop(deletions);
        match failed {
            Some(status) => Err(status),
            None => Ok(snapshot().await?.objects.len()),
        }
    }

    async fn delete(&self, resource: &Arc<Resource>, object: Arc<Object>) -> Result<()> {
        let value = self.backend.load_of(resource, &object)?;
        if meta::is_terminating(&value) {
            return Ok(());
        }
        let key = object.key.clone();
        let (query, warnings) = (Query::default(), Warnings::default());
        let call = self.call(resource, key.namespace(), key.name(), "", (&query, &warnings))?;
        match delete_object(&self.backend, &call, object, &DeleteOptions::default()).await {
            Ok(_) => Ok(()),
            Err(status) if status.code == 404 => Ok(()),
            Err(status) => Err(status),
        }
    }

    /// Says how far the end of a definition is.
    async fn tell(&self, definition: &mut Definition, how: &Ending) -> Result<()> {
        let mut value = Value::clone(&definition.value);
        status::ending(&mut value, how, &self.now());
        if value == *definition.value {
            return Ok(());
        }
        definition.value = Arc::new(value);
        self.write(definition).await
    }

    /// Lets a definition go.
    async fn finish(&self, definition: &mut Definition, how: &Ending) -> Result<()> {
        let mut value = Value::clone(&definition.value);
        status::ending(&mut value, how, &self.now());
        status::release(&mut value);
        definition.value = Arc::new(value);
        self.write(definition).await
    }

    /// Writes what the actor says of a definition, unless somebody has changed it since it was read: then its bell rings, and the
    /// next round sees to it.
    async fn write(&self, definition: &mut Definition) -> Result<()> {
        let (query, warnings) = (Query::default(), Warnings::default());
        let value = definition.value.clone();
        let call = self.call(&self.resource, "", meta::name(&value), "status", (&query, &warnings))?;
        let state = Said { tools: self, call: &call, value: &value };
        match store_update(&self.backend, &call, &state, false).await {
            Ok(_) => self.read_again(definition, &call).await,
            Err(status) if matches!(status.code, 404 | 409) => {
                definition.revision = Revision::default();
                Ok(())
            }
            Err(status) => Err(status),
        }
    }

    /// Takes in what was written, so that the next write is one of the version that is there.
    async fn read_again(&self, definition: &mut Definition, call: &Call<'_>) -> Result<()> {
        let found = self.backend.stores.get(&self.store(), call.key(call.name), &Permit::none()).await;
        match found {
            Ok(object) => {
                definition.value = Arc::new(self.backend.load_of(&self.resource, &object)?);
                definition.revision = object.revision;
                Ok(())
            }
            Err(StoreError::NotFound) => Ok(()),
            Err(error) => Err(Status::from_store(&error, call.of(), call.name)),
        }
    }

    fn call<'a>(
        &'a self,
        resource: &'a Arc<Resource>,
        namespace: &'a str,
        name: &'a str,
        subresource: &'a str,
        (query, warnings): (&'a Query<'a>, &'a Warnings),
    ) -> Result<Call<'a>> {
        let asking = (&self.user, "kube-apiserver");
        Call::own(resource, (namespace, name, subresource), (query, warnings), asking)
    }
}

impl Book {
    fn defined(&self, changed: BTreeSet<TypeName>) -> Defined {
        let served = || self.definitions.values().filter(|one| !one.resources.is_empty());
        Defined {
            resources: served().flat_map(|one| one.resources.iter().cloned()).collect(),
            definitions: served().map(|one| one.value.clone()).collect(),
            changed: changed.into_iter().collect(),
        }
    }
}

/// What the resources of a definition depend on.
fn basis(definition: &Value) -> Value {
    let mut basis = Value::object();
    let part = |path: &[&str]| definition.at(path).cloned().unwrap_or_default();
    basis.set("spec", part(&["spec"]));
    basis.set("names", part(&["status", "acceptedNames"]));
    basis.set("established", status::is_true(definition, status::ESTABLISHED));
    basis.set("going", status::is_true(definition, status::TERMINATING));
    basis
}

/// What the actor says of a definition that it has read.
struct Said<'a> {
    tools: &'a Tools,
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
        if status::is_kept(old) && !status::is_kept(self.value) {
            status::release(&mut new);
        }
        self.tools.backend.record(self.call, Some(old), &mut new);
        Ok(new)
    }
}
