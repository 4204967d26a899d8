use std::thread::{self, ThreadId};

use futures::FutureExt as _;
use pilothouse_actors::directory::{self, Options, Stores};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::store::{Create, Remove, Replace};
use pilothouse_types::object::{Draft, Pairs};

use super::*;

const TYPE: StoredType = StoredType::v1("", "limitranges", "LimitRange");

/// The names of the objects that decode and of those that do not.
#[derive(Default)]
struct View {
    readable: Vec<String>,
    failed_closed: Vec<String>,
}

impl View {
    fn remove_name(&mut self, key: &Key) {
        self.readable.retain(|name| name != key.name());
        self.failed_closed.retain(|name| name != key.name());
    }
}

impl StoreIndex for View {
    const IS_GUARD: bool = true;
    type Prepared = ();

    fn put(&mut self, _: usize, object: &StoredObject<'_>) -> Result<(), ReadError> {
        object.value()?;
        self.remove_name(&object.object.key);
        self.readable.push(object.name().to_owned());
        Ok(())
    }

    fn remove(&mut self, _: usize, key: &Key) {
        self.remove_name(key);
    }

    fn clear(&mut self, _: usize) {
        *self = View::default();
    }

    fn fail_closed(&mut self, _: usize, key: &Key) {
        self.remove_name(key);
        self.failed_closed.push(key.name().to_owned());
    }
}

