//! Damaged stores: what a server says of them, what `check` names, and what `repair` saves.

use std::collections::BTreeMap;
use std::fs;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::{MAPS, map, names, pilothouse};
use crate::support::Server;
use crate::support::compare::{revision, text};
use crate::support::server::{ON_FILE, temp_directory};
use crate::support::wait::{TIMEOUT, poll};

const STORE: &str = "pilothouse.redb";
const PAGE: usize = 4_096;
/// The exit code for damage and losses.
const DAMAGED: i32 = 3;

/// A stopped server with ConfigMaps: their names with their resourceVersions, and the bytes of its store.
fn stopped_server(data: &Path) -> (BTreeMap<String, u64>, Vec<u8>) {
    let server = Server::start_on_file(data, &[]);
    let mut admin = server.admin();
    let mut maps = BTreeMap::new();
    let mut owner = Value::Null;
    for number in 0..60 {
        let name = format!("map-{number:02}");
        let mut object = map(&name, &format!("payload-{number:02}-{}", "x".repeat(700)));
        if number == 50 {
            let uid = text(&owner, "/metadata/uid");
            let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "map-13", "uid": uid});
            object["metadata"]["ownerReferences"] = json!([reference]);
        }
        let created = admin.post(MAPS, &object).ok();
        maps.insert(name, revision(&created));
        if number == 13 {
            owner = created;
        }
    }
    server.stop();
    (maps, fs::read(data.join(STORE)).expect("the store"))
}

/// Where these bytes are in the file, also in pages that are not used any more.
fn find(bytes: &[u8], wanted: &str) -> Vec<usize> {
    let wanted = wanted.as_bytes();
    let found = |start: &usize| bytes[*start..].starts_with(wanted);
    let places: Vec<usize> = (0..bytes.len() - wanted.len()).filter(found).collect();
    assert!(!places.is_empty());
    places
}

fn check(data: &Path) -> (Option<i32>, String) {
    let output = pilothouse(&["check", "--data-dir", &data.to_string_lossy()]);
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Repairs a store, and returns the lines of the report.
fn repair(data: &Path, flags: &[&str]) -> (Output, Vec<Value>) {
    let (data_text, report) = (data.to_string_lossy(), data.join("report"));
    let report_text = report.to_string_lossy();
    let arguments = [&["repair", "--data-dir", &data_text, "--report", &report_text], flags].concat();
    let output = pilothouse(&arguments);
    let report = fs::read_to_string(&report).unwrap_or_default();
    (output, report.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
}

fn of_kind<'a>(report: &'a [Value], kind: &str) -> Vec<&'a Value> {
    report.iter().filter(|line| line["kind"] == kind).collect()
}

/// The ConfigMaps of a server, and that nothing goes on from before the repair.
fn check_repaired(server: &Server, before: &BTreeMap<String, u64>) -> Vec<String> {
    let mut admin = server.admin();
    let (present, now) = names(&mut admin);
    let last = *before.values().max().expect("some maps");
    assert!(now > last, "{now} is not above {last}");
    let event = admin.watch(MAPS, &format!("resourceVersion={last}")).next();
    assert_eq!((text(&event, "/type"), event["object"]["code"].as_u64()), ("ERROR", Some(410)), "{event}");
    let created = admin.post(MAPS, &map("after-repair", "")).ok();
    assert!(revision(&created) > now);
    present
}

