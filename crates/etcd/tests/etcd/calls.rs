//! Every call against one member.

use std::time::Duration;

use pilothouse_etcd::messages::{
    CompactionRequest, Compare, CompareResult, CompareValue, DeleteRangeRequest, LeaseGrantRequest,
    PutRequest, RangeRequest, TxnRequest,
};
use pilothouse_etcd::testing::{Cluster, Options};
use pilothouse_etcd::{Client, Error, Settings};
use tokio::runtime::Handle;

use crate::support::{put, revision};

#[tokio::test]
async fn keys_are_written_read_and_deleted() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    let first = put(&client, "k/a", "1").await;
    let response = client.put(PutRequest { prev_kv: true, ..PutRequest::new("k/a", "2") }).await.unwrap();
    assert_eq!(revision(response.header), first + 1);
    assert_eq!(response.prev_kv.unwrap().value, "1");
    put(&client, "k/b", "3").await;

    let newest = client.range(RangeRequest::prefix("k/")).await.unwrap();
    assert_eq!((newest.count, newest.more), (2, false));
    let [a, b] = newest.kvs.as_slice() else { panic!("{newest:?}") };
    assert_eq!((a.key.as_ref(), a.value.as_ref(), a.version), (&b"k/a"[..], &b"2"[..], 2));
    assert_eq!((a.create_revision, a.mod_revision), (first, first + 1));
    assert_eq!(b.key, "k/b");

    let read = async |request: RangeRequest| {
        let response = client.range(request).await.unwrap();
        response.kvs.into_iter().map(|kv| (kv.key.to_vec(), kv.value.to_vec())).collect::<Vec<_>>()
    };
    let pair = |key: &str, value: &str| (key.as_bytes().to_vec(), value.as_bytes().to_vec());
    let all = || RangeRequest::prefix("k/");
    assert_eq!(read(RangeRequest { revision: first, ..all() }).await, [pair("k/a", "1")]);
    assert_eq!(read(RangeRequest { limit: 1, ..all() }).await, [pair("k/a", "2")]);
    assert_eq!(read(RangeRequest { keys_only: true, limit: 1, ..all() }).await, [pair("k/a", "")]);
    assert_eq!(read(RangeRequest { count_only: true, ..all() }).await, []);
    assert_eq!(
        read(RangeRequest { serializable: true, ..RangeRequest::key("k/b") }).await,
        [pair("k/b", "3")]
    );
    assert_eq!(read(RangeRequest { min_mod_revision: first + 2, ..all() }).await, [pair("k/b", "3")]);
    assert_eq!(read(RangeRequest { max_mod_revision: first + 1, ..all() }).await, [pair("k/a", "2")]);

    let deleted = DeleteRangeRequest { prev_kv: true, ..DeleteRangeRequest::prefix("k/") };
    let deleted = client.delete_range(deleted).await.unwrap();
    assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (2, 2));
    assert_eq!(client.delete_range(DeleteRangeRequest::key("k/a")).await.unwrap().deleted, 0);
    assert_eq!(client.range(all()).await.unwrap().count, 0);
}

#[tokio::test]
async fn transactions_compare_and_return_the_current_value() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    let create = || {
        TxnRequest::when([Compare::is_absent("t")])
            .and_then(PutRequest::new("t", "1"))
            .or_else(RangeRequest::key("t"))
    };
    let created = client.txn(create()).await.unwrap();
    assert!(created.succeeded);
    let created = revision(created.header);
    let refused = client.txn(create()).await.unwrap();
    assert!(!refused.succeeded);
    assert_eq!(refused.range(0).unwrap().kvs[0].mod_revision, created);

    for (compare, holds) in [
        (Compare::mod_revision_is("t", created), true),
        (Compare::mod_revision_is("t", created + 1), false),
        (Compare::new("t", CompareResult::Greater, CompareValue::Version(0)), true),
        (Compare::new("t", CompareResult::Less, CompareValue::CreateRevision(created)), false),
        (Compare::new("t", CompareResult::Equal, CompareValue::Value("1".into())), true),
        (Compare::new("t", CompareResult::NotEqual, CompareValue::Lease(0)), false),
    ] {
        let response = client.txn(TxnRequest::when([compare.clone()])).await.unwrap();
        assert_eq!(response.succeeded, holds, "{compare:?}");
    }
    let swap = TxnRequest::when([Compare::mod_revision_is("t", created)])
        .and_then(PutRequest::new("t", "2"))
        .and_then(PutRequest::new("u", "2"));
    assert!(client.txn(swap).await.unwrap().succeeded);
    let both = client.range(RangeRequest::key("u")).await.unwrap();
    assert_eq!(both.kvs[0].mod_revision, created + 1);
}

