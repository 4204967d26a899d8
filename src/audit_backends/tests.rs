use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pilothouse_api::audit::event::{EventMetadata, ResponseStatus};
use pilothouse_api::audit::{Level, Stage};
use pilothouse_apimachinery::status::Status;
use pilothouse_types::clock::{Clock, Timestamp};
use tokio::sync::Semaphore;

use super::batches::{EncodedEvent, Writer, spawn};
use super::*;
use crate::config::audit::{Batching, Truncation};
use crate::limits::{AUDIT_BODIES_BYTES, AUDIT_HEADS_BYTES};
use crate::metrics::Metrics;

/// Writes once it may, and counts.
struct Slow {
    may: Arc<Semaphore>,
    written: Arc<AtomicUsize>,
    largest: Arc<AtomicUsize>,
    works: bool,
}

impl Writer for Slow {
    fn text(&self, event: &Event) -> Vec<u8> {
        let mut text = Vec::new();
        event.write_json(&mut text, true);
        text
    }

    async fn write(&mut self, lines: Vec<EncodedEvent>) {
        let may = self.may.acquire().await.unwrap();
        self.largest.fetch_max(lines.len(), Ordering::SeqCst);
        self.written.fetch_add(lines.len(), Ordering::SeqCst);
        lines.into_iter().for_each(|line| line.done(self.works));
        drop(may);
    }

    async fn finish(&mut self) {}
}

struct Bench {
    ledger: Arc<AuditBackends>,
    metrics: Metrics,
    may: Arc<Semaphore>,
    written: Arc<AtomicUsize>,
    largest: Arc<AtomicUsize>,
}

