//! Objects and requests of these tests.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use pilothouse_actors::committer::Committer;
use pilothouse_actors::directory::{Find, Options, Stores, start};
use pilothouse_actors::encryption::Encryption as _;
use pilothouse_actors::engine::Engine;
use pilothouse_actors::engine::masking::MaskingEncryption;
use pilothouse_actors::event::Event;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::{
    Create, Freshness, ObjectResult, OpenWatch, Position, Remove, Replace, Store,
};
use pilothouse_actors::window::Read;
use pilothouse_types::object::{Draft, Key, Object, Pairs, Revision, StoredDraft, TypeName};

/// An object whose bytes hold a body that tests recognise.
pub fn draft(key: &str, body: &str) -> Draft {
    let text = format!(r#"{{"kind":"K","metadata":{{"resourceVersion":""}},"body":"{body}"}}"#);
    Draft {
        key: Key::from_path(key),
        revision_offset: text.find(r#""},"body"#).unwrap(),
        item_offset: text.find(r#""metadata"#).unwrap(),
        bytes: Bytes::from(text),
        labels: Pairs::from_iter([("body", body)]),
        fields: Pairs::from_iter([("key", key)]),
    }
}

/// The bytes of a stored [`draft`] at a revision.
pub fn rendered_object(body: &str, revision: u64) -> String {
    format!(r#"{{"kind":"K","metadata":{{"resourceVersion":"{revision}"}},"body":"{body}"}}"#)
}

/// The bytes of an object.
pub fn object_text(object: &Object) -> String {
    String::from_utf8(object.bytes.to_vec()).unwrap()
}

/// Options without periodic housekeeping, which tests trigger themselves.
pub fn manual_options() -> Options {
    Options { housekeeping_interval: Duration::from_secs(1 << 20), ..Options::default() }
}

/// Starts the stores over an engine.
pub fn start_stores(engine: Box<dyn Engine>, options: &Options) -> Stores {
    start(engine, options.clone()).unwrap()
}

/// The committer of a log of its own.
pub fn committer(stores: &Stores) -> &Addr<Committer> {
    stores.committer().unwrap()
}

pub async fn find(stores: &Stores, type_name: &str) -> Addr<Store> {
    stores.directory.send(Find { type_name: TypeName::new(type_name) }).await.unwrap().unwrap()
}

thread_local! {
    /// What encrypts the writes of the running test.
    static ENCRYPTION: RefCell<Option<Arc<MaskingEncryption>>> = const { RefCell::new(None) };
}

/// Encrypts all writes of this test from now on.
pub fn encrypt_writes(encryption: Arc<MaskingEncryption>) {
    ENCRYPTION.set(Some(encryption));
}

fn encrypted(draft: &Draft) -> Option<StoredDraft> {
    let encryption = ENCRYPTION.with_borrow(Clone::clone)?;
    // It does not depend on the type.
    encryption.encrypt(&TypeName::new(""), draft).unwrap()
}

pub async fn create(store: &Addr<Store>, key: &str, body: &str) -> ObjectResult {
    let draft = draft(key, body);
    let stored = encrypted(&draft);
    store.send(Create { draft, stored, permit: Permit::none() }).await.unwrap()
}

pub async fn replace(store: &Addr<Store>, key: &str, body: &str, expected: Revision) -> ObjectResult {
    let draft = draft(key, body);
    let stored = encrypted(&draft);
    store.send(Replace { draft, stored, expected, permit: Permit::none(), turn: None }).await.unwrap()
}

pub async fn remove(store: &Addr<Store>, key: &str, expected: Revision) -> ObjectResult {
    store.send(Remove { key: Key::from_path(key), expected, permit: Permit::none() }).await.unwrap()
}

pub async fn open_watch(store: &Addr<Store>) -> Position {
    store.send(OpenWatch { freshness: Freshness::Latest, permit: Permit::none() }).await.unwrap().unwrap()
}

/// All events of a window, in memory and in its archive.
pub async fn window_events(position: &Position) -> Vec<Arc<Event>> {
    let (mut collected, mut cursor) = (Vec::new(), position.window.floor());
    loop {
        match position.window.read(cursor, usize::MAX) {
            Read::Events(events) => {
                collected.extend(events);
                return collected;
            }
            Read::Archived(archive_reader, through) => {
                let events = archive_reader.read(cursor, through, 3).await.unwrap();
                cursor = events.last().unwrap().revision();
                collected.extend(events);
            }
            Read::Expired(floor) => panic!("a window expired at its own floor {floor}"),
        }
    }
}
