//! Limits and order of pending writes, and write turns.

use super::*;

#[actix_rt::test]
async fn concurrent_writes_share_commits() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    faults.hold();
    let keys: Vec<String> = (0..64).map(|n| format!("k{n}")).collect();
    let release = async {
        // All writes but those of the first batch arrive while it commits.
        wait_for_writes(&stores, 64).await;
        faults.wait_for_commits(1);
        faults.release();
    };
    let (results, ()) = futures::join!(join_all(keys.iter().map(|key| create(&pods, key, ""))), release);
    let mut revisions: Vec<u64> = results.into_iter().map(|result| result.unwrap().revision.0).collect();
    assert!(revisions.is_sorted());
    revisions.dedup();
    assert_eq!(revisions.len(), 64);
    committer(&stores).send(Flush).await.unwrap().unwrap();
    let commits = faults.commits();
    assert_eq!(commits.iter().sum::<usize>(), 64);
    assert!(commits.len() <= 4, "{commits:?}");
}

#[actix_rt::test]
async fn committer_rejects_writes_over_its_limit() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    faults.hold();
    let keys: Vec<String> = (0..COMMITTER_WRITES + 10).map(|n| format!("k{n}")).collect();
    let release = async {
        wait_for_writes(&stores, COMMITTER_WRITES).await;
        // Writes over the limit are refused while the disk hangs.
        let late = create(&pods, "late", "").await;
        assert!(matches!(late, Err(StoreError::Busy)));
        faults.release();
    };
    let (results, ()) = futures::join!(join_all(keys.iter().map(|key| create(&pods, key, ""))), release);
    let busy = results.iter().filter(|result| matches!(result, Err(StoreError::Busy))).count();
    assert_eq!(busy, 10);
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), COMMITTER_WRITES);
    assert!(faults.commits().iter().all(|writes| *writes <= BATCH_WRITES));
    wait_for_writes(&stores, 0).await;
}

#[actix_rt::test]
async fn writers_of_one_key_wait_up_to_limit_and_conflict() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    let first = create(&pods, "hot", "0").await.unwrap().revision;
    faults.hold();
    let bodies: Vec<String> = (0..WRITES_WAITING_PER_KEY + 3).map(|n| n.to_string()).collect();
    let writers = bodies.iter().map(|body| replace(&pods, "hot", body, first));
    let release = async {
        wait_for_writes(&stores, WRITES_WAITING_PER_KEY + 1).await;
        faults.release();
    };
    let (results, ()) = futures::join!(join_all(writers), release);
    let count = |wanted: fn(&StoreError) -> bool| {
        results.iter().filter(|result| result.as_ref().is_err_and(wanted)).count()
    };
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "one wins");
    assert_eq!(count(|error| matches!(error, StoreError::Busy)), 2);
    let conflicts = count(|error| matches!(error, StoreError::Conflict(now) if now.revision == Revision(3)));
    assert_eq!(conflicts, WRITES_WAITING_PER_KEY);
}

