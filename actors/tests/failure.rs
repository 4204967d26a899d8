//! What happens when the disk, a store or a file fails; named by the fear.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test they are how it fails")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix::{Addr, Handler, Message};
use common::*;
use futures::future::join_all;
use pilothouse_actors::broadcaster::Broadcaster;
use pilothouse_actors::committer::{Check, Flush, Tidy};
use pilothouse_actors::directory::{Find, Options, Release, Released, Stop, Stores, Types, start};
use pilothouse_actors::engine::faulty::{Fault, Faults, Faulty};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::engine::redb::Redb;
use pilothouse_actors::engine::{Engine, EngineError};
use pilothouse_actors::fatal::Fatal;
use pilothouse_actors::limits::{
    BATCH_WRITES, COMMITTER_WRITES, RECORD_BYTES, TRIM_PER_BATCH, TURNS_WAITING_PER_KEY,
    WRITES_WAITING_PER_KEY,
};
use pilothouse_actors::notifier::ChangeNotifiers;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::recover::recover;
use pilothouse_actors::store::write_turns::{TakeTurn, TurnMode};
use pilothouse_actors::store::{Create, Expire, Get, GetSettled, Replace, Store};
use pilothouse_actors::window::Read;
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object, Revision, TypeName};
use tokio::sync::Semaphore;

fn faulty(log: &Memory) -> (Stores, Faults) {
    let faults = Faults::default();
    (run(Box::new(Faulty::new(Box::new(log.clone()), faults.clone())), &quiet()), faults)
}

/// Lets other tasks run until the stores hold this many writes.
async fn held(stores: &Stores, writes: usize) {
    while stores.write_limiter.writes() != writes {
        actix_rt::task::yield_now().await;
    }
}

async fn a_failed_commit(fault: Fault, survives: bool) {
    let log = Memory::new();
    let (stores, faults) = faulty(&log);
    let (pods, nodes) = (find(&stores, "pods").await, find(&stores, "nodes").await);
    assert_eq!(create(&pods, "a", "1").await.unwrap().revision, Revision(2));
    faults.fail_after(0, fault);
    assert!(matches!(create(&pods, "b", "1").await, Err(StoreError::Unavailable)));
    assert!(stores.fatal.raised().unwrap().starts_with("the log cannot be written"));
    assert_eq!(stores.fatal.wait().await, stores.fatal.raised().unwrap());

    // No store takes a write any more; what was durable can still be read.
    assert!(matches!(create(&nodes, "a", "1").await, Err(StoreError::Unavailable)));
    assert!(matches!(replace(&pods, "a", "2", Revision(2)).await, Err(StoreError::Unavailable)));
    assert_eq!(faults.commits().len(), 2);
    let read = pods.send(Get { key: Key::cluster("a"), permit: Permit::none() }).await.unwrap();
    assert_eq!(read.unwrap().revision, Revision(2));
    assert!(pods.send(Get { key: Key::cluster("b"), permit: Permit::none() }).await.unwrap().is_err());
    assert!(stores.committer.send(Check).await.unwrap().is_err());
    assert!(stores.committer.send(Flush).await.unwrap().is_err());
    assert!(stores.directory.send(Stop).await.unwrap().is_err());

    // Recovery decides: the write is there as a whole or not at all, and the counter fits to it.
    let stores = run(Box::new(log), &quiet());
    let pods = find(&stores, "pods").await;
    let snapshot = position(&pods).await.snapshot;
    assert_eq!(snapshot.get("b").is_some(), survives);
    assert_eq!(snapshot.revision, Revision(if survives { 3 } else { 2 }));
    assert_eq!(create(&pods, "c", "1").await.unwrap().revision, snapshot.revision.next());
    stores.directory.send(Stop).await.unwrap().unwrap();
}

#[actix_rt::test]
async fn a_refused_commit_ends_the_server() {
    a_failed_commit(Fault::Refused, false).await;
}

#[actix_rt::test]
async fn a_sync_of_unknown_outcome_ends_the_server() {
    a_failed_commit(Fault::Unknown, true).await;
}