#[test]
fn store_with_a_damaged_record_head_is_refused_and_repaired_without_that_object() {
    let directory = temp_directory();
    let (data, new) = (directory.path().join("data"), directory.path().join("new"));
    let (maps, mut store) = stopped_server(&data);
    let output = pilothouse(&["check", &data.join(STORE).to_string_lossy()]);
    assert!(output.status.success(), "{output:?}");
    for place in find(&store, "default/map-13") {
        store[place] ^= 0x40;
    }
    fs::write(data.join(STORE), &store).expect("the damage");
    let failure = Server::try_start_in(&data, &[ON_FILE]).map(drop).expect_err("the store is damaged").stderr;
    for words in ["the store is damaged", "pilothouse check --data-dir", "pilothouse repair --data-dir"] {
        assert!(failure.contains(words), "{failure}");
    }

    // redb notes in the header that it was open.
    let store = fs::read(data.join(STORE)).expect("the store");
    let (code, found) = check(&data);
    let lost = maps["map-13"];
    assert!(
        code == Some(DAMAGED) && found.contains(&format!("configmaps at revision {lost}: a record")),
        "{found}"
    );
    let (output, report) = repair(&data, &["--to", &new.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(DAMAGED), "{output:?}");
    assert!(fs::read(data.join(STORE)).expect("the store") == store, "the damaged store was changed");
    let ranges: Vec<_> = of_kind(&report, "lost-records")
        .iter()
        .map(|line| (line["resource"].clone(), line["firstRevision"].as_u64(), line["lastRevision"].as_u64()))
        .collect();
    assert_eq!(ranges, [(json!("configmaps"), Some(lost), Some(lost))]);
    assert!(of_kind(&report, "lost-object").is_empty(), "{report:?}");
    let owners = of_kind(&report, "missing-owner");
    assert_eq!((owners.len(), &owners[0]["ownerName"]), (1, &json!("map-13")), "{report:?}");
    assert_eq!(owners[0]["example"], "configmaps default/map-50");
    let output =
        pilothouse(&["repair", "--data-dir", &data.to_string_lossy(), "--to", &new.to_string_lossy()]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && error.contains("exists: move it away"), "{error}");
    assert_eq!(check(&new).0, Some(0));

    let server = Server::start_on_file(&new, &[]);
    let expected: Vec<&String> = maps.keys().filter(|name| *name != "map-13").collect();
    assert_eq!(check_repaired(&server, &maps).iter().collect::<Vec<_>>(), expected);
    let output = pilothouse(&["check", "--data-dir", &new.to_string_lossy()]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && error.contains("is in use by another process"), "{error}");
}

#[test]
fn store_with_lost_pages_is_repaired_in_place() {
    let directory = temp_directory();
    let whole = directory.path().join("whole");
    let (maps, store) = stopped_server(&whole);
    let page_with =
        |wanted: &str| find(&store, wanted).into_iter().map(|place| place / PAGE).collect::<Vec<_>>();
    let branches = (1..store.len() / PAGE).filter(|page| store[page * PAGE] == 2).collect();
    for (number, (what, pages)) in
        [("the header", vec![0]), ("all branches", branches), ("a leaf", page_with("payload-30-"))]
            .into_iter()
            .enumerate()
    {
        let data = directory.path().join(format!("data-{number}"));
        fs::create_dir(&data).expect("a directory");
        let mut damaged = store.clone();
        for page in pages {
            damaged[page * PAGE..][..PAGE].fill(0);
        }
        fs::write(data.join(STORE), &damaged).expect("the damage");
        let failure = Server::try_start_in(&data, &[ON_FILE]).map(drop).expect_err(what).stderr;
        assert!(failure.contains("pilothouse check"), "{what}: {failure}");
        let (code, found) = check(&data);
        assert!(code == Some(DAMAGED) && found.contains("is not as it was written"), "{what}: {found}");
        let (output, report) = repair(&data, &["--replace"]);
        assert!(matches!(output.status.code(), Some(0 | DAMAGED)), "{what}: {output:?}");
        let files = fs::read_dir(&data).expect("the directory").map(|entry| entry.expect("an entry").path());
        let is_damaged = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "damaged");
        let kept: Vec<PathBuf> = files.filter(is_damaged).collect();
        assert_eq!(kept.len(), 1, "{kept:?}");
        assert!(fs::read(&kept[0]).expect("the damaged store") == damaged, "{what}: it was changed");

        let server = Server::start_on_file(&data, &[]);
        let present = check_repaired(&server, &maps);
        let lost: Vec<(&String, &u64)> = maps.iter().filter(|(name, _)| !present.contains(name)).collect();
        let ranges = of_kind(&report, "lost-records");
        for (name, revision) in &lost {
            let covers = |line: &&&Value| {
                line["resource"] == "configmaps"
                    && (line["firstRevision"].as_u64()..=line["lastRevision"].as_u64())
                        .contains(&Some(**revision))
            };
            assert!(ranges.iter().any(|line| covers(&line)), "{what}: {name} is not listed: {report:?}");
        }
        let is_leaf = what == "a leaf";
        assert_eq!(lost.iter().any(|(name, _)| *name == "map-30"), is_leaf, "{what}: {lost:?}");
        assert!(lost.is_empty() != is_leaf && lost.len() < 10, "{what}: {lost:?}");
        server.stop();
    }
}

