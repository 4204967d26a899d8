//! An etcd whose database has reached its quota.

use pilothouse_etcd::messages::AlarmMember;
use pilothouse_etcd::testing::Options;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::support::compare::text;

const QUOTA_BYTES: i64 = 8 << 20;
const LARGER_QUOTA: &str = "--quota-backend-bytes=67108864";

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Creates objects until etcd refuses one that is larger than what is left. What is left is enough for deletions: etcd 3.5.1 refuses them,
/// too, once its database is larger than its quota, because they are transactions.
fn create_until_full(replicas: &Replicas, admin: &mut Client) -> usize {
    let database_bytes = || {
        let status = runtime().block_on(async { replicas.etcd.client().status().await }).unwrap();
        status.db_size
    };
    let mut count = 0;
    while database_bytes() < QUOTA_BYTES - 900_000 {
        admin.post(MAPS, &map(&format!("m{count}"), &"x".repeat(150_000))).ok();
        count += 1;
    }
    let refused = admin.post(MAPS, &map("too-large", &"x".repeat(1_000_000)));
    assert_eq!(refused.status, 507, "{}", refused.text());
    assert_eq!(refused.json()["message"], "etcdserver: mvcc: database space exceeded");
    count
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
    // Otherwise etcd writes to its file once in a while, and its size grows by megabytes then.
    let each_write = "--backend-batch-limit=1".to_owned();
    let flags = vec![format!("--quota-backend-bytes={QUOTA_BYTES}"), each_write];
    let etcd = runtime().block_on(Cluster::start(Options { flags, ..Options::default() }));
    let mut replicas = Replicas { etcd, directory: temp_directory() };
    let server = replicas.start("one");
    let mut admin = server.admin();
    admin.post(MAPS, &map("small", "before")).ok();
    let mut watch = admin.watch(MAPS, "fieldSelector=metadata.name%3Dm0");
    let created = create_until_full(&replicas, &mut admin);
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
