//! A disk that stands still, and one that refuses writes for a while. `actors/tests/stores/failure/disk.rs` has the rest: the choice
//! of a page, of a sync, and the bytes that may wait.

use std::collections::BTreeSet;
use std::thread::{self, JoinHandle};

use super::small_disk::SmallDisk;
use super::{MAPS, map, names};
use crate::support::client::{Failure, JSON};
use crate::support::compare::text;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Response, Server};

const WRITERS: usize = 24;
const LARGE: usize = 900_000;

#[test]
fn disk_that_stands_still_delays_writes_and_nothing_else() {
    let disk = SmallDisk::mount(256 << 20);
    let mut server = Server::start_on_file(&disk.path().join("data"), &[]);
    let mut admin = server.admin();
    let (_, start) = names(&mut admin);
    admin.post(MAPS, &map("before", "")).ok();
    let mut watch = admin.watch(MAPS, &format!("resourceVersion={start}"));
    assert_eq!(text(&watch.next(), "/object/metadata/name"), "before");

    let frozen = disk.freeze();
    let writers: Vec<JoinHandle<Response>> = (0..WRITERS)
        .map(|number| {
            let mut client = server.admin();
            thread::spawn(move || client.post(MAPS, &map(&format!("after-{number}"), "")))
        })
        .collect();
    let mut is_slow = || admin.get("/livez/etcd").text().contains("has not answered within 2s");
    poll(TIMEOUT, || is_slow().then_some(())).expect("a health check that says so");
    assert_eq!(admin.get("/livez?exclude=etcd").status, 200);
    assert_eq!(names(&mut admin).0, ["before"], "reads go on, and show what is on disk");
    let mut again = admin.watch(MAPS, &format!("resourceVersion={start}"));
    assert_eq!(text(&again.next(), "/object/metadata/name"), "before", "so do watches");
    assert!(writers.iter().all(|writer| !writer.is_finished()), "nothing is acknowledged");
    drop(frozen);

    for writer in writers {
        assert_eq!(writer.join().expect("a writer").status, 201);
    }
    let told: Vec<String> =
        (0..WRITERS).map(|_| text(&watch.next(), "/object/metadata/name").to_owned()).collect();
    assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), WRITERS, "each is told once: {told:?}");
    assert_eq!(names(&mut admin).0.len(), WRITERS + 1);
    server.assert_healthy();
}

/// Creates objects until the server is gone. Returns the names of those that were acknowledged, and of those whose outcome is unknown.
fn create_until_the_end(client: &mut Client) -> (Vec<String>, Vec<String>) {
    let (mut created, mut unknown) = (Vec::new(), Vec::new());
    for number in 0..200 {
        let name = format!("object-{number:03}");
        let body = map(&name, &"x".repeat(LARGE)).to_string();
        match client.attempt("POST", MAPS, &JSON, body.as_bytes()) {
            Ok(response) if response.status == 201 => created.push(name),
            Ok(response) => {
                response.expect_error(503, "ServiceUnavailable");
                unknown.push(name);
            }
            Err(Failure::Unanswered(_)) => unknown.push(name),
            Err(Failure::Unsent(_)) => return (created, unknown),
        }
    }
    panic!("the disk took everything");
}

#[test]
fn disk_that_refuses_writes_for_a_while_ends_the_server_and_loses_nothing_acknowledged() {
    let disk = SmallDisk::mount_thin(256 << 20, 64 << 20);
    let data = disk.path().join("data");
    let server = Server::start_on_file(&data, &[]);
    let mut admin = server.admin();
    admin.post(MAPS, &map("before", "")).ok();
    disk.fill_below();
    let (created, unknown) = create_until_the_end(&mut admin);
    let (status, log) = server.wait_for_exit();
    assert!(!status.success() && !unknown.is_empty(), "{status}: {log}");
    assert!(log.contains("the log cannot be written: the store cannot be used: a sync failed: "), "{log}");

    disk.repair();
    let mut server = Server::start_on_file(&data, &[]);
    let mut admin = server.admin();
    let present: BTreeSet<String> = names(&mut admin).0.into_iter().collect();
    let acknowledged = created.iter().chain([&"before".to_owned()]).cloned().collect::<BTreeSet<_>>();
    assert!(present.is_superset(&acknowledged), "{acknowledged:?} in {present:?}");
    let possible: BTreeSet<String> = acknowledged.into_iter().chain(unknown).collect();
    assert!(present.is_subset(&possible), "{present:?} in {possible:?}");
    let written = poll(TIMEOUT, || (admin.post(MAPS, &map("after", "")).status == 201).then_some(()));
    written.expect("writes go on");
    server.assert_healthy();
}
