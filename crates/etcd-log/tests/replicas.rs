//! Stores of two servers over one etcd.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test they are how it fails")]

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use pilothouse_actors::directory::{Find, Options, Stores};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::shared_storage::{SharedLogs, start};
use pilothouse_actors::store::{
    Create, Freshness, Get, ObjectResult, OpenWatch, Position, Remove, Replace, Store,
};
use pilothouse_actors::window::Read;
use pilothouse_api::catalog::build::Builtin;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_etcd::messages::{LeaseGrantRequest, PutRequest, RangeRequest};
use pilothouse_etcd::testing::Cluster;
use pilothouse_etcd_layout::prefix::EtcdPrefix;
use pilothouse_etcd_layout::values::{ValueCodec, ValueOptions};
use pilothouse_etcd_log::{EtcdForms, EtcdLog, EtcdLogOptions, Types};
use pilothouse_types::clock::Clock;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Key, Revision, TypeName};
use tokio::runtime::Handle;

const TIMEOUT: Duration = Duration::from_secs(60);

/// One of the servers.
struct Server {
    log: EtcdLog,
    _stores: Stores,
    maps: Addr<Store>,
    resource: Arc<Resource>,
    codec: ValueCodec,
}

/// Reading the schemas takes a while.
static BUILTIN: LazyLock<(Arc<Registry>, Builtin)> =
    LazyLock::new(|| (Arc::new(Registry::builtin().unwrap()), Builtin::load().unwrap()));

fn codec() -> ValueCodec {
    ValueCodec::new(BUILTIN.0.clone(), ValueOptions::default(), EnabledFeatures::RELEASE)
}

impl Server {
    async fn start(cluster: &Cluster) -> Server {
        let builtin = &BUILTIN.1;
        let types = Arc::new(Types::new(EtcdPrefix::default(), builtin));
        let client = pilothouse_etcd::Client::new(cluster.settings(), Handle::current()).unwrap();
        let log = EtcdLog::new(client, types, EtcdLogOptions::new(codec(), Clock::system()));
        let forms = Arc::new(EtcdForms::new(log.clone()));
        let stores =
            start(SharedLogs::single(Arc::new(log.clone())), forms, HashSet::new(), Options::default())
                .await
                .unwrap();
        let is_map = |resource: &&Arc<Resource>| {
            resource.stored().is_some_and(|stored| stored.store.as_str().ends_with("configmaps"))
        };
        let resource = Arc::clone(builtin.resources().iter().find(is_map).unwrap());
        let type_name = resource.stored().unwrap().store.clone();
        let maps = stores.directory.send(Find { type_name }).await.unwrap().unwrap();
        Server { log, _stores: stores, maps, resource, codec: codec() }
    }

    fn type_name(&self) -> &TypeName {
        &self.resource.stored().unwrap().store
    }

    fn draft(&self, name: &str, value: &str) -> Draft {
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","namespace":"default"}},"data":{{"value":"{value}"}}}}"#
        );
        self.codec.decode(&self.resource, &Key::namespaced("default", name), json.as_bytes()).unwrap().draft
    }

    async fn create(&self, name: &str, value: &str) -> ObjectResult {
        let draft = self.draft(name, value);
        let stored = self.log.encode(self.type_name(), &draft).unwrap();
        self.maps.send(Create { draft, stored, permit: Permit::none() }).await.unwrap()
    }

    async fn replace(&self, name: &str, value: &str, expected: Revision) -> ObjectResult {
        let draft = self.draft(name, value);
        let stored = self.log.encode(self.type_name(), &draft).unwrap();
        let permit = Permit::none();
        self.maps.send(Replace { draft, stored, expected, permit, turn: None }).await.unwrap()
    }

    async fn remove(&self, name: &str, expected: Revision) -> ObjectResult {
        let (key, permit) = (Key::namespaced("default", name), Permit::none());
        self.maps.send(Remove { key, expected, permit }).await.unwrap()
    }

    async fn get(&self, name: &str) -> ObjectResult {
        let (key, permit) = (Key::namespaced("default", name), Permit::none());
        self.maps.send(Get { freshness: Freshness::Latest, key, permit }).await.unwrap()
    }

    async fn position(&self) -> Position {
        self.maps
            .send(OpenWatch { freshness: Freshness::Latest, permit: Permit::none() })
            .await
            .unwrap()
            .unwrap()
    }

    /// All objects: names, revisions, bytes.
    async fn objects(&self) -> Vec<(String, u64, String)> {
        let snapshot = self.position().await.snapshot;
        let objects = snapshot.iter().map(|object| {
            let text = String::from_utf8(object.bytes.to_vec()).unwrap();
            (object.key.name().to_owned(), object.revision.0, text)
        });
        objects.collect()
    }

    /// The revisions and names of all events.
    async fn events(&self) -> Vec<(u64, String)> {
        let window = self.position().await.window;
        let Read::Events(events) = window.read(window.floor(), usize::MAX) else { panic!("not in memory") };
        events.iter().map(|event| (event.revision().0, event.object.key.name().to_owned())).collect()
    }
}

