//! The watch of all keys.

use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use pilothouse_etcd::limits::{CATCH_UP_REVISIONS, CATCH_UP_WATCHES};
use pilothouse_etcd::messages::CompactionRequest;
use pilothouse_etcd::testing::{Cluster, Flow, Options, Proxy};
use pilothouse_etcd::{AllKeysWatch, Client, Error, WatchItem};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::support::{PATIENCE, keys, put};

/// More than all watches have that are open at a time, and no whole number of them.
const REVISIONS: i64 = CATCH_UP_REVISIONS * (CATCH_UP_WATCHES as i64 + 1) + 7;

/// More than one watch has, and no whole number of them.
const FEW_REVISIONS: i64 = CATCH_UP_REVISIONS * 2 + 7;

/// A member that does not sync: many revisions are written.
async fn member() -> Cluster {
    let flags = vec!["--unsafe-no-fsync".to_owned()];
    Cluster::start(Options { flags, ..Options::default() }).await
}

/// A client whose connections can be cut.
async fn client_behind_proxy(cluster: &Cluster) -> (Client, Proxy) {
    let proxy = Proxy::start(cluster.members[0].port).await;
    let settings = cluster.settings_for([proxy.url()]);
    (Client::new(settings, Handle::current()).unwrap(), proxy)
}

/// Writes some revisions.
async fn write(client: &Client, count: i64) {
    let write = async |number: i64| {
        put(client, format!("k/{number}"), "1").await;
    };
    stream::iter(0..count).for_each_concurrent(256, write).await;
}

async fn next(watch: &mut AllKeysWatch) -> Result<WatchItem, Error> {
    timeout(PATIENCE, watch.next()).await.expect("the watch reports something")
}

/// Reads until this revision has come. Each must come once, in their order.
async fn read_through(watch: &mut AllKeysWatch, first: i64, last: i64) {
    let mut expected = first;
    while expected <= last {
        if let WatchItem::Revision(events) = next(watch).await.unwrap() {
            assert_eq!(events.revision, expected);
            expected += 1;
        }
    }
}

#[tokio::test]
async fn watch_that_is_far_behind_has_every_revision_once_and_goes_on() {
    let cluster = member().await;
    let client = cluster.client();
    let first = put(&client, "first", "1").await;
    write(&client, REVISIONS).await;
    let newest = first + REVISIONS;
    let mut watch = client.watch_all_keys(first);
    let WatchItem::Connected { revision, .. } = next(&mut watch).await.unwrap() else { panic!("no member") };
    assert_eq!(revision, newest);
    read_through(&mut watch, first, newest).await;
    assert_eq!(put(&client, "live", "1").await, newest + 1);
    match next(&mut watch).await.unwrap() {
        WatchItem::Revision(events) => assert_eq!(keys(&events), ["live"]),
        other => panic!("{other:?}: a reader is told once that there is a member"),
    }
}

#[tokio::test]
async fn watch_catches_up_while_connections_fail() {
    let cluster = member().await;
    let direct = cluster.client();
    let (client, proxy) = client_behind_proxy(&cluster).await;
    let first = put(&direct, "first", "1").await;
    write(&direct, FEW_REVISIONS).await;
    let mut watch = client.watch_all_keys(first);
    let mut expected = first;
    while expected <= first + FEW_REVISIONS {
        match next(&mut watch).await.unwrap() {
            WatchItem::Revision(events) => {
                assert_eq!(events.revision, expected);
                expected += 1;
                if (expected - first) % (CATCH_UP_REVISIONS * 2 / 3) == 0 {
                    proxy.cut();
                }
            }
            WatchItem::Disconnected(_) | WatchItem::Connected { .. } | WatchItem::Progress(_) => {}
        }
    }
    // All of them may have been on their way already. What comes now is not.
    proxy.cut();
    while !matches!(next(&mut watch).await.unwrap(), WatchItem::Disconnected(_)) {}
    let live = put(&direct, "live", "1").await;
    read_through(&mut watch, live, live).await;
}

#[tokio::test]
async fn watch_that_catches_up_stays_with_its_cluster() {
    let (cluster, other) = (member().await, member().await);
    let (old, new) = (Proxy::start(cluster.members[0].port).await, Proxy::start(other.members[0].port).await);
    let (here, there) = (cluster.client(), other.client());
    let first = put(&here, "first", "1").await;
    tokio::join!(write(&here, REVISIONS), write(&there, REVISIONS + 1));
    let client = Client::new(cluster.settings_for([old.url(), new.url()]), Handle::current()).unwrap();
    let mut watch = client.watch_all_keys(first);
    read_through(&mut watch, first, first).await;
    // The parts that are open may get all of theirs. Those that follow begin when the first one is read.
    sleep(Duration::from_secs(1)).await;
    old.set_flow(Flow::Nothing);
    old.cut();
    let error = loop {
        match next(&mut watch).await {
            Ok(WatchItem::Revision(events)) => assert!(events.revision < first + REVISIONS),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::ClusterChanged { .. }), "{error}");
}

#[tokio::test]
async fn watch_that_falls_far_behind_catches_up_once_more() {
    let cluster = member().await;
    let direct = cluster.client();
    let (client, proxy) = client_behind_proxy(&cluster).await;
    let first = put(&direct, "first", "1").await;
    let mut watch = client.watch_all_keys(first);
    read_through(&mut watch, first, first).await;
    proxy.cut();
    write(&direct, FEW_REVISIONS).await;
    read_through(&mut watch, first + 1, first + FEW_REVISIONS).await;
}

#[tokio::test]
async fn watch_of_all_keys_ends_where_revisions_were_compacted() {
    let cluster = member().await;
    let client = cluster.client();
    let first = put(&client, "first", "1").await;
    write(&client, CATCH_UP_REVISIONS * 2).await;
    let compacted = first + CATCH_UP_REVISIONS + 1;
    client.compact(CompactionRequest { revision: compacted, physical: true }).await.unwrap();
    let mut watch = client.watch_all_keys(first);
    let error = loop {
        match next(&mut watch).await {
            Ok(WatchItem::Revision(events)) => panic!("{events:?}"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::Compacted(Some(compacted)));
    assert_eq!(next(&mut watch).await, Err(error));
}