#[actix_rt::test]
async fn get_settled_waits_for_pending_writes_even_when_store_is_busy() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    let get_settled =
        |key| pods.send(GetSettled { key: Key::cluster(key), rollbacks: None, permit: Permit::none() });
    assert!(get_settled("hot").await.unwrap().unwrap().is_none());
    let first = create(&pods, "hot", "0").await.unwrap().revision;
    faults.hold();
    let bodies: Vec<String> = (0..=WRITES_WAITING_PER_KEY).map(|n| n.to_string()).collect();
    let writers = bodies.iter().map(|body| replace(&pods, "hot", body, first));
    let read = async {
        wait_for_writes(&stores, WRITES_WAITING_PER_KEY + 1).await;
        // No further write of the key may wait, and the write limiter is exhausted.
        let result = replace(&pods, "hot", "", first).await;
        assert!(matches!(result, Err(StoreError::Busy)));
        let permits: Vec<_> = std::iter::from_fn(|| stores.write_limiter.take(0)).collect();
        assert!(get_settled("cold").await.unwrap().unwrap().is_none(), "nothing of it is under way");
        let object = get_settled("hot");
        faults.release();
        let object = object.await.unwrap().unwrap().unwrap();
        drop(permits);
        object
    };
    let (results, object) = futures::join!(join_all(writers), read);
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    assert_eq!(object.revision, Revision(3), "as the writes before it left it");
    wait_for_writes(&stores, 0).await;

    faults.fail_after(0, Fault::Refused);
    faults.hold();
    let fail = async {
        wait_for_writes(&stores, 1).await;
        let object = get_settled("hot");
        faults.release();
        object.await.unwrap()
    };
    let (_, object) = futures::join!(replace(&pods, "hot", "", object.revision), fail);
    assert!(matches!(object, Err(StoreError::Unavailable)));
    assert!(matches!(get_settled("hot").await.unwrap(), Err(StoreError::Unavailable)));
}

#[actix_rt::test]
async fn waiting_write_is_checked_against_earlier_pending_writes() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    faults.hold();
    let release = async {
        wait_for_writes(&stores, 4).await;
        let position = open_watch(&pods).await;
        assert!(
            position.snapshot.is_empty() && window_events(&position).await.is_empty(),
            "nothing is visible before it is durable"
        );
        faults.release();
    };
    let chain = join_all([
        futures::future::Either::Left(create(&pods, "a", "1")),
        futures::future::Either::Right(replace(&pods, "a", "2", Revision(2))),
    ]);
    let remove_and_create = async {
        let removed = remove(&pods, "a", Revision(3)).await;
        (removed, create(&pods, "a", "4").await)
    };
    let blocked = create(&pods, "a", "no");
    let (chain, (removed, created), blocked, ()) = futures::join!(chain, remove_and_create, blocked, release);
    let revisions: Vec<u64> = chain.into_iter().map(|result| result.unwrap().revision.0).collect();
    assert_eq!(revisions, [2, 3]);
    let removed = removed.unwrap();
    assert_eq!((removed.revision, object_text(&removed)), (Revision(4), rendered_object("2", 4)));
    // Two creates race for the free key, in the order in which they came.
    let won = [blocked.is_ok(), created.is_ok()];
    assert_eq!(won, [true, false]);
}

#[actix_rt::test]
async fn create_refuses_object_over_record_limit() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    let huge = "x".repeat(RECORD_BYTES);
    assert!(matches!(create(&pods, "a", &huge).await, Err(StoreError::TooLarge)));
    assert!(faults.commits().is_empty());
}

#[actix_rt::test]
async fn write_turns_are_granted_in_order_and_released_on_drop() {
    let stores = start_stores(Box::new(Memory::new()), &manual_options());
    let pods = find(&stores, "pods").await;
    let take_turn =
        |key| pods.send(TakeTurn { key: Key::cluster(key), turn: TurnMode::Always, permit: Permit::none() });
    let first = take_turn("a").await.unwrap().unwrap();
    let other_key = take_turn("b").await.unwrap().unwrap();
    let (mut second, cancelled, mut third) =
        (Box::pin(take_turn("a")), take_turn("a"), Box::pin(take_turn("a")));
    assert!(futures::poll!(&mut second).is_pending());
    // A cancelled waiter is skipped.
    drop(cancelled);
    assert!(futures::poll!(&mut third).is_pending());
    drop((first, other_key));
    let second = second.await.unwrap().unwrap();
    assert!(futures::poll!(&mut third).is_pending());
    drop(second);
    drop(third.await.unwrap().unwrap());
    take_turn("a").await.unwrap().unwrap();
    let mut waiting = Vec::new();
    let _holder = take_turn("a").await.unwrap().unwrap();
    for _ in 0..TURNS_WAITING_PER_KEY {
        let mut waiter = Box::pin(take_turn("a"));
        assert!(futures::poll!(&mut waiter).is_pending());
        waiting.push(waiter);
    }
    assert!(matches!(take_turn("a").await.unwrap(), Err(StoreError::Busy)));
}

