//! Stores of several servers over one shared log.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use pilothouse_actors::directory::{Find, Options, Stores};
use pilothouse_actors::encryption::NoEncryption;
use pilothouse_actors::event::{Change, Event};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::shared_log::memory::{Member, MemoryLog};
use pilothouse_actors::shared_storage::{SharedLogs, start};
use pilothouse_actors::store::write_turns::{TakeTurn, TurnMode};
use pilothouse_actors::store::{Create, Expire, Freshness, Get, GetSettled, ObjectResult, Replace, Store};
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Key, Object, Revision, StoredDraft, TypeName, UnreadableReason};

use crate::common::{draft, manual_options, object_text, open_watch, remove, rendered_object, window_events};

fn decode(key: &Key, value: &Bytes) -> Result<Draft, UnreadableReason> {
    let body = std::str::from_utf8(value).map_err(|_| UnreadableReason::Damaged)?;
    Ok(draft(key.as_str(), body))
}

/// One of the servers.
struct Server {
    member: Arc<Member>,
    stores: Stores,
    clock: Clock,
    pods: Addr<Store>,
}

impl Server {
    async fn start(log: &MemoryLog) -> Server {
        let member = log.member();
        let clock = Clock::manual(Timestamp(1_700_000_000_000_000));
        let options = Options { clock: clock.clone(), ..manual_options() };
        let stores = start(
            SharedLogs::single(Arc::clone(&member) as _),
            Arc::new(NoEncryption),
            HashSet::new(),
            options,
        )
        .await
        .unwrap();
        let pods = stores.directory.send(Find { type_name: TypeName::new("pods") }).await.unwrap().unwrap();
        Server { member, stores, clock, pods }
    }

    async fn create(&self, key: &str, body: &str) -> ObjectResult {
        let stored = Some(StoredDraft { bytes: Bytes::from(body.to_owned()), key_id: None });
        self.pods.send(Create { draft: draft(key, body), stored, permit: Permit::none() }).await.unwrap()
    }

    async fn replace(&self, key: &str, body: &str, expected: Revision) -> ObjectResult {
        let stored = Some(StoredDraft { bytes: Bytes::from(body.to_owned()), key_id: None });
        let (draft, permit) = (draft(key, body), Permit::none());
        self.pods.send(Replace { draft, stored, expected, permit, turn: None }).await.unwrap()
    }

    async fn remove(&self, key: &str, expected: Revision) -> ObjectResult {
        remove(&self.pods, key, expected).await
    }

    async fn get(&self, key: &str) -> ObjectResult {
        self.pods
            .send(Get { freshness: Freshness::Latest, key: Key::from_path(key), permit: Permit::none() })
            .await
            .unwrap()
    }

    /// All objects: keys, revisions and bytes.
    async fn objects(&self) -> Vec<(String, u64, String)> {
        let snapshot = open_watch(&self.pods).await.snapshot;
        let describe =
            |object: &Arc<Object>| (object.key.as_str().to_owned(), object.revision.0, object_text(object));
        snapshot.iter().map(describe).collect()
    }

    async fn events(&self) -> Vec<Arc<Event>> {
        window_events(&open_watch(&self.pods).await).await
    }

    /// Waits until the server has seen a revision, without asking the log.
    async fn wait_for(&self, revision: Revision) {
        let mut status = self.stores.follow_status().unwrap();
        let seen = status.wait_for(|status| status.is_complete(revision));
        tokio::time::timeout(Duration::from_secs(30), seen).await.unwrap().unwrap();
    }
}

async fn servers<const N: usize>(log: &MemoryLog) -> [Server; N] {
    let mut servers = Vec::new();
    for _ in 0..N {
        servers.push(Server::start(log).await);
    }
    servers.try_into().ok().unwrap()
}

fn revisions(events: &[Arc<Event>]) -> Vec<u64> {
    events.iter().map(|event| event.revision().0).collect()
}

#[actix_rt::test]
async fn answered_write_is_read_on_every_server() {
    let log = MemoryLog::new(decode);
    let [one, other] = servers(&log).await;
    for number in 0..50 {
        let (key, body) = (format!("ns/{number}"), format!("body {number}"));
        let created = one.create(&key, &body).await.unwrap();
        let read = other.get(&key).await.unwrap();
        assert_eq!((read.revision, object_text(&read)), (created.revision, object_text(&created)));
        assert_eq!(object_text(&read), rendered_object(&body, created.revision.0));
        let replaced = other.replace(&key, "new", created.revision).await.unwrap();
        assert_eq!(one.get(&key).await.unwrap().revision, replaced.revision);
        let removed = one.remove(&key, replaced.revision).await.unwrap();
        assert_eq!(
            (removed.revision, object_text(&removed)),
            (Revision(replaced.revision.0 + 1), rendered_object("new", removed.revision.0))
        );
        assert!(matches!(other.get(&key).await, Err(StoreError::NotFound)));
    }
    assert_eq!(revisions(&one.events().await), (2..=151).collect::<Vec<_>>());
    assert_eq!(revisions(&other.events().await), (2..=151).collect::<Vec<_>>());
}

