//! How recent what readers get is, and types that become known later.

use pilothouse_actors::shared_log::type_changes::AddTypeError;
use pilothouse_actors::shared_log::{Proposal, ProposalOutcome, ProposedChange, SharedLog as _};

use super::*;
use crate::common::find;

async fn read(store: &Addr<Store>, key: &str, freshness: Freshness) -> ObjectResult {
    store.send(Get { key: Key::from_path(key), freshness, permit: Permit::none() }).await.unwrap()
}

/// Writes without a store of this server.
pub(super) async fn write(member: &Member, type_name: &str, key: &str, body: &str) -> Revision {
    let change = ProposedChange::Put(Bytes::from(body.to_owned()));
    let (type_name, key) = (TypeName::new(type_name), Key::from_path(key));
    match member.propose(Proposal { type_name, key, expected: None, change }).await {
        ProposalOutcome::Accepted(revision) => revision,
        refused => panic!("{refused:?}"),
    }
}

#[actix_rt::test]
async fn server_that_is_cut_off_serves_what_it_has_seen() {
    let log = MemoryLog::new(decode);
    let [one, other] = servers(&log).await;
    let created = one.create("a", "1").await.unwrap();
    one.member.set_cut_off(true);
    let replaced = other.replace("a", "2", created.revision).await.unwrap();
    let seen = read(&one.pods, "a", Freshness::Seen).await.unwrap();
    assert_eq!(seen.revision, created.revision);
    let at_least = read(&one.pods, "a", Freshness::AtLeast(created.revision)).await.unwrap();
    assert_eq!(at_least.revision, created.revision);
    let newer = read(&one.pods, "a", Freshness::AtLeast(replaced.revision)).await;
    assert!(matches!(newer, Err(StoreError::Unreachable)));
    one.member.set_cut_off(false);
    let newer = read(&one.pods, "a", Freshness::AtLeast(replaced.revision)).await.unwrap();
    assert_eq!(newer.revision, replaced.revision);
}

/// A question takes as long as a log may take that does not answer. Nobody waits for two of them.
#[actix_rt::test]
async fn readers_who_come_during_a_question_fail_with_it() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    let secrets = find(&one.stores, "secrets").await;
    one.member.set_silent(true);
    let questions = one.member.questions();
    let asker = tokio::task::spawn_local({
        let pods = one.pods.clone();
        async move { read(&pods, "a", Freshness::Latest).await }
    });
    while one.member.questions() == questions {
        tokio::task::yield_now().await;
    }
    let latecomers = tokio::task::spawn_local({
        let (pods, secrets) = (one.pods.clone(), secrets.clone());
        async move {
            let same_type = read(&pods, "a", Freshness::Latest);
            tokio::join!(same_type, read(&secrets, "a", Freshness::Latest))
        }
    });
    // So that they are asked for before the answer comes.
    for store in [&one.pods, &secrets] {
        let seen = read(store, "a", Freshness::Seen).await;
        assert!(matches!(seen, Err(StoreError::NotFound)), "{seen:?}");
    }
    one.member.set_cut_off(true);
    one.member.set_silent(false);
    let (same_type, other_type) = latecomers.await.unwrap();
    for result in [asker.await.unwrap(), same_type, other_type] {
        assert!(matches!(result, Err(StoreError::Unreachable)), "{result:?}");
    }
    assert_eq!(one.member.questions(), questions + 1);
}

#[actix_rt::test]
async fn quiet_type_learns_that_nothing_has_happened_to_it() {
    let log = MemoryLog::new(decode);
    let member = log.member();
    let options = Options { housekeeping_interval: Duration::from_millis(5), ..Options::default() };
    let stores =
        start(SharedLogs::single(Arc::clone(&member) as _), Arc::new(NoEncryption), HashSet::new(), options)
            .await
            .unwrap();
    let quiet = find(&stores, "secrets").await;
    let window = open_watch(&quiet).await.window;
    let newest = write(&member, "pods", "a", "").await;
    let learned = async {
        while window.seen() < newest {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), learned).await.unwrap();
    assert_eq!(window.head(), Revision(1), "it has no event of its own");
}

#[actix_rt::test]
async fn object_that_was_created_again_in_a_gap_is_removed_first() {
    let log = MemoryLog::new(decode);
    let [one, other] = servers(&log).await;
    one.create("a", "old").await.unwrap();
    let window = open_watch(&one.pods).await.window;
    one.member.set_cut_off(true);
    other.remove("a", Revision(2)).await.unwrap();
    other.create("b", "").await.unwrap();
    other.create("a", "new").await.unwrap();
    log.compact();
    one.member.set_cut_off(false);
    one.wait_for(Revision(5)).await;
    let events = one.events().await;
    let changes: Vec<_> = events.iter().map(|event| (event.change, event.revision().0)).collect();
    let (created, removed) = (Change::Created, Change::Removed);
    assert_eq!(changes, [(created, 2), (removed, 3), (created, 4), (created, 5)]);
    assert_eq!(one.objects().await, other.objects().await);
    let within: Vec<_> = (1..=6).filter(|cursor| window.gap_around(Revision(*cursor)).is_some()).collect();
    assert_eq!(within, [3, 4]);
}

#[actix_rt::test]
async fn type_that_becomes_known_later_begins_with_its_objects() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    let writer = log.member();
    let kites = TypeName::new("kites");
    one.member.ignore(kites.clone());
    for key in ["a", "b"] {
        write(&writer, "kites", key, key).await;
    }
    let newest = write(&writer, "pods", "p", "").await;
    one.wait_for(newest).await;
    let store = find(&one.stores, "kites").await;
    assert!(open_watch(&store).await.snapshot.is_empty());
    let type_changes = one.stores.type_changes.clone().unwrap();
    let (member, known) = (Arc::clone(&one.member), kites.clone());
    type_changes.add(kites.clone(), Box::new(move || member.know(&known))).await.unwrap();
    let third = write(&writer, "kites", "c", "c").await;
    one.wait_for(third).await;
    let position = open_watch(&store).await;
    let keys: Vec<_> = position.snapshot.iter().map(|object| object.key.as_str()).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    assert_eq!(position.window.floor(), newest, "its events before that are not known");
    assert_eq!(revisions(&window_events(&position).await), [third.0]);

    let (member, gone) = (Arc::clone(&one.member), kites.clone());
    type_changes.remove(kites.clone(), Box::new(move || member.ignore(gone))).await;
    let refused = type_changes.add(kites, Box::new(|| false)).await;
    assert_eq!(refused, Err(AddTypeError::Refused));
}

/// Writes go on while the objects of the type are read.
#[actix_rt::test]
async fn no_change_is_missed_while_a_type_becomes_known() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    let kites = TypeName::new("kites");
    one.member.ignore(kites.clone());
    let writer = log.member();
    let task = actix_rt::spawn(async move {
        for number in 0..300 {
            write(&writer, "kites", &format!("{number:03}"), "").await;
            tokio::task::yield_now().await;
        }
    });
    let type_changes = one.stores.type_changes.clone().unwrap();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    let (member, known) = (Arc::clone(&one.member), kites.clone());
    type_changes.add(kites, Box::new(move || member.know(&known))).await.unwrap();
    task.await.unwrap();
    one.wait_for(Revision(301)).await;
    let position = open_watch(&find(&one.stores, "kites").await).await;
    assert_eq!(position.snapshot.len(), 300);
    let floor = position.window.floor().0;
    assert!(1 < floor && floor < 301, "{floor}: it became known while others wrote");
    assert_eq!(revisions(&window_events(&position).await), (floor + 1..=301).collect::<Vec<_>>());
}
