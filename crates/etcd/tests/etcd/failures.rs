//! Members that are killed, paused or cut off.

use std::time::Duration;

use pilothouse_etcd::messages::{
    CompactionRequest, Compare, PutRequest, RangeRequest, TxnRequest, WatchCreateRequest,
};
use pilothouse_etcd::testing::{Cluster, Flow, Proxy};
use pilothouse_etcd::{Client, Error, Settings, WatchItem};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::support::{connected, keys, next, next_revision, put, put_surely, revision, until};

fn create(key: &'static str) -> TxnRequest {
    TxnRequest::when([Compare::is_absent(key)]).and_then(PutRequest::new(key, "1"))
}

#[tokio::test]
async fn lost_answer_to_a_write_is_an_unknown_outcome() {
    let cluster = Cluster::single().await;
    let direct = cluster.client();
    let proxy = Proxy::start(cluster.members[0].port).await;
    let client = Client::new(cluster.settings_for([proxy.url()]), Handle::current()).unwrap();
    put(&client, "k", "1").await;

    // It arrives, and its answer is lost.
    proxy.set_flow(Flow::RequestsOnly);
    let (result, ()) = tokio::join!(client.txn(create("applied")), async {
        let range = async || direct.range(RangeRequest::key("applied")).await.unwrap();
        until("the write arrives", async || range().await.count == 1).await;
        proxy.set_flow(Flow::Nothing);
        proxy.cut();
    });
    let error = result.unwrap_err();
    assert!(error.is_unknown_outcome(), "{error}");
    let text = error.to_string();
    assert!(text.contains("it is unknown whether Txn at") && text.contains(&proxy.url()), "{text}");

    // It does not arrive, which looks the same from here.
    proxy.set_flow(Flow::Open);
    assert_eq!(client.range(RangeRequest::key("applied")).await.unwrap().count, 1);
    proxy.set_flow(Flow::Nothing);
    let (result, ()) = tokio::join!(client.txn(create("lost")), async {
        // The transaction is sent while this sleeps; if it were not, it would be repeated and succeed.
        sleep(Duration::from_millis(100)).await;
        proxy.cut();
        proxy.set_flow(Flow::Open);
    });
    if let Err(error) = &result {
        assert!(error.is_unknown_outcome(), "{error}");
    }
    let count = direct.range(RangeRequest::key("lost")).await.unwrap().count;
    assert_eq!(count, i64::from(result.is_ok()));

    // A read is repeated.
    proxy.set_flow(Flow::RequestsOnly);
    let (result, ()) = tokio::join!(client.range(RangeRequest::key("k")), async {
        sleep(Duration::from_millis(50)).await;
        proxy.cut();
        proxy.set_flow(Flow::Open);
    });
    assert_eq!(result.unwrap().count, 1);
}

#[tokio::test]
async fn write_without_answer_in_time_is_an_unknown_outcome_and_a_read_is_late() {
    let cluster = Cluster::single().await;
    let mut settings = cluster.settings();
    settings.silence = Duration::from_secs(60);
    settings.keepalive_time = Duration::from_secs(60);
    let client = Client::new(settings, Handle::current()).unwrap();
    put(&client, "k", "1").await;
    cluster.members[0].pause();
    let hasty = client.with_timeout(Duration::from_millis(200));
    let write = hasty.put(PutRequest::new("k", "2")).await.unwrap_err();
    assert!(write.is_unknown_outcome(), "{write}");
    let read = hasty.range(RangeRequest::key("k")).await.unwrap_err();
    assert!(matches!(read, Error::Deadline { .. }), "{read}");
    cluster.members[0].resume();
    put(&client, "k", "3").await;
}

#[tokio::test]
async fn paused_member_is_left_for_another() {
    let cluster = Cluster::three().await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    // The follower is the first of the list, and a client that has connected to it stays there.
    let order = [follower, leader, (leader + 2) % 3].map(|index| cluster.members[index].url());
    let client = Client::new(cluster.settings_for(order.clone()), Handle::current()).unwrap();
    put(&client, "k", "1").await;
    let mut watch = client.resumable_watch(WatchCreateRequest::key("k", 0));
    assert_eq!(connected(&mut watch).await, order[0]);
    cluster.members[follower].pause();
    // Reads are repeated elsewhere, writes that were sent are not.
    assert_eq!(client.range(RangeRequest::key("k")).await.unwrap().count, 1);
    let second = put(&client, "k", "2").await;
    assert_eq!(next_revision(&mut watch).await.revision, second);
    // A client that begins now does not wait for the member that says nothing.
    let late = Client::new(cluster.settings_for(order), Handle::current()).unwrap();
    assert_eq!(late.range(RangeRequest::key("k")).await.unwrap().kvs[0].version, 2);
    cluster.members[follower].resume();
    let third = put(&client, "k", "3").await;
    assert_eq!(next_revision(&mut watch).await.revision, third);
}