#[tokio::test]
async fn compacted_and_future_revisions_are_told_apart() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    put(&client, "c", "1").await;
    let newest = put(&client, "c", "2").await;
    client.compact(CompactionRequest { revision: newest, physical: true }).await.unwrap();
    let read_at = |revision| RangeRequest { revision, ..RangeRequest::key("c") };
    assert_eq!(client.range(read_at(newest - 1)).await.unwrap_err(), Error::Compacted(None));
    assert_eq!(client.range(read_at(newest)).await.unwrap().kvs[0].value, "2");
    assert_eq!(client.range(read_at(newest + 1)).await.unwrap_err(), Error::FutureRevision);
    let again = client.compact(CompactionRequest { revision: newest, physical: false }).await;
    assert_eq!(again.unwrap_err(), Error::Compacted(None));
    let beyond = client.compact(CompactionRequest { revision: newest + 9, physical: false }).await;
    assert_eq!(beyond.unwrap_err(), Error::FutureRevision);
}

#[tokio::test]
async fn requests_that_etcd_refuses_have_changed_nothing() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    let error = client.put(PutRequest::new("", "1")).await.unwrap_err();
    assert_eq!(error.to_string(), "etcd has refused Put: etcdserver: key is not provided");
    let twice = TxnRequest::when([]).and_then(PutRequest::new("k", "1")).and_then(PutRequest::new("k", "2"));
    assert!(matches!(client.txn(twice).await.unwrap_err(), Error::Refused { .. }));
    // More than etcd takes, and more than this client sends.
    for size in [1_800_000, 3 << 20] {
        let error = client.put(PutRequest::new("k", vec![0; size])).await.unwrap_err();
        assert!(matches!(error, Error::RequestTooLarge(_)), "{error}");
    }
    assert_eq!(client.range(RangeRequest::key("k")).await.unwrap().count, 0);
}

#[tokio::test]
async fn leases_delete_their_keys() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    let granted = client.lease_grant(LeaseGrantRequest { ttl: 60, id: 77 }).await.unwrap();
    assert_eq!((granted.id, granted.ttl), (77, 60));
    client.put(PutRequest { lease: 77, ..PutRequest::new("l", "1") }).await.unwrap();
    let rest = client.lease_time_to_live(77, true).await.unwrap();
    assert_eq!((rest.granted_ttl, rest.keys.as_slice()), (60, &["l".into()][..]));
    assert!((1..=60).contains(&rest.ttl), "{rest:?}");

    let mut renewals = client.lease_keep_alive();
    for _ in 0..3 {
        assert_eq!(renewals.renew(77).await, Ok(60));
    }
    assert_eq!(renewals.renew(78).await, Err(Error::LeaseNotFound));
    assert_eq!(renewals.renew(77).await, Ok(60));

    client.lease_revoke(77).await.unwrap();
    assert_eq!(client.range(RangeRequest::key("l")).await.unwrap().count, 0);
    assert_eq!(client.lease_revoke(77).await.unwrap_err(), Error::LeaseNotFound);
    assert_eq!(client.lease_time_to_live(77, false).await.unwrap().ttl, -1);
    let orphan = client.put(PutRequest { lease: 77, ..PutRequest::new("l", "1") }).await;
    assert_eq!(orphan.unwrap_err(), Error::LeaseNotFound);
    let duplicate = LeaseGrantRequest { ttl: 60, id: 79 };
    client.lease_grant(duplicate).await.unwrap();
    assert!(matches!(client.lease_grant(duplicate).await.unwrap_err(), Error::Refused { .. }));
}

#[tokio::test]
async fn members_tell_how_they_are() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    let status = client.status().await.unwrap();
    assert!(status.version.starts_with("3."), "{status:?}");
    assert_eq!(status.header.unwrap().member_id, status.leader);
    let statuses = client.statuses().await;
    let [Ok(same)] = statuses.as_slice() else { panic!("{statuses:?}") };
    assert_eq!(same.header.unwrap().member_id, status.leader);
    let members = client.member_list().await.unwrap().members;
    assert_eq!(members[0].client_urls, [cluster.members[0].url()]);
    assert_eq!(client.alarms().await.unwrap(), []);

    put(&client, "s", "the value in the database").await;
    let mut snapshot = client.snapshot().await.unwrap();
    let mut database = Vec::new();
    while let Some(part) = snapshot.next().await.unwrap() {
        database.extend_from_slice(&part);
    }
    let value = b"the value in the database";
    assert!(database.windows(value.len()).any(|window| window == value));
}