#[actix_rt::test]
async fn an_engine_that_panics_leaves_nobody_waiting() {
    a_failed_commit(Fault::Panic, false).await;
}

#[actix_rt::test]
async fn those_behind_a_failed_batch_are_told_too() {
    let (stores, faults) = faulty(&Memory::new());
    let (pods, nodes) = (find(&stores, "pods").await, find(&stores, "nodes").await);
    faults.fail_after(0, Fault::Refused);
    faults.hold();
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let writes = keys.iter().flat_map(|key| [create(&pods, key, ""), create(&nodes, key, "")]);
    // Two more that wait in their store for an earlier write of their key.
    let waiting = [replace(&pods, "k0", "", Revision(2)), replace(&nodes, "k0", "", Revision(2))];
    let answers = async { futures::join!(join_all(writes), join_all(waiting)) };
    let release = async {
        held(&stores, 42).await;
        faults.release();
    };
    let ((writes, waiting), ()) = futures::join!(answers, release);
    assert!(writes.iter().chain(&waiting).all(|answer| matches!(answer, Err(StoreError::Unavailable))));
    held(&stores, 0).await;
}

/// Kills the store that receives it.
#[derive(Message)]
#[rtype(result = "()")]
struct Crash;

impl Handler<Crash> for Store {
    type Result = ();

    fn handle(&mut self, _: Crash, _: &mut Self::Context) {
        panic!("a store panics");
    }
}

impl Handler<Crash> for Broadcaster {
    type Result = ();

    fn handle(&mut self, _: Crash, _: &mut Self::Context) {
        panic!("a broadcaster panics");
    }
}

#[actix_rt::test]
async fn a_broadcaster_that_panics_ends_the_server() {
    let (notifiers, fatal) = (ChangeNotifiers::default(), Fatal::new());
    let broadcaster = Broadcaster::begin(&notifiers, &fatal);
    assert!(broadcaster.send(Crash).await.is_err());
    assert_eq!(fatal.wait().await, "a broadcaster panicked");
}

#[actix_rt::test]
async fn a_store_that_panics_ends_the_server() {
    let (stores, faults) = faulty(&Memory::new());
    let (pods, nodes) = (find(&stores, "pods").await, find(&stores, "nodes").await);
    faults.hold();
    let kill = async {
        held(&stores, 1).await;
        assert!(pods.send(Crash).await.is_err());
        faults.release();
    };
    let (answer, ()) = futures::join!(create(&pods, "a", ""), kill);
    assert!(matches!(answer, Err(StoreError::Unavailable)), "its writers are told");
    assert_eq!(stores.fatal.wait().await, "the store of pods panicked");
    assert!(matches!(create(&nodes, "a", "").await, Err(StoreError::Unavailable)));
    let found = stores.directory.send(Find { type_name: TypeName::new("pods") }).await.unwrap();
    assert!(matches!(found, Err(StoreError::Unavailable)));
}

#[actix_rt::test]
async fn concurrent_writes_share_their_syncs() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    faults.hold();
    let keys: Vec<String> = (0..64).map(|n| format!("k{n}")).collect();
    let release = async {
        // The first batch has whatever was there; all others arrive while it syncs.
        held(&stores, 64).await;
        faults.wait_for_commits(1);
        faults.release();
    };
    let (answers, ()) = futures::join!(join_all(keys.iter().map(|key| create(&pods, key, ""))), release);
    let mut revisions: Vec<u64> = answers.into_iter().map(|answer| answer.unwrap().revision.0).collect();
    assert!(revisions.is_sorted());
    revisions.dedup();
    assert_eq!(revisions.len(), 64);
    stores.committer.send(Flush).await.unwrap().unwrap();
    let commits = faults.commits();
    assert_eq!(commits.iter().sum::<usize>(), 64);
    assert!(commits.len() <= 4, "{commits:?}");
}

