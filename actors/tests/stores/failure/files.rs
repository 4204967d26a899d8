//! Locked, damaged, foreign and crashed database files.

use super::*;

/// Writes a database with some objects and closes it.
async fn written_file(path: &Path) {
    let stores = start_stores(Box::new(Redb::open(path).unwrap()), &manual_options());
    let pods = find(&stores, "pods").await;
    for n in 0..40 {
        let made = create(&pods, &format!("k{n}"), &"body".repeat(n)).await.unwrap();
        if n % 3 == 0 {
            replace(&pods, &format!("k{n}"), "other", made.revision).await.unwrap();
        }
    }
    stores.directory.send(Stop).await.unwrap().unwrap();
}

/// All objects of a file as text, or the error of opening it.
fn content(path: &Path) -> Result<Vec<String>, EngineError> {
    let mut engine = Redb::open(path)?;
    let recovered = recover(&mut engine, Duration::MAX, 1 << 20)?;
    let render = |object: &Arc<Object>| match object.is_readable() {
        true => object_text(object),
        false => format!("{}{UNREADABLE}", object.key.as_str()),
    };
    Ok(recovered.types.values().flat_map(|state| state.snapshot.iter().map(render)).collect())
}

/// Suffix of an object whose record is damaged.
const UNREADABLE: &str = " cannot be read";

#[actix_rt::test]
async fn open_of_locked_file_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.redb");
    let first = Redb::open(&path).unwrap();
    let error = Redb::open(&path).map(drop).unwrap_err();
    assert!(matches!(error, EngineError::Locked(_)));
    assert_eq!(error.to_string(), format!("{} is in use by another process", path.display()));
    drop(first);
    Redb::open(&path).unwrap();
}

#[actix_rt::test]
async fn damaged_file_is_refused_or_read_with_unreadable_object() {
    let folder = tempfile::tempdir().unwrap();
    let (path, broken) = (folder.path().join("log.redb"), folder.path().join("broken.redb"));
    written_file(&path).await;
    let intact = content(&path).unwrap();
    assert_eq!(intact.len(), 40);
    let bytes = std::fs::read(&path).unwrap();
    let nonzero: Vec<usize> = (0..bytes.len()).filter(|offset| bytes[*offset] != 0).collect();
    let mut detected = 0;
    // Spread over everything that is used: the header, inner pages, records.
    for offset in nonzero.iter().step_by((nonzero.len() / 400).max(1)) {
        let mut damaged = bytes.clone();
        damaged[*offset] ^= 0x55;
        std::fs::write(&broken, &damaged).unwrap();
        match content(&broken) {
            // One object may be lost, and then that is known.
            Ok(actual) => {
                assert_eq!(actual.len(), intact.len(), "byte {offset}");
                let differences: Vec<_> =
                    actual.iter().zip(&intact).filter(|(actual, intact)| actual != intact).collect();
                assert!(
                    differences.iter().all(|(actual, _)| actual.ends_with(UNREADABLE)),
                    "byte {offset}: {differences:?}"
                );
                assert!(differences.len() <= 1, "byte {offset}: {differences:?}");
                detected += differences.len();
            }
            Err(EngineError::Damaged(_) | EngineError::Format { .. }) => detected += 1,
            Err(other) => panic!("byte {offset}: {other}"),
        }
    }
    assert!(detected > 10, "{detected} of 400: the damage must hit live pages too");

    std::fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    assert!(matches!(content(&broken), Err(EngineError::Damaged(_) | EngineError::Io(_))));
    std::fs::write(&broken, b"this is no database").unwrap();
    assert!(matches!(content(&broken), Err(EngineError::Damaged(_))));
}

#[actix_rt::test]
async fn damaged_record_is_detected_by_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.redb");
    written_file(&path).await;
    let pods = TypeName::new("pods");
    let mut engine = Redb::open(&path).unwrap();
    assert!(engine.damage(&pods, "k38").unwrap() && !engine.damage(&pods, "none").unwrap());
    drop(engine);
    let unreadable: Vec<String> =
        content(&path).unwrap().into_iter().filter(|text| text.ends_with(UNREADABLE)).collect();
    assert_eq!(unreadable, [format!("k38{UNREADABLE}")]);
    let stores = start(Box::new(Redb::open(&path).unwrap()), manual_options()).unwrap();
    let store = find(&stores, "pods").await;
    let get = |key| {
        store.send(Get { freshness: Freshness::Latest, key: Key::cluster(key), permit: Permit::none() })
    };
    assert!(!get("k38").await.unwrap().unwrap().is_readable());
    assert!(get("k37").await.unwrap().unwrap().is_readable());
}

#[actix_rt::test]
async fn open_of_newer_format_names_both_versions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.redb");
    drop(Redb::open(&path).unwrap());
    let database = redb::Database::create(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    let about = redb::TableDefinition::<&str, &str>::new("about");
    transaction.open_table(meta).unwrap().insert("format", 9).unwrap();
    transaction.open_table(about).unwrap().insert("version", "7.8.9").unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = Redb::open(&path).map(drop).unwrap_err().to_string();
    let expected = "the store is in format 9, this server reads formats 1 to 3: use version 7.8.9, which wrote it, or a newer one";
    assert_eq!(error, expected);
}

#[actix_rt::test]
async fn open_in_missing_directory_is_an_io_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = Redb::open(&folder.path().join("missing/log.redb")).map(drop).unwrap_err();
    assert!(matches!(error, EngineError::Io(_)), "{error}");
}

#[actix_rt::test]
async fn compacted_file_needs_no_repair_after_crash() {
    let folder = tempfile::tempdir().unwrap();
    let (path, image) = (folder.path().join("log.redb"), folder.path().join("image.redb"));
    let stores = start_stores(Box::new(Redb::open(&path).unwrap()), &manual_options());
    let pods = find(&stores, "pods").await;
    create(&pods, "a", "1").await.unwrap();
    // A copy of the open file is what a crash leaves.
    let crash = || {
        std::fs::copy(&path, &image).unwrap();
        let engine = Redb::open(&image).unwrap();
        (engine.repaired(), engine.stats().unwrap().records)
    };
    assert_eq!(crash(), (true, 1));
    assert_eq!(committer(&stores).send(Tidy).await.unwrap().unwrap(), 0);
    assert_eq!(crash(), (false, 1));
    create(&pods, "b", "1").await.unwrap();
    assert_eq!(crash(), (true, 2));
    stores.directory.send(Stop).await.unwrap().unwrap();
    assert_eq!(crash(), (false, 2));
}