#[actix_rt::test]
async fn cancelled_turn_waiter_frees_its_slot() {
    let stores = start_stores(Box::new(Memory::new()), &manual_options());
    let pods = find(&stores, "pods").await;
    let slots = Arc::new(Semaphore::new(TURNS_WAITING_PER_KEY));
    let take_turn = |permit| pods.send(TakeTurn { key: Key::cluster("a"), turn: TurnMode::Always, permit });
    let holder = take_turn(Permit::none()).await.unwrap().unwrap();
    let mut waiting = Vec::new();
    for _ in 0..TURNS_WAITING_PER_KEY {
        let permit = Permit::holding(Arc::clone(&slots).try_acquire_owned().unwrap());
        let mut waiter = Box::pin(take_turn(permit));
        assert!(futures::poll!(&mut waiter).is_pending());
        waiting.push(waiter);
    }
    assert!(matches!(take_turn(Permit::none()).await.unwrap(), Err(StoreError::Busy)));
    assert_eq!(slots.available_permits(), 0);
    let last = waiting.pop();
    drop(waiting);
    // The permits of cancelled requests are released before the turn is.
    let free = slots.acquire_many(u32::try_from(TURNS_WAITING_PER_KEY - 1).unwrap());
    tokio::time::timeout(Duration::from_secs(5), free).await.unwrap().unwrap().forget();
    let mut late_waiter = Box::pin(take_turn(Permit::none()));
    assert!(futures::poll!(&mut late_waiter).is_pending());
    drop(holder);
    drop(last.unwrap().await.unwrap().unwrap());
    late_waiter.await.unwrap().unwrap();
}

#[actix_rt::test]
async fn writes_in_turn_build_on_pending_state_and_share_commits() {
    const CHANGES: u64 = 20;
    let log = Memory::new();
    let (stores, faults) = faulty(&log);
    let pods = find(&stores, "pods").await;
    let first = create(&pods, "hot", "0").await.unwrap().revision;
    let take_turn = |turn| pods.send(TakeTurn { key: Key::cluster("hot"), turn, permit: Permit::none() });
    let basis = take_turn(TurnMode::IfContended).await.unwrap().unwrap();
    assert!(basis.turn.is_none() && basis.is_durable, "nobody else writes it");
    let before = faults.commits().len();
    faults.hold();
    let mut results = Vec::new();
    for number in 0..CHANGES {
        let basis = take_turn(if number > 0 { TurnMode::IfContended } else { TurnMode::Always })
            .await
            .unwrap()
            .unwrap();
        let object = basis.object.unwrap();
        assert_eq!((object.revision, basis.is_durable), (Revision(first.0 + number), number == 0));
        let change = Replace {
            draft: draft("hot", &number.to_string()),
            stored: None,
            expected: object.revision,
            permit: Permit::none(),
            turn: Some(basis.turn.unwrap()),
        };
        results.push(Box::pin(pods.send(change)));
        // The message is sent before the next turn is taken.
        assert!(futures::poll!(results.last_mut().unwrap()).is_pending());
    }
    let newest = take_turn(TurnMode::Never).await.unwrap().unwrap();
    assert_eq!((newest.object.unwrap().revision.0, newest.is_durable), (first.0 + CHANGES, false));
    let get =
        || pods.send(Get { freshness: Freshness::Latest, key: Key::cluster("hot"), permit: Permit::none() });
    assert_eq!(get().await.unwrap().unwrap().revision, first, "nobody sees what is not durable");
    // A write based on an older state conflicts once the newer state is durable.
    let stale = replace(&pods, "hot", "stale", Revision(first.0 + 3));
    let (stale, results, ()) = futures::join!(stale, join_all(results), async { faults.release() });
    let StoreError::Conflict(current) = stale.unwrap_err() else { panic!("it is stale") };
    assert_eq!(current.revision, Revision(first.0 + CHANGES));
    let revisions: Vec<u64> = results.into_iter().map(|result| result.unwrap().unwrap().revision.0).collect();
    assert_eq!(revisions, (first.0 + 1..=first.0 + CHANGES).collect::<Vec<_>>());
    let commits = faults.commits();
    assert!(commits.len() - before <= 2, "{commits:?}");
    assert_eq!(get().await.unwrap().unwrap().revision.0, first.0 + CHANGES);
    assert!(take_turn(TurnMode::IfContended).await.unwrap().unwrap().turn.is_none(), "all is quiet again");

    let restarted = start_stores(Box::new(log), &manual_options());
    let pods = find(&restarted, "pods").await;
    let object = pods
        .send(Get { freshness: Freshness::Latest, key: Key::cluster("hot"), permit: Permit::none() })
        .await
        .unwrap()
        .unwrap();
    assert_eq!(object.revision.0, first.0 + CHANGES);
}

