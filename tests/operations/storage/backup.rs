//! Backups of a running server, and what clients see after a restoration.

use std::fs;

use super::{MAPS, map, names, pilothouse};
use crate::support::Server;
use crate::support::compare::{revision, text};
use crate::support::server::{ON_FILE, USER_TOKEN, temp_directory};
use crate::support::wait::{TIMEOUT, poll};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

#[test]
fn restored_server_has_the_objects_of_the_backup_and_no_older_revisions() {
    let directory = temp_directory();
    let (data, restored, file) =
        (directory.path().join("data"), directory.path().join("restored"), directory.path().join("backup"));
    let server = Server::start_on_file(&data, &[]);
    let mut admin = server.admin();
    for name in ["changed", "deleted", "kept"] {
        admin.post(MAPS, &map(name, "before")).ok();
    }
    assert_eq!(admin.with_token(Some(USER_TOKEN)).get("/backup").status, 403);
    let backup = admin.get("/backup");
    assert_eq!(
        (backup.status, backup.header("content-type")),
        (200, Some("application/vnd.pilothouse.backup"))
    );
    fs::write(&file, &backup.body).expect("the backup");

    // After the backup: changes, and a type that it does not know.
    let mut changed = admin.get(&format!("{MAPS}/changed")).ok();
    changed["data"]["data"] = "after".into();
    let changed = admin.put(&format!("{MAPS}/changed"), &changed).ok();
    admin.delete(&format!("{MAPS}/deleted")).ok();
    admin.post(MAPS, &map("new", "after")).ok();
    let lease = serde_json::json!({"metadata": {"name": "new"}, "spec": {}});
    let lease = admin.post(LEASES, &lease).ok();
    let (_, last) = names(&mut admin);
    server.stop();

    let (file, restored) = (file.to_string_lossy(), restored.to_string_lossy());
    let output = pilothouse(&["inspect", &file]);
    let summary = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && summary.contains("\nconfigmaps "), "{output:?}");
    let output = pilothouse(&["inspect", &file, "--objects", "--resource=configmaps", "--namespace=default"]);
    let objects = String::from_utf8_lossy(&output.stdout);
    assert!(objects.lines().count() == 3 && objects.contains(r#""name":"deleted""#), "{objects}");
    let output = pilothouse(&["restore", &file, "--data-dir", &restored]);
    assert!(output.status.success(), "{output:?}");
    let output = pilothouse(&["restore", &file, "--data-dir", &restored]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("exists: move it away"), "{error}");

    let server = Server::start_on_file(restored.as_ref().as_ref(), &[]);
    let mut admin = server.admin();
    let (present, restored_at) = names(&mut admin);
    assert_eq!(present, ["changed", "deleted", "kept"]);
    assert_eq!(admin.get(&format!("{MAPS}/changed")).ok()["data"]["data"], "before");
    assert!(restored_at > last, "{restored_at} is not above {last}");
    assert_eq!(admin.get(LEASES).ok()["items"], serde_json::json!([]));
    for (collection, from) in [(MAPS, revision(&changed)), (MAPS, last), (LEASES, revision(&lease))] {
        let event = admin.watch(collection, &format!("resourceVersion={from}")).next();
        assert_eq!(
            (text(&event, "/type"), event["object"]["code"].as_u64()),
            ("ERROR", Some(410)),
            "{event}"
        );
    }
    let mut stale = changed;
    stale["data"]["data"] = "lost".into();
    admin.put(&format!("{MAPS}/changed"), &stale).expect_error(409, "Conflict");
    let created = admin.post(MAPS, &map("after-restore", "")).ok();
    assert!(revision(&created) > restored_at);
    let mut watch = admin.watch(MAPS, &format!("resourceVersion={restored_at}"));
    assert_eq!(text(&watch.next(), "/object/metadata/name"), "after-restore");
}

#[test]
fn second_restoration_of_a_backup_uses_no_revision_of_the_first() {
    let directory = temp_directory();
    let (data, file) = (directory.path().join("data"), directory.path().join("backup"));
    let server = Server::start_on_file(&data, &[]);
    fs::write(&file, server.admin().get("/backup").body).expect("the backup");
    server.stop();
    let (file, data_text) = (file.to_string_lossy(), data.to_string_lossy());
    let mut last = 0;
    for round in 0..2 {
        let output = pilothouse(&["restore", &file, "--data-dir", &data_text, "--replace"]);
        assert!(output.status.success(), "{output:?}");
        let server = Server::start_on_file(&data, &[]);
        let created = server.admin().post(MAPS, &map(&format!("round-{round}"), "")).ok();
        assert!(revision(&created) > last, "{created}");
        last = revision(&created);
        server.stop();
    }
}

#[test]
fn cut_backup_is_refused() {
    let server = Server::with_flags(&[ON_FILE]);
    let directory = temp_directory();
    let (file, data) = (directory.path().join("backup"), directory.path().join("data"));
    let backup = server.admin().get("/backup").body;
    fs::write(&file, &backup[..backup.len() - 1]).expect("the backup");
    let (file, data_text) = (file.to_string_lossy(), data.to_string_lossy());
    for command in [&["inspect", &file][..], &["restore", &file, "--data-dir", &data_text]] {
        let output = pilothouse(command);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("the backup is cut"), "{error}");
    }
    assert!(!data.join("pilothouse.redb").exists());
    fs::create_dir_all(&data).expect("a directory");
    fs::write(data.join("pilothouse.redb"), "the old store").expect("a store");
    let output = pilothouse(&["restore", &file, "--data-dir", &data_text, "--replace"]);
    assert!(!output.status.success(), "{output:?}");
    let kept = fs::read_to_string(data.join("pilothouse.redb")).expect("the old store");
    assert_eq!((kept.as_str(), fs::read_dir(&data).expect("a directory").count()), ("the old store", 1));
}

