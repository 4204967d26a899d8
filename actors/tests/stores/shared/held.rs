//! Values that a service has to decode.

use pilothouse_actors::shared_log::memory::SEALED;

use super::freshness::write;
use super::*;
use crate::common::find;

fn sealed(body: &str) -> String {
    format!("{SEALED}{body}")
}

async fn create(store: &Addr<Store>, key: &str) -> ObjectResult {
    let stored = Some(StoredDraft { bytes: Bytes::from_static(b"clear"), key_id: None });
    store.send(Create { draft: draft(key, "clear"), stored, permit: Permit::none() }).await.unwrap()
}

async fn seen(server: &Server, key: &str) -> ObjectResult {
    let (key, freshness, permit) = (Key::from_path(key), Freshness::Seen, Permit::none());
    server.pods.send(Get { key, freshness, permit }).await.unwrap()
}

#[actix_rt::test]
async fn only_the_type_waits_whose_value_cannot_be_decoded_yet() {
    let log = MemoryLog::new(decode);
    let [one, other] = servers(&log).await;
    one.member.set_service_down(true);
    let first = other.create("a", &sealed("1")).await.unwrap();
    let second = other.replace("a", "clear again", first.revision).await.unwrap();
    let waiting =
        one.pods.send(Get { freshness: Freshness::Latest, key: Key::from_path("a"), permit: Permit::none() });
    let waiting = actix_rt::spawn(waiting);
    let services = find(&one.stores, "services").await;
    let service = create(&services, "s").await.unwrap();
    let mut status = one.stores.follow_status().unwrap();
    status.wait_for(|status| status.seen >= service.revision).await.unwrap();
    assert!(!waiting.is_finished());
    assert!(matches!(seen(&one, "a").await, Err(StoreError::NotFound)));
    assert_eq!(status.borrow().seen_of(&TypeName::new("pods")), Revision::FIRST);
    one.member.set_service_down(false);
    let read = waiting.await.unwrap().unwrap().unwrap();
    assert!(read.revision == second.revision && read.is_readable());
    let events = one.events().await;
    assert_eq!(revisions(&events), [first.revision.0, second.revision.0]);
    assert!(events.iter().all(|event| event.object.is_readable()));
    assert!(status.borrow().is_complete(service.revision));
}

#[actix_rt::test]
async fn reader_is_told_when_decoding_takes_too_long() {
    let log = MemoryLog::new(decode);
    let [one, other] = servers(&log).await;
    one.member.set_service_down(true);
    let created = other.create("a", &sealed("1")).await.unwrap();
    let mut status = one.stores.follow_status().unwrap();
    status.wait_for(|status| status.seen >= created.revision).await.unwrap();
    let read = one.get("a");
    let time_passes = async {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            one.clock.advance(Duration::from_secs(1));
            // Whatever the server learns makes it look at its clock.
            let services = find(&other.stores, "services").await;
            let _exists = create(&services, &format!("s{}", log.entries().len())).await;
        }
    };
    tokio::select! {
        read = read => assert!(matches!(read, Err(StoreError::Unreachable))),
        () = time_passes => {}
    }
}

#[actix_rt::test]
async fn start_waits_for_values_that_cannot_be_decoded_yet() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    let created = one.create("a", &sealed("1")).await.unwrap();
    log.compact();
    let member = log.member();
    member.set_service_down(true);
    let options = manual_options();
    let starting =
        start(SharedLogs::single(Arc::clone(&member) as _), Arc::new(NoEncryption), HashSet::new(), options);
    let starting = actix_rt::spawn(starting);
    tokio::task::yield_now().await;
    assert!(!starting.is_finished());
    member.set_service_down(false);
    let stores = starting.await.unwrap().unwrap();
    let pods = find(&stores, "pods").await;
    let get = Get { key: Key::from_path("a"), freshness: Freshness::Seen, permit: Permit::none() };
    let read = pods.send(get).await.unwrap().unwrap();
    assert!(read.revision == created.revision && read.is_readable());
}

#[actix_rt::test]
async fn difference_waits_for_values_that_cannot_be_decoded_yet() {
    let log = MemoryLog::new(decode);
    let [one, other] = servers(&log).await;
    let created = one.create("a", "1").await.unwrap();
    one.member.set_service_down(true);
    // It is held already when the difference comes.
    let held = other.create("b", &sealed("1")).await.unwrap();
    let mut status = one.stores.follow_status().unwrap();
    status.wait_for(|status| status.seen >= held.revision).await.unwrap();
    one.member.set_cut_off(true);
    let replaced = other.replace("a", &sealed("2"), created.revision).await.unwrap();
    log.compact();
    one.member.set_cut_off(false);
    status.wait_for(|status| status.seen >= replaced.revision).await.unwrap();
    assert_eq!(seen(&one, "a").await.unwrap().revision, created.revision);
    one.member.set_service_down(false);
    one.wait_for(replaced.revision).await;
    assert_eq!(one.objects().await, other.objects().await);
}

/// What was being decoded for the type that was removed ends, and must not take what is held for the new one with it.
#[actix_rt::test]
async fn type_that_is_added_again_has_its_objects_although_older_ones_were_held() {
    let log = MemoryLog::new(decode);
    let [one] = servers(&log).await;
    let (writer, kites) = (log.member(), TypeName::new("kites"));
    one.member.set_service_down(true);
    let held = write(&writer, "kites", "a", &sealed("1")).await;
    let mut status = one.stores.follow_status().unwrap();
    status.wait_for(|status| status.seen >= held && status.held.contains_key(&kites)).await.unwrap();
    let type_changes = one.stores.type_changes.clone().unwrap();
    let (member, gone) = (Arc::clone(&one.member), kites.clone());
    type_changes.remove(kites.clone(), Box::new(move || member.ignore(gone))).await;
    let adding = actix_rt::spawn({
        let (member, known) = (Arc::clone(&one.member), kites.clone());
        let kites = kites.clone();
        async move { type_changes.add(kites, Box::new(move || member.know(&known))).await }
    });
    // Until its objects wait for the service, too.
    status.wait_for(|status| status.held.contains_key(&kites)).await.unwrap();
    one.member.set_service_down(false);
    adding.await.unwrap().unwrap();
    let store = find(&one.stores, "kites").await;
    let get = Get { key: Key::from_path("a"), freshness: Freshness::Latest, permit: Permit::none() };
    let read = store.send(get).await.unwrap().unwrap();
    assert!(read.revision == held && read.is_readable());
}
