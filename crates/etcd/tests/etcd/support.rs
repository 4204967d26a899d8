//! What the tests share.

use std::time::Duration;

use pilothouse_etcd::messages::{Event, PutRequest, ResponseHeader};
use pilothouse_etcd::{Client, Error, ResumableWatch, RevisionEvents, WatchItem};
use tokio::time::{sleep, timeout};

/// How long anything may take that happens sooner or later.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
pub async fn until<F: AsyncFnMut() -> bool>(what: &str, mut condition: F) {
    let wait = async {
        while !condition().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("it does not happen: {what}"));
}

/// The revision of an answer.
pub fn revision(header: Option<ResponseHeader>) -> i64 {
    header.unwrap().revision
}

/// Writes a key, and returns the revision.
pub async fn put(client: &Client, key: impl Into<String>, value: impl Into<String>) -> i64 {
    revision(client.put(PutRequest::new(key.into(), value.into())).await.unwrap().header)
}

/// Writes a key again and again until that has succeeded for certain, and returns the revision of the last time.
pub async fn put_surely(client: &Client, key: &str, value: &str) -> i64 {
    loop {
        match client.put(PutRequest::new(key.to_owned(), value.to_owned())).await {
            Ok(response) => return revision(response.header),
            Err(Error::UnknownOutcome { .. } | Error::NotReachable(_) | Error::NoLeader(_)) => {
                sleep(Duration::from_millis(10)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// The name of the key of an event.
pub fn key(event: &Event) -> String {
    String::from_utf8(event.kv.as_ref().unwrap().key.to_vec()).unwrap()
}

/// The keys of the events of a revision.
pub fn keys(events: &RevisionEvents) -> Vec<String> {
    events.events.iter().map(key).collect()
}

/// The next item of a watch, which must come.
pub async fn next(watch: &mut ResumableWatch) -> Result<WatchItem, Error> {
    timeout(PATIENCE, watch.next()).await.expect("the watch reports something")
}

/// The next revision of a watch, whatever happens to its connection.
pub async fn next_revision(watch: &mut ResumableWatch) -> RevisionEvents {
    loop {
        if let WatchItem::Revision(events) = next(watch).await.unwrap() {
            return events;
        }
    }
}

/// Waits until the watch has a member.
pub async fn connected(watch: &mut ResumableWatch) -> String {
    loop {
        if let WatchItem::Connected { endpoint, .. } = next(watch).await.unwrap() {
            return endpoint;
        }
    }
}
