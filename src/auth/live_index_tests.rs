use pilothouse_actors::directory::{self, Options, Stores};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::object::{Draft, Pairs};
use pilothouse_actors::store::{Create, Remove, Replace};

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
    let _second = indexes.open([TYPE], View::default()).await.unwrap();
    assert_eq!(reported(&indexes).await.len(), 1);
    drop(index);
    drop(_second);
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
