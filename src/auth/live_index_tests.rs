use std::thread::{self, ThreadId};

use futures::FutureExt as _;
use pilothouse_actors::directory::{self, Options, Stores};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::store::{Create, Remove, Replace};
use pilothouse_types::object::{Draft, Pairs};

use super::*;

const TYPE: FollowedType = FollowedType::v1("", "limitranges", "LimitRange");

/// Takes what decodes.
#[derive(Default)]
struct View {
    readable: Vec<String>,
    closed: Vec<String>,
}

impl View {
    fn forget(&mut self, key: &Key) {
        self.readable.retain(|known| known != key.name());
        self.closed.retain(|known| known != key.name());
    }
}

impl StoreIndex for View {
    const IS_GUARD: bool = true;
    type Prepared = ();

    fn put(&mut self, _: usize, object: &StoredObject<'_>) -> Result<(), ReadError> {
        object.value()?;
        self.forget(&object.object.key);
        self.readable.push(object.name().to_owned());
        Ok(())
    }

    fn remove(&mut self, _: usize, key: &Key) {
        self.forget(key);
    }

    fn clear(&mut self, _: usize) {
        *self = View::default();
    }

    fn fail_closed(&mut self, _: usize, key: &Key) {
        self.forget(key);
        self.closed.push(key.name().to_owned());
    }
}