#[test]
fn scheduled_backups_are_made_and_the_oldest_removed() {
    let directory = temp_directory();
    let folder = directory.path().join("backups");
    let flag = format!("--backup-dir={}", folder.display());
    let server = Server::with_flags(&[ON_FILE, &flag, "--backup-interval=1s", "--backup-retention=2"]);
    let backups = || {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| name.ends_with(".backup"));
        names.sort_unstable();
        names
    };
    let first = poll(TIMEOUT, || backups().first().cloned()).expect("a first backup");
    let later = poll(TIMEOUT, || Some(backups()).filter(|names| names.len() == 2 && !names.contains(&first)));
    let later = later.expect("the first one is removed");
    let output = pilothouse(&["inspect", &folder.join(&later[0]).to_string_lossy()]);
    // The schedule may have removed it meanwhile.
    assert!(output.status.success() || !folder.join(&later[0]).exists(), "{output:?}");
    let metrics = server.admin().get("/metrics").text();
    assert!(metrics.contains("\npilothouse_backup_failures_total 0\n"), "{metrics}");
}

#[test]
fn backup_command_copies_running_and_stopped_servers() {
    let directory = temp_directory();
    let (data, online, offline) =
        (directory.path().join("data"), directory.path().join("online"), directory.path().join("offline"));
    let server = Server::start_on_file(&data, &[]);
    server.admin().post(MAPS, &map("kept", "")).ok();
    let kubeconfig = server.kubeconfig().to_string_lossy().into_owned();
    let output = pilothouse(&["backup", "--to", &online.to_string_lossy(), "--kubeconfig", &kubeconfig]);
    assert!(output.status.success(), "{output:?}");
    let data = data.to_string_lossy();
    let offline_command = ["backup", "--to", &*offline.to_string_lossy(), "--data-dir", &data];
    let output = pilothouse(&offline_command);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("is in use by another process"), "{error}");
    assert!(!offline.exists(), "nothing is left of a backup that failed");
    server.stop();
    let output = pilothouse(&offline_command);
    assert!(output.status.success(), "{output:?}");
    for file in [&online, &offline] {
        let output = pilothouse(&["inspect", &file.to_string_lossy(), "--objects", "--resource=configmaps"]);
        let objects = String::from_utf8_lossy(&output.stdout);
        assert!(objects.contains(r#""name":"kept""#), "{objects}");
    }
}