#[tokio::test]
async fn killed_leader_loses_no_acknowledged_write_and_no_event() {
    let mut cluster = Cluster::three().await;
    let leader = cluster.leader().await;
    let order = [leader, (leader + 1) % 3, (leader + 2) % 3].map(|index| cluster.members[index].url());
    let client = Client::new(cluster.settings_for(order.clone()), Handle::current()).unwrap();
    let first = put(&client, "l/0", "1").await;
    let mut watch = client.resumable_watch(WatchCreateRequest::prefix("l/", first));
    assert_eq!(connected(&mut watch).await, order[0]);

    // A follower that still believes in the leader lets a write wait for 7 s.
    let writer = client.with_timeout(Duration::from_secs(1));
    let writes = tokio::spawn(async move {
        let mut acknowledged = vec![first];
        for index in 1..60 {
            acknowledged.push(put_surely(&writer, &format!("l/{index}"), "1").await);
        }
        acknowledged
    });
    sleep(Duration::from_millis(20)).await;
    cluster.members[leader].kill();
    let acknowledged = timeout(Duration::from_secs(60), writes).await.unwrap().unwrap();
    // Everything that was acknowledged is seen, in order and once; a write of unknown outcome may be seen in addition.
    let mut seen = Vec::new();
    while seen.last() != acknowledged.last() {
        let events = next_revision(&mut watch).await;
        assert_eq!(keys(&events).len(), 1);
        assert!(seen.last().is_none_or(|last| *last < events.revision), "{seen:?} {events:?}");
        seen.push(events.revision);
    }
    assert!(acknowledged.iter().all(|revision| seen.contains(revision)), "{acknowledged:?} {seen:?}");
    let range = client.range(RangeRequest::prefix("l/")).await.unwrap();
    assert_eq!(range.count, 60);

    // It comes back, and serves what it has missed.
    cluster.members[leader].start();
    let restarted = cluster.client_of(leader);
    assert_eq!(restarted.range(RangeRequest::prefix("l/")).await.unwrap().count, 60);
}

#[tokio::test]
async fn reads_go_on_while_members_are_restarted() {
    let mut cluster = Cluster::three().await;
    let client = cluster.client();
    let written = put(&client, "k", "1").await;
    for member in 0..3 {
        let ended = cluster.members[member].terminate();
        let reader = async {
            loop {
                let response = client.range(RangeRequest::key("k")).await.unwrap();
                assert_eq!(response.kvs[0].mod_revision, written);
            }
        };
        tokio::select! {
            () = reader => {}
            () = ended => {}
        }
        cluster.members[member].start();
        let restarted = cluster.client_of(member);
        assert_eq!(restarted.range(RangeRequest::key("k")).await.unwrap().count, 1);
    }
}

#[tokio::test]
async fn cluster_that_was_gone_is_used_again() {
    let mut cluster = Cluster::three().await;
    let client = cluster.client();
    let first = put(&client, "k", "1").await;
    let mut renewals = client.lease_keep_alive();
    let lease =
        client.lease_grant(pilothouse_etcd::messages::LeaseGrantRequest { ttl: 300, id: 0 }).await.unwrap();
    renewals.renew(lease.id).await.unwrap();
    let mut watch = client.resumable_watch(WatchCreateRequest::key("k", first + 1));
    connected(&mut watch).await;
    cluster.members.iter_mut().for_each(|member| member.kill());
    let hasty = client.with_timeout(Duration::from_millis(300));
    until("nobody can be reached", async || {
        matches!(hasty.range(RangeRequest::key("k")).await, Err(Error::NotReachable(failures)) if failures.len() == 3)
    })
    .await;
    let WatchItem::Disconnected(error) = next(&mut watch).await.unwrap() else { panic!("still connected") };
    assert!(!error.to_string().is_empty());
    cluster.members.iter_mut().for_each(|member| member.start());
    assert_eq!(client.range(RangeRequest::key("k")).await.unwrap().count, 1);
    let second = put_surely(&client, "k", "2").await;
    let mut seen = next_revision(&mut watch).await.revision;
    while seen < second {
        seen = next_revision(&mut watch).await.revision;
    }
    assert_eq!(renewals.renew(lease.id).await, Ok(300));
}

#[tokio::test]
async fn member_without_a_leader_refuses_and_serves_its_own_state() {
    let mut cluster = Cluster::three().await;
    put(&cluster.client(), "k", "1").await;
    let alone = cluster.client_of(0);
    until("the member has the key", async || {
        let own = RangeRequest { serializable: true, ..RangeRequest::key("k") };
        alone.range(own).await.unwrap().count == 1
    })
    .await;
    let mut watch = alone.resumable_watch(WatchCreateRequest::key("k", 0));
    connected(&mut watch).await;
    for member in &mut cluster.members[1..] {
        member.kill();
    }
    let hasty = alone.with_timeout(Duration::from_millis(500));
    until("the leader is lost", async || {
        matches!(hasty.put(PutRequest::new("k", "2")).await, Err(Error::NoLeader(_)))
    })
    .await;
    let error = hasty.range(RangeRequest::key("k")).await.unwrap_err();
    assert!(matches!(error, Error::NoLeader(_)), "{error}");
    let own = RangeRequest { serializable: true, ..RangeRequest::key("k") };
    assert_eq!(hasty.range(own).await.unwrap().count, 1);
    // A watch there would see nothing, so the member ends it.
    let item = next(&mut watch).await.unwrap();
    assert!(matches!(item, WatchItem::Disconnected(Error::NoLeader(_))), "{item:?}");
}