#[actix_rt::test]
async fn write_is_refused_for_the_state_that_another_server_made() {
    let log = MemoryLog::new(decode);
    let [one, other] = servers(&log).await;
    let created = one.create("a", "1").await.unwrap();
    assert!(matches!(other.create("a", "2").await, Err(StoreError::Exists)));
    let replaced = other.replace("a", "2", created.revision).await.unwrap();
    let Err(StoreError::Conflict(current)) = one.replace("a", "3", created.revision).await else { panic!() };
    assert_eq!(current.revision, replaced.revision);
    let Err(StoreError::Conflict(current)) = one.remove("a", created.revision).await else { panic!() };
    assert_eq!(current.revision, replaced.revision);
    other.remove("a", replaced.revision).await.unwrap();
    assert!(matches!(one.replace("a", "3", replaced.revision).await, Err(StoreError::NotFound)));
    assert!(matches!(one.remove("a", replaced.revision).await, Err(StoreError::NotFound)));
    one.create("a", "4").await.unwrap();
    assert_eq!(one.objects().await, other.objects().await);
}

#[actix_rt::test]
async fn server_starts_with_everything_that_the_log_has() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    for key in ["a/1", "a/2", "b/1"] {
        one.create(key, key).await.unwrap();
    }
    let [late] = servers(&log).await;
    assert_eq!(late.objects().await, one.objects().await);
    assert_eq!(late.objects().await.len(), 3);
    let replaced = late.replace("a/2", "new", Revision(3)).await.unwrap();
    assert_eq!(revisions(&late.events().await), [2, 3, 4, replaced.revision.0], "the log still has them");
    log.compact();
    let [later] = servers(&log).await;
    assert_eq!(later.objects().await, one.objects().await);
    assert!(later.events().await.is_empty());
}

#[actix_rt::test]
async fn write_whose_answer_is_lost_is_unknown_and_its_change_arrives_if_it_was_written() {
    let log = MemoryLog::new(decode);
    let [one, other] = servers(&log).await;
    one.member.lose_answers(2);
    for key in ["lost", "also-lost"] {
        assert!(matches!(one.create(key, "").await, Err(StoreError::UnknownOutcome)));
    }
    assert_eq!(one.objects().await.len(), 1, "of two, one was written");
    assert_eq!(one.objects().await, other.objects().await);
    one.create("b", "").await.unwrap();
    assert_eq!(one.objects().await, other.objects().await);
}

/// Whoever frees what an object that was not stored had allocated must be certain that it is not.
#[actix_rt::test]
async fn settled_read_waits_for_the_writes_that_came_before() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    let settled = async |key: &str| {
        let command = GetSettled { key: Key::from_path(key), rollbacks: None, permit: Permit::none() };
        one.pods.send(command).await.unwrap()
    };
    let (created, object) = futures::join!(one.create("a", "1"), settled("a"));
    assert_eq!(object.unwrap().unwrap().revision, created.unwrap().revision);
    for key in ["lost", "also-lost"] {
        one.member.lose_answers(1);
        one.member.set_silent(true);
        let both_have_come = async {
            let get = Get { freshness: Freshness::Seen, key: Key::from_path("a"), permit: Permit::none() };
            one.pods.send(get).await.unwrap().unwrap();
            one.member.set_silent(false);
        };
        let (lost, object, ()) = futures::join!(one.create(key, ""), settled(key), both_have_come);
        assert!(matches!((lost, object), (Err(StoreError::UnknownOutcome), Err(StoreError::UnknownOutcome))));
    }
    assert!(settled("b").await.unwrap().is_none());
}

#[actix_rt::test]
async fn server_that_is_cut_off_refuses_reads_of_the_latest_state_until_it_is_back() {
    let log = MemoryLog::new(decode);
    let [one, other] = servers(&log).await;
    let created = one.create("a", "1").await.unwrap();
    one.member.set_cut_off(true);
    assert!(matches!(one.get("a").await, Err(StoreError::Unreachable)));
    assert!(matches!(one.create("b", "").await, Err(StoreError::Unreachable)));
    let replaced = other.replace("a", "2", created.revision).await.unwrap();
    one.member.set_cut_off(false);
    assert_eq!(one.get("a").await.unwrap().revision, replaced.revision);
}