#[actix_rt::test]
async fn two_servers_on_one_etcd_have_the_same_objects() {
    let cluster = Cluster::single().await;
    let (one, other) = (Server::start(&cluster).await, Server::start(&cluster).await);
    let created = one.create("a", "1").await.unwrap();
    let read = other.get("a").await.unwrap();
    assert_eq!((read.revision, &read.bytes), (created.revision, &created.bytes));
    assert!(matches!(other.create("a", "2").await, Err(StoreError::Exists)));
    let replaced = other.replace("a", "2", created.revision).await.unwrap();
    let Err(StoreError::Conflict(current)) = one.replace("a", "3", created.revision).await else {
        panic!("a conflict")
    };
    assert_eq!(current.revision, replaced.revision);
    one.create("b", "1").await.unwrap();
    let removed = one.remove("a", replaced.revision).await.unwrap();
    assert!(matches!(other.get("a").await, Err(StoreError::NotFound)));
    assert_eq!(one.objects().await, other.objects().await);
    assert_eq!(one.events().await, other.events().await);
    assert_eq!(one.events().await.last().unwrap().0, removed.revision.0);
    let late = Server::start(&cluster).await;
    assert_eq!(late.objects().await, one.objects().await);

    let range = cluster.client().range(RangeRequest::prefix("/registry/")).await.unwrap();
    let keys: Vec<&[u8]> = range.kvs.iter().map(|entry| &*entry.key).collect();
    assert_eq!(keys, [b"/registry/configmaps/default/b"]);
    assert!(range.kvs[0].value.starts_with(b"k8s\0"));
}

#[actix_rt::test]
async fn keys_of_others_and_expiring_leases_are_followed() {
    let cluster = Cluster::single().await;
    let (one, client) = (Server::start(&cluster).await, cluster.client());
    client.put(PutRequest::new("/foreign", "x")).await.unwrap();
    client.put(PutRequest::new("/registry/unknown/default/a", "x")).await.unwrap();
    let lease = client.lease_grant(LeaseGrantRequest { ttl: 3_600, id: 0 }).await.unwrap().id;
    let names = ["a", "b", "c"];
    for name in names {
        let value = one.log.encode(one.type_name(), &one.draft(name, "leased")).unwrap().unwrap().bytes;
        let key = Bytes::from(format!("/registry/configmaps/default/{name}"));
        client.put(PutRequest { lease, ..PutRequest::new(key, value) }).await.unwrap();
    }
    assert_eq!(one.objects().await.len(), 3);
    client.lease_revoke(lease).await.unwrap();
    assert_eq!(one.objects().await, []);
    let removed: Vec<u64> = one.events().await.iter().skip(3).map(|(revision, _)| *revision).collect();
    assert_eq!(removed, [removed[0]; 3], "at one revision");
}

#[actix_rt::test]
async fn servers_survive_the_loss_of_the_leader() {
    let mut cluster = Cluster::three().await;
    let (one, other) = (Server::start(&cluster).await, Server::start(&cluster).await);
    let mut acknowledged = Vec::new();
    let mut leader = None;
    for number in 0..60 {
        if number == 20 {
            let killed = cluster.leader().await;
            cluster.members[killed].kill();
            leader = Some(killed);
        }
        if let Some(killed) = leader.take_if(|_| number == 40) {
            cluster.members[killed].start();
        }
        let (name, server) = (format!("n{number:02}"), if number % 2 == 0 { &one } else { &other });
        let retried = async {
            loop {
                match server.create(&name, "x").await {
                    Ok(object) => return object.revision.0,
                    Err(StoreError::Exists) => return server.get(&name).await.unwrap().revision.0,
                    Err(StoreError::UnknownOutcome | StoreError::Unreachable) => {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        };
        acknowledged.push((name.clone(), tokio::time::timeout(TIMEOUT, retried).await.unwrap()));
    }
    let objects = one.objects().await;
    assert_eq!(objects, other.objects().await);
    let known: Vec<(String, u64)> = objects.into_iter().map(|(name, revision, _)| (name, revision)).collect();
    assert_eq!(known, acknowledged);
    assert_eq!(one.events().await, other.events().await);
    assert_eq!(one.events().await.len(), 60, "each once");
}
