//! What exists from the first start. What is there already is left alone: whoever changed it meant it.

use bytes::Bytes;
use futures::future::try_join_all;
use pilothouse_actors::identity::Identity;
use pilothouse_actors::object::Key;
use pilothouse_actors::permit::Permit;

use crate::api::bootstrap::{Wanted, flow_control, priority_classes};
use crate::api::catalog::Catalog;
use crate::api::media::Encoding;
use crate::api::query::Query;
use crate::api::status::{Result, Status};
use crate::api::value::Value;
use crate::api::words::{MASTERS, NAMESPACES, SYSTEM_NAMESPACES};
use crate::api::{codec, meta};

use super::{Answered, Backend, Call, Warnings, create, update};

/// Makes the system namespaces that are not there.
pub async fn namespaces(backend: &Backend, catalog: &Catalog) -> Result<()> {
    let namespace = |name: &&str| {
        let mut object = Value::object();
        object.set("apiVersion", "v1");
        object.set("kind", "Namespace");
        object.entry("metadata").set("name", *name);
        Wanted { group: "", resource: NAMESPACES, object }
    };
    make_all(backend, catalog, SYSTEM_NAMESPACES.iter().map(namespace).collect(), "").await.map(drop)
}

/// Makes the classes of the cluster's own pods that are not there.
pub async fn priority_classes(backend: &Backend, catalog: &Catalog) -> Result<()> {
    make_all(backend, catalog, priority_classes::all(), "").await.map(drop)
}

/// Makes the configuration of flow control that is not there.
pub async fn flow_control(backend: &Backend, catalog: &Catalog) -> Result<()> {
    let maker = "fieldManager=api-priority-and-fairness-config-producer-v1";
    let reader = "fieldManager=api-priority-and-fairness-config-consumer-v1";
    let mut all = flow_control::levels();
    all.extend(flow_control::schemas());
    let made = make_all(backend, catalog, all, maker).await?;
    let now = backend.now();
    let schemas = made.into_iter().filter(|wanted| wanted.resource == "flowschemas").map(|mut wanted| {
        let status = flow_control::found(&wanted.object, &now);
        wanted.object.set("status", status);
        wanted
    });
    // A status is not taken at creation; the schemas get theirs together, in one more sync.
    let told =
        schemas.map(|wanted| async move { ask(backend, catalog, &wanted, "status", reader).await.map(drop) });
    try_join_all(told).await.map(drop)
}

/// Makes those objects that are not there, all at once so that they share a sync of the disk. Answers those it made.
async fn make_all(
    backend: &Backend,
    catalog: &Catalog,
    all: Vec<Wanted>,
    query: &str,
) -> Result<Vec<Wanted>> {
    let make = |wanted: Wanted| async move {
        // Looking first spares every later start the work of preparing what is there already.
        if exists(backend, catalog, &wanted).await {
            return Ok(None);
        }
        match ask(backend, catalog, &wanted, "", query).await {
            Ok(_) => Ok(Some(wanted)),
            Err(status) if status.reason == "AlreadyExists" => Ok(None),
            // The operator may have turned the group off.
            Err(status) if status.code == 404 => Ok(None),
            Err(status) => Err(status),
        }
    };
    let made: Vec<Wanted> = try_join_all(all.into_iter().map(make)).await?.into_iter().flatten().collect();
    for wanted in &made {
        tracing::debug!(resource = wanted.resource, name = meta::name(&wanted.object), "made");
    }
    Ok(made)
}

async fn exists(backend: &Backend, catalog: &Catalog, wanted: &Wanted) -> bool {
    let resource = catalog.find(wanted.group, "v1", wanted.resource);
    let Some(stored) = resource.and_then(|resource| resource.stored.as_ref()) else { return false };
    let key = Key::cluster(meta::name(&wanted.object));
    backend.stores.get(&stored.store, key, &Permit::none()).await.is_ok()
}

/// Creates an object, or replaces this part of it, in the name of the server itself.
async fn ask(
    backend: &Backend,
    catalog: &Catalog,
    wanted: &Wanted,
    subresource: &str,
    query: &str,
) -> Answered {
    let resource = catalog.find(wanted.group, "v1", wanted.resource).ok_or_else(Status::no_such_resource)?;
    let stored = resource.stored.as_ref().ok_or_else(Status::no_such_resource)?;
    let user = Identity {
        name: "system:apiserver".to_owned(),
        groups: vec![MASTERS.to_owned()],
        ..Identity::default()
    };
    let call = Call {
        resource,
        stored,
        namespace: "",
        name: if subresource.is_empty() { "" } else { meta::name(&wanted.object) },
        subresource,
        query: &Query::parse(query),
        body: Bytes::from(codec::to_json(&wanted.object)),
        encoding: Encoding::Json,
        warnings: &Warnings::default(),
        user: &user,
        permit: Permit::none(),
    };
    match subresource {
        "" => create::create(backend, &call).await,
        _ => update::update(backend, &call).await,
    }
}
