//! The log over a real etcd, without stores.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test they are how it fails")]

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use pilothouse_actors::shared_log::{
    ChangeBatch, Followed, Proposal, ProposalOutcome, ProposedChange, SharedChange, SharedLog as _,
    SharedLogError,
};
use pilothouse_api::catalog::build::Builtin;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_encryption::testing::{configuration, keyed_provider};
use pilothouse_encryption::{Encryption, Settings};
use pilothouse_etcd::Client;
use pilothouse_etcd::messages::{KeyValue, PutRequest, RangeRequest};
use pilothouse_etcd::testing::Cluster;
use pilothouse_etcd_layout::prefix::EtcdPrefix;
use pilothouse_etcd_layout::values::{ValueCodec, ValueOptions};
use pilothouse_etcd_log::{EtcdLog, EtcdLogOptions, Types};
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::object::{Draft, Key, Revision, TypeName, UnreadableReason};
use tokio::time::timeout;

/// How long anything may take that happens sooner or later.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long events live by default.
const HOUR: Duration = Duration::from_secs(3_600);
/// From which size on a batch gets no further revision.
const BATCH_BYTES: usize = 1 << 20;

/// Reading the schemas takes a while.
static BUILTIN: LazyLock<(Arc<Registry>, Builtin)> =
    LazyLock::new(|| (Arc::new(Registry::builtin().unwrap()), Builtin::load().unwrap()));

fn codec() -> ValueCodec {
    ValueCodec::new(BUILTIN.0.clone(), ValueOptions::default(), EnabledFeatures::RELEASE)
}

fn log(cluster: &Cluster, options: EtcdLogOptions) -> EtcdLog {
    EtcdLog::new(cluster.client(), Arc::new(Types::new(EtcdPrefix::default(), &BUILTIN.1)), options)
}

fn options() -> EtcdLogOptions {
    EtcdLogOptions::new(codec(), Clock::system())
}

fn events() -> TypeName {
    TypeName::new("events")
}

fn maps() -> TypeName {
    TypeName::new("configmaps")
}

fn key(name: &str) -> Key {
    Key::namespaced("default", name)
}

fn map_draft(name: &str) -> Draft {
    let is_map = |resource: &&Arc<Resource>| resource.stored().is_some_and(|stored| stored.store == maps());
    let resource = BUILTIN.1.resources().iter().find(is_map).unwrap();
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","namespace":"default"}},"data":{{"value":"plain text"}}}}"#
    );
    codec().decode(resource, &key(name), json.as_bytes()).unwrap().draft
}

async fn propose(
    log: &EtcdLog,
    type_name: TypeName,
    name: &str,
    expected: Option<Revision>,
    change: ProposedChange,
) -> ProposalOutcome {
    log.propose(Proposal { type_name, key: key(name), expected, change }).await
}

/// Writes an object, and returns its revision. What it contains is no matter of the log.
async fn put(log: &EtcdLog, type_name: TypeName, name: &str, expected: Option<Revision>) -> Revision {
    let change = ProposedChange::Put(Bytes::from_static(b"x"));
    match propose(log, type_name, name, expected, change).await {
        ProposalOutcome::Accepted(revision) => revision,
        other => panic!("{other:?}"),
    }
}

/// What etcd has under a key.
async fn raw(client: &Client, etcd_key: &'static str) -> KeyValue {
    client.range(RangeRequest::key(etcd_key)).await.unwrap().kvs.remove(0)
}

/// The batches of changes up to the first one that satisfies a condition.
async fn follow_until(
    log: &EtcdLog,
    after: Revision,
    mut is_last: impl FnMut(&ChangeBatch) -> bool,
) -> Vec<ChangeBatch> {
    let mut stream = log.follow(after);
    let mut batches = Vec::new();
    loop {
        let followed = timeout(PATIENCE, stream.next()).await.unwrap().unwrap().unwrap();
        let Followed::Changes(batch) = followed else { continue };
        let ends = is_last(&batch);
        batches.push(batch);
        if ends {
            return batches;
        }
    }
}