#[actix_rt::test]
async fn batches_and_the_committer_are_bounded() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    faults.hold();
    let keys: Vec<String> = (0..COMMITTER_WRITES + 10).map(|n| format!("k{n}")).collect();
    let release = async {
        held(&stores, COMMITTER_WRITES).await;
        // Those who found no place are answered while the disk hangs.
        let late = create(&pods, "late", "").await;
        assert!(matches!(late, Err(StoreError::Busy)));
        faults.release();
    };
    let (answers, ()) = futures::join!(join_all(keys.iter().map(|key| create(&pods, key, ""))), release);
    let busy = answers.iter().filter(|answer| matches!(answer, Err(StoreError::Busy))).count();
    assert_eq!(busy, 10);
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), COMMITTER_WRITES);
    assert!(faults.commits().iter().all(|writes| *writes <= BATCH_WRITES));
    held(&stores, 0).await;
}

#[actix_rt::test]
async fn writers_of_one_key_take_turns() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    let first = create(&pods, "hot", "0").await.unwrap().revision;
    faults.hold();
    let bodies: Vec<String> = (0..WRITES_WAITING_PER_KEY + 3).map(|n| n.to_string()).collect();
    let writers = bodies.iter().map(|body| replace(&pods, "hot", body, first));
    let release = async {
        held(&stores, WRITES_WAITING_PER_KEY + 1).await;
        faults.release();
    };
    let (answers, ()) = futures::join!(join_all(writers), release);
    let count = |wanted: fn(&StoreError) -> bool| {
        answers.iter().filter(|answer| answer.as_ref().is_err_and(wanted)).count()
    };
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "one wins");
    assert_eq!(count(|error| matches!(error, StoreError::Busy)), 2);
    let conflicts = count(|error| matches!(error, StoreError::Conflict(now) if now.revision == Revision(3)));
    assert_eq!(conflicts, WRITES_WAITING_PER_KEY);
}

#[actix_rt::test]
async fn whoever_must_know_what_becomes_of_a_key_is_never_sent_away() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    let settled = |key| pods.send(GetSettled { key: Key::cluster(key), permit: Permit::none() });
    assert!(settled("hot").await.unwrap().unwrap().is_none());
    let first = create(&pods, "hot", "0").await.unwrap().revision;
    faults.hold();
    let bodies: Vec<String> = (0..=WRITES_WAITING_PER_KEY).map(|n| n.to_string()).collect();
    let writers = bodies.iter().map(|body| replace(&pods, "hot", body, first));
    let look = async {
        held(&stores, WRITES_WAITING_PER_KEY + 1).await;
        // No write of the key may wait any more, and no write at all is taken in.
        let late = replace(&pods, "hot", "", first).await;
        assert!(matches!(late, Err(StoreError::Busy)));
        let places: Vec<_> = std::iter::from_fn(|| stores.write_limiter.take(0)).collect();
        assert!(settled("cold").await.unwrap().unwrap().is_none(), "nothing of it is under way");
        let seen = settled("hot");
        faults.release();
        let seen = seen.await.unwrap().unwrap().unwrap();
        drop(places);
        seen
    };
    let (answers, seen) = futures::join!(join_all(writers), look);
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    assert_eq!(seen.revision, Revision(3), "as the writes before it left it");
    held(&stores, 0).await;

    faults.fail_after(0, Fault::Refused);
    faults.hold();
    let fail = async {
        held(&stores, 1).await;
        let seen = settled("hot");
        faults.release();
        seen.await.unwrap()
    };
    let (_, seen) = futures::join!(replace(&pods, "hot", "", seen.revision), fail);
    assert!(matches!(seen, Err(StoreError::Unavailable)));
    assert!(matches!(settled("hot").await.unwrap(), Err(StoreError::Unavailable)));
}

#[actix_rt::test]
async fn a_waiting_write_is_checked_against_what_came_before_it() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    faults.hold();
    let release = async {
        held(&stores, 4).await;
        let seen = position(&pods).await;
        assert!(
            seen.snapshot.is_empty() && events(&seen).await.is_empty(),
            "nothing is visible before it is durable"
        );
        faults.release();
    };
    let chain = join_all([
        futures::future::Either::Left(create(&pods, "a", "1")),
        futures::future::Either::Right(replace(&pods, "a", "2", Revision(2))),
    ]);
    let again = async {
        let removed = remove(&pods, "a", Revision(3)).await;
        (removed, create(&pods, "a", "4").await)
    };
    let blocked = create(&pods, "a", "no");
    let (chain, (removed, created), blocked, ()) = futures::join!(chain, again, blocked, release);
    let revisions: Vec<u64> = chain.into_iter().map(|answer| answer.unwrap().revision.0).collect();
    assert_eq!(revisions, [2, 3]);
    let removed = removed.unwrap();
    assert_eq!((removed.revision, text_of(&removed)), (Revision(4), text("2", 4)));
    // Two creates race for the free key, in the order in which they came.
    let won = [blocked.is_ok(), created.is_ok()];
    assert_eq!(won, [true, false]);
}

