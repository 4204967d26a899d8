//! Failed commits and panics, graceful stop, trimming, and released types.

use super::*;

async fn check_failed_commit(fault: Fault, survives: bool) {
    let log = Memory::new();
    let (stores, faults) = faulty(&log);
    let (pods, nodes) = (find(&stores, "pods").await, find(&stores, "nodes").await);
    assert_eq!(create(&pods, "a", "1").await.unwrap().revision, Revision(2));
    faults.fail_after(0, fault);
    assert!(matches!(create(&pods, "b", "1").await, Err(StoreError::Unavailable)));
    assert!(stores.fatal.raised().unwrap().starts_with("the log cannot be written"));
    assert_eq!(stores.fatal.wait().await, stores.fatal.raised().unwrap());

    // No store accepts a write any more; durable objects can still be read.
    assert!(matches!(create(&nodes, "a", "1").await, Err(StoreError::Unavailable)));
    assert!(matches!(replace(&pods, "a", "2", Revision(2)).await, Err(StoreError::Unavailable)));
    assert_eq!(faults.commits().len(), 2);
    let read = pods
        .send(Get { freshness: Freshness::Latest, key: Key::cluster("a"), permit: Permit::none() })
        .await
        .unwrap();
    assert_eq!(read.unwrap().revision, Revision(2));
    assert!(
        pods.send(Get { freshness: Freshness::Latest, key: Key::cluster("b"), permit: Permit::none() })
            .await
            .unwrap()
            .is_err()
    );
    assert!(committer(&stores).send(Check).await.unwrap().is_err());
    assert!(committer(&stores).send(Flush).await.unwrap().is_err());
    assert!(stores.directory.send(Stop).await.unwrap().is_err());

    // After recovery the write is there as a whole or not at all, and the revision matches.
    let stores = start_stores(Box::new(log), &manual_options());
    let pods = find(&stores, "pods").await;
    let snapshot = open_watch(&pods).await.snapshot;
    assert_eq!(snapshot.get("b").is_some(), survives);
    assert_eq!(snapshot.revision, Revision(if survives { 3 } else { 2 }));
    assert_eq!(create(&pods, "c", "1").await.unwrap().revision, snapshot.revision.next());
    stores.directory.send(Stop).await.unwrap().unwrap();
}

#[actix_rt::test]
async fn refused_commit_raises_fatal() {
    check_failed_commit(Fault::Refused, false).await;
}

#[actix_rt::test]
async fn commit_with_unknown_outcome_raises_fatal() {
    check_failed_commit(Fault::Unknown, true).await;
}

#[actix_rt::test]
async fn engine_panic_answers_all_writers() {
    check_failed_commit(Fault::Panic, false).await;
}