#[actix_rt::test]
async fn get_settled_after_waiting_writes_sees_their_outcome() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    let first = create(&pods, "hot", "0").await.unwrap().revision;
    faults.hold();
    // The object is replaced, created again by another client, and removed.
    let mut replace = Box::pin(replace(&pods, "hot", "1", first));
    assert!(futures::poll!(&mut replace).is_pending());
    let mut create_again = Box::pin(create(&pods, "hot", "2"));
    assert!(futures::poll!(&mut create_again).is_pending());
    let mut removal = Box::pin(remove(&pods, "hot", first.next()));
    assert!(futures::poll!(&mut removal).is_pending());
    let mut settled =
        Box::pin(pods.send(GetSettled { key: Key::cluster("hot"), rollbacks: None, permit: Permit::none() }));
    assert!(futures::poll!(&mut settled).is_pending());
    let (replace, create_again, removal, settled, ()) =
        futures::join!(replace, create_again, removal, settled, async { faults.release() });
    assert!(replace.is_ok() && removal.is_ok());
    let settled = settled.unwrap().unwrap();
    match create_again {
        Ok(create_again) => assert_eq!(settled.unwrap().revision, create_again.revision),
        Err(error) => assert!(matches!(error, StoreError::Exists) && settled.is_none(), "{error}"),
    }
}

#[actix_rt::test]
async fn full_mailbox_does_not_delay_commit_reply() {
    let (stores, faults) = faulty(&Memory::new());
    let pods: Addr<Store> = find(&stores, "pods").await;
    faults.hold();
    let flood = async {
        wait_for_writes(&stores, 1).await;
        let reader = || Get { freshness: Freshness::Latest, key: Key::cluster("a"), permit: Permit::none() };
        let mut sent = 0;
        while sent < 5_000 {
            sent += usize::from(pods.clone().try_send(reader()).is_ok());
        }
        faults.release();
    };
    let (result, ()) = futures::join!(create(&pods, "a", ""), flood);
    assert_eq!(result.unwrap().revision, Revision(2));
}

#[actix_rt::test]
async fn dropped_request_keeps_its_permit_until_durable() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    let slots = Arc::new(Semaphore::new(1));
    let permit = Permit::holding(Arc::clone(&slots).try_acquire_owned().unwrap());
    faults.hold();
    let request = pods.send(Create { draft: draft("a", ""), stored: None, permit });
    wait_for_writes(&stores, 1).await;
    drop(request);
    assert_eq!(slots.available_permits(), 0);
    faults.release();
    // The abandoned write becomes durable all the same, and then its permit is released.
    let _slot = slots.acquire().await.unwrap();
    assert_eq!(open_watch(&pods).await.snapshot.len(), 1);
}
