//! Logs with encrypted records: what is in the file, and what happens when the key is lost or its service is away.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use actix::Addr;
use pilothouse_actors::directory::{Stop, Stores, start};
use pilothouse_actors::engine::EngineError;
use pilothouse_actors::engine::masking::MaskingEncryption;
use pilothouse_actors::engine::redb::Redb;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::{Freshness, Get, ObjectResult, Store, TakeSnapshot};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, UnreadableReason};

use crate::common::*;

struct Log {
    folder: tempfile::TempDir,
    encryption: Arc<MaskingEncryption>,
}

impl Log {
    fn new() -> Log {
        let log = Log { folder: tempfile::tempdir().unwrap(), encryption: Arc::default() };
        encrypt_writes(log.encryption.clone());
        log
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("log.redb")
    }

    fn start(&self) -> Result<Stores, EngineError> {
        let engine = Redb::open(&self.path()).unwrap().with_encryption(self.encryption.clone());
        start(Box::new(engine), manual_options())
    }

    fn lose_key(&self, is_lost: bool) {
        self.encryption.is_lost.store(is_lost, Ordering::Relaxed);
    }
}

async fn stop(stores: Stores) {
    stores.directory.send(Stop).await.unwrap().unwrap();
}

async fn get(store: &Addr<Store>, key: &str) -> ObjectResult {
    store
        .send(Get { freshness: Freshness::Latest, key: Key::from_path(key), permit: Permit::none() })
        .await
        .unwrap()
}