#[actix_rt::test]
async fn changes_that_were_compacted_meanwhile_arrive_as_their_difference() {
    let log = MemoryLog::new(decode);
    let [one, other] = servers(&log).await;
    for key in ["changed", "kept", "removed"] {
        one.create(key, "before").await.unwrap();
    }
    let before = revisions(&one.events().await);
    let seen = one.stores.follow_status().unwrap().borrow().seen;
    one.member.set_cut_off(true);
    other.replace("changed", "between", Revision(2)).await.unwrap();
    other.replace("changed", "after", Revision(5)).await.unwrap();
    other.remove("removed", Revision(4)).await.unwrap();
    other.create("new", "after").await.unwrap();
    other.create("gone", "after").await.unwrap();
    other.remove("gone", Revision(9)).await.unwrap();
    log.compact();
    one.member.set_cut_off(false);
    one.wait_for(Revision(10)).await;
    assert_eq!(one.objects().await, other.objects().await);
    let events = one.events().await;
    let news = events.iter().filter(|event| event.revision() > seen);
    let news: Vec<_> =
        news.map(|event| (event.change, event.object.key.as_str().to_owned(), event.revision().0)).collect();
    assert_eq!(
        news,
        [
            (Change::Removed, "removed".to_owned(), 5),
            (Change::Replaced, "changed".to_owned(), 6),
            (Change::Created, "new".to_owned(), 8)
        ]
    );
    assert_eq!(before, [2, 3, 4]);
}

#[actix_rt::test]
async fn history_expires_although_nothing_is_trimmed() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    let mut revision = one.create("a", "").await.unwrap().revision;
    for number in 0..100 {
        revision = one.replace("a", &number.to_string(), revision).await.unwrap().revision;
    }
    let clock = &one.clock;
    clock.advance(Duration::from_secs(3_600));
    while one.pods.send(Expire).await.unwrap() > 0 {}
    assert!(one.events().await.is_empty());
}

/// Nothing has changed the type since the start, so the follower has not had to do with its store.
#[actix_rt::test]
async fn objects_of_a_quiet_type_that_are_gone_after_a_compaction_are_removed() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    for key in ["a", "b"] {
        one.create(key, "").await.unwrap();
    }
    let [late] = servers(&log).await;
    assert_eq!(late.objects().await.len(), 2);
    late.member.set_cut_off(true);
    one.remove("a", Revision(2)).await.unwrap();
    one.remove("b", Revision(3)).await.unwrap();
    log.compact();
    late.member.set_cut_off(false);
    assert!(matches!(late.get("a").await, Err(StoreError::NotFound)));
    assert_eq!(late.objects().await, []);
}

#[actix_rt::test]
async fn object_without_a_form_for_the_log_is_refused() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    let created = one.create("a", "").await.unwrap();
    let (draft, permit) = (draft("a", "new"), Permit::none());
    let replace = Replace { draft, stored: None, expected: created.revision, permit, turn: None };
    assert!(matches!(one.pods.send(replace).await.unwrap(), Err(StoreError::Unavailable)));
    assert_eq!(one.get("a").await.unwrap().revision, created.revision);
}

#[actix_rt::test]
async fn objects_that_are_removed_at_one_revision_are_removed_together() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    let keys = ["a", "b", "c", "d", "e"];
    for key in keys {
        one.create(key, key).await.unwrap();
    }
    log.expire(&TypeName::new("pods"), &keys.map(Key::cluster)[1..]);
    one.wait_for(Revision(7)).await;
    assert_eq!(one.objects().await.len(), 1);
    assert_eq!(revisions(&one.events().await), [2, 3, 4, 5, 6, 7, 7, 7, 7]);
}

mod faults;
mod freshness;
mod held;
mod past;
mod several_logs;

#[actix_rt::test]
async fn concurrent_increments_on_three_servers_are_all_counted() {
    const INCREMENTS: usize = 20;
    const TASKS: usize = 4;
    let log = MemoryLog::new(decode);
    let servers = Arc::new(servers::<3>(&log).await);
    servers[0].create("counter", "0").await.unwrap();
    let tasks = (0..3 * TASKS).map(|task| {
        let servers = Arc::clone(&servers);
        actix_rt::spawn(async move {
            for _ in 0..INCREMENTS {
                increment(&servers[task % 3]).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let total = 3 * TASKS * INCREMENTS;
    for server in &*servers {
        let counter = server.get("counter").await.unwrap();
        assert_eq!(object_text(&counter), rendered_object(&total.to_string(), 2 + total as u64));
        assert_eq!(revisions(&server.events().await), (2..=2 + total as u64).collect::<Vec<_>>());
    }
}

/// Adds one to the counter, as an update does: again after each conflict.
async fn increment(server: &Server) {
    loop {
        let take = TakeTurn { key: Key::cluster("counter"), turn: TurnMode::Always, permit: Permit::none() };
        let base = server.pods.send(take).await.unwrap().unwrap();
        let object = base.object.unwrap();
        let count: u64 = object.labels.get("body").unwrap().parse().unwrap();
        let body = (count + 1).to_string();
        let (draft, stored) =
            (draft("counter", &body), Some(StoredDraft { bytes: Bytes::from(body), key_id: None }));
        let (expected, permit) = (object.revision, Permit::none());
        let replace = Replace { draft, stored, expected, permit, turn: base.turn };
        match server.pods.send(replace).await.unwrap() {
            Ok(_) => return,
            Err(StoreError::Conflict(_) | StoreError::Busy) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