#[tokio::test]
async fn whoever_is_no_etcd_is_refused_with_the_reason() {
    let answers: [&'static [u8]; 3] =
        [b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0xff; 100], b"\0\0\0\x04\0\0\0\0\0\0\0\0\x07\0\0\0\0"];
    for answer in answers {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ended = stream.write_all(answer).await;
            }
        });
        let client = Client::new(Settings::new([url]), Handle::current()).unwrap();
        let client = client.with_timeout(Duration::from_millis(300));
        let error = client.put(PutRequest::new("k", "1")).await.unwrap_err();
        assert!(matches!(error, Error::NotReachable(_)), "{error}");
        server.abort();
    }
}

#[tokio::test]
async fn member_is_reached_by_a_socket_of_this_machine() {
    let cluster = Cluster::single().await;
    let path = cluster.folder().join("etcd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let port = cluster.members[0].port;
    let server = tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
    let url = format!("unix://{}", path.display());
    let client = Client::new(cluster.settings_for([url]), Handle::current()).unwrap();
    put(&client, "k", "1").await;
    server.abort();
}

#[tokio::test]
async fn watch_that_missed_a_compaction_says_so() {
    let cluster = Cluster::single().await;
    let direct = cluster.client();
    let proxy = Proxy::start(cluster.members[0].port).await;
    let client = Client::new(cluster.settings_for([proxy.url()]), Handle::current()).unwrap();
    let first = put(&direct, "k", "1").await;
    let mut watch = client.resumable_watch(WatchCreateRequest::key("k", first));
    assert_eq!(next_revision(&mut watch).await.revision, first);
    proxy.set_flow(Flow::Nothing);
    proxy.cut();
    assert!(matches!(next(&mut watch).await.unwrap(), WatchItem::Disconnected(_)));
    for _ in 0..3 {
        put(&direct, "k", "2").await;
    }
    let newest = put(&direct, "k", "3").await;
    direct.compact(CompactionRequest { revision: newest, physical: true }).await.unwrap();
    proxy.set_flow(Flow::Open);
    proxy.cut();
    let error = loop {
        match next(&mut watch).await {
            Ok(WatchItem::Revision(events)) => panic!("{events:?}"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::Compacted(Some(newest)));
}

#[tokio::test]
async fn watch_is_cut_often_and_sees_every_revision_once() {
    let cluster = Cluster::single().await;
    let direct = cluster.client();
    let proxy = Proxy::start(cluster.members[0].port).await;
    let client = Client::new(cluster.settings_for([proxy.url()]), Handle::current()).unwrap();
    let first = put(&direct, "c/0", "1").await;
    let mut watch = client.resumable_watch(WatchCreateRequest::prefix("c/", first));
    let writes = tokio::spawn(async move {
        let mut revisions = vec![first];
        for index in 0..100 {
            // Two large keys per revision, so that cuts fall into the middle of one.
            let txn = TxnRequest::when([])
                .and_then(PutRequest::new(format!("c/{index}/a"), vec![b'x'; 50_000]))
                .and_then(PutRequest::new(format!("c/{index}/b"), vec![b'x'; 50_000]));
            revisions.push(revision(direct.txn(txn).await.unwrap().header));
        }
        revisions
    });
    let mut seen = Vec::new();
    while seen.len() < 101 {
        let events = next_revision(&mut watch).await;
        assert_eq!(events.events.len(), if seen.is_empty() { 1 } else { 2 });
        seen.push(events.revision);
        if seen.len() % 10 == 0 {
            proxy.cut();
        }
    }
    assert_eq!(seen, writes.await.unwrap());
}

#[tokio::test]
async fn another_cluster_at_the_same_address_is_noticed() {
    let cluster = Cluster::single().await;
    let other = Cluster::single().await;
    let (old, new) = (Proxy::start(cluster.members[0].port).await, Proxy::start(other.members[0].port).await);
    let client = Client::new(cluster.settings_for([old.url(), new.url()]), Handle::current()).unwrap();
    let written = put(&client, "k", "1").await;
    let mut watch = client.resumable_watch(WatchCreateRequest::key("k", written));
    assert_eq!(next_revision(&mut watch).await.revision, written);
    for _ in 0..3 {
        put(&other.client(), "k", "1").await;
    }
    old.set_flow(Flow::Nothing);
    old.cut();
    let error = loop {
        if let Err(error) = next(&mut watch).await {
            break error;
        }
    };
    assert!(matches!(error, Error::ClusterChanged { .. }), "{error}");
}