#[actix_rt::test]
async fn an_object_larger_than_a_record_is_refused() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    let huge = "x".repeat(RECORD_BYTES);
    assert!(matches!(create(&pods, "a", &huge).await, Err(StoreError::TooLarge)));
    assert!(faults.commits().is_empty());
}

#[actix_rt::test]
async fn a_graceful_stop_commits_what_was_accepted_and_tells_its_writers() {
    let log = Memory::new();
    let (stores, faults) = faulty(&log);
    let pods = find(&stores, "pods").await;
    faults.hold();
    let keys: Vec<String> = (0..300).map(|n| format!("k{n}")).collect();
    let stop = async {
        held(&stores, 300).await;
        let stopping = stores.directory.send(Stop);
        faults.release();
        stopping.await.unwrap().unwrap();
    };
    let (answers, ()) = futures::join!(join_all(keys.iter().map(|key| create(&pods, key, ""))), stop);
    assert!(answers.iter().all(Result::is_ok));
    let found = stores.directory.send(Find { type_name: TypeName::new("pods") }).await.unwrap();
    assert!(found.is_err(), "nothing starts again");
    assert_eq!(stores.fatal.raised(), None, "this is no failure");
    let stores = run(Box::new(log), &quiet());
    assert_eq!(position(&find(&stores, "pods").await).await.snapshot.len(), 300);
}

#[actix_rt::test]
async fn trimming_takes_bounded_steps_and_keeps_every_live_object() {
    let log = Memory::new();
    let faults = Faults::default();
    let clock = Clock::manual(Timestamp(1_000_000_000));
    let options = Options { clock: clock.clone(), history: Duration::from_secs(10), ..quiet() };
    let stores = run(Box::new(Faulty::new(Box::new(log.clone()), faults.clone())), &options);
    let pods = find(&stores, "pods").await;
    let mut revision = create(&pods, "hot", "0").await.unwrap().revision;
    create(&pods, "still", "0").await.unwrap();
    let rounds = TRIM_PER_BATCH + 100;
    for round in 0..rounds {
        revision = replace(&pods, "hot", &round.to_string(), revision).await.unwrap().revision;
    }
    clock.advance(Duration::from_secs(11));
    assert_eq!(pods.send(Expire).await.unwrap(), rounds + 2);
    let before = stores.committer.send(Check).await.unwrap().unwrap().records;
    assert_eq!(before, rounds as u64 + 2);
    while stores.committer.send(Tidy).await.unwrap().unwrap() > 0 {}
    assert_eq!(stores.committer.send(Check).await.unwrap().unwrap().records, 2);
    assert_eq!(faults.most_trims(), TRIM_PER_BATCH);
    stores.directory.send(Stop).await.unwrap().unwrap();

    let stores = run(Box::new(log), &options);
    let seen = position(&find(&stores, "pods").await).await;
    assert_eq!(seen.snapshot.get("hot").unwrap().revision, revision);
    assert_eq!(seen.snapshot.get("still").unwrap().revision, Revision(3));
    assert_eq!((seen.window.floor(), seen.window.head()), (revision, revision));
}

/// A closed file with some content.
async fn written_file(path: &Path) {
    let stores = run(Box::new(Redb::open(path).unwrap()), &quiet());
    let pods = find(&stores, "pods").await;
    for n in 0..40 {
        let made = create(&pods, &format!("k{n}"), &"body".repeat(n)).await.unwrap();
        if n % 3 == 0 {
            replace(&pods, &format!("k{n}"), "other", made.revision).await.unwrap();
        }
    }
    stores.directory.send(Stop).await.unwrap().unwrap();
}

