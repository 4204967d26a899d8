//! A store on a disk of 64 MB: what is refused when it is full, and what is not.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::small_disk::SmallDisk;
use super::{MAPS, map, names};
use crate::support::compare::text;
use crate::support::server::ON_FILE;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

/// The size of the disk.
const DISK_BYTES: u64 = 64 << 20;

fn start(data: &Path) -> Server {
    Server::start_on_file(data, &["--event-ttl=0"])
}

/// Creates large ConfigMaps until the store is full. Returns the names of those that were acknowledged.
fn create_until_full(client: &mut Client, prefix: &str) -> Vec<String> {
    let payload = "x".repeat(900_000);
    let mut created = Vec::new();
    loop {
        let name = format!("{prefix}-{:03}", created.len());
        let response = client.post(MAPS, &map(&name, &payload));
        match response.status {
            201 => created.push(name),
            507 => {
                let status = response.json();
                assert_eq!(text(&status, "/message"), "etcdserver: mvcc: database space exceeded");
                return created;
            }
            other => panic!("{other}: {}", response.text()),
        }
        assert!(created.len() < 80, "the disk is never full");
    }
}

/// Creates an object as soon as there is space again.
fn create_when_possible(client: &mut Client, name: &str) {
    let created = poll(TIMEOUT, || (client.post(MAPS, &map(name, "small")).status == 201).then_some(()));
    created.expect("space becomes available again");
}

#[test]
fn full_disk_refuses_growth_and_nothing_else() {
    let disk = SmallDisk::mount(DISK_BYTES);
    let data = disk.path().join("data");
    let mut server = start(&data);
    let mut admin = server.admin();
    admin.post(MAPS, &map("small", "before")).ok();
    let mut watch = admin.watch(MAPS, "fieldSelector=metadata.name%3Dsmall");
    assert_eq!(text(&watch.next(), "/type"), "ADDED");

    let large = create_until_full(&mut admin, "large");
    assert!(large.len() > 15, "only {} MB of 64 were used", large.len());
    let page = admin.get("/readyz?verbose").text();
    assert!(page.contains("[+]storage-space ok: warning: the store has no space left"), "{page}");
    assert!(admin.get("/metrics").text().contains("\npilothouse_storage_space_level 2\n"));
    assert_eq!(admin.get(&format!("{MAPS}/{}", large[0])).status, 200, "reads go on");
    let small = json!({"data": {"data": "changed"}, "metadata": {"finalizers": ["example.com/kept"]}});
    admin.patch(&format!("{MAPS}/small"), "merge", &small).ok();
    assert_eq!(text(&watch.next(), "/object/data/data"), "changed", "small updates and watches go on");

    for name in &large[..large.len() / 2] {
        admin.delete(&format!("{MAPS}/{name}")).ok();
    }
    create_when_possible(&mut admin, "again");
    server.assert_healthy();

    // Somebody else takes all space, also what the server has freed in its file: that is its own.
    let foreign = disk.fill();
    for name in &large[large.len() / 2..] {
        admin.delete(&format!("{MAPS}/{name}")).ok();
    }
    admin.delete(&format!("{MAPS}/small")).ok();
    admin.patch(&format!("{MAPS}/small"), "merge", &json!({"metadata": {"finalizers": null}})).ok();
    assert_eq!(admin.get(&format!("{MAPS}/small")).status, 404, "finalizers can be removed");
    server.assert_healthy();
    fs::remove_file(foreign).expect("the foreign file");
    create_when_possible(&mut admin, "last");

    let (before, _) = names(&mut admin);
    assert_eq!(before, ["again", "last"]);
    server.kill();
    let server = start(&data);
    assert_eq!(names(&mut server.admin()).0, before, "nothing that was acknowledged is lost");
}

#[test]
fn scheduled_backups_leave_space_for_the_store() {
    let disk = SmallDisk::mount(DISK_BYTES);
    let backups = disk.path().join("backups");
    let flags = ["--event-ttl=0", "--backup-interval=1s", &format!("--backup-dir={}", backups.display())];
    let mut server = Server::start_on_file(&disk.path().join("data"), &flags);
    let mut admin = server.admin();
    let payload = "x".repeat(900_000);
    for number in 0..25 {
        admin.post(MAPS, &map(&format!("large-{number}"), &payload)).ok();
        if server.log().contains("no backup was made") {
            break;
        }
    }
    let refused = || server.log().contains("the disk of the backups has too little space").then_some(());
    poll(TIMEOUT, refused).expect("a backup that has no space");
    admin.post(MAPS, &map("after", &payload)).ok();
    server.assert_healthy();
}

#[test]
fn store_file_becomes_smaller_while_the_server_runs() {
    let disk = SmallDisk::mount(DISK_BYTES);
    let data = disk.path().join("data");
    let server = Server::start_on_file(&data, &["--event-ttl=0", "--etcd-compaction-interval=1s"]);
    let mut admin = server.admin();
    let large = create_until_full(&mut admin, "large");
    let file = data.join("pilothouse.redb");
    let taken = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&file).expect("the store")) * 512;
    let full = taken();
    for name in &large {
        admin.delete(&format!("{MAPS}/{name}")).ok();
    }
    let smaller = poll(TIMEOUT, || (taken() < full / 4).then_some(()));
    assert!(smaller.is_some(), "{} of {full}: {}", taken(), server.log());
    admin.post(MAPS, &map("next", "")).ok();
}

#[test]
fn quota_refuses_growth_and_nothing_else() {
    let server = Server::with_flags(&[ON_FILE, "--quota-backend-bytes=20Mi"]);
    let mut admin = server.admin();
    let large = create_until_full(&mut admin, "large");
    assert!((10..25).contains(&large.len()), "{} objects of 0.9 MB", large.len());
    for name in &large {
        admin.delete(&format!("{MAPS}/{name}")).ok();
    }
    create_when_possible(&mut admin, "again");
}

/// Sixty versions of an object of 1 MB must not take the space of all of them.
#[test]
fn history_is_bounded_by_bytes() {
    let server = Server::with_flags(&[ON_FILE, "--history-bytes=64Mi", "--etcd-compaction-interval=1h"]);
    let mut admin = server.admin();
    admin.post(MAPS, &map("large", "")).ok();
    let body =
        |round: usize| json!({"data": {"data": format!("{round}{}", "x".repeat(900_000))}}).to_string();
    for round in 0..60 {
        let path = format!("{MAPS}/large");
        let response = admin.request("PATCH", &path, &[("Content-Type", JSON_MERGE)], body(round).as_bytes());
        assert_eq!(response.status, 200, "{}", response.text());
    }
    let file = server.data.join("pilothouse.redb");
    let taken = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(file).expect("the store")) * 512;
    assert!(taken < 40 << 20, "{taken} bytes for 8 MiB of history");
}

const JSON_MERGE: &str = "application/merge-patch+json";
