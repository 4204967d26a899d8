//! Creates the objects of a fresh cluster. Existing ones are left alone: changes to them were intended.
//!
//! An object that cannot be created, because a policy or a quota forbids it or its stored data is corrupt, does not stop the
//! others.

mod cluster;
pub mod kubernetes_service;
mod roles;
pub mod system_config_maps;

pub use cluster::{ClusterInputs, create_objects, steps};
pub use roles::roles;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use pilothouse_actors::permit::Permit;
use pilothouse_api::bootstrap::{BootstrapObject, api_services, flow_control, priority_classes};
use pilothouse_api::catalog::Catalog;
use pilothouse_apimachinery::media::PatchType;
use pilothouse_apimachinery::query::Query;
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

use crate::registry::loopback::own_identity;
use crate::registry::{Backend, Call, CallBody, CallTarget, Origin, Requester, Warnings};
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
    OwnClient::new(backend, catalog).create_missing(all, "").await.1
}

/// Creates missing system PriorityClasses.
pub async fn priority_classes(backend: &Backend, catalog: &Catalog) -> Result<()> {
    OwnClient::new(backend, catalog).create_missing(priority_classes::all(), "").await.1
}

/// Creates the APIServices of the group versions that this server serves.
pub async fn api_services(backend: &Backend, catalog: &Catalog) -> Result<()> {
    let own = OwnClient::new(backend, catalog);
    let versions = catalog.resources().map(|resource| &resource.gv);
    let expected = api_services::all(versions);
    let reconciled = own.reconcile_api_services(&expected).await;
    reconciled.and(own.create_missing(expected, "fieldManager=kube-apiserver").await.1)
}

/// Creates the APIServices of custom group versions, and removes those of versions that no longer exist. `previous`: the versions
/// of the last call, so that only differences are checked.
pub async fn custom_api_services(
    backend: &Backend,
    catalog: &Catalog,
    versions: &BTreeSet<GroupVersion>,
    previous: Option<&BTreeSet<GroupVersion>>,
) -> Result<()> {
    let own = OwnClient::new(backend, catalog);
    let is_new = |version: &&GroupVersion| previous.is_none_or(|previous| !previous.contains(*version));
    let expected: Vec<BootstrapObject> =
        versions.iter().filter(is_new).map(api_services::custom_api_service).collect();
    own.create_missing(expected, "fieldManager=kube-apiserver").await.1?;
    if previous.is_some_and(|previous| previous.is_subset(versions)) {
        return Ok(());
    }
    let names: BTreeSet<String> = versions
        .iter()
        .map(|version| meta::name(&api_services::custom_api_service(version).object).to_owned())
        .collect();
    for object in own.api_services(api_services::MANAGED_CUSTOM).await? {
        if !names.contains(object.key.name()) {
            own.remove(api_service_address(object.key.name())).await?;
        }
    }
    Ok(())
}

/// The custom group versions that have an APIService.
pub async fn registered_versions(backend: &Backend, catalog: &Catalog) -> Result<Vec<GroupVersion>> {
    let all = OwnClient::new(backend, catalog).api_services(api_services::MANAGED_CUSTOM).await?;
    let names = all.iter().filter_map(|object| object.key.name().split_once('.'));
    Ok(names.map(|(version, group)| GroupVersion::new(group, version)).collect())
}

/// The address of an APIService.
fn api_service_address(name: &str) -> ObjectAddress<'_> {
    ObjectAddress { group: "apiregistration.k8s.io", resource: "apiservices", namespace: "", name }
}

/// Creates missing flow schemas and priority levels, and updates existing ones unless their auto-update annotation forbids it.
pub async fn flow_control(backend: &Backend, catalog: &Catalog) -> Result<()> {
    let own = OwnClient::new(backend, catalog);
    let mut expected = flow_control::levels();
    expected.extend(flow_control::schemas());
    for resource in ["prioritylevelconfigurations", "flowschemas"] {
        own.update_flow_control(resource, &expected).await?;
    }
    let (mut created, result) =
        own.create_missing(expected, &format!("fieldManager={}", flow_control::PRODUCER)).await;
    created.retain(|object| object.resource == "flowschemas");
    let query = format!("fieldManager={}", flow_control::CONSUMER);
    own.apply_statuses(created, &query, flow_control::resolved_status).await.and(result)
}

/// Runs all steps concurrently, so that they share disk syncs. Returns the first error once all are done.
async fn join_steps<T>(steps: impl IntoIterator<Item = impl Future<Output = Result<T>>>) -> Result<()> {
    join_all(steps).await.into_iter().try_for_each(|result| result.map(drop))
}

/// The server as a client of itself.
struct OwnClient<'a> {
    backend: &'a Backend,
    catalog: &'a Catalog,
    user: Arc<Identity>,
}