#[test]
fn unreadable_object_is_dropped_or_kept_by_request() {
    let directory = temp_directory();
    let (data, new, kept) =
        (directory.path().join("data"), directory.path().join("new"), directory.path().join("kept"));
    let (maps, mut store) = stopped_server(&data);
    for place in find(&store, "payload-07-") {
        store[place] ^= 0x01;
    }
    fs::write(data.join(STORE), &store).expect("the damage");
    for (to, flags) in [(&new, &[][..]), (&kept, &["--keep-unreadable"])] {
        let to = to.to_string_lossy();
        let (output, report) = repair(&data, &[&["--to", &to], flags].concat());
        assert_eq!(output.status.code(), Some(DAMAGED), "{output:?}");
        let lost: Vec<_> =
            of_kind(&report, "lost-object").iter().map(|line| text(line, "/object").to_owned()).collect();
        assert_eq!(lost, ["default/map-07"]);
        let is_kept = !flags.is_empty();
        assert_eq!(of_kind(&report, "lost-object")[0]["saved"], is_kept, "{report:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let title =
            if is_kept { "Objects that cannot be read and are kept as such:" } else { "Lost objects:" };
        assert!(text.contains(&format!("{title}\n  configmaps default/map-07")), "{text}");
        assert!(
            of_kind(&report, "lost-records").is_empty() && of_kind(&report, "uncertain").is_empty(),
            "{report:?}"
        );
    }
    let server = Server::start_on_file(&new, &[]);
    let present = check_repaired(&server, &maps);
    assert!(present.len() == maps.len() - 1 && !present.contains(&"map-07".to_owned()), "{present:?}");
    server.stop();
    let server = Server::start_on_file(&kept, &[]);
    let mut admin = server.admin();
    assert_eq!(admin.get(&format!("{MAPS}/map-07")).status, 500);
    assert_eq!(admin.get(&format!("{MAPS}/map-08")).status, 200);
}

#[test]
fn losses_are_told_whatever_cannot_be_written() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let (_, mut store) = stopped_server(&data);
    for place in find(&store, "payload-07-") {
        store[place] ^= 0x01;
    }
    fs::write(data.join(STORE), &store).expect("the damage");
    let (data_text, missing) = (data.to_string_lossy(), directory.path().join("no-such-directory/report"));
    let missing = missing.to_string_lossy();
    let output = pilothouse(&["repair", "--data-dir", &data_text, "--replace", "--report", &missing]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && error.contains(&*missing), "{error}");
    assert!(fs::read(data.join(STORE)).expect("the store") == store, "the store was replaced");

    let full = OpenOptions::new().write(true).open("/dev/full").expect("a full device");
    let output = Command::new(env!("CARGO_BIN_EXE_pilothouse"))
        .args(["repair", "--data-dir", &data_text, "--replace"])
        .stdout(full)
        .output()
        .expect("the binary");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(DAMAGED), "{error}");
    for words in
        ["standard output cannot be written", "Lost objects:\n  configmaps default/map-07", ".damaged"]
    {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(check(&data).0, Some(0));
}