/// Everything in a file, as text, or why it cannot be had.
fn content(path: &Path) -> Result<Vec<String>, EngineError> {
    let mut engine = Redb::open(path)?;
    let recovered = recover(&mut engine, Timestamp(0), 1 << 20)?;
    let shown = |object: &Arc<Object>| match object.is_readable() {
        true => text_of(object),
        false => format!("{}{UNREADABLE}", object.key.as_str()),
    };
    Ok(recovered.types.values().flat_map(|state| state.snapshot.iter().map(shown)).collect())
}

/// What stands behind the key of an object whose record is damaged.
const UNREADABLE: &str = " cannot be read";

#[actix_rt::test]
async fn a_locked_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.redb");
    let first = Redb::open(&path).unwrap();
    let error = Redb::open(&path).map(drop).unwrap_err();
    assert!(matches!(error, EngineError::Locked(_)));
    assert_eq!(error.to_string(), format!("{} is in use by another process", path.display()));
    drop(first);
    Redb::open(&path).unwrap();
}

#[actix_rt::test]
async fn a_damaged_file_is_refused_or_harmless_but_never_believed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, broken) = (folder.path().join("log.redb"), folder.path().join("broken.redb"));
    written_file(&path).await;
    let sound = content(&path).unwrap();
    assert_eq!(sound.len(), 40);
    let bytes = std::fs::read(&path).unwrap();
    let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let mut refused = 0;
    // Spread over everything that is used: the header, inner pages, records.
    for at in used.iter().step_by((used.len() / 400).max(1)) {
        let mut damaged = bytes.clone();
        damaged[*at] ^= 0x55;
        std::fs::write(&broken, &damaged).unwrap();
        match content(&broken) {
            // One object may be lost, and then that is known.
            Ok(found) => {
                assert_eq!(found.len(), sound.len(), "byte {at}");
                let differ: Vec<_> =
                    found.iter().zip(&sound).filter(|(found, sound)| found != sound).collect();
                assert!(differ.iter().all(|(found, _)| found.ends_with(UNREADABLE)), "byte {at}: {differ:?}");
                assert!(differ.len() <= 1, "byte {at}: {differ:?}");
                refused += differ.len();
            }
            Err(EngineError::Damaged(_) | EngineError::Format { .. }) => refused += 1,
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    assert!(refused > 10, "{refused} of 400: the damage must hit live pages too");

    std::fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    assert!(matches!(content(&broken), Err(EngineError::Damaged(_) | EngineError::Io(_))));
    std::fs::write(&broken, b"this is no database").unwrap();
    assert!(matches!(content(&broken), Err(EngineError::Damaged(_))));
}

#[actix_rt::test]
async fn a_damaged_record_is_found_by_its_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.redb");
    written_file(&path).await;
    let pods = TypeName::new("pods");
    let mut engine = Redb::open(&path).unwrap();
    assert!(engine.damage(&pods, "k38").unwrap() && !engine.damage(&pods, "none").unwrap());
    drop(engine);
    let lost: Vec<String> =
        content(&path).unwrap().into_iter().filter(|text| text.ends_with(UNREADABLE)).collect();
    assert_eq!(lost, [format!("k38{UNREADABLE}")]);
    let stores = start(Box::new(Redb::open(&path).unwrap()), quiet()).unwrap();
    let found = find(&stores, "pods").await;
    let get = |key| found.send(Get { key: Key::cluster(key), permit: Permit::none() });
    assert!(!get("k38").await.unwrap().unwrap().is_readable());
    assert!(get("k37").await.unwrap().unwrap().is_readable());
}