fn draft(name: &str, version: &str, spec: &str) -> Draft {
    let head = format!(r#"{{"kind":"LimitRange","apiVersion":"{version}","metadata":{{"resourceVersion":""#);
    let bytes = format!(r#"{head}"}},"spec":{spec}}}"#).into();
    let (labels, fields) = (Pairs::default(), Pairs::default());
    Draft { key: Key::namespaced("n", name), bytes, revision_at: head.len(), item_at: 1, labels, fields }
}

async fn create(stores: &Stores, name: &str, version: &str, spec: &str) -> Revision {
    let store = stores.directory.send(Find { type_name: TYPE.type_name() }).await.unwrap().unwrap();
    let create = Create { draft: draft(name, version, spec), permit: Permit::none() };
    store.send(create).await.unwrap().unwrap().revision
}

async fn reported(indexes: &LiveIndexes) -> Vec<String> {
    let all = indexes.unreadable().await;
    all.iter()
        .map(|object| format!("{} {}: {}", object.resource, object.key.as_str(), object.reason))
        .collect()
}

async fn follows_what_cannot_be_read(options: Options) {
    let stores = directory::start(Box::new(Memory::new()), options).unwrap();
    let registry = Arc::new(Registry::builtin().unwrap());
    create(&stores, "good", "v1", "{}").await;
    create(&stores, "later", "v7", "{}").await;
    let indexes = LiveIndexes::new(stores.directory.clone(), registry);
    let index = indexes.open([TYPE], View::default()).await.unwrap();
    assert_eq!(reported(&indexes).await, ["limitranges n/later: this server does not know LimitRange of v7"]);
    assert_eq!(index.stale().closed, ["later"]);
    // While it runs, too.
    let odd = create(&stores, "odd", "v1", "7").await;
    assert_eq!(reported(&indexes).await.len(), 2);
    let store = stores.directory.send(Find { type_name: TYPE.type_name() }).await.unwrap().unwrap();
    let (draft, permit) = (draft("odd", "v1", "{}"), Permit::none());
    store.send(Replace { draft, expected: odd, permit, turn: None }).await.unwrap().unwrap();
    assert_eq!(reported(&indexes).await.len(), 1, "it was replaced");
    assert_eq!(index.stale().readable, ["good", "odd"]);
    let (key, permit) = (Key::namespaced("n", "later"), Permit::none());
    store.send(Remove { key, expected: Revision(3), permit }).await.unwrap().unwrap();
    assert!(reported(&indexes).await.is_empty(), "it was removed");
    assert!(index.stale().closed.is_empty());
    // A second view of the type does not make two of one object.
    create(&stores, "odd2", "v1", "7").await;
    let second = indexes.open([TYPE], View::default()).await.unwrap();
    assert_eq!(reported(&indexes).await.len(), 1);
    drop(index);
    drop(second);
    assert!(reported(&indexes).await.is_empty(), "nothing depends on it any more");
}

#[actix::test]
async fn an_object_that_cannot_be_read_is_reported_until_it_is_removed_or_replaced() {
    follows_what_cannot_be_read(Options::default()).await;
}

#[actix::test]
async fn the_same_without_any_history() {
    follows_what_cannot_be_read(Options { window_bounds: 1.into(), ..Options::default() }).await;
}

/// Every type that views follow. A view of another type belongs here, and says by `StoreIndex` how it fails closed.
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

/// The objects of all views, of each type one, with these contents. Answers the types whose object is reported.
async fn reported_types(contents: &str) -> Vec<String> {
    use pilothouse_actors::fair_queuing::levels::Levels;
    use pilothouse_types::clock::{Clock, Timestamp};

    use crate::backend::admission::policies::table::{self as policies, PolicyKind};
    use crate::backend::admission::{lookup, webhooks};
    use crate::backend::aggregation;
    use crate::flowcontrol::table as flows;
    use crate::metrics::Metrics;
    use crate::upstream::pool::Pool;

    let stores = directory::start(Box::new(Memory::new()), Options::default()).unwrap();
    for of in FOLLOWED {
        let type_name = pilothouse_types::object::TypeName::new(of);
        let store = stores.directory.send(Find { type_name }).await.unwrap().unwrap();
        let head = r#"{"metadata":{"name":"v1.x","resourceVersion":""#;
        let bytes = format!(r#"{head}"}},{contents}}}"#).into();
        let (key, labels, fields) = (Key::cluster("v1.x"), Pairs::default(), Pairs::default());
        let draft = Draft { key, bytes, revision_at: head.len(), item_at: 1, labels, fields };
        store.send(Create { draft, permit: Permit::none() }).await.unwrap().unwrap();
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
    let _looked_up = lookup::open(&indexes).await.unwrap();
    indexes.unreadable().await.into_iter().map(|object| object.resource).collect()
}

#[actix::test]
async fn every_view_reports_what_another_release_wrote() {
    assert_eq!(reported_types(r#""kind":"Future","apiVersion":"example.com/v9""#).await, FOLLOWED);
}

/// The objects that [`Compiling`] has compiled, of all tests. While a test holds it, no compilation ends.
static COMPILED: Lock<Vec<String>> = Lock::new(Vec::new());

/// A view that notes how objects came into it.
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

async fn large_objects_are_prepared_elsewhere(options: Options) {
    let stores = directory::start(Box::new(Memory::new()), options).unwrap();
    let registry = Arc::new(Registry::builtin().unwrap());
    let indexes = LiveIndexes::new(stores.directory.clone(), registry);
    let index = indexes.open([TYPE], Compiling::default()).await.unwrap();
    create(&stores, "small", "v1", "{}").await;
    create(&stores, "large", "v1", &large_spec()).await;
    create(&stores, "last", "v1", "{}").await;
    assert!(index.fresh().is_none(), "the reader has to wait");
    // Several readers at once: nobody sees a view without the large object.
    let looks = [0, 1, 2].map(|_| index.look(|view| view.put.clone()));
    for look in looks {
        let put = match look {
            Answer::Now(put) => put,
            Answer::Later(put) => put.await,
        };
        let put = put.unwrap();
        let names: Vec<&str> = put.iter().map(|(name, _)| name.as_str()).collect();
        let [large, last, small] =
            ["large", "last", "small"].map(|name| names.iter().filter(|known| **known == name).count());
        assert_eq!((large, last, small), (1, 1, 1), "{names:?}");
        let prepared = put.iter().find(|(name, _)| name == "large").and_then(|(_, by)| *by);
        assert!(prepared.is_some_and(|by| by != thread::current().id()), "not on the thread of the reader");
    }
    assert!(index.fresh().is_some() && index.prepared.lock().is_empty());
}

#[actix::test]
async fn a_large_object_is_compiled_before_the_view_is_locked() {
    large_objects_are_prepared_elsewhere(Options::default()).await;
}

#[actix::test]
async fn a_large_object_is_compiled_before_the_view_is_read_again() {
    large_objects_are_prepared_elsewhere(Options { window_bounds: 1.into(), ..Options::default() }).await;
}

#[actix::test]
async fn what_was_compiled_for_a_reader_who_went_away_is_used() {
    let stores = directory::start(Box::new(Memory::new()), Options::default()).unwrap();
    let indexes = LiveIndexes::new(stores.directory.clone(), Arc::new(Registry::builtin().unwrap()));
    let index = indexes.open([TYPE], Compiling::default()).await.unwrap();
    create(&stores, "abandoned", "v1", &large_spec()).await;
    {
        let _unfinished = COMPILED.lock();
        for _ in 0..3 {
            let Answer::Later(reader) = index.look(|_| ()) else { panic!("it is not compiled") };
            // Begins to wait, and goes away.
            assert!(reader.now_or_never().is_none());
        }
    }
    let put = match index.look(|view| view.put.clone()) {
        Answer::Now(put) => put,
        Answer::Later(put) => put.await,
    };
    assert!(matches!(&put.unwrap()[..], [(name, Some(_))] if name == "abandoned"));
    assert_eq!(COMPILED.lock().iter().filter(|name| *name == "abandoned").count(), 1);
    assert!(index.prepared.lock().is_empty());
}

#[actix::test]
async fn what_was_prepared_of_passed_states_is_dropped() {
    let stores = directory::start(Box::new(Memory::new()), Options::default()).unwrap();
    let indexes = LiveIndexes::new(stores.directory.clone(), Arc::new(Registry::builtin().unwrap()));
    let index = indexes.open([TYPE], Compiling::default()).await.unwrap();
    let written = create(&stores, "small", "v1", "{}").await;
    let state = |of: usize, revision: u64| (of, Key::namespaced("n", "other"), Revision(revision));
    let [passed, later, of_another_type] =
        [state(0, written.0 - 1), state(0, written.0 + 1), state(1, written.0 - 1)];
    index.prepared.lock().extend([passed, later.clone(), of_another_type.clone()].map(|state| (state, None)));
    assert!(index.fresh().is_some());
    let left: HashSet<ObjectState> = index.prepared.lock().keys().cloned().collect();
    assert_eq!(left, HashSet::from([later, of_another_type]));
}