#[test]
fn transaction_that_is_left_out_is_damage_for_check_and_repair() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let (maps, mut store) = stopped_server(&data);
    // The header names the transaction before the last one.
    store[9] ^= 1;
    fs::write(data.join(STORE), &store).expect("the damage");
    let report = data.join("report");
    let report_text = report.to_string_lossy();
    let output = pilothouse(&["check", "--data-dir", &data.to_string_lossy(), "--report", &report_text]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.code() == Some(DAMAGED) && text.contains("the newest transaction was not complete"),
        "{text}"
    );
    let lines = fs::read_to_string(&report).expect("the report");
    let kinds: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["kind"].clone())
        .collect();
    assert_eq!(kinds, ["transaction"]);
    let (output, report) = repair(&data, &["--replace"]);
    assert_eq!(
        (output.status.code(), of_kind(&report, "transaction").len()),
        (Some(DAMAGED), 1),
        "{output:?}"
    );
    let server = Server::start_on_file(&data, &[]);
    assert_eq!(check_repaired(&server, &maps).len(), maps.len());
}

#[test]
fn store_cannot_be_used_while_it_is_replaced() {
    let directory = temp_directory();
    let (data, pipe) = (directory.path().join("data"), directory.path().join("pipe"));
    let server = Server::start_on_file(&data, &[]);
    let mut admin = server.admin();
    admin.post(MAPS, &map("kept", &"x".repeat(100_000))).ok();
    let backup = admin.get("/backup").body;
    server.stop();
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let data_text = data.to_string_lossy();
    let restoration = Command::new(env!("CARGO_BIN_EXE_pilothouse"))
        .args(["restore", &pipe.to_string_lossy(), "--data-dir", &data_text, "--replace"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary");
    let mut writer = File::options().write(true).open(&pipe).expect("the pipe");
    writer.write_all(&backup[..backup.len() / 2]).expect("the restoration reads");
    let is_locked = || {
        let output = pilothouse(&["check", "--data-dir", &data_text]);
        let error = String::from_utf8_lossy(&output.stderr);
        (output.status.code() == Some(1) && error.contains("is in use by another process")).then_some(())
    };
    poll(TIMEOUT, is_locked).expect("the store is locked");
    let failure = Server::try_start_in(&data, &[ON_FILE]).map(drop).expect_err("the store is locked").stderr;
    assert!(failure.contains("is in use by another process"), "{failure}");
    let output = pilothouse(&["repair", "--data-dir", &data_text, "--replace"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    writer.write_all(&backup[backup.len() / 2..]).expect("the restoration reads");
    drop(writer);
    let output = restoration.wait_with_output().expect("the restoration");
    assert!(output.status.success(), "{output:?}");
    let server = Server::start_on_file(&data, &[]);
    assert_eq!(names(&mut server.admin()).0, ["kept"]);
}

#[test]
fn check_tells_whole_backups_from_damaged_ones_and_from_other_files() {
    let directory = temp_directory();
    let file = directory.path().join("backup");
    let mut backup = Server::with_flags(&[ON_FILE]).admin().get("/backup").body;
    let check = |bytes: &[u8]| {
        fs::write(&file, bytes).expect("a file");
        let output = pilothouse(&["check", &file.to_string_lossy()]);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let (code, text) = check(&backup);
    assert!(code == Some(0) && text.contains("a backup, written by version"), "{text}");
    let (code, text) = check(&backup[..backup.len() - 1]);
    assert!(code == Some(DAMAGED) && text.contains("the backup is cut"), "{text}");
    let middle = backup.len() / 2;
    backup[middle] ^= 1;
    let (code, text) = check(&backup);
    assert!(code == Some(DAMAGED) && text.contains("a checksum is wrong"), "{text}");
    for other in [&b""[..], b"neither a store nor a backup"] {
        let (code, text) = check(other);
        assert!(code == Some(1) && text.contains("can be read"), "{text}");
    }
}