#[tokio::test]
async fn pages_show_one_revision() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    // Later keys are larger, so that pages must become smaller.
    for index in 0..1_200_usize {
        let value = vec![b'v'; if index < 700 { 10 } else { 4_000 }];
        client.put(PutRequest::new(format!("p/{index:04}"), value)).await.unwrap();
    }
    let newest = revision(client.range(RangeRequest::key("p")).await.unwrap().header);
    let mut settings = cluster.settings();
    settings.max_response_bytes = 300_000;
    let small = Client::new(settings, Handle::current()).unwrap();
    let whole = small.range(RangeRequest::prefix("p/")).await.unwrap_err();
    assert_eq!(whole, Error::ResponseTooLarge { method: "Range", limit: 300_000 });

    let mut pages = small.pages(RangeRequest::prefix("p/")).with_page_bytes(100_000);
    let (mut keys, mut count) = (Vec::new(), 0);
    while let Some(page) = pages.next().await.unwrap() {
        assert_eq!(page.revision, newest);
        assert_eq!(page.count, 1_200 - i64::try_from(keys.len()).unwrap());
        keys.extend(page.kvs.iter().map(|kv| kv.key.clone()));
        count += 1;
        // What is written meanwhile is not seen.
        put(&client, format!("p/0000/{count}"), "new").await;
        put(&client, format!("p/zzzz/{count}"), "new").await;
    }
    assert!(count > 10, "{count} pages");
    let expected: Vec<String> = (0..1_200).map(|index| format!("p/{index:04}")).collect();
    assert_eq!(keys, expected);

    let mut limited = client.pages(RangeRequest { limit: 600, ..RangeRequest::prefix("p/") });
    let mut total = 0;
    while let Some(page) = limited.next().await.unwrap() {
        total += page.kvs.len();
    }
    assert_eq!(total, 600);
}

#[tokio::test]
async fn many_calls_share_few_connections() {
    let cluster = Cluster::single().await;
    let mut settings = cluster.settings();
    (settings.connections, settings.max_calls_in_flight) = (2, 50);
    let client = Client::new(settings, Handle::current()).unwrap();
    let puts = (0..500).map(|index| put(&client, format!("m/{index}"), "1"));
    let mut revisions = futures::future::join_all(puts).await;
    revisions.sort_unstable();
    revisions.dedup();
    assert_eq!(revisions.len(), 500);
    assert_eq!(client.range(RangeRequest::prefix("m/")).await.unwrap().count, 500);
}

#[tokio::test]
async fn full_database_refuses_writes_until_the_alarm_is_disarmed() {
    let flags = vec!["--quota-backend-bytes=1048576".to_owned()];
    let cluster = Cluster::start(Options { flags, ..Options::default() }).await;
    let client = cluster.client();
    let error = loop {
        if let Err(error) = client.put(PutRequest::new("q", vec![1; 200_000])).await {
            break error;
        }
    };
    assert_eq!(error, Error::NoSpace);
    assert!(error.to_string().contains("--quota-backend-bytes"), "{error}");
    crate::support::until("the alarm", async || !client.alarms().await.unwrap().is_empty()).await;
    let alarms = client.alarms().await.unwrap();
    assert!(alarms.iter().all(|alarm| alarm.is_no_space()), "{alarms:?}");
    // Reads and deletions succeed.
    assert_eq!(client.delete_range(DeleteRangeRequest::key("q")).await.unwrap().deleted, 1);
    assert_eq!(client.range(RangeRequest::key("q")).await.unwrap().count, 0);
    assert_eq!(client.put(PutRequest::new("q", "1")).await.unwrap_err(), Error::NoSpace);
    client.disarm(alarms[0]).await.unwrap();
    assert_eq!(client.alarms().await.unwrap(), []);
}

#[tokio::test]
async fn nobody_to_be_reached_is_told_with_every_reason() {
    // Nobody listens at a port that was bound and is free again.
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let urls = [format!("http://{}", free()), "unix:///nowhere/etcd.sock".to_owned()];
    let client = Client::new(Settings::new(urls.clone()), Handle::current()).unwrap();
    let client = client.with_timeout(Duration::from_millis(200));
    for error in [
        client.range(RangeRequest::key("k")).await.unwrap_err(),
        client.put(PutRequest::new("k", "1")).await.unwrap_err(),
    ] {
        let Error::NotReachable(failures) = error else { panic!("{error}") };
        let mut endpoints: Vec<_> = failures.iter().map(|failure| failure.endpoint.clone()).collect();
        endpoints.sort_unstable();
        assert_eq!(endpoints, urls);
        assert!(failures.iter().all(|failure| failure.reason.starts_with("dial ")), "{failures:?}");
    }
    let empty = Client::new(Settings::new(Vec::<String>::new()), Handle::current());
    assert!(matches!(empty.map(|_| ()), Err(Error::Settings(_))));
}