#[actix_rt::test]
async fn events_vanish_with_their_lease() {
    let cluster = Cluster::single().await;
    let log = log(&cluster, EtcdLogOptions { event_ttl: Some(Duration::from_secs(1)), ..options() });
    put(&log, maps(), "stays", None).await;
    let written = loop {
        let change = ProposedChange::Put(Bytes::from_static(b"x"));
        match propose(&log, events(), "a", None, change).await {
            ProposalOutcome::Accepted(revision) => break revision,
            // A slow machine may need longer than the lease lasts.
            ProposalOutcome::Failed(_) => {}
            other => panic!("{other:?}"),
        }
    };
    let removes = |batch: &ChangeBatch| batch.changes.iter().any(|change| change.value.is_none());
    let batches = follow_until(&log, written, removes).await;
    let removed: Vec<SharedChange> = batches.into_iter().flat_map(|batch| batch.changes).collect();
    let [removed] = removed.as_slice() else { panic!("{removed:?}") };
    assert_eq!((&removed.type_name, &removed.key, &removed.value), (&events(), &key("a"), &None));
    assert!(removed.revision > written);
    assert_eq!(log.load_type(&events()).await.unwrap().entries, []);
    assert_eq!(log.load().await.unwrap().entries.len(), 1, "the other object has no lease");
}

#[actix_rt::test]
async fn each_write_of_an_event_puts_it_under_the_lease_of_that_time() {
    let cluster = Cluster::single().await;
    let (client, clock) = (cluster.client(), Clock::manual(Timestamp::from_unix(1_700_000_000)));
    let log = log(&cluster, EtcdLogOptions { event_ttl: Some(HOUR), clock: clock.clone(), ..options() });
    let created = put(&log, events(), "a", None).await;
    let first = raw(&client, "/registry/events/default/a").await.lease;
    clock.advance(Duration::from_secs(1));
    put(&log, events(), "b", None).await;
    assert_eq!(raw(&client, "/registry/events/default/b").await.lease, first, "shared for a minute");
    let lease = client.lease_time_to_live(first, true).await.unwrap();
    assert_eq!((lease.granted_ttl, lease.keys.len()), (3_660, 2));

    clock.advance(Duration::from_secs(60));
    let updated = put(&log, events(), "a", Some(created)).await;
    let second = raw(&client, "/registry/events/default/a").await.lease;
    assert!(first != 0 && second != 0 && second != first, "{first} {second}");
    let keys = client.lease_time_to_live(first, true).await.unwrap().keys;
    assert_eq!(keys, ["/registry/events/default/b"]);
    put(&log, maps(), "a", None).await;
    assert_eq!(raw(&client, "/registry/configmaps/default/a").await.lease, 0);
    let removal = propose(&log, events(), "a", Some(updated), ProposedChange::Remove).await;
    assert!(matches!(removal, ProposalOutcome::Accepted(_)), "{removal:?}");
}