#[actix_rt::test]
async fn turns_at_one_object_come_in_order_and_end_by_themselves() {
    let stores = run(Box::new(Memory::new()), &quiet());
    let pods = find(&stores, "pods").await;
    let ask =
        |key| pods.send(TakeTurn { key: Key::cluster(key), turn: TurnMode::Always, permit: Permit::none() });
    let first = ask("a").await.unwrap().unwrap();
    let elsewhere = ask("b").await.unwrap().unwrap();
    let (mut second, gone, mut third) = (Box::pin(ask("a")), ask("a"), Box::pin(ask("a")));
    assert!(futures::poll!(&mut second).is_pending());
    // Nobody waits there any more, so it is passed over.
    drop(gone);
    assert!(futures::poll!(&mut third).is_pending());
    drop((first, elsewhere));
    let second = second.await.unwrap().unwrap();
    assert!(futures::poll!(&mut third).is_pending());
    drop(second);
    drop(third.await.unwrap().unwrap());
    ask("a").await.unwrap().unwrap();
    let mut waiting = Vec::new();
    let _holder = ask("a").await.unwrap().unwrap();
    for _ in 0..TURNS_WAITING_PER_KEY {
        let mut one = Box::pin(ask("a"));
        assert!(futures::poll!(&mut one).is_pending());
        waiting.push(one);
    }
    assert!(matches!(ask("a").await.unwrap(), Err(StoreError::Busy)));
}

#[actix_rt::test]
async fn whoever_gives_up_waiting_for_a_turn_leaves_its_place_to_others() {
    let stores = run(Box::new(Memory::new()), &quiet());
    let pods = find(&stores, "pods").await;
    let places = Arc::new(Semaphore::new(TURNS_WAITING_PER_KEY));
    let ask = |permit| pods.send(TakeTurn { key: Key::cluster("a"), turn: TurnMode::Always, permit });
    let holder = ask(Permit::none()).await.unwrap().unwrap();
    let mut waiting = Vec::new();
    for _ in 0..TURNS_WAITING_PER_KEY {
        let permit = Permit::holding(Arc::clone(&places).try_acquire_owned().unwrap());
        let mut one = Box::pin(ask(permit));
        assert!(futures::poll!(&mut one).is_pending());
        waiting.push(one);
    }
    assert!(matches!(ask(Permit::none()).await.unwrap(), Err(StoreError::Busy)));
    assert_eq!(places.available_permits(), 0);
    let last = waiting.pop();
    drop(waiting);
    // Their requests are over, though the turn that they waited for is not.
    let free = places.acquire_many(u32::try_from(TURNS_WAITING_PER_KEY - 1).unwrap());
    tokio::time::timeout(Duration::from_secs(5), free).await.unwrap().unwrap().forget();
    let mut late = Box::pin(ask(Permit::none()));
    assert!(futures::poll!(&mut late).is_pending());
    drop(holder);
    drop(last.unwrap().await.unwrap().unwrap());
    late.await.unwrap().unwrap();
}

#[actix_rt::test]
async fn changes_in_turn_build_on_each_other_and_become_durable_together() {
    const CHANGES: u64 = 20;
    let log = Memory::new();
    let (stores, faults) = faulty(&log);
    let pods = find(&stores, "pods").await;
    let first = create(&pods, "hot", "0").await.unwrap().revision;
    let take = |turn| pods.send(TakeTurn { key: Key::cluster("hot"), turn, permit: Permit::none() });
    let basis = take(TurnMode::IfContended).await.unwrap().unwrap();
    assert!(basis.turn.is_none() && basis.is_durable, "nobody else writes it");
    let before = faults.commits().len();
    faults.hold();
    let mut answers = Vec::new();
    for number in 0..CHANGES {
        let basis =
            take(if number > 0 { TurnMode::IfContended } else { TurnMode::Always }).await.unwrap().unwrap();
        let found = basis.object.unwrap();
        assert_eq!((found.revision, basis.is_durable), (Revision(first.0 + number), number == 0));
        let change = Replace {
            draft: draft("hot", &number.to_string()),
            expected: found.revision,
            permit: Permit::none(),
            turn: Some(basis.turn.unwrap()),
        };
        answers.push(Box::pin(pods.send(change)));
        // The message is on its way before the next asks.
        assert!(futures::poll!(answers.last_mut().unwrap()).is_pending());
    }
    let newest = take(TurnMode::Never).await.unwrap().unwrap();
    assert_eq!((newest.object.unwrap().revision.0, newest.is_durable), (first.0 + CHANGES, false));
    let get = || pods.send(Get { key: Key::cluster("hot"), permit: Permit::none() });
    assert_eq!(get().await.unwrap().unwrap().revision, first, "nobody sees what is not durable");
    // One that was worked out of an older state hears so when that is durable.
    let stale = replace(&pods, "hot", "stale", Revision(first.0 + 3));
    let (stale, answers, ()) = futures::join!(stale, join_all(answers), async { faults.release() });
    let StoreError::Conflict(now) = stale.unwrap_err() else { panic!("it is stale") };
    assert_eq!(now.revision, Revision(first.0 + CHANGES));
    let revisions: Vec<u64> = answers.into_iter().map(|answer| answer.unwrap().unwrap().revision.0).collect();
    assert_eq!(revisions, (first.0 + 1..=first.0 + CHANGES).collect::<Vec<_>>());
    let commits = faults.commits();
    assert!(commits.len() - before <= 2, "{commits:?}");
    assert_eq!(get().await.unwrap().unwrap().revision.0, first.0 + CHANGES);
    assert!(take(TurnMode::IfContended).await.unwrap().unwrap().turn.is_none(), "all is quiet again");

    let again = run(Box::new(log), &quiet());
    let pods = find(&again, "pods").await;
    let found = pods.send(Get { key: Key::cluster("hot"), permit: Permit::none() }).await.unwrap().unwrap();
    assert_eq!(found.revision.0, first.0 + CHANGES);
}

