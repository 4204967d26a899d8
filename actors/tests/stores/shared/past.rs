//! States from before the window, which only the log knows.

use pilothouse_actors::point_in_time::{PointInTimeError, snapshot_at};
use pilothouse_actors::shared_log::SharedLogError;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::Position;

use super::*;

type State = Vec<(String, u64, String)>;

/// What a snapshot has: keys, revisions and bytes.
fn described(snapshot: &Snapshot) -> State {
    let describe =
        |object: &Arc<Object>| (object.key.as_str().to_owned(), object.revision.0, object_text(object));
    snapshot.iter().map(describe).collect()
}

async fn state_at(position: &Position, revision: u64) -> Result<State, PointInTimeError> {
    let snapshot = snapshot_at(position, Revision(revision), |_| true).await?;
    assert_eq!(snapshot.revision, Revision(revision));
    Ok(described(&snapshot))
}

/// Forgets the history in memory, and states that were read.
async fn expire(server: &Server) {
    server.clock.advance(Duration::from_secs(3_600));
    while server.pods.send(Expire).await.unwrap() > 0 {}
}

/// Writes, and returns what there was after each revision from the second on.
async fn write_states(server: &Server) -> Vec<State> {
    let mut states = Vec::new();
    for number in 0..10 {
        let key = format!("ns/{}", number % 4);
        match server.get(&key).await {
            Ok(present) if number % 3 == 0 => server.remove(&key, present.revision).await.unwrap(),
            Ok(present) => server.replace(&key, &format!("again {number}"), present.revision).await.unwrap(),
            Err(_) => server.create(&key, &format!("first {number}")).await.unwrap(),
        };
        states.push(server.objects().await);
    }
    server.create("ns/stays", "unchanged").await.unwrap();
    states.push(server.objects().await);
    states
}

#[actix_rt::test]
async fn states_from_before_the_window_are_read_from_the_log_until_it_is_compacted() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    let states = write_states(&one).await;
    for (revision, state) in (2..).zip(&states) {
        expire(&one).await;
        let position = open_watch(&one.pods).await;
        assert_eq!(position.window.floor(), position.snapshot.revision, "nothing is left of the history");
        assert_eq!(state_at(&position, revision).await.as_ref(), Ok(state), "at {revision}");
    }
    let position = open_watch(&one.pods).await;
    let newest = position.snapshot.revision.0;
    assert_eq!(state_at(&position, newest + 1).await, Err(PointInTimeError::Gone), "nobody knows the future");

    log.compact();
    expire(&one).await;
    one.create("ns/new", "").await.unwrap();
    let position = open_watch(&one.pods).await;
    assert_eq!(state_at(&position, newest - 1).await, Err(PointInTimeError::Gone));
    assert_eq!(state_at(&position, newest).await.as_ref(), Ok(states.last().unwrap()));
}

#[actix_rt::test]
async fn state_shares_what_is_unchanged_and_pays_for_the_rest() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    let (kept, changed) =
        (one.create("kept", "").await.unwrap(), one.create("changed", "old").await.unwrap());
    let replaced = one.replace("changed", "new", changed.revision).await.unwrap();
    expire(&one).await;
    let position = open_watch(&one.pods).await;
    let mut reserved = 0;
    let count = |bytes| {
        reserved += bytes;
        true
    };
    let past = snapshot_at(&position, changed.revision, count).await.unwrap();
    assert!(Arc::ptr_eq(past.get("kept").unwrap(), position.snapshot.get("kept").unwrap()));
    assert_eq!(past.get("changed").unwrap().revision, changed.revision);
    assert!(reserved >= "changed".len() + "old".len(), "{reserved}");
    let again = snapshot_at(&position, changed.revision, |_| panic!("it is in memory")).await.unwrap();
    assert!(Arc::ptr_eq(again.get("changed").unwrap(), past.get("changed").unwrap()));
    assert!(replaced.revision > changed.revision && changed.revision > kept.revision);
}

#[actix_rt::test]
async fn state_is_refused_if_memory_or_the_log_is_missing() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    let created = one.create("a", "1").await.unwrap();
    one.replace("a", "2", created.revision).await.unwrap();
    expire(&one).await;
    let position = open_watch(&one.pods).await;
    let refused = snapshot_at(&position, created.revision, |_| false).await;
    assert_eq!(refused.unwrap_err(), PointInTimeError::TooLarge);
    one.member.set_cut_off(true);
    let unavailable = state_at(&position, created.revision.0).await;
    assert_eq!(
        unavailable,
        Err(PointInTimeError::Unavailable(SharedLogError::Unavailable("it is cut off".into())))
    );
    one.member.set_cut_off(false);
    assert!(state_at(&position, created.revision.0).await.is_ok());
}