#[actix_rt::test]
async fn event_is_not_written_without_a_lease() {
    let mut cluster = Cluster::single().await;
    let (client, clock) = (cluster.client(), Clock::manual(Timestamp::from_unix(1_700_000_000)));
    let log = log(&cluster, EtcdLogOptions { event_ttl: Some(HOUR), clock: clock.clone(), ..options() });
    put(&log, events(), "a", None).await;
    client.lease_revoke(raw(&client, "/registry/events/default/a").await.lease).await.unwrap();
    // The log believes that the lease still lasts, and learns that it does not.
    clock.advance(Duration::from_secs(1));
    let change = || ProposedChange::Put(Bytes::from_static(b"x"));
    let failed = propose(&log, events(), "b", None, change()).await;
    let is_unavailable =
        |outcome: ProposalOutcome| matches!(outcome, ProposalOutcome::Failed(SharedLogError::Unavailable(_)));
    assert!(is_unavailable(failed));
    put(&log, events(), "b", None).await;
    assert_ne!(raw(&client, "/registry/events/default/b").await.lease, 0);

    // Nor if etcd cannot be asked for one.
    cluster.members[0].kill();
    let mut settings = cluster.settings();
    settings.request_timeout = Duration::from_millis(100);
    let client = Client::new(settings, tokio::runtime::Handle::current()).unwrap();
    let types = Arc::new(Types::new(EtcdPrefix::default(), &BUILTIN.1));
    let log = EtcdLog::new(client, types, EtcdLogOptions { event_ttl: Some(HOUR), ..options() });
    assert!(is_unavailable(propose(&log, events(), "c", None, change()).await));
    cluster.members[0].start();
    let client = cluster.client();
    let range = client.range(RangeRequest::prefix("/registry/events/")).await.unwrap();
    assert_eq!(
        range.kvs.iter().map(|entry| &*entry.key).collect::<Vec<_>>(),
        [b"/registry/events/default/b"]
    );
}

#[actix_rt::test]
async fn values_are_encrypted_in_etcd() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    let file = configuration("[configmaps]", &format!("[{}]", keyed_provider("aesgcm", "one", 1)));
    let encryption = Some(Arc::new(Encryption::load(&file, Settings::default()).unwrap()));
    let log = log(&cluster, EtcdLogOptions { encryption, ..options() });
    let draft = map_draft("a");
    let stored = log.encode(&maps(), &draft).unwrap().unwrap();
    let change = ProposedChange::Put(stored.bytes);
    let written = propose(&log, maps(), "a", None, change).await;
    let value = raw(&client, "/registry/configmaps/default/a").await.value;
    assert!(value.starts_with(b"k8s:enc:aesgcm:v1:one:"));
    assert!(!value.windows(5).any(|part| part == b"plain"));

    client.put(PutRequest::new("/registry/configmaps/default/moved", value)).await.unwrap();
    client.put(PutRequest::new("/registry/events/default/a", "x")).await.unwrap();
    let loaded = log.load_type(&maps()).await.unwrap();
    assert_eq!(loaded.revision, log.current_revision().await.unwrap());
    let [entry, moved] = loaded.entries.as_slice() else { panic!("{loaded:?}") };
    assert_eq!((ProposalOutcome::Accepted(entry.revision), entry.created), (written, entry.revision));
    let decoded = log.decode(&maps(), &entry.key, &entry.value).unwrap();
    assert_eq!((decoded.draft.bytes, decoded.key_id), (draft.bytes, stored.key_id));
    let unreadable = log.decode(&maps(), &moved.key, &moved.value).unwrap_err();
    assert!(matches!(unreadable, UnreadableReason::Undecryptable(_)), "{unreadable:?}");
    assert_eq!(log.load().await.unwrap().entries.len(), 3);
    let unknown = log.load_type(&TypeName::new("custom/kites.toys.example")).await;
    assert!(matches!(unknown, Err(SharedLogError::Unavailable(_))), "{unknown:?}");
}

#[actix_rt::test]
async fn batches_have_a_bounded_size() {
    let cluster = Cluster::single().await;
    let (client, log) = (cluster.client(), log(&cluster, options()));
    let before = log.current_revision().await.unwrap();
    let value = Bytes::from(vec![b'x'; 400 << 10]);
    for number in 0..10 {
        let etcd_key = format!("/registry/configmaps/default/{number}");
        client.put(PutRequest::new(etcd_key, value.clone())).await.unwrap();
    }
    let last = log.current_revision().await.unwrap();
    let batches = follow_until(&log, before, |batch| batch.revision == last).await;
    assert_eq!(batches.iter().map(|batch| batch.changes.len()).sum::<usize>(), 10);
    for batch in batches {
        let earlier = batch.changes.iter().filter(|change| change.revision < batch.revision);
        assert!(earlier.map(SharedChange::weight).sum::<usize>() < BATCH_BYTES);
    }
}