fn draft(name: &str, version: &str, spec: &str) -> Draft {
    let head = format!(r#"{{"kind":"LimitRange","apiVersion":"{version}","metadata":{{"resourceVersion":""#);
    let bytes = format!(r#"{head}"}},"spec":{spec}}}"#).into();
    let (labels, fields) = (Pairs::default(), Pairs::default());
    Draft {
        key: Key::namespaced("n", name),
        bytes,
        revision_offset: head.len(),
        item_offset: 1,
        labels,
        fields,
    }
}

async fn create(stores: &Stores, name: &str, version: &str, spec: &str) -> Revision {
    let store = stores.directory.send(Find { type_name: TYPE.type_name() }).await.unwrap().unwrap();
    let create = Create { draft: draft(name, version, spec), stored: None, permit: Permit::none() };
    store.send(create).await.unwrap().unwrap().revision
}

async fn reported(indexes: &LiveIndexes) -> Vec<String> {
    let all = indexes.unreadable().await;
    all.iter()
        .map(|object| format!("{} {}: {}", object.resource, object.key.as_str(), object.reason))
        .collect()
}

async fn reports_unreadable_objects(options: Options) {
    let stores = directory::start(Box::new(Memory::new()), options).unwrap();
    let registry = Arc::new(Registry::builtin().unwrap());
    create(&stores, "good", "v1", "{}").await;
    create(&stores, "later", "v7", "{}").await;
    let indexes = LiveIndexes::new(stores.directory.clone(), registry);
    let index = indexes.open([TYPE], View::default()).await.unwrap();
    assert_eq!(reported(&indexes).await, ["limitranges n/later: this server does not know LimitRange of v7"]);
    assert_eq!(index.stale().failed_closed, ["later"]);
    // Objects written while the index is open.
    let malformed_revision = create(&stores, "malformed", "v1", "7").await;
    assert_eq!(reported(&indexes).await.len(), 2);
    let store = stores.directory.send(Find { type_name: TYPE.type_name() }).await.unwrap().unwrap();
    let (draft, permit) = (draft("malformed", "v1", "{}"), Permit::none());
    store
        .send(Replace { draft, stored: None, expected: malformed_revision, permit, turn: None })
        .await
        .unwrap()
        .unwrap();
    assert_eq!(reported(&indexes).await.len(), 1, "it was replaced");
    assert_eq!(index.stale().readable, ["good", "malformed"]);
    let (key, permit) = (Key::namespaced("n", "later"), Permit::none());
    store.send(Remove { key, expected: Revision(3), permit }).await.unwrap().unwrap();
    assert!(reported(&indexes).await.is_empty(), "it was removed");
    assert!(index.stale().failed_closed.is_empty());
    // A second view of the type does not report the object twice.
    create(&stores, "malformed2", "v1", "7").await;
    let second = indexes.open([TYPE], View::default()).await.unwrap();
    assert_eq!(reported(&indexes).await.len(), 1);
    drop(index);
    drop(second);
    assert!(reported(&indexes).await.is_empty(), "nothing depends on it any more");
}

#[actix::test]
async fn unreadable_object_is_reported_until_removed_or_replaced() {
    reports_unreadable_objects(Options::default()).await;
}

#[actix::test]
async fn unreadable_object_is_reported_without_watch_history() {
    reports_unreadable_objects(Options { window_bounds: 1.into(), ..Options::default() }).await;
}

/// Every type that views follow. A new view adds its types here and implements `StoreIndex::fail_closed`.
const FOLLOWED: [&str; 25] = [
    "apiservices.apiregistration.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "customresourcedefinitions.apiextensions.k8s.io",
    "flowschemas.flowcontrol.apiserver.k8s.io",
    "ingressclasses.networking.k8s.io",
    "limitranges",
    "mutatingadmissionpolicies.admissionregistration.k8s.io",
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "namespaces",
    "persistentvolumes",
    "pods",
    "priorityclasses.scheduling.k8s.io",
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
    "resourcequotas",
    "resourceslices.resource.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "runtimeclasses.node.k8s.io",
    "storageclasses.storage.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
    "volumeattachments.storage.k8s.io",
];

/// Stores one object of each type with these contents and opens all views. Returns the types whose object is reported.
async fn reported_types(contents: &str) -> Vec<String> {
    use pilothouse_actors::fair_queuing::levels::Levels;
    use pilothouse_types::clock::{Clock, Timestamp};

    use crate::admission::policies::table::{self as policies, PolicyKind};
    use crate::admission::{lookup, webhooks};
    use crate::aggregation;
    use crate::flowcontrol::table as flows;
    use crate::metrics::Metrics;
    use pilothouse_client::upstream::pool::Pool;

    let stores = directory::start(Box::new(Memory::new()), Options::default()).unwrap();
    for type_name in FOLLOWED {
        let type_name = pilothouse_types::object::TypeName::new(type_name);
        let store = stores.directory.send(Find { type_name }).await.unwrap().unwrap();
        let head = r#"{"metadata":{"name":"v1.x","resourceVersion":""#;
        let bytes = format!(r#"{head}"}},{contents}}}"#).into();
        let (key, labels, fields) = (Key::cluster("v1.x"), Pairs::default(), Pairs::default());
        let draft = Draft { key, bytes, revision_offset: head.len(), item_offset: 1, labels, fields };
        store.send(Create { draft, stored: None, permit: Permit::none() }).await.unwrap().unwrap();
    }
    let clock = Clock::manual(Timestamp(0));
    let (metrics, pool) = (Arc::new(Metrics::new(Timestamp(0)).unwrap()), Pool::new(clock.clone()));
    let indexes = LiveIndexes::new(stores.directory.clone(), Arc::new(Registry::builtin().unwrap()));
    let _roles = crate::auth::rbac::open(&indexes).await.unwrap();
    let _nodes = crate::auth::node::Nodes::open(&indexes, |_| true).await.unwrap();
    let flows_table = flows::Table::new(Arc::new(Levels::new(600, clock)), metrics);
    let _flows = indexes.open(flows::TYPES, flows_table).await.unwrap();
    let _validating = policies::open(&indexes, PolicyKind::Validating).await.unwrap();
    let _mutating = policies::open(&indexes, PolicyKind::Mutating).await.unwrap();
    let _webhooks = webhooks::open(&indexes, pool.clone()).await.unwrap();
    let _services = indexes.open([aggregation::Table::TYPE], aggregation::Table::new(pool)).await.unwrap();
    let _lookup = lookup::open(&indexes).await.unwrap();
    indexes.unreadable().await.into_iter().map(|object| object.resource).collect()
}

#[actix::test]
async fn every_view_reports_objects_of_unknown_versions() {
    assert_eq!(reported_types(r#""kind":"Future","apiVersion":"example.com/v9""#).await, FOLLOWED);
}

/// The objects that [`Compiling`] has compiled, of all tests. While a test holds it, no compilation ends.
static COMPILED: Lock<Vec<String>> = Lock::new(Vec::new());

/// A view that records which thread prepared each object.
#[derive(Default)]
struct Compiling {
    put: Vec<(String, Option<ThreadId>)>,
}

impl StoreIndex for Compiling {
    const IS_GUARD: bool = true;
    const PREPARES: bool = true;
    type Prepared = ThreadId;

    fn put(&mut self, _: usize, object: &StoredObject<'_>) -> Result<(), ReadError> {
        self.put.push((object.name().to_owned(), None));
        Ok(())
    }

    fn prepare(_: usize, object: &StoredObject<'_>) -> Option<ThreadId> {
        COMPILED.lock().push(object.name().to_owned());
        Some(thread::current().id())
    }

    fn put_prepared(
        &mut self,
        _: usize,
        object: &StoredObject<'_>,
        prepared: ThreadId,
    ) -> Result<(), ReadError> {
        self.put.push((object.name().to_owned(), Some(prepared)));
        Ok(())
    }

    fn remove(&mut self, _: usize, _: &Key) {}

    fn clear(&mut self, _: usize) {
        self.put.clear();
    }

    fn fail_closed(&mut self, _: usize, _: &Key) {}
}

fn large_spec() -> String {
    format!(r#"{{"limits":[{{"type":"{}"}}]}}"#, "x".repeat(HEAVY_BYTES))
}

async fn prepares_large_objects_on_another_thread(options: Options) {
    let stores = directory::start(Box::new(Memory::new()), options).unwrap();
    let registry = Arc::new(Registry::builtin().unwrap());
    let indexes = LiveIndexes::new(stores.directory.clone(), registry);
    let index = indexes.open([TYPE], Compiling::default()).await.unwrap();
    create(&stores, "small", "v1", "{}").await;
    create(&stores, "large", "v1", &large_spec()).await;
    create(&stores, "last", "v1", "{}").await;
    assert!(index.fresh().is_none(), "the reader has to wait");
    // Several concurrent readers: none of them sees a view without the large object.
    let readers = [0, 1, 2].map(|_| index.query(|view| view.put.clone()));
    for reader in readers {
        let put = match reader {
            Answer::Now(put) => put,
            Answer::Later(put) => put.await,
        };
        let put = put.unwrap();
        let names: Vec<&str> = put.iter().map(|(name, _)| name.as_str()).collect();
        let [large, last, small] =
            ["large", "last", "small"].map(|name| names.iter().filter(|other| **other == name).count());
        assert_eq!((large, last, small), (1, 1, 1), "{names:?}");
        let prepared = put.iter().find(|(name, _)| name == "large").and_then(|(_, thread_id)| *thread_id);
        assert!(
            prepared.is_some_and(|thread_id| thread_id != thread::current().id()),
            "not on the thread of the reader"
        );
    }
    assert!(index.fresh().is_some() && index.prepared.lock().is_empty());
}

#[actix::test]
async fn large_object_is_compiled_before_the_view_is_locked() {
    prepares_large_objects_on_another_thread(Options::default()).await;
}

#[actix::test]
async fn large_object_is_compiled_before_a_new_snapshot_is_read() {
    prepares_large_objects_on_another_thread(Options { window_bounds: 1.into(), ..Options::default() }).await;
}

#[actix::test]
async fn object_compiled_for_a_cancelled_reader_is_reused() {
    let stores = directory::start(Box::new(Memory::new()), Options::default()).unwrap();
    let indexes = LiveIndexes::new(stores.directory.clone(), Arc::new(Registry::builtin().unwrap()));
    let index = indexes.open([TYPE], Compiling::default()).await.unwrap();
    create(&stores, "abandoned", "v1", &large_spec()).await;
    {
        let _unfinished = COMPILED.lock();
        for _ in 0..3 {
            let Answer::Later(reader) = index.query(|_| ()) else { panic!("it is not compiled") };
            // Starts to wait and is cancelled.
            assert!(reader.now_or_never().is_none());
        }
    }
    let put = match index.query(|view| view.put.clone()) {
        Answer::Now(put) => put,
        Answer::Later(put) => put.await,
    };
    assert!(matches!(&put.unwrap()[..], [(name, Some(_))] if name == "abandoned"));
    assert_eq!(COMPILED.lock().iter().filter(|name| *name == "abandoned").count(), 1);
    assert!(index.prepared.lock().is_empty());
}

#[actix::test]
async fn prepared_objects_of_older_revisions_are_dropped() {
    let stores = directory::start(Box::new(Memory::new()), Options::default()).unwrap();
    let indexes = LiveIndexes::new(stores.directory.clone(), Arc::new(Registry::builtin().unwrap()));
    let index = indexes.open([TYPE], Compiling::default()).await.unwrap();
    let written = create(&stores, "small", "v1", "{}").await;
    let state =
        |type_index: usize, revision: u64| (type_index, Key::namespaced("n", "other"), Revision(revision));
    let [passed, later, other_type] =
        [state(0, written.0 - 1), state(0, written.0 + 1), state(1, written.0 - 1)];
    index.prepared.lock().extend([passed, later.clone(), other_type.clone()].map(|state| (state, None)));
    assert!(index.fresh().is_some());
    let remaining: HashSet<ObjectState> = index.prepared.lock().keys().cloned().collect();
    assert_eq!(remaining, HashSet::from([later, other_type]));
}
