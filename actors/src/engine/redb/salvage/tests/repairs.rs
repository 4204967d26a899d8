//! Repairs of small stores: what is copied, what is said of the rest, and what happens to the files.

use std::os::unix::fs::chown;

use super::super::super::backup::RestoreError;
use super::super::super::pages::owner;
use super::*;

/// The closed store of a few objects without encryption, and what is in it.
fn small_store(path: &Path) -> (Vec<u8>, Model) {
    let choice = |object| Choice {
        of_type: 0,
        object,
        removes: false,
        is_step: false,
        is_encrypted: false,
        size: 700,
    };
    let stored = Stored::new(path, &(0..30).map(choice).collect::<Vec<_>>());
    fs::remove_file(path.with_extension("reserve")).unwrap();
    stored.images.into_iter().last().unwrap()
}

/// Where the record of an object is in the file.
fn record_of(salvage: &Salvage, key: &str) -> (usize, usize) {
    let live = salvage.types.iter().flat_map(|saved| &saved.live);
    let place = live.into_iter().find(|record| &*record.key == key).unwrap().place;
    (usize::try_from(place.offset).unwrap(), place.length)
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

fn lost_objects(salvage: &Salvage) -> Vec<(&str, Option<bool>)> {
    let lost = salvage.losses.iter().filter(|finding| finding.kind == FindingKind::LostObject);
    lost.map(|finding| (finding.key.as_deref().unwrap_or_default(), finding.is_saved)).collect()
}

#[test]
fn record_that_changes_while_it_is_copied_is_left_out_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let (path, to) = (folder.path().join("log"), folder.path().join("new"));
    let (bytes, model) = small_store(&path);
    for kept in [ALL, Kept { unreadable: true, ..ALL }] {
        let mut salvage = read(&path, &bytes);
        assert!(salvage.losses.is_empty());
        let (body, head) = (record_of(&salvage, "default/o7"), record_of(&salvage, "default/o9"));
        let mut damaged = bytes.clone();
        damaged[body.0 + body.1 - 1] ^= 1;
        damaged[head.0..head.0 + 16].fill(0);
        fs::write(&path, &damaged).unwrap();
        let restored = repair(&mut salvage, kept, &to, None, Revision(1_000)).unwrap();
        assert_eq!(restored.totals.records, model.live.len() as u64 - 2);
        let lost = [("default/o7", Some(false)), ("default/o9", Some(false))];
        assert_eq!(lost_objects(&salvage), lost);
        let mut expected = model.live.clone();
        expected.retain(|(_, key), _| !lost.iter().any(|(name, _)| name == key));
        assert_eq!(served(&to, |_| ()), expected);
        fs::remove_file(&to).unwrap();
    }
}

/// No checksum covers this byte: a wrong one may name an older transaction, and that must be said.
#[test]
fn wrong_byte_that_names_the_transaction_hides_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let choice = |object| Choice {
        of_type: 0,
        object,
        removes: false,
        is_step: false,
        is_encrypted: false,
        size: 700,
    };
    let stored = Stored::new(&path, &(0..30).map(choice).collect::<Vec<_>>());
    for (bytes, model) in &stored.images {
        for mask in 1..16 {
            let mut damaged = bytes.clone();
            damaged[GOD_BYTE] ^= mask;
            let salvage = read(&path, &damaged);
            let is_named = salvage.losses.iter().any(|finding| finding.kind == FindingKind::Transaction);
            assert!(is_named || saved(&salvage) == model.live, "{mask}");
        }
    }
}

#[test]
fn losses_say_what_became_of_each_object() {
    let folder = tempfile::tempdir().unwrap();
    let (path, to) = (folder.path().join("log"), folder.path().join("new"));
    let (bytes, _) = small_store(&path);
    let salvage = read(&path, &bytes);
    let ((offset, length), (head, _)) =
        (record_of(&salvage, "default/o7"), record_of(&salvage, "default/o20"));
    drop(salvage);
    let mut damaged = bytes;
    damaged[offset + length - 1] ^= 1;
    for unreadable in [false, true] {
        let mut salvage = read(&path, &damaged);
        repair(&mut salvage, Kept { uncertain: true, unreadable }, &to, None, Revision(1_000)).unwrap();
        assert_eq!(lost_objects(&salvage), [("default/o7", Some(unreadable))]);
        fs::remove_file(&to).unwrap();
    }
    // A later record is lost: all are in doubt, also the unreadable one.
    damaged[head..head + 64].fill(0);
    for (uncertain, unreadable, is_saved) in [(true, true, true), (false, true, false), (true, false, false)]
    {
        let mut salvage = read(&path, &damaged);
        repair(&mut salvage, Kept { uncertain, unreadable }, &to, None, Revision(1_000)).unwrap();
        assert_eq!(lost_objects(&salvage), [("default/o7", Some(is_saved))]);
        let in_doubt = salvage.losses.iter().filter(|finding| finding.kind == FindingKind::Uncertain);
        let in_doubt: Vec<Option<bool>> = in_doubt.map(|finding| finding.is_saved).collect();
        assert!(!in_doubt.is_empty() && in_doubt.iter().all(|is_saved| *is_saved == Some(uncertain)));
        fs::remove_file(&to).unwrap();
    }
}