#[actix_rt::test]
async fn whoever_comes_after_a_write_that_waits_sees_what_becomes_of_it() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    let first = create(&pods, "hot", "0").await.unwrap().revision;
    faults.hold();
    // The object is changed, made once more by somebody who does not know that it is there, and taken away.
    let mut changed = Box::pin(replace(&pods, "hot", "1", first));
    assert!(futures::poll!(&mut changed).is_pending());
    let mut made = Box::pin(create(&pods, "hot", "2"));
    assert!(futures::poll!(&mut made).is_pending());
    let mut removed = Box::pin(remove(&pods, "hot", first.next()));
    assert!(futures::poll!(&mut removed).is_pending());
    let mut seen = Box::pin(pods.send(GetSettled { key: Key::cluster("hot"), permit: Permit::none() }));
    assert!(futures::poll!(&mut seen).is_pending());
    let (changed, made, removed, seen, ()) =
        futures::join!(changed, made, removed, seen, async { faults.release() });
    assert!(changed.is_ok() && removed.is_ok());
    let seen = seen.unwrap().unwrap();
    match made {
        Ok(made) => assert_eq!(seen.unwrap().revision, made.revision),
        Err(error) => assert!(matches!(error, StoreError::Exists) && seen.is_none(), "{error}"),
    }
}

#[actix_rt::test]
async fn a_newer_format_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.redb");
    drop(Redb::open(&path).unwrap());
    let database = redb::Database::create(&path).unwrap();
    let writing = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    writing.open_table(meta).unwrap().insert("format", 9).unwrap();
    writing.commit().unwrap();
    drop(database);
    let error = Redb::open(&path).map(drop).unwrap_err();
    assert!(matches!(error, EngineError::Format { found: 9, known: 1 }), "{error}");
}

#[actix_rt::test]
async fn a_folder_that_is_not_there_is_an_error_of_the_system() {
    let folder = tempfile::tempdir().unwrap();
    let error = Redb::open(&folder.path().join("missing/log.redb")).map(drop).unwrap_err();
    assert!(matches!(error, EngineError::Io(_)), "{error}");
}

#[actix_rt::test]
async fn a_settled_file_needs_no_walk_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let (path, image) = (folder.path().join("log.redb"), folder.path().join("image.redb"));
    let stores = run(Box::new(Redb::open(&path).unwrap()), &quiet());
    let pods = find(&stores, "pods").await;
    create(&pods, "a", "1").await.unwrap();
    // A copy of the open file is what a crash leaves.
    let crash = || {
        std::fs::copy(&path, &image).unwrap();
        let engine = Redb::open(&image).unwrap();
        (engine.repaired(), engine.stats().unwrap().records)
    };
    assert_eq!(crash(), (true, 1));
    assert_eq!(stores.committer.send(Tidy).await.unwrap().unwrap(), 0);
    assert_eq!(crash(), (false, 1));
    create(&pods, "b", "1").await.unwrap();
    assert_eq!(crash(), (true, 2));
    stores.directory.send(Stop).await.unwrap().unwrap();
    assert_eq!(crash(), (false, 2));
}

