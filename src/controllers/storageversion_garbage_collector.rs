//! storageversion-garbage-collector-controller: removes the entries of API servers without an identity lease from StorageVersions,
//! and StorageVersions without entries.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_api::storage_versions::{retain_servers, servers};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::DeleteOptions;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::SYSTEM_NAMESPACE;
use pilothouse_apimachinery::well_known::stores::{LEASES, STORAGE_VERSIONS};
use pilothouse_types::object::{Object, TypeName};

use super::attempts::Attempts;
use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};
use super::server_leases::is_server_lease;

/// What is checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// All StorageVersions: a server is gone.
    All,
    /// The StorageVersion of this name.
    One(String),
}

/// Removes the entries of servers that are gone.
pub struct StorageVersionCollector {
    /// Reads and writes objects.
    pub client: Client,
}

impl StorageVersionCollector {
    async fn collect(&self, work: Work) -> Result<()> {
        // StorageVersions may be left from a time when their API was served.
        let Ok(resource) = self.client.resource(STORAGE_VERSIONS) else { return Ok(()) };
        let objects = match work {
            Work::All => self.client.list(ObjectRef { resource: &resource, namespace: "", name: "" }).await?,
            Work::One(name) => {
                let target = ObjectRef { resource: &resource, namespace: "", name: &name };
                self.client.get(target).await?.into_iter().collect()
            }
        };
        let mut dead = BTreeSet::new();
        let mut attempts = Attempts::default();
        for object in objects {
            let target = ObjectRef { resource: &resource, namespace: "", name: object.key.name() };
            attempts.take(self.collect_one(target, object.clone(), &mut dead).await);
        }
        attempts.end()
    }

    /// Removes dead entries of one object. `dead` has the servers that are known to be gone.
    async fn collect_one(
        &self,
        target: ObjectRef<'_>,
        object: Arc<Object>,
        dead: &mut BTreeSet<String>,
    ) -> Result<()> {
        let value = self.client.load(target.resource, &object)?;
        let mut is_any_alive = false;
        for server in servers(&value) {
            if !dead.contains(server) && !self.is_alive(server).await? {
                dead.insert(server.to_owned());
            }
            is_any_alive |= !dead.contains(server);
        }
        let has_entries = servers(&value).next().is_some();
        if has_entries && !is_any_alive {
            // Only this version: a server may be adding its entry.
            let options = DeleteOptions {
                uid: Some(meta::metadata(&value).str("uid").to_owned()),
                resource_version: Some(object.revision.0.to_string()),
                ..DeleteOptions::default()
            };
            let deleted = self.client.delete(target.resource, object, &options).await;
            return deleted.ignore_not_found_or_conflict().map(drop);
        }
        let (now, dead) = (self.client.now(), &*dead);
        let retain = |object: &mut Value| Ok(retain_servers(object, |server| !dead.contains(server), &now));
        self.client.edit(target, "status", retain).await.ignore_not_found().map(drop)
    }

    /// Whether a server has an identity lease.
    async fn is_alive(&self, server: &str) -> Result<bool> {
        let leases = self.client.resource(LEASES)?;
        let target = ObjectRef { resource: &leases, namespace: SYSTEM_NAMESPACE, name: server };
        Ok(self.client.get(target).await?.is_some_and(|lease| is_server_lease(&lease)))
    }
}

impl Controller for StorageVersionCollector {
    type Key = Work;

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[LEASES, STORAGE_VERSIONS])
    }

    fn workers(&self) -> usize {
        1
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Work>) {
        let is_lease = change.type_name.as_str() == LEASES;
        if is_lease && change.is_deleted && is_server_lease(change.object) {
            queue.add(Work::All);
        }
        if !is_lease && !change.is_deleted {
            queue.add(Work::One(change.object.key.name().to_owned()));
        }
    }

    fn on_list(&self, type_name: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Work>) {
        // The deletion of a lease may have been missed.
        match type_name.as_str() {
            LEASES => queue.add(Work::All),
            _ => self.on_each_object(type_name, snapshot, queue),
        }
    }

    fn reconcile(self: Rc<Self>, work: Work) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.collect(work).await.map(|()| Outcome::Done) }.boxed_local()
    }
}