#[test]
fn store_is_replaced_by_one_repair_alone_and_only_if_it_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let (path, aside) = (folder.path().join("log"), folder.path().join("log.aside"));
    let (bytes, model) = small_store(&path);
    fs::write(&path, &bytes).unwrap();
    let read_alone = || Salvage::read_alone(&path, &encryption());
    let mut salvage = read_alone().unwrap();
    assert!(matches!(read_alone(), Err(EngineError::Locked(_))));
    assert!(matches!(Salvage::read(&path, &encryption()), Err(EngineError::Locked(_))));
    assert!(matches!(Redb::open(&path), Err(EngineError::Locked(_))));

    // Somebody puts another store there meanwhile.
    let other = folder.path().join("other");
    fs::write(&other, "another store").unwrap();
    fs::rename(&path, folder.path().join("moved")).unwrap();
    fs::rename(&other, &path).unwrap();
    let error = repair(&mut salvage, ALL, &path, Some(&aside), Revision(1_000)).unwrap_err();
    assert!(matches!(error, RestoreError::Changed(_)), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"another store");
    assert_eq!(names_in(folder.path()), ["log", "moved"]);

    fs::rename(folder.path().join("moved"), &path).unwrap();
    repair(&mut salvage, ALL, &path, Some(&aside), Revision(1_000)).unwrap();
    drop(salvage);
    assert_eq!(names_in(folder.path()), ["log", "log.aside"]);
    assert_eq!((fs::read(&aside).unwrap(), saved(&open(&path))), (bytes, model.live));
}

#[test]
fn old_store_keeps_one_name_if_it_cannot_be_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (path, aside) = (folder.path().join("log"), folder.path().join("log.aside"));
    let (bytes, _) = small_store(&path);
    fs::write(&path, &bytes).unwrap();
    let mut salvage = Salvage::read_alone(&path, &encryption()).unwrap();
    // A file has that name already.
    fs::write(&aside, "older").unwrap();
    repair(&mut salvage, ALL, &path, Some(&aside), Revision(1_000)).unwrap_err();
    assert_eq!((fs::read(&path).unwrap(), fs::read(&aside).unwrap()), (bytes, b"older".to_vec()));
    assert_eq!(names_in(folder.path()), ["log", "log.aside"]);
}

#[test]
fn unfinished_files_of_killed_runs_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.redb");
    let (bytes, _) = small_store(&path);
    let [killed, running, other] =
        ["log.1.restoring", "log.2.restoring", "catalog.1.restoring"].map(|name| folder.path().join(name));
    for file in [&path, &killed, &running, &other] {
        fs::write(file, &bytes).unwrap();
    }
    let lock = PageFile::open_alone(&running).unwrap();
    let mut salvage = Salvage::read_alone(&path, &encryption()).unwrap();
    repair(&mut salvage, ALL, &path, Some(&folder.path().join("log.aside")), Revision(1_000)).unwrap();
    assert!(lock.is_locked());
    assert_eq!(names_in(folder.path()), ["catalog.1.restoring", "log.2.restoring", "log.aside", "log.redb"]);
}

#[test]
fn administrator_gives_the_new_store_to_the_owner_of_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let (path, to) = (folder.path().join("log"), folder.path().join("new"));
    let (bytes, _) = small_store(&path);
    fs::write(&path, &bytes).unwrap();
    // Only the administrator can set this up.
    let expected = if chown(&path, Some(4_711), Some(815)).is_ok() {
        (4_711, 815)
    } else {
        owner(&fs::metadata(&path).unwrap())
    };
    let mut salvage = open(&path);
    let restored = repair(&mut salvage, ALL, &to, None, Revision(1_000)).unwrap();
    assert!(restored.warnings.is_empty() && restored.is_durable, "{:?}", restored.warnings);
    assert_eq!(owner(&fs::metadata(&to).unwrap()), expected);
}