#[actix_rt::test]
async fn a_mailbox_full_of_readers_does_not_hide_a_commit() {
    let (stores, faults) = faulty(&Memory::new());
    let pods: Addr<Store> = find(&stores, "pods").await;
    faults.hold();
    let flood = async {
        held(&stores, 1).await;
        let reader = || Get { key: Key::cluster("a"), permit: Permit::none() };
        let mut sent = 0;
        while sent < 5_000 {
            sent += usize::from(pods.clone().try_send(reader()).is_ok());
        }
        faults.release();
    };
    let (answer, ()) = futures::join!(create(&pods, "a", ""), flood);
    assert_eq!(answer.unwrap().revision, Revision(2));
}

#[actix_rt::test]
async fn a_client_that_hangs_up_does_not_free_its_place() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    let places = Arc::new(Semaphore::new(1));
    let permit = Permit::holding(Arc::clone(&places).try_acquire_owned().unwrap());
    faults.hold();
    let sending = pods.send(Create { draft: draft("a", ""), permit });
    held(&stores, 1).await;
    drop(sending);
    assert_eq!(places.available_permits(), 0);
    faults.release();
    // The write that nobody waits for is durable all the same, and then its place is free.
    let _place = places.acquire().await.unwrap();
    assert_eq!(position(&pods).await.snapshot.len(), 1);
}

#[actix_rt::test]
async fn a_type_that_is_no_more_leaves_its_counter_alone() {
    let log = Memory::new();
    let stores = run(Box::new(log.clone()), &quiet());
    let release = |name: &str| stores.directory.send(Release { type_name: TypeName::new(name) });
    let kites = find(&stores, "kites").await;
    let made = create(&kites, "a", "1").await.unwrap();
    assert_eq!(release("kites").await.unwrap(), Released::HasObjects);
    assert!(kites.connected());
    let window = position(&kites).await.window;
    let gone = remove(&kites, "a", made.revision).await.unwrap();
    assert_eq!(release("kites").await.unwrap(), Released::Done);
    while kites.connected() {
        actix_rt::task::yield_now().await;
    }
    assert!(!stores.directory.send(Types).await.unwrap().contains(&TypeName::new("kites")));
    assert_eq!(release("kites").await.unwrap(), Released::Absent, "nothing is left to do");
    // It comes again: its revisions go on, those of before are refused, and whoever still has the window hears of it.
    let again = find(&stores, "kites").await;
    let here = position(&again).await;
    assert_eq!((here.snapshot.revision, here.snapshot.len()), (gone.revision, 0));
    assert!(matches!(here.window.read(made.revision, 9), Read::Expired(_)));
    let next = create(&again, "a", "2").await.unwrap();
    assert_eq!(next.revision, gone.revision.next());
    assert!(matches!(window.read(gone.revision, 9), Read::Events(events) if events.len() == 1));
    remove(&again, "a", next.revision).await.unwrap();
    assert_eq!(release("kites").await.unwrap(), Released::Done);
    stores.directory.send(Stop).await.unwrap().unwrap();
    // The same over a restart, of a type that nobody has asked for since.
    let stores = run(Box::new(log), &quiet());
    let release = |name: &str| stores.directory.send(Release { type_name: TypeName::new(name) });
    let mut released = release("kites").await.unwrap();
    while released == Released::Busy {
        actix_rt::task::yield_now().await;
        released = release("kites").await.unwrap();
    }
    assert_eq!(released, Released::Done);
    assert!(stores.directory.send(Types).await.unwrap().is_empty());
    let last = find(&stores, "kites").await;
    assert_eq!(create(&last, "b", "1").await.unwrap().revision, Revision(next.revision.0 + 2));
    assert_eq!(release("kites").await.unwrap(), Released::HasObjects);
    stores.directory.send(Stop).await.unwrap().unwrap();
}