#[actix_rt::test]
async fn failed_batch_fails_queued_and_waiting_writes() {
    let (stores, faults) = faulty(&Memory::new());
    let (pods, nodes) = (find(&stores, "pods").await, find(&stores, "nodes").await);
    faults.fail_after(0, Fault::Refused);
    faults.hold();
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let writes = keys.iter().flat_map(|key| [create(&pods, key, ""), create(&nodes, key, "")]);
    // Two more that wait in their store for an earlier write of their key.
    let waiting = [replace(&pods, "k0", "", Revision(2)), replace(&nodes, "k0", "", Revision(2))];
    let results = async { futures::join!(join_all(writes), join_all(waiting)) };
    let release = async {
        wait_for_writes(&stores, 42).await;
        faults.release();
    };
    let ((writes, waiting), ()) = futures::join!(results, release);
    assert!(writes.iter().chain(&waiting).all(|result| matches!(result, Err(StoreError::Unavailable))));
    wait_for_writes(&stores, 0).await;
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
async fn broadcaster_panic_raises_fatal() {
    let (notifiers, fatal) = (ChangeNotifiers::default(), Fatal::new());
    let broadcaster = Broadcaster::spawn(&notifiers, &fatal);
    assert!(broadcaster.send(Crash).await.is_err());
    assert_eq!(fatal.wait().await, "a broadcaster panicked");
}

#[actix_rt::test]
async fn store_panic_raises_fatal() {
    let (stores, faults) = faulty(&Memory::new());
    let (pods, nodes) = (find(&stores, "pods").await, find(&stores, "nodes").await);
    faults.hold();
    let kill = async {
        wait_for_writes(&stores, 1).await;
        assert!(pods.send(Crash).await.is_err());
        faults.release();
    };
    let (result, ()) = futures::join!(create(&pods, "a", ""), kill);
    assert!(matches!(result, Err(StoreError::Unavailable)), "its writers are told");
    assert_eq!(stores.fatal.wait().await, "the store of pods panicked");
    assert!(matches!(create(&nodes, "a", "").await, Err(StoreError::Unavailable)));
    let store = stores.directory.send(Find { type_name: TypeName::new("pods") }).await.unwrap();
    assert!(matches!(store, Err(StoreError::Unavailable)));
}

#[actix_rt::test]
async fn stop_commits_and_answers_accepted_writes() {
    let log = Memory::new();
    let (stores, faults) = faulty(&log);
    let pods = find(&stores, "pods").await;
    faults.hold();
    let keys: Vec<String> = (0..300).map(|n| format!("k{n}")).collect();
    let stop = async {
        wait_for_writes(&stores, 300).await;
        let stopping = stores.directory.send(Stop);
        faults.release();
        stopping.await.unwrap().unwrap();
    };
    let (results, ()) = futures::join!(join_all(keys.iter().map(|key| create(&pods, key, ""))), stop);
    assert!(results.iter().all(Result::is_ok));
    let store = stores.directory.send(Find { type_name: TypeName::new("pods") }).await.unwrap();
    assert!(store.is_err(), "nothing starts again");
    assert_eq!(stores.fatal.raised(), None, "this is no failure");
    let stores = start_stores(Box::new(log), &manual_options());
    assert_eq!(open_watch(&find(&stores, "pods").await).await.snapshot.len(), 300);
}

#[actix_rt::test]
async fn trim_is_bounded_per_batch_and_keeps_live_objects() {
    let log = Memory::new();
    let faults = Faults::default();
    let clock = Clock::manual(Timestamp(1_000_000_000));
    let options = Options { clock: clock.clone(), history: Duration::from_secs(10), ..manual_options() };
    let stores = start_stores(Box::new(Faulty::new(Box::new(log.clone()), faults.clone())), &options);
    let pods = find(&stores, "pods").await;
    let mut revision = create(&pods, "hot", "0").await.unwrap().revision;
    create(&pods, "still", "0").await.unwrap();
    let rounds = TRIM_PER_BATCH + 100;
    for round in 0..rounds {
        revision = replace(&pods, "hot", &round.to_string(), revision).await.unwrap().revision;
    }
    clock.advance(Duration::from_secs(11));
    assert_eq!(pods.send(Expire).await.unwrap(), rounds + 2);
    let before = committer(&stores).send(Check).await.unwrap().unwrap().records;
    assert_eq!(before, rounds as u64 + 2);
    while committer(&stores).send(Tidy).await.unwrap().unwrap() > 0 {}
    assert_eq!(committer(&stores).send(Check).await.unwrap().unwrap().records, 2);
    assert_eq!(faults.most_trims(), TRIM_PER_BATCH);
    stores.directory.send(Stop).await.unwrap().unwrap();

    let stores = start_stores(Box::new(log), &options);
    let position = open_watch(&find(&stores, "pods").await).await;
    assert_eq!(position.snapshot.get("hot").unwrap().revision, revision);
    assert_eq!(position.snapshot.get("still").unwrap().revision, Revision(3));
    assert_eq!((position.window.floor(), position.window.head()), (revision, revision));
}

#[actix_rt::test]
async fn released_type_continues_its_revisions() {
    let log = Memory::new();
    let stores = start_stores(Box::new(log.clone()), &manual_options());
    let release = |name: &str| stores.directory.send(Release { type_name: TypeName::new(name) });
    let kites = find(&stores, "kites").await;
    let created = create(&kites, "a", "1").await.unwrap();
    assert_eq!(release("kites").await.unwrap(), Released::HasObjects);
    assert!(kites.connected());
    let window = open_watch(&kites).await.window;
    let removed = remove(&kites, "a", created.revision).await.unwrap();
    assert_eq!(release("kites").await.unwrap(), Released::Done);
    while kites.connected() {
        actix_rt::task::yield_now().await;
    }
    assert!(!stores.directory.send(Types).await.unwrap().contains(&TypeName::new("kites")));
    assert_eq!(release("kites").await.unwrap(), Released::Absent, "nothing is left to do");
    // The type is used again: its revisions continue, older ones expire, and holders of the old window get its events.
    let store = find(&stores, "kites").await;
    let position = open_watch(&store).await;
    assert_eq!((position.snapshot.revision, position.snapshot.len()), (removed.revision, 0));
    assert!(matches!(position.window.read(created.revision, 9), Read::Expired(_)));
    let second = create(&store, "a", "2").await.unwrap();
    assert_eq!(second.revision, removed.revision.next());
    assert!(matches!(window.read(removed.revision, 9), Read::Events(events) if events.len() == 1));
    remove(&store, "a", second.revision).await.unwrap();
    assert_eq!(release("kites").await.unwrap(), Released::Done);
    stores.directory.send(Stop).await.unwrap().unwrap();
    // The same after a restart, for a type that was not used since.
    let stores = start_stores(Box::new(log), &manual_options());
    let release = |name: &str| stores.directory.send(Release { type_name: TypeName::new(name) });
    let mut released = release("kites").await.unwrap();
    while released == Released::Busy {
        actix_rt::task::yield_now().await;
        released = release("kites").await.unwrap();
    }
    assert_eq!(released, Released::Done);
    assert!(stores.directory.send(Types).await.unwrap().is_empty());
    let last = find(&stores, "kites").await;
    assert_eq!(create(&last, "b", "1").await.unwrap().revision, Revision(second.revision.0 + 2));
    assert_eq!(release("kites").await.unwrap(), Released::HasObjects);
    stores.directory.send(Stop).await.unwrap().unwrap();
}
