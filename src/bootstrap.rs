//! Creates the objects of a fresh cluster. Existing ones are left alone: changes to them were intended.
//!
//! An object that cannot be created, because a policy or a quota forbids it or its stored data is corrupt, does not stop the
//! others.

pub mod kubernetes_service;
mod roles;
pub mod system_config_maps;

pub use roles::roles;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use pilothouse_actors::permit::Permit;
use pilothouse_api::bootstrap::{BootstrapObject, api_services, flow_control, priority_classes};
use pilothouse_api::catalog::Catalog;
use pilothouse_apimachinery::managed_fields::ConvertedVersions;
use pilothouse_apimachinery::media::{Encoding, PatchType};
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::response_format::ResponseFormat;
use pilothouse_apimachinery::status::{GroupResource, IgnoreErrors as _, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::verb;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::{NAMESPACES, SERVER_NAME, SYSTEM_NAMESPACES};
use pilothouse_apimachinery::{codec, meta};
use pilothouse_types::error::StoreError;
use pilothouse_types::identity::Identity;
use pilothouse_types::object::{Key, Object};
use serde_json::Value as Json;

use crate::backend::loopback::own_identity;
use crate::backend::work_limit::WorkLimit;
use crate::backend::{Backend, Call, Origin, Warnings};
use crate::verbs::{self, Reply, VerbResult, create, delete, get, patch, update};

/// Creates missing system namespaces.
pub async fn namespaces(backend: &Backend, catalog: &Catalog) -> Result<()> {
    make_namespaces(backend, catalog, &SYSTEM_NAMESPACES).await
}

/// Creates those of these namespaces that are missing.
pub async fn make_namespaces(backend: &Backend, catalog: &Catalog, names: &[&str]) -> Result<()> {
    let namespace = |name: &&str| {
        let mut object = Value::object();
        object.set("apiVersion", "v1");
        object.set("kind", "Namespace");
        object.entry("metadata").set("name", *name);
        BootstrapObject { group: "", resource: NAMESPACES, object }
    };
    let all = names.iter().map(namespace).collect();
    Own::new(backend, catalog).make_all(all, "").await.1
}

/// Creates missing system PriorityClasses.
pub async fn priority_classes(backend: &Backend, catalog: &Catalog) -> Result<()> {
    Own::new(backend, catalog).make_all(priority_classes::all(), "").await.1
}

/// Creates the APIServices of the group versions that this server serves.
pub async fn api_services(backend: &Backend, catalog: &Catalog) -> Result<()> {
    let own = Own::new(backend, catalog);
    let versions = catalog.resources().map(|resource| &resource.gv);
    let wanted = api_services::all(versions);
    let settled = own.settle_api_services(&wanted).await;
    let (made, done) = own.make_all(wanted, "fieldManager=kube-apiserver").await;
    let told = own.tell_all(made, "fieldManager=kube-apiserver", api_services::available).await;
    settled.and(done).and(told)
}

/// Creates the APIServices of custom group versions, and removes those of versions that no longer exist. `before`: the versions
/// of the last call, so that only differences are checked.
pub async fn defined_api_services(
    backend: &Backend,
    catalog: &Catalog,
    versions: &BTreeSet<GroupVersion>,
    before: Option<&BTreeSet<GroupVersion>>,
) -> Result<()> {
    let own = Own::new(backend, catalog);
    let is_new = |version: &&GroupVersion| before.is_none_or(|before| !before.contains(*version));
    let wanted: Vec<BootstrapObject> = versions.iter().filter(is_new).map(api_services::defined).collect();
    let (made, done) = own.make_all(wanted, "fieldManager=kube-apiserver").await;
    own.tell_all(made, "fieldManager=kube-apiserver", api_services::available).await.and(done)?;
    if before.is_some_and(|before| before.is_subset(versions)) {
        return Ok(());
    }
    let names: BTreeSet<String> = versions
        .iter()
        .map(|version| meta::name(&api_services::defined(version).object).to_owned())
        .collect();
    for object in own.api_services(api_services::DEFINED).await? {
        if !names.contains(object.key.name()) {
            own.remove(registered(object.key.name())).await?;
        }
    }
    Ok(())
}

/// The custom group versions that have an APIService.
pub async fn registered_versions(backend: &Backend, catalog: &Catalog) -> Result<Vec<GroupVersion>> {
    let all = Own::new(backend, catalog).api_services(api_services::DEFINED).await?;
    let names = all.iter().filter_map(|object| object.key.name().split_once('.'));
    Ok(names.map(|(version, group)| GroupVersion::new(group, version)).collect())
}

/// The place of an APIService.
fn registered(name: &str) -> ObjectAddress<'_> {
    ObjectAddress { group: "apiregistration.k8s.io", resource: "apiservices", namespace: "", name }
}

