//! Watches against one member.

use pilothouse_etcd::messages::{
    CompactionRequest, DeleteRangeRequest, EventType, PutRequest, TxnRequest, WatchCreateRequest, WatchFilter,
};
use pilothouse_etcd::testing::{Cluster, Options};
use pilothouse_etcd::{Error, WatchItem, WatchUpdate};

use crate::support::{connected, key, keys, next, next_revision, put, revision};

#[tokio::test]
async fn watch_reports_every_revision_whole() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    let first = put(&client, "w/a", "1").await;
    let both = TxnRequest::when([])
        .and_then(PutRequest::new("w/b", "1"))
        .and_then(PutRequest::new("other", "1"))
        .and_then(DeleteRangeRequest::key("w/a"));
    let both = revision(client.txn(both).await.unwrap().header);
    let request = WatchCreateRequest { prev_kv: true, ..WatchCreateRequest::prefix("w/", first) };
    let mut watch = client.watch(request).await.unwrap();
    assert_eq!(watch.created().revision, both);

    let mut revisions = Vec::new();
    for _ in 0..2 {
        let WatchUpdate::Revision(events) = watch.next().await.unwrap() else { panic!("no events") };
        revisions.push(events);
    }
    assert_eq!([revisions[0].revision, revisions[1].revision], [first, both]);
    assert_eq!(keys(&revisions[0]), ["w/a"]);
    assert_eq!(revisions[0].events[0].prev_kv, None);
    let mut events = revisions.remove(1).events;
    events.sort_by_key(key);
    assert_eq!(events.iter().map(key).collect::<Vec<_>>(), ["w/a", "w/b"]);
    assert_eq!(events[0].kind, i32::from(EventType::Delete));
    assert_eq!(events[0].prev_kv.as_ref().unwrap().value, "1");

    let live = put(&client, "w/c", "1").await;
    let WatchUpdate::Revision(events) = watch.next().await.unwrap() else { panic!("no events") };
    assert_eq!((events.revision, keys(&events)), (live, vec!["w/c".to_owned()]));
}

#[tokio::test]
async fn watch_leaves_out_what_is_filtered() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    let filters = vec![WatchFilter::NoPut.into()];
    let request = WatchCreateRequest { filters, ..WatchCreateRequest::key("f", 1) };
    let mut watch = client.watch(request).await.unwrap();
    put(&client, "f", "1").await;
    let deleted = client.delete_range(DeleteRangeRequest::key("f")).await.unwrap();
    let WatchUpdate::Revision(events) = watch.next().await.unwrap() else { panic!("no events") };
    assert_eq!(events.revision, revision(deleted.header));
}

#[tokio::test]
async fn large_responses_come_in_parts_and_are_put_together() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    // Together far more than etcd puts into one part, and revisions that a part boundary falls into.
    let mut first = None;
    for index in 0..8 {
        let keys = ["a", "b", "c"].map(|name| format!("g/{index}/{name}"));
        let txn = keys
            .into_iter()
            .fold(TxnRequest::when([]), |txn, key| txn.and_then(PutRequest::new(key, vec![b'x'; 400_000])));
        let written = revision(client.txn(txn).await.unwrap().header);
        first.get_or_insert(written);
    }
    let first = first.unwrap();
    let mut watch = client.resumable_watch(WatchCreateRequest::prefix("g/", first));
    for index in 0..8 {
        let events = next_revision(&mut watch).await;
        let expected = ["a", "b", "c"].map(|name| format!("g/{index}/{name}"));
        assert_eq!((events.revision, keys(&events)), (first + index, expected.to_vec()));
    }
}

#[tokio::test]
async fn quiet_watch_reports_progress() {
    let flags = vec!["--experimental-watch-progress-notify-interval=100ms".to_owned()];
    let cluster = Cluster::start(Options { flags, ..Options::default() }).await;
    let client = cluster.client();
    let mut watch = client.resumable_watch(WatchCreateRequest::prefix("n/", 0));
    connected(&mut watch).await;
    let newest = put(&client, "elsewhere", "1").await;
    loop {
        match next(&mut watch).await.unwrap() {
            WatchItem::Progress(revision) if revision >= newest => break,
            WatchItem::Progress(_) => {}
            item => panic!("{item:?}"),
        }
    }
    let mut stream = client.watch(WatchCreateRequest::prefix("n/", newest + 1)).await.unwrap();
    assert!(stream.request_progress());
    loop {
        match stream.next().await.unwrap() {
            WatchUpdate::RequestedProgress(revision) => break assert!(revision >= newest),
            WatchUpdate::Progress(_) => {}
            update => panic!("{update:?}"),
        }
    }
}

#[tokio::test]
async fn watch_of_compacted_revisions_tells_the_oldest_one() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    put(&client, "o", "1").await;
    let newest = put(&client, "o", "2").await;
    client.compact(CompactionRequest { revision: newest, physical: true }).await.unwrap();
    let mut watch = client.resumable_watch(WatchCreateRequest::key("o", newest - 1));
    connected(&mut watch).await;
    let error = Error::Compacted(Some(newest));
    assert_eq!(next(&mut watch).await, Err(error.clone()));
    assert_eq!(next(&mut watch).await, Err(error));
    let mut watch = client.resumable_watch(WatchCreateRequest::key("o", newest));
    assert_eq!(next_revision(&mut watch).await.revision, newest);
}

#[tokio::test]
async fn watch_from_a_revision_that_the_cluster_never_had_is_refused() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    let newest = put(&client, "k", "1").await;
    let mut watch = client.resumable_watch(WatchCreateRequest::key("k", newest + 5));
    let error = Error::RevisionRegressed { seen: newest + 4, current: newest };
    assert_eq!(next(&mut watch).await, Err(error));
}

#[tokio::test]
async fn slow_reader_holds_up_nobody_else() {
    let cluster = Cluster::single().await;
    let client = cluster.client();
    let mut watch = client.resumable_watch(WatchCreateRequest::prefix("s/", 0));
    connected(&mut watch).await;
    // More than all queues and windows hold.
    let mut revisions = Vec::new();
    for index in 0..40 {
        let key = format!("s/{index}");
        let response = client.put(PutRequest::new(key, vec![b'x'; 500_000])).await.unwrap();
        revisions.push(revision(response.header));
    }
    for expected in revisions {
        assert_eq!(next_revision(&mut watch).await.revision, expected);
    }
}