fn bench(mode: Mode, waiting: usize, most: usize, truncation: Option<Truncation>, works: bool) -> Bench {
    let metrics = Metrics::new(Timestamp(0)).unwrap();
    let (may, written, largest) =
        (Arc::new(Semaphore::new(0)), Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let mut ledger = AuditBackends::new(
        metrics.audit.clone(),
        MemoryBudget::alone(AUDIT_HEADS_BYTES),
        MemoryBudget::alone(AUDIT_BODIES_BYTES),
    );
    let batching = Batching { waiting, most, wait: Duration::ZERO, rate: None };
    let delivery = Delivery { mode, batching, truncation };
    let slow = Slow { may: may.clone(), written: written.clone(), largest: largest.clone(), works };
    let counts = metrics.audit.clone();
    let spawned: io::Result<()> =
        ledger.add(delivery, |queue| spawn("test", queue, (delivery, Clock::system(), counts), || slow));
    spawned.unwrap();
    Bench { ledger: Arc::new(ledger), metrics, may, written, largest }
}

fn event(body: usize) -> Event {
    let head =
        EventMetadata { level: Level::Request, id: "i".to_owned(), verb: "get", ..EventMetadata::default() };
    Event {
        head: Arc::new(head),
        stage: Stage::ResponseComplete,
        acts_as: None,
        object: None,
        answered: None,
        request: (body > 0).then(|| format!("\"{}\"", "x".repeat(body)).into()),
        response: None,
        at: Timestamp(0),
        notes: [].into(),
    }
}

fn count(metrics: &Metrics, line: &str) -> u64 {
    let text = String::from_utf8(metrics.text().unwrap()).unwrap();
    let found = text.lines().find_map(|one| one.strip_prefix(line)?.trim().parse().ok());
    found.unwrap_or(0)
}

const LOST: &str = r#"apiserver_audit_error_total{plugin="buffered"}"#;

#[actix_rt::test]
async fn in_batch_mode_nobody_waits_and_what_finds_no_room_is_counted() {
    let bench = bench(Mode::Batch, 10, 4, None, true);
    for _ in 0..100 {
        assert!(bench.ledger.write(event(0), bench.ledger.room()).await);
    }
    let lost = count(&bench.metrics, LOST);
    assert!((85..=90).contains(&lost), "{lost}");
    assert_eq!(count(&bench.metrics, "apiserver_audit_event_total"), 100);
    bench.may.add_permits(1_000);
    bench.ledger.close().await;
    assert_eq!(bench.written.load(Ordering::SeqCst) as u64 + lost, 100, "what was taken is written");
    assert!(bench.largest.load(Ordering::SeqCst) <= 4);
    bench.ledger.write_later(event(0), bench.ledger.room());
    assert_eq!(count(&bench.metrics, LOST), lost + 1, "what comes later is lost");
    assert_eq!(bench.ledger.heads.bytes(), 0, "and all room is given back");
}

#[actix_rt::test]
async fn bodies_have_one_room_together() {
    let bench = bench(Mode::Batch, 1_000, 1, None, true);
    for _ in 0..20 {
        bench.ledger.write(event(AUDIT_BODIES_BYTES / 10), bench.ledger.room()).await;
        let bytes = bench.ledger.bodies.bytes();
        assert!(bytes <= AUDIT_BODIES_BYTES, "{bytes}");
    }
    assert_eq!(count(&bench.metrics, LOST), 0, "without bodies there is room for all of them");
    bench.may.add_permits(1_000);
    bench.ledger.close().await;
    assert_eq!(bench.written.load(Ordering::SeqCst), 20);
    assert_eq!((bench.ledger.bodies.bytes(), bench.ledger.heads.bytes()), (0, 0));
}

#[actix_rt::test]
async fn large_answers_that_are_read_slowly_cost_others_their_bodies_at_most() {
    let bench = bench(Mode::Batch, 1_000, 1, None, true);
    let mut slow = bench.ledger.room();
    slow.set(AUDIT_BODIES_BYTES).unwrap();
    let mut refused = event(10);
    refused.answered = Some(ResponseStatus::status(&Status::bad_request("x".repeat(1_000))));
    for _ in 0..100 {
        bench.ledger.write(refused.clone(), bench.ledger.room()).await;
    }
    assert_eq!(count(&bench.metrics, LOST), 0);
    assert_eq!(bench.ledger.bodies.bytes(), AUDIT_BODIES_BYTES);
    bench.may.add_permits(1_000);
    bench.ledger.close().await;
    assert_eq!(bench.written.load(Ordering::SeqCst), 100);
}

#[actix_rt::test]
async fn statuses_count_as_much_as_they_are() {
    let bench = bench(Mode::Batch, 1_000, 1, None, true);
    let mut refused = event(0);
    refused.answered =
        Some(ResponseStatus::status(&Status::bad_request("x".repeat(AUDIT_BODIES_BYTES / 10))));
    for _ in 0..20 {
        bench.ledger.write_later(refused.clone(), bench.ledger.room());
        let bytes = bench.ledger.bodies.bytes();
        assert!(bytes <= AUDIT_BODIES_BYTES, "{bytes}");
    }
    assert_eq!(count(&bench.metrics, LOST), 0, "without its words there is room for each");
    bench.may.add_permits(1_000);
    bench.ledger.close().await;
}

#[actix_rt::test]
async fn in_blocking_mode_requests_wait() {
    let bench = bench(Mode::Blocking, 10, 1, None, false);
    let writing = bench.ledger.write(event(0), bench.ledger.room());
    assert!(timeout(Duration::from_millis(50), writing).await.is_err(), "until it is written");
    bench.may.add_permits(10);
    let (ledger, room) = (bench.ledger.clone(), bench.ledger.room());
    assert!(ledger.write(event(0), room).await, "whatever comes of it");
    assert_eq!(bench.written.load(Ordering::SeqCst), 2);
}

#[actix_rt::test]
async fn a_client_that_hangs_up_keeps_its_record_from_no_place() {
    let mut bench = bench(Mode::Blocking, 10, 1, None, true);
    let other = Arc::<AtomicUsize>::default();
    let delivery = Delivery {
        mode: Mode::Batch,
        batching: Batching { waiting: 10, most: 1, wait: Duration::ZERO, rate: None },
        truncation: None,
    };
    let writer = Slow {
        may: Arc::new(Semaphore::new(10)),
        written: other.clone(),
        largest: Arc::default(),
        works: true,
    };
    let counts = bench.metrics.audit.clone();
    let ledger = Arc::get_mut(&mut bench.ledger).unwrap();
    let spawned =
        ledger.add(delivery, |queue| spawn("other", queue, (delivery, Clock::system(), counts), || writer));
    spawned.unwrap();
    let writing = bench.ledger.write(event(0), bench.ledger.room());
    assert!(timeout(Duration::from_millis(50), writing).await.is_err(), "the first place takes its time");
    bench.may.add_permits(10);
    bench.ledger.close().await;
    assert_eq!((bench.written.load(Ordering::SeqCst), other.load(Ordering::SeqCst)), (1, 1));
}

#[actix_rt::test]
async fn a_client_that_hangs_up_before_a_full_queue_loses_its_record_and_that_is_counted() {
    let bench = bench(Mode::Blocking, 1, 1, None, true);
    for lost in [0, 0, 1, 2] {
        // The writer has the first and the queue the second.
        let writing = bench.ledger.write(event(0), bench.ledger.room());
        assert!(timeout(Duration::from_millis(50), writing).await.is_err());
        assert_eq!(count(&bench.metrics, LOST), lost);
    }
    bench.may.add_permits(10);
    bench.ledger.close().await;
    assert_eq!(bench.written.load(Ordering::SeqCst), 2);
    assert_eq!(bench.ledger.heads.bytes(), 0);
}

#[actix_rt::test]
async fn a_client_that_hangs_up_does_not_take_the_last_record_along() {
    let bench = bench(Mode::Blocking, 1, 1, None, true);
    for _ in 0..4 {
        let writing = bench.ledger.write_last(event(0), bench.ledger.room());
        assert!(timeout(Duration::from_millis(50), writing).await.is_err());
    }
    bench.may.add_permits(10);
    while bench.ledger.unattended.available_permits() < AUDIT_UNATTENDED {
        tokio::task::yield_now().await;
    }
    assert_eq!((count(&bench.metrics, LOST), bench.written.load(Ordering::SeqCst)), (0, 4));
}

#[actix_rt::test]
async fn in_blocking_mode_a_record_waits_for_room_and_is_not_lost() {
    for mode in [Mode::Blocking, Mode::BlockingStrict] {
        let bench = bench(mode, 10, 1, None, true);
        let head = bench.ledger.heads.take(AUDIT_HEADS_BYTES).unwrap();
        let taken = bench.ledger.reservation(head, bench.ledger.room());
        bench.may.add_permits(10);
        let mut writing = Box::pin(bench.ledger.write(event(10), bench.ledger.room()));
        assert!(timeout(Duration::from_millis(50), &mut writing).await.is_err(), "there is no room");
        assert_eq!((count(&bench.metrics, LOST), bench.written.load(Ordering::SeqCst)), (0, 0));
        drop(taken);
        assert!(timeout(Duration::from_secs(10), writing).await.unwrap(), "and then there is");
        assert_eq!((count(&bench.metrics, LOST), bench.written.load(Ordering::SeqCst)), (0, 1));
        // Who waits is told before the room is given back.
        while bench.ledger.heads.bytes() > 0 {
            tokio::task::yield_now().await;
        }
        let taken = bench.ledger.heads.take(AUDIT_HEADS_BYTES).unwrap();
        let writing = bench.ledger.write(event(10), bench.ledger.room());
        assert!(timeout(Duration::from_millis(50), writing).await.is_err());
        assert_eq!(count(&bench.metrics, LOST), 1, "whoever goes meanwhile takes it along");
        drop(taken);
        assert_eq!((bench.ledger.heads.bytes(), bench.ledger.bodies.bytes()), (0, 0));
    }
}

#[actix_rt::test]
async fn where_some_wait_for_room_batches_do_not() {
    let mut bench = bench(Mode::Batch, 10, 1, None, true);
    let (may, written) = (Arc::new(Semaphore::new(10)), Arc::<AtomicUsize>::default());
    let writer = Slow { may, written: written.clone(), largest: Arc::default(), works: true };
    let delivery = Delivery {
        mode: Mode::Blocking,
        batching: Batching { waiting: 10, most: 1, wait: Duration::ZERO, rate: None },
        truncation: None,
    };
    let counts = bench.metrics.audit.clone();
    let ledger = Arc::get_mut(&mut bench.ledger).unwrap();
    let spawned =
        ledger.add(delivery, |queue| spawn("other", queue, (delivery, Clock::system(), counts), || writer));
    spawned.unwrap();
    let head = bench.ledger.heads.take(AUDIT_HEADS_BYTES).unwrap();
    let taken = bench.ledger.reservation(head, bench.ledger.room());
    let mut writing = Box::pin(bench.ledger.write(event(0), bench.ledger.room()));
    assert!(futures::poll!(&mut writing).is_pending());
    assert_eq!(count(&bench.metrics, LOST), 1);
    drop(taken);
    assert!(timeout(Duration::from_secs(10), writing).await.unwrap());
    bench.may.add_permits(10);
    bench.ledger.close().await;
    assert_eq!((bench.written.load(Ordering::SeqCst), written.load(Ordering::SeqCst)), (0, 1));
    assert_eq!(count(&bench.metrics, LOST), 1);
}

#[actix_rt::test]
async fn in_strict_mode_a_request_without_a_record_is_refused() {
    for works in [true, false] {
        let bench = bench(Mode::BlockingStrict, 10, 1, None, works);
        bench.may.add_permits(10);
        assert_eq!(bench.ledger.write(event(0), bench.ledger.room()).await, works);
    }
}

#[actix_rt::test]
async fn large_records_lose_their_bodies_or_are_lost() {
    let bench = bench(Mode::Blocking, 10, 1, Some(Truncation { event: 500, batch: 1_000 }), true);
    bench.may.add_permits(10);
    assert!(bench.ledger.write(event(1_000), bench.ledger.room()).await);
    assert_eq!(bench.written.load(Ordering::SeqCst), 1);
    let mut large = event(0);
    large.notes.insert("k".to_owned(), "x".repeat(600));
    assert!(bench.ledger.write(large, bench.ledger.room()).await, "that refuses nobody");
    assert_eq!(bench.written.load(Ordering::SeqCst), 1);
    assert_eq!(count(&bench.metrics, r#"apiserver_audit_error_total{plugin="truncate"}"#), 1);
}