/// Creates missing flow schemas and priority levels, and updates existing ones unless their auto-update annotation forbids it.
pub async fn flow_control(backend: &Backend, catalog: &Catalog) -> Result<()> {
    let own = Own::new(backend, catalog);
    let mut all = flow_control::levels();
    all.extend(flow_control::schemas());
    for resource in ["prioritylevelconfigurations", "flowschemas"] {
        own.revise_flow_control(resource, &all).await?;
    }
    let (mut made, done) = own.make_all(all, &format!("fieldManager={}", flow_control::PRODUCER)).await;
    made.retain(|wanted| wanted.resource == "flowschemas");
    let query = format!("fieldManager={}", flow_control::CONSUMER);
    own.state_all(made, &query, flow_control::found).await.and(done)
}

/// Does all of these at once, so that they share syncs of the disk. Answers the first failure once all are done.
async fn all_of<T>(works: impl IntoIterator<Item = impl Future<Output = Result<T>>>) -> Result<()> {
    join_all(works).await.into_iter().try_for_each(|done| done.map(drop))
}

/// The server as a client of itself.
struct Own<'a> {
    backend: &'a Backend,
    catalog: &'a Catalog,
    user: Arc<Identity>,
}

/// The place of an object.
#[derive(Clone, Copy)]
struct ObjectAddress<'a> {
    group: &'a str,
    resource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl<'a> ObjectAddress<'a> {
    fn of(wanted: &'a BootstrapObject) -> ObjectAddress<'a> {
        let BootstrapObject { group, resource, object } = wanted;
        ObjectAddress { group, resource, namespace: "", name: meta::name(object) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Create,
    Get,
    Update,
    UpdateStatus,
    ApplyStatus,
    Delete,
}

impl Verb {
    /// The verb that authorization and audit know.
    fn of_request(self) -> verb::Verb {
        match self {
            Verb::Create => verb::Verb::Create,
            Verb::Get => verb::Verb::Get,
            Verb::Update | Verb::UpdateStatus => verb::Verb::Update,
            Verb::ApplyStatus => verb::Verb::Patch,
            Verb::Delete => verb::Verb::Delete,
        }
    }
}

impl<'a> Own<'a> {
    fn new(backend: &'a Backend, catalog: &'a Catalog) -> Own<'a> {
        Own { backend, catalog, user: own_identity() }
    }

    /// The APIServices with this automanage label.
    async fn api_services(&self, managed: &str) -> Result<Vec<Arc<Object>>> {
        let resource = self.catalog.find("apiregistration.k8s.io", "v1", "apiservices");
        let Some(stored) = resource.and_then(|resource| resource.stored.as_ref()) else {
            return Ok(Vec::new());
        };
        let all = self.backend.stores.snapshot(&stored.store, &Permit::none()).await;
        let nothing = GroupResource { group: "", resource: "" };
        let all = all.map_err(|error| Status::from_store(&error, nothing, ""))?;
        let is_so = |object: &&Arc<Object>| object.labels.get(api_services::MANAGED) == Some(managed);
        Ok(all.iter().filter(is_so).cloned().collect())
    }

    /// Updates APIServices from an earlier start, and removes those that are no longer wanted.
    async fn settle_api_services(&self, wanted: &[BootstrapObject]) -> Result<()> {
        let found = self.api_services(api_services::ON_START).await?;
        for object in found {
            let name = object.key.name();
            match wanted.iter().find(|wanted| meta::name(&wanted.object) == name) {
                None => self.remove(registered(name)).await?,
                Some(wanted) => {
                    let body = codec::to_json(&wanted.object);
                    let body = serde_json::from_slice(&body).unwrap_or_default();
                    self.keep(registered(name), &body, "spec").await?;
                }
            }
        }
        Ok(())
    }

    /// Updates the stored flow schemas or priority levels.
    async fn revise_flow_control(&self, resource: &str, wanted: &[BootstrapObject]) -> Result<()> {
        let group = flow_control::GROUP;
        let Some(known) = self.catalog.find(group, "v1", resource) else { return Ok(()) };
        let Some(stored) = &known.stored else { return Ok(()) };
        let all = self.backend.stores.snapshot(&stored.store, &Permit::none()).await;
        let all = all.map_err(|error| Status::from_store(&error, known.name(), ""))?;
        for object in all.iter().filter(|object| object.is_readable()) {
            let place = ObjectAddress { group, resource, namespace: "", name: object.key.name() };
            let current = self.backend.objects.load_of(known, object)?;
            let is_it = |wanted: &&BootstrapObject| {
                wanted.resource == resource && meta::name(&wanted.object) == object.key.name()
            };
            let revised = match wanted.iter().find(is_it) {
                Some(wanted) => flow_control::revised(&current, &wanted.object),
                None if flow_control::is_left_over(&current) => {
                    self.remove(place).await?;
                    continue;
                }
                None => None,
            };
            let Some(revised) = revised else { continue };
            let query = format!("fieldManager={}", flow_control::PRODUCER);
            // Somebody else was quicker: it is looked at again later.
            self.ask(place, Verb::Update, &query, codec::to_json(&revised).into())
                .await
                .ignore_not_found_or_conflict()?;
            tracing::debug!(resource, name = object.key.name(), "brought up to date");
        }
        Ok(())
    }

    /// Deletes an object if it exists.
    async fn remove(&self, place: ObjectAddress<'_>) -> Result<()> {
        self.call(place, Verb::Delete, &Json::Null).await.ignore_not_found()?;
        Ok(())
    }

    /// Whether the resource is served: `--runtime-config` can turn it off.
    fn serves(&self, place: ObjectAddress<'_>) -> bool {
        self.catalog.find(place.group, "v1", place.resource).is_some()
    }

    async fn call(&self, place: ObjectAddress<'_>, verb: Verb, body: &Json) -> VerbResult {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        self.ask(place, verb, "", body).await
    }

    async fn ask(&self, place: ObjectAddress<'_>, verb: Verb, query: &str, body: Bytes) -> VerbResult {
        let resource = self.catalog.find(place.group, "v1", place.resource);
        let resource = resource.ok_or_else(Status::no_such_resource)?;
        let call = Call {
            resource,
            stored: resource.stored.as_ref().ok_or_else(Status::no_such_resource)?,
            namespace: place.namespace,
            name: if verb == Verb::Create { "" } else { place.name },
            subresource: if matches!(verb, Verb::UpdateStatus | Verb::ApplyStatus) { "status" } else { "" },
            alias: None,
            query: &Query::parse(query),
            body,
            encoding: Encoding::Json,
            patch: (verb == Verb::ApplyStatus).then_some(PatchType::Apply),
            form: ResponseFormat::PLAIN,
            warnings: &Warnings::default(),
            user: &self.user,
            origin: Origin::Server,
            user_agent: SERVER_NAME,
            permit: Permit::none(),
            ends: None,
            elsewhere: ConvertedVersions::default(),
            work: WorkLimit::unlimited(),
        };
        let admitted = self.backend.admit_call(verb.of_request(), &self.user, &call, query).await?;
        let result = match verb {
            Verb::Create => create::create(self.backend, &call).await,
            Verb::Get => get::get(self.backend, &call).await,
            Verb::Delete => delete::delete(self.backend, &call).await,
            Verb::Update | Verb::UpdateStatus => update::update(self.backend, &call).await,
            Verb::ApplyStatus => patch::patch(self.backend, &call).await,
        };
        verbs::end(admitted, &call, result).await
    }

    /// Reads an object if it exists.
    async fn find(&self, place: ObjectAddress<'_>) -> Result<Option<Json>> {
        match self.call(place, Verb::Get, &Json::Null).await.ignore_not_found()? {
            Some(Reply::Object(_, bytes)) => Ok(serde_json::from_slice(&bytes).ok()),
            _ => Ok(None),
        }
    }

    /// Creates an object unless it exists. Answers whether it did.
    async fn make(&self, place: ObjectAddress<'_>, body: &Json) -> Result<bool> {
        self.make_from(place, "", body.to_string().into()).await
    }

    async fn make_from(&self, place: ObjectAddress<'_>, query: &str, body: Bytes) -> Result<bool> {
        match self.ask(place, Verb::Create, query, body).await {
            Ok(_) => {
                tracing::debug!(resource = place.resource, name = place.name, "made");
                Ok(true)
            }
            Err(status) if status.is_taken() => Ok(false),
            Err(status) => Err(status),
        }
    }

    /// Creates an object, or restores the value of its `field`.
    async fn keep(&self, place: ObjectAddress<'_>, body: &Json, field: &str) -> Result<()> {
        let Some(mut found) = self.find(place).await? else { return self.make(place, body).await.map(drop) };
        if found[field] == body[field] {
            return Ok(());
        }
        found[field] = body[field].clone();
        self.call(place, Verb::Update, &found).await.map(drop)
    }

    /// Makes those objects that are not there, all at once so that they share a sync of the disk. Answers those it made, and why
    /// others are missing.
    async fn make_all(&self, all: Vec<BootstrapObject>, query: &str) -> (Vec<BootstrapObject>, Result<()>) {
        let make = |wanted: BootstrapObject| async move {
            let place = ObjectAddress::of(&wanted);
            // Checking first saves every later start the work of preparing existing objects.
            if !self.serves(place) || self.exists(place).await {
                return Ok(None);
            }
            let made = self.make_from(place, query, codec::to_json(&wanted.object).into()).await?;
            Ok(made.then_some(wanted))
        };
        let (mut all_made, mut done) = (Vec::new(), Ok(()));
        for made in join_all(all.into_iter().map(make)).await {
            match made {
                Ok(made) => all_made.extend(made),
                Err(status) => done = done.and(Err(status)),
            }
        }
        (all_made, done)
    }

    async fn exists(&self, place: ObjectAddress<'_>) -> bool {
        let resource = self.catalog.find(place.group, "v1", place.resource);
        let Some(stored) = resource.and_then(|resource| resource.stored.as_ref()) else { return false };
        let found = self.backend.stores.get(&stored.store, Key::cluster(place.name), &Permit::none()).await;
        matches!(found, Ok(_) | Err(StoreError::Unreadable(_)))
    }

    /// Applies the status of new objects with server-side apply, so that later appliers can share ownership.
    async fn state_all(
        &self,
        made: Vec<BootstrapObject>,
        query: &str,
        status: impl Fn(&Value, &str) -> Value,
    ) -> Result<()> {
        let now = self.backend.objects.now();
        let stated = made.iter().map(|wanted| {
            let mut config = Value::object();
            for field in ["apiVersion", "kind"] {
                config.set(field, wanted.object.str(field));
            }
            config.entry("metadata").set("name", meta::name(&wanted.object));
            config.set("status", status(&wanted.object, &now));
            self.ask(ObjectAddress::of(wanted), Verb::ApplyStatus, query, codec::to_json(&config).into())
        });
        all_of(stated).await
    }

    /// Sets the status of new objects, which create does not accept: concurrently, in one more disk sync.
    async fn tell_all(
        &self,
        made: Vec<BootstrapObject>,
        query: &str,
        status: impl Fn(&Value, &str) -> Value,
    ) -> Result<()> {
        let now = self.backend.objects.now();
        let told = made.iter().map(|wanted| {
            let status = codec::to_json(&status(&wanted.object, &now));
            async move {
                let place = ObjectAddress::of(wanted);
                // Some kinds require a resourceVersion in updates.
                let Some(mut object) = self.find(place).await? else { return Ok(()) };
                object["status"] = serde_json::from_slice(&status).unwrap_or_default();
                let body = object.to_string().into();
                self.ask(place, Verb::UpdateStatus, query, body).await.map(drop)
            }
        });
        all_of(told).await
    }
}