/// The address of an object.
#[derive(Clone, Copy)]
struct ObjectAddress<'a> {
    group: &'a str,
    resource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl<'a> ObjectAddress<'a> {
    fn for_object(expected: &'a BootstrapObject) -> ObjectAddress<'a> {
        let BootstrapObject { group, resource, object } = expected;
        ObjectAddress { group, resource, namespace: "", name: meta::name(object) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Create,
    Get,
    Update,
    ApplyStatus,
    Delete,
}

impl Verb {
    /// The verb for authorization and audit.
    fn request_verb(self) -> verb::Verb {
        match self {
            Verb::Create => verb::Verb::Create,
            Verb::Get => verb::Verb::Get,
            Verb::Update => verb::Verb::Update,
            Verb::ApplyStatus => verb::Verb::Patch,
            Verb::Delete => verb::Verb::Delete,
        }
    }
}

impl<'a> OwnClient<'a> {
    fn new(backend: &'a Backend, catalog: &'a Catalog) -> OwnClient<'a> {
        OwnClient { backend, catalog, user: own_identity() }
    }

    /// The APIServices with this automanage label.
    async fn api_services(&self, managed: &str) -> Result<Vec<Arc<Object>>> {
        let resource = self.catalog.find("apiregistration.k8s.io", "v1", "apiservices");
        let Some(stored) = resource.and_then(|resource| resource.stored()) else {
            return Ok(Vec::new());
        };
        let snapshot = self.backend.stores.snapshot(&stored.store, &Permit::none()).await;
        let name = GroupResource { group: "", resource: "" };
        let snapshot = snapshot.map_err(|error| Status::from_store(&error, name, ""))?;
        let is_managed = |object: &&Arc<Object>| object.labels.get(api_services::MANAGED) == Some(managed);
        Ok(snapshot.iter().filter(is_managed).cloned().collect())
    }

    /// Updates APIServices from an earlier start, and removes those that are no longer wanted.
    async fn reconcile_api_services(&self, expected: &[BootstrapObject]) -> Result<()> {
        let current = self.api_services(api_services::ON_START).await?;
        for object in current {
            let name = object.key.name();
            match expected.iter().find(|expected| meta::name(&expected.object) == name) {
                None => self.remove(api_service_address(name)).await?,
                Some(expected) => {
                    let body = codec::to_json(&expected.object);
                    let body = serde_json::from_slice(&body).unwrap_or_default();
                    self.restore(api_service_address(name), &body, "spec").await?;
                }
            }
        }
        Ok(())
    }

    /// Updates the stored flow schemas or priority levels.
    async fn update_flow_control(&self, resource: &str, expected: &[BootstrapObject]) -> Result<()> {
        let group = flow_control::GROUP;
        let Some(served) = self.catalog.find(group, "v1", resource) else { return Ok(()) };
        let Some(stored) = served.stored() else { return Ok(()) };
        let snapshot = self.backend.stores.snapshot(&stored.store, &Permit::none()).await;
        let snapshot = snapshot.map_err(|error| Status::from_store(&error, served.name(), ""))?;
        for object in snapshot.iter().filter(|object| object.is_readable()) {
            let address = ObjectAddress { group, resource, namespace: "", name: object.key.name() };
            let current = self.backend.objects.load_resource(served, object)?;
            let has_this_name = |expected: &&BootstrapObject| {
                expected.resource == resource && meta::name(&expected.object) == object.key.name()
            };
            let revised = match expected.iter().find(has_this_name) {
                Some(expected) => flow_control::compute_update(&current, &expected.object),
                None if flow_control::is_obsolete(&current) => {
                    self.remove(address).await?;
                    continue;
                }
                None => None,
            };
            let Some(revised) = revised else { continue };
            let query = format!("fieldManager={}", flow_control::PRODUCER);
            // Changed or deleted meanwhile: it is checked again later.
            self.request(address, Verb::Update, &query, codec::to_json(&revised).into())
                .await
                .ignore_not_found_or_conflict()?;
            tracing::debug!(resource, name = object.key.name(), "a bootstrap object was updated");
        }
        Ok(())
    }

    /// Deletes an object if it exists.
    async fn remove(&self, address: ObjectAddress<'_>) -> Result<()> {
        self.call(address, Verb::Delete, &Json::Null).await.ignore_not_found()?;
        Ok(())
    }

    /// Whether the resource is served: `--runtime-config` can turn it off.
    fn serves(&self, address: ObjectAddress<'_>) -> bool {
        self.catalog.find(address.group, "v1", address.resource).is_some()
    }

    async fn call(&self, address: ObjectAddress<'_>, verb: Verb, body: &Json) -> VerbResult {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        self.request(address, verb, "", body).await
    }

    async fn request(&self, address: ObjectAddress<'_>, verb: Verb, query: &str, body: Bytes) -> VerbResult {
        let resource = self.catalog.find(address.group, "v1", address.resource);
        let resource = resource.ok_or_else(Status::no_such_resource)?;
        let target = CallTarget {
            namespace: address.namespace,
            name: if verb == Verb::Create { "" } else { address.name },
            subresource: if verb == Verb::ApplyStatus { "status" } else { "" },
            ..CallTarget::stored(resource)?
        };
        let requester = Requester { user: &self.user, origin: Origin::Server, user_agent: SERVER_NAME };
        let (parameters, warnings) = (Query::parse(query), Warnings::default());
        let patch = (verb == Verb::ApplyStatus).then_some(PatchType::Apply);
        let call = Call {
            body: CallBody { bytes: body, patch, ..CallBody::default() },
            ..Call::new(target, requester, &parameters, &warnings)
        };
        let admitted = self.backend.admit_call(verb.request_verb(), &self.user, &call, query).await?;
        let result = match verb {
            Verb::Create => create::create(self.backend, &call).await,
            Verb::Get => get::get(self.backend, &call).await,
            Verb::Delete => delete::delete(self.backend, &call).await,
            Verb::Update => update::update(self.backend, &call).await,
            Verb::ApplyStatus => patch::patch(self.backend, &call).await,
        };
        verbs::end_request(admitted, &call, result).await
    }

    /// Reads an object if it exists.
    async fn find(&self, address: ObjectAddress<'_>) -> Result<Option<Json>> {
        match self.call(address, Verb::Get, &Json::Null).await.ignore_not_found()? {
            Some(Reply::Object(_, bytes)) => Ok(serde_json::from_slice(&bytes).ok()),
            _ => Ok(None),
        }
    }

    /// Creates an object unless it exists. Returns whether it was created.
    async fn create(&self, address: ObjectAddress<'_>, body: &Json) -> Result<bool> {
        self.create_from(address, "", body.to_string().into()).await
    }

    async fn create_from(&self, address: ObjectAddress<'_>, query: &str, body: Bytes) -> Result<bool> {
        match self.request(address, Verb::Create, query, body).await {
            Ok(_) => {
                tracing::debug!(
                    resource = address.resource,
                    name = address.name,
                    "a bootstrap object was created"
                );
                Ok(true)
            }
            Err(status) if status.is_already_exists() => Ok(false),
            Err(status) => Err(status),
        }
    }

    /// Creates an object, or restores the value of its `field`.
    async fn restore(&self, address: ObjectAddress<'_>, body: &Json, field: &str) -> Result<()> {
        let Some(mut current) = self.find(address).await? else {
            return self.create(address, body).await.map(drop);
        };
        if current[field] == body[field] {
            return Ok(());
        }
        current[field] = body[field].clone();
        self.call(address, Verb::Update, &current).await.map(drop)
    }

    /// Creates the missing objects, concurrently so that they share a disk sync. Returns the created ones, and the first error.
    async fn create_missing(
        &self,
        objects: Vec<BootstrapObject>,
        query: &str,
    ) -> (Vec<BootstrapObject>, Result<()>) {
        let create = |expected: BootstrapObject| async move {
            let address = ObjectAddress::for_object(&expected);
            // Checking first saves every later start the work of preparing existing objects.
            if !self.serves(address) || self.exists(address).await {
                return Ok(None);
            }
            let is_created =
                self.create_from(address, query, codec::to_json(&expected.object).into()).await?;
            Ok(is_created.then_some(expected))
        };
        let (mut created, mut result) = (Vec::new(), Ok(()));
        for is_created in join_all(objects.into_iter().map(create)).await {
            match is_created {
                Ok(is_created) => created.extend(is_created),
                Err(status) => result = result.and(Err(status)),
            }
        }
        (created, result)
    }

    async fn exists(&self, address: ObjectAddress<'_>) -> bool {
        let resource = self.catalog.find(address.group, "v1", address.resource);
        let Some(stored) = resource.and_then(|resource| resource.stored()) else { return false };
        let result =
            self.backend.stores.get(&stored.store, Key::cluster(address.name), &Permit::none()).await;
        matches!(result, Ok(_) | Err(StoreError::Unreadable(_)))
    }

    /// Applies the status of new objects with server-side apply, so that later appliers can share ownership.
    async fn apply_statuses(
        &self,
        created: Vec<BootstrapObject>,
        query: &str,
        status: impl Fn(&Value, &str) -> Value,
    ) -> Result<()> {
        let now = self.backend.objects.now();
        let requests = created.iter().map(|object| {
            let mut config = Value::object();
            for field in ["apiVersion", "kind"] {
                config.set(field, object.object.str(field));
            }
            config.entry("metadata").set("name", meta::name(&object.object));
            config.set("status", status(&object.object, &now));
            self.request(
                ObjectAddress::for_object(object),
                Verb::ApplyStatus,
                query,
                codec::to_json(&config).into(),
            )
        });
        join_steps(requests).await
    }
}
