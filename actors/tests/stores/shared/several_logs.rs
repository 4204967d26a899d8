//! Types whose objects are in a log of their own.

use super::*;
use crate::common::find;

/// A server with pods in one log and events in another one.
struct TwoLogs {
    server: Server,
    other: Arc<Member>,
    events: Addr<Store>,
}

impl TwoLogs {
    async fn start(main: &MemoryLog, other: &MemoryLog) -> TwoLogs {
        let (member, other) = (main.member(), other.member());
        let clock = Clock::manual(Timestamp(1_700_000_000_000_000));
        let types = HashSet::from([TypeName::new("events")]);
        let logs =
            SharedLogs { main: Arc::clone(&member) as _, others: vec![(types, Arc::clone(&other) as _)] };
        let options = Options { clock: clock.clone(), ..manual_options() };
        let stores = start(logs, Arc::new(NoEncryption), HashSet::new(), options).await.unwrap();
        let (pods, events) = (find(&stores, "pods").await, find(&stores, "events").await);
        TwoLogs { server: Server { member, stores, clock, pods }, other, events }
    }

    async fn create_event(&self, key: &str) -> ObjectResult {
        let stored = Some(StoredDraft { bytes: Bytes::from_static(b"event"), key_id: None });
        self.events.send(Create { draft: draft(key, "event"), stored, permit: Permit::none() }).await.unwrap()
    }

    async fn event(&self, key: &str) -> ObjectResult {
        let (freshness, key, permit) = (Freshness::Latest, Key::from_path(key), Permit::none());
        self.events.send(Get { freshness, key, permit }).await.unwrap()
    }
}

#[actix_rt::test]
async fn each_log_has_its_types_and_its_revisions() {
    let (main, other) = (MemoryLog::new(decode), MemoryLog::new(decode));
    let one = TwoLogs::start(&main, &other).await;
    for number in 0..5 {
        one.server.create(&number.to_string(), "pod").await.unwrap();
    }
    assert_eq!(one.create_event("a").await.unwrap().revision, Revision(2));
    let types = |log: &MemoryLog| {
        let entries = log.entries().into_iter().map(|entry| entry.type_name.as_str().to_owned());
        entries.collect::<Vec<_>>()
    };
    assert_eq!((types(&main), types(&other)), (vec!["pods".to_owned(); 5], vec!["events".to_owned()]));
    let late = TwoLogs::start(&main, &other).await;
    assert_eq!(late.event("a").await.unwrap().revision, Revision(2));
    assert_eq!(late.server.objects().await, one.server.objects().await);
    let seen = |name: &str| late.server.stores.follow_status_of(&TypeName::new(name)).unwrap().borrow().seen;
    assert_eq!((seen("events"), seen("pods")), (Revision(2), Revision(6)));
}

#[actix_rt::test]
async fn log_that_cannot_be_reached_concerns_its_own_types() {
    let (main, other) = (MemoryLog::new(decode), MemoryLog::new(decode));
    let one = TwoLogs::start(&main, &other).await;
    one.create_event("a").await.unwrap();
    one.other.set_cut_off(true);
    assert!(matches!(one.create_event("b").await, Err(StoreError::Unreachable)));
    assert!(matches!(one.event("a").await, Err(StoreError::Unreachable)));
    one.server.create("a", "pod").await.unwrap();
    assert_eq!(object_text(&one.server.get("a").await.unwrap()), rendered_object("pod", 2));
    assert_eq!(one.server.stores.health.check(Duration::from_secs(30)).await, Ok(()));
    one.other.set_cut_off(false);
    assert_eq!(one.event("a").await.unwrap().revision, Revision(2));
}

/// Everything is read anew from one of them. The types of the other one are not in it.
#[actix_rt::test]
async fn compaction_of_a_log_removes_no_objects_of_another_one() {
    let (main, other) = (MemoryLog::new(decode), MemoryLog::new(decode));
    let (one, two) = (TwoLogs::start(&main, &other).await, TwoLogs::start(&main, &other).await);
    let event = one.create_event("a").await.unwrap();
    one.server.create("a", "before").await.unwrap();
    one.server.member.set_cut_off(true);
    one.other.set_cut_off(true);
    two.server.replace("a", "after", Revision(2)).await.unwrap();
    two.create_event("b").await.unwrap();
    main.compact();
    other.compact();
    one.server.member.set_cut_off(false);
    one.other.set_cut_off(false);
    one.server.wait_for(Revision(3)).await;
    assert_eq!(object_text(&one.server.get("a").await.unwrap()), rendered_object("after", 3));
    assert_eq!(one.event("b").await.unwrap().revision, Revision(3));
    assert_eq!(one.event("a").await.unwrap().revision, event.revision);
    let events = window_events(&open_watch(&one.events).await).await;
    assert!(events.iter().all(|event| event.change != Change::Removed), "{:?}", revisions(&events));
}