fn holds(path: &Path, text: &str) -> bool {
    let bytes = std::fs::read(path).unwrap();
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[actix_rt::test]
async fn file_shows_nothing_of_encrypted_objects() {
    let log = Log::new();
    let stores = log.start().unwrap();
    let secrets = find(&stores, "secrets").await;
    let first = create(&secrets, "team-a/password", "correct-horse").await.unwrap();
    replace(&secrets, "team-a/password", "battery-staple", first.revision).await.unwrap();
    let gone = create(&secrets, "team-b/removed", "old-value").await.unwrap();
    remove(&secrets, "team-b/removed", gone.revision).await.unwrap();
    stop(stores).await;
    for text in ["team-a", "password", "correct-horse", "battery-staple", "team-b", "removed", "old-value"] {
        assert!(!holds(&log.path(), text), "{text}");
    }
    assert!(holds(&log.path(), "secrets"), "the name of the type is not secret");
}

#[actix_rt::test]
async fn objects_whose_key_is_lost_are_reported_and_can_be_removed() {
    let log = Log::new();
    let stores = log.start().unwrap();
    let secrets = find(&stores, "secrets").await;
    for name in ["n/a", "n/b"] {
        create(&secrets, name, "x").await.unwrap();
    }
    stop(stores).await;

    log.lose_key(true);
    let stores = log.start().unwrap();
    let secrets = find(&stores, "secrets").await;
    let Ok(unreadable) = get(&secrets, "n/a").await else { panic!("it is there") };
    assert_eq!(unreadable.key, Key::from_path("n/a"), "who asks for it knows its key");
    let reason = UnreadableReason::Undecryptable("the key is lost".to_owned());
    assert_eq!(unreadable.unreadable_reason(), Some(&reason));
    assert!(matches!(get(&secrets, "n/other").await, Err(StoreError::NotFound)));
    assert!(matches!(create(&secrets, "n/a", "y").await, Err(StoreError::Exists)));
    let refused = replace(&secrets, "n/a", "y", unreadable.revision).await;
    assert!(matches!(refused, Err(StoreError::Unreadable(_))), "nobody knows what it would replace");
    create(&secrets, "n/new", "y").await.unwrap();
    let snapshot = secrets
        .send(TakeSnapshot { freshness: Freshness::Latest, permit: Permit::none() })
        .await
        .unwrap()
        .unwrap();
    assert_eq!((snapshot.len(), snapshot.hidden().count()), (3, 2));
    // Twice at once: one of them finds nothing.
    let (first, second) = futures::join!(
        remove(&secrets, "n/a", unreadable.revision),
        remove(&secrets, "n/a", unreadable.revision)
    );
    assert!(first.is_ok() && matches!(second, Err(StoreError::NotFound)), "{first:?} {second:?}");
    assert!(matches!(get(&secrets, "n/a").await, Err(StoreError::NotFound)));
    create(&secrets, "n/a", "z").await.unwrap();
    stop(stores).await;

    log.lose_key(false);
    let stores = log.start().unwrap();
    let secrets = find(&stores, "secrets").await;
    let snapshot = secrets
        .send(TakeSnapshot { freshness: Freshness::Latest, permit: Permit::none() })
        .await
        .unwrap()
        .unwrap();
    let texts: Vec<_> =
        snapshot.iter().map(|object| (object.key.as_str().to_owned(), object_text(object))).collect();
    let expected = [("n/a", "z", 6), ("n/b", "x", 3), ("n/new", "y", 4)];
    let expected = expected.map(|(key, body, revision)| (key.to_owned(), rendered_object(body, revision)));
    assert_eq!(texts, expected);
    stop(stores).await;
}

/// Both versions before the last cannot be read: one has its real key, the other a hidden one.
#[actix_rt::test]
async fn last_version_counts_whatever_keys_the_versions_before_it_have() {
    for is_removed in [false, true] {
        let log = Log::new();
        log.encryption.is_off.store(true, Ordering::Relaxed);
        let stores = log.start().unwrap();
        let secrets = find(&stores, "secrets").await;
        let first = create(&secrets, "n/a", "clear").await.unwrap();
        create(&secrets, "n/b", "clear").await.unwrap();
        log.encryption.is_off.store(false, Ordering::Relaxed);
        let second = replace(&secrets, "n/a", "encrypted", first.revision).await.unwrap();
        match is_removed {
            true => drop(remove(&secrets, "n/a", second.revision).await.unwrap()),
            false => {
                log.encryption.is_off.store(true, Ordering::Relaxed);
                replace(&secrets, "n/a", "clear again", second.revision).await.unwrap();
            }
        }
        stop(stores).await;
        log.lose_key(true);
        let stores = log.start().unwrap();
        let secrets = find(&stores, "secrets").await;
        let snapshot = secrets
            .send(TakeSnapshot { freshness: Freshness::Latest, permit: Permit::none() })
            .await
            .unwrap()
            .unwrap();
        let keys: Vec<&str> = snapshot.iter().map(|object| object.key.as_str()).collect();
        assert_eq!(keys, if is_removed { vec!["n/b"] } else { vec!["n/a", "n/b"] });
        assert!(snapshot.iter().all(|object| object.is_readable()));
        stop(stores).await;
    }
}

#[actix_rt::test]
async fn start_waits_for_the_service_that_has_the_key() {
    let log = Log::new();
    let stores = log.start().unwrap();
    create(&find(&stores, "secrets").await, "n/a", "x").await.unwrap();
    stop(stores).await;
    log.encryption.unavailable.store(3, Ordering::Relaxed);
    let stores = log.start().unwrap();
    assert_eq!(
        object_text(&get(&find(&stores, "secrets").await, "n/a").await.unwrap()),
        rendered_object("x", 2)
    );
    stop(stores).await;
}

#[actix_rt::test]
async fn start_is_refused_if_a_guard_cannot_be_decrypted() {
    let log = Log::new();
    let stores = log.start().unwrap();
    let guards = find(&stores, "guards").await;
    let first = create(&guards, "kept", "x").await.unwrap();
    stop(stores).await;
    log.lose_key(true);
    let error = log.start().map(drop).unwrap_err();
    assert!(
        error.to_string().starts_with("the guards at revision 2 cannot be decrypted: the key is lost"),
        "{error}"
    );

    log.lose_key(false);
    let stores = log.start().unwrap();
    remove(&find(&stores, "guards").await, "kept", first.revision).await.unwrap();
    stop(stores).await;
    log.lose_key(true);
    stop(log.start().expect("what is gone need not be read")).await;
}
