//! An etcd whose database has reached its quota.

use pilothouse_etcd::messages::AlarmMember;
use pilothouse_etcd::testing::Options;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::support::compare::text;

const QUOTA: &str = "--quota-backend-bytes=8388608";
const LARGER_QUOTA: &str = "--quota-backend-bytes=67108864";

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Creates large objects until etcd refuses one. Returns how many there are.
fn create_until_full(admin: &mut Client) -> usize {
    let large = "x".repeat(400_000);
    for number in 0..40 {
        let response = admin.post(MAPS, &map(&format!("m{number}"), &large));
        match response.status {
            201 => {}
            507 => {
                let message = response.json()["message"].clone();
                assert_eq!(message, "etcdserver: mvcc: database space exceeded");
                return number;
            }
            other => panic!("{other}: {}", response.text()),
        }
    }
    panic!("etcd is never full");
}

fn disarm(replicas: &Replicas) {
    runtime().block_on(async {
        let client = replicas.etcd.client();
        let alarms: Vec<AlarmMember> = client.alarms().await.unwrap();
        for alarm in alarms {
            client.disarm(alarm).await.unwrap();
        }
    });
}

#[test]
fn full_etcd_refuses_what_needs_space_and_nothing_else() {
    let flags = vec![QUOTA.to_owned()];
    let etcd = runtime().block_on(Cluster::start(Options { flags, ..Options::default() }));
    let mut replicas = Replicas { etcd, directory: temp_directory() };
    let server = replicas.start("one");
    let mut admin = server.admin();
    admin.post(MAPS, &map("small", "before")).ok();
    let mut watch = admin.watch(MAPS, "fieldSelector=metadata.name%3Dm0");
    let created = create_until_full(&mut admin);
    assert!(created > 5, "{created}");
    assert_eq!(text(&watch.next(), "/type"), "ADDED");
    let advice = || server.log().contains("--quota-backend-bytes").then(|| server.log());
    let log = poll(TIMEOUT, advice).expect("the log says what to do");
    assert!(log.contains("disarm"), "{log}");
    let page = admin.get("/readyz?verbose");
    assert_eq!(page.status, 200, "it can be asked to delete: {}", page.text());
    assert!(
        page.text().contains("[+]storage-space ok: warning: the store has no space left"),
        "{}",
        page.text()
    );
    assert!(admin.get("/metrics").text().contains("\npilothouse_storage_space_level 2\n"));

    admin.get(&format!("{MAPS}/m1")).ok();
    assert_eq!(admin.put(&format!("{MAPS}/small"), &map("small", "after")).status, 507);
    admin.delete(&format!("{MAPS}/m0")).ok();
    assert_eq!(text(&watch.next(), "/type"), "DELETED");
    admin.get(&format!("{MAPS}/m0")).expect_error(404, "NotFound");
    assert_eq!(admin.get(&format!("{MAPS}/small")).ok()["data"]["value"], "before");

    // What the log advises.
    let member = &mut replicas.etcd.members[0];
    member.kill();
    member.add_flag(LARGER_QUOTA);
    member.start();
    disarm(&replicas);
    let is_written =
        || (admin.put(&format!("{MAPS}/small"), &map("small", "after")).status == 200).then_some(());
    poll(TIMEOUT, is_written).expect("writes succeed again");
    assert!(admin.get("/metrics").text().contains("\npilothouse_storage_space_level 0\n"));
}
