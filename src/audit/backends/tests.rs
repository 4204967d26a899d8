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

/// Writes once its gate opens, and counts the events.
struct GatedWriter {
    gate: Arc<Semaphore>,
    written: Arc<AtomicUsize>,
    largest: Arc<AtomicUsize>,
    succeeds: bool,
}

impl Writer for GatedWriter {
    fn text(&self, event: &Event) -> Vec<u8> {
        let mut text = Vec::new();
        event.write_json(&mut text, true);
        text
    }

    async fn write(&mut self, lines: Vec<EncodedEvent>) {
        let gate = self.gate.acquire().await.unwrap();
        self.largest.fetch_max(lines.len(), Ordering::SeqCst);
        self.written.fetch_add(lines.len(), Ordering::SeqCst);
        lines.into_iter().for_each(|line| line.done(self.succeeds));
        drop(gate);
    }

    async fn finish(&mut self) {}
}

struct Fixture {
    backends: Arc<AuditBackends>,
    metrics: Metrics,
    gate: Arc<Semaphore>,
    written: Arc<AtomicUsize>,
    largest: Arc<AtomicUsize>,
}

fn fixture(
    mode: Mode,
    waiting: usize,
    max_batch_size: usize,
    truncation: Option<Truncation>,
    succeeds: bool,
) -> Fixture {
    let metrics = Metrics::new(Timestamp(0)).unwrap();
    let (gate, written, largest) =
        (Arc::new(Semaphore::new(0)), Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let mut backends = AuditBackends::new(
        metrics.audit.clone(),
        MemoryBudget::standalone(AUDIT_HEADS_BYTES),
        MemoryBudget::standalone(AUDIT_BODIES_BYTES),
    );
    let batching = Batching { waiting, max_batch_size, wait: Duration::ZERO, rate: None };
    let delivery = Delivery { mode, batching, truncation };
    let slow =
        GatedWriter { gate: gate.clone(), written: written.clone(), largest: largest.clone(), succeeds };
    let counts = metrics.audit.clone();
    let spawned: io::Result<()> =
        backends.add(delivery, |queue| spawn("test", queue, delivery, Clock::system(), counts, || slow));
    spawned.unwrap();
    Fixture { backends: Arc::new(backends), metrics, gate, written, largest }
}

fn event(body: usize) -> Event {
    let head =
        EventMetadata { level: Level::Request, id: "i".to_owned(), verb: "get", ..EventMetadata::default() };
    Event {
        head: Arc::new(head),
        stage: Stage::ResponseComplete,
        impersonated_user: None,
        object: None,
        response_status: None,
        request: (body > 0).then(|| format!("\"{}\"", "x".repeat(body)).into()),
        response: None,
        stage_timestamp: Timestamp(0),
        annotations: [].into(),
    }
}

fn count(metrics: &Metrics, series: &str) -> u64 {
    let text = String::from_utf8(metrics.text().unwrap()).unwrap();
    let value = text.lines().find_map(|text| text.strip_prefix(series)?.trim().parse().ok());
    value.unwrap_or(0)
}

const LOST: &str = r#"apiserver_audit_error_total{plugin="buffered"}"#;

#[actix_rt::test]
async fn audit_batch_mode_drops_and_counts_events_beyond_the_queue() {
    let fixture = fixture(Mode::Batch, 10, 4, None, true);
    for _ in 0..100 {
        assert!(fixture.backends.write(event(0), fixture.backends.empty_reservation()).await);
    }
    let lost = count(&fixture.metrics, LOST);
    assert!((85..=90).contains(&lost), "{lost}");
    assert_eq!(count(&fixture.metrics, "apiserver_audit_event_total"), 100);
    fixture.gate.add_permits(1_000);
    fixture.backends.close().await;
    assert_eq!(fixture.written.load(Ordering::SeqCst) as u64 + lost, 100, "queued events are written");
    assert!(fixture.largest.load(Ordering::SeqCst) <= 4);
    fixture.backends.write_later(event(0), fixture.backends.empty_reservation());
    assert_eq!(count(&fixture.metrics, LOST), lost + 1, "events after close are dropped");
    assert_eq!(fixture.backends.heads.bytes(), 0, "all budget is released");
}

#[actix_rt::test]
async fn audit_bodies_share_one_memory_budget() {
    let fixture = fixture(Mode::Batch, 1_000, 1, None, true);
    for _ in 0..20 {
        fixture.backends.write(event(AUDIT_BODIES_BYTES / 10), fixture.backends.empty_reservation()).await;
        let bytes = fixture.backends.bodies.bytes();
        assert!(bytes <= AUDIT_BODIES_BYTES, "{bytes}");
    }
    assert_eq!(count(&fixture.metrics, LOST), 0, "without bodies all events fit");
    fixture.gate.add_permits(1_000);
    fixture.backends.close().await;
    assert_eq!(fixture.written.load(Ordering::SeqCst), 20);
    assert_eq!((fixture.backends.bodies.bytes(), fixture.backends.heads.bytes()), (0, 0));
}

#[actix_rt::test]
async fn audit_budget_held_by_slow_clients_drops_only_bodies_of_others() {
    let fixture = fixture(Mode::Batch, 1_000, 1, None, true);
    let mut slow = fixture.backends.empty_reservation();
    slow.set(AUDIT_BODIES_BYTES).unwrap();
    let mut bad_request = event(10);
    bad_request.response_status = Some(ResponseStatus::status(&Status::bad_request("x".repeat(1_000))));
    for _ in 0..100 {
        fixture.backends.write(bad_request.clone(), fixture.backends.empty_reservation()).await;
    }
    assert_eq!(count(&fixture.metrics, LOST), 0);
    assert_eq!(fixture.backends.bodies.bytes(), AUDIT_BODIES_BYTES);
    fixture.gate.add_permits(1_000);
    fixture.backends.close().await;
    assert_eq!(fixture.written.load(Ordering::SeqCst), 100);
}

#[actix_rt::test]
async fn audit_response_status_counts_towards_body_budget() {
    let fixture = fixture(Mode::Batch, 1_000, 1, None, true);
    let mut bad_request = event(0);
    bad_request.response_status =
        Some(ResponseStatus::status(&Status::bad_request("x".repeat(AUDIT_BODIES_BYTES / 10))));
    for _ in 0..20 {
        fixture.backends.write_later(bad_request.clone(), fixture.backends.empty_reservation());
        let bytes = fixture.backends.bodies.bytes();
        assert!(bytes <= AUDIT_BODIES_BYTES, "{bytes}");
    }
    assert_eq!(count(&fixture.metrics, LOST), 0, "without their message all events fit");
    fixture.gate.add_permits(1_000);
    fixture.backends.close().await;
}

#[actix_rt::test]
async fn audit_blocking_mode_waits_until_written() {
    let fixture = fixture(Mode::Blocking, 10, 1, None, false);
    let write = fixture.backends.write(event(0), fixture.backends.empty_reservation());
    assert!(timeout(Duration::from_millis(50), write).await.is_err(), "until it is written");
    fixture.gate.add_permits(10);
    let (backends, bodies) = (fixture.backends.clone(), fixture.backends.empty_reservation());
    assert!(backends.write(event(0), bodies).await, "even if writing fails");
    assert_eq!(fixture.written.load(Ordering::SeqCst), 2);
}

#[actix_rt::test]
async fn audit_event_of_disconnected_client_reaches_all_backends() {
    let mut fixture = fixture(Mode::Blocking, 10, 1, None, true);
    let other = Arc::<AtomicUsize>::default();
    let delivery = Delivery {
        mode: Mode::Batch,
        batching: Batching { waiting: 10, max_batch_size: 1, wait: Duration::ZERO, rate: None },
        truncation: None,
    };
    let writer = GatedWriter {
        gate: Arc::new(Semaphore::new(10)),
        written: other.clone(),
        largest: Arc::default(),
        succeeds: true,
    };
    let counts = fixture.metrics.audit.clone();
    let backends = Arc::get_mut(&mut fixture.backends).unwrap();
    let spawned =
        backends.add(delivery, |queue| spawn("other", queue, delivery, Clock::system(), counts, || writer));
    spawned.unwrap();
    let write = fixture.backends.write(event(0), fixture.backends.empty_reservation());
    assert!(timeout(Duration::from_millis(50), write).await.is_err(), "the blocking backend is slow");
    fixture.gate.add_permits(10);
    fixture.backends.close().await;
    assert_eq!((fixture.written.load(Ordering::SeqCst), other.load(Ordering::SeqCst)), (1, 1));
}

#[actix_rt::test]
async fn audit_event_dropped_at_full_queue_by_disconnect_is_counted() {
    let fixture = fixture(Mode::Blocking, 1, 1, None, true);
    for lost in [0, 0, 1, 2] {
        // The writer holds the first event and the queue the second.
        let write = fixture.backends.write(event(0), fixture.backends.empty_reservation());
        assert!(timeout(Duration::from_millis(50), write).await.is_err());
        assert_eq!(count(&fixture.metrics, LOST), lost);
    }
    fixture.gate.add_permits(10);
    fixture.backends.close().await;
    assert_eq!(fixture.written.load(Ordering::SeqCst), 2);
    assert_eq!(fixture.backends.heads.bytes(), 0);
}

#[actix_rt::test]
async fn last_audit_event_survives_client_disconnect() {
    let fixture = fixture(Mode::Blocking, 1, 1, None, true);
    for _ in 0..4 {
        let write = fixture.backends.write_last(event(0), fixture.backends.empty_reservation());
        assert!(timeout(Duration::from_millis(50), write).await.is_err());
    }
    fixture.gate.add_permits(10);
    while fixture.backends.detached_writes.available_permits() < AUDIT_DETACHED_EVENTS {
        tokio::task::yield_now().await;
    }
    assert_eq!((count(&fixture.metrics, LOST), fixture.written.load(Ordering::SeqCst)), (0, 4));
}

#[actix_rt::test]
async fn audit_blocking_mode_waits_for_memory_budget() {
    for mode in [Mode::Blocking, Mode::BlockingStrict] {
        let fixture = fixture(mode, 10, 1, None, true);
        let head = fixture.backends.heads.take(AUDIT_HEADS_BYTES).unwrap();
        let reservation = fixture.backends.reservation(head, fixture.backends.empty_reservation());
        fixture.gate.add_permits(10);
        let mut write = Box::pin(fixture.backends.write(event(10), fixture.backends.empty_reservation()));
        assert!(timeout(Duration::from_millis(50), &mut write).await.is_err(), "the budget is exhausted");
        assert_eq!((count(&fixture.metrics, LOST), fixture.written.load(Ordering::SeqCst)), (0, 0));
        drop(reservation);
        assert!(timeout(Duration::from_secs(10), write).await.unwrap(), "the budget is released");
        assert_eq!((count(&fixture.metrics, LOST), fixture.written.load(Ordering::SeqCst)), (0, 1));
        // The waiter wakes before the budget is released.
        while fixture.backends.heads.bytes() > 0 {
            tokio::task::yield_now().await;
        }
        let reservation = fixture.backends.heads.take(AUDIT_HEADS_BYTES).unwrap();
        let write = fixture.backends.write(event(10), fixture.backends.empty_reservation());
        assert!(timeout(Duration::from_millis(50), write).await.is_err());
        assert_eq!(count(&fixture.metrics, LOST), 1, "a cancelled wait drops the event");
        drop(reservation);
        assert_eq!((fixture.backends.heads.bytes(), fixture.backends.bodies.bytes()), (0, 0));
    }
}

#[actix_rt::test]
async fn audit_batch_backend_drops_event_while_blocking_backend_waits() {
    let mut fixture = fixture(Mode::Batch, 10, 1, None, true);
    let (gate, written) = (Arc::new(Semaphore::new(10)), Arc::<AtomicUsize>::default());
    let writer = GatedWriter { gate, written: written.clone(), largest: Arc::default(), succeeds: true };
    let delivery = Delivery {
        mode: Mode::Blocking,
        batching: Batching { waiting: 10, max_batch_size: 1, wait: Duration::ZERO, rate: None },
        truncation: None,
    };
    let counts = fixture.metrics.audit.clone();
    let backends = Arc::get_mut(&mut fixture.backends).unwrap();
    let spawned =
        backends.add(delivery, |queue| spawn("other", queue, delivery, Clock::system(), counts, || writer));
    spawned.unwrap();
    let head = fixture.backends.heads.take(AUDIT_HEADS_BYTES).unwrap();
    let reservation = fixture.backends.reservation(head, fixture.backends.empty_reservation());
    let mut write = Box::pin(fixture.backends.write(event(0), fixture.backends.empty_reservation()));
    assert!(futures::poll!(&mut write).is_pending());
    assert_eq!(count(&fixture.metrics, LOST), 1);
    drop(reservation);
    assert!(timeout(Duration::from_secs(10), write).await.unwrap());
    fixture.gate.add_permits(10);
    fixture.backends.close().await;
    assert_eq!((fixture.written.load(Ordering::SeqCst), written.load(Ordering::SeqCst)), (0, 1));
    assert_eq!(count(&fixture.metrics, LOST), 1);
}

#[actix_rt::test]
async fn audit_strict_mode_refuses_request_if_writing_fails() {
    for succeeds in [true, false] {
        let fixture = fixture(Mode::BlockingStrict, 10, 1, None, succeeds);
        fixture.gate.add_permits(10);
        assert_eq!(fixture.backends.write(event(0), fixture.backends.empty_reservation()).await, succeeds);
    }
}

#[actix_rt::test]
async fn oversized_audit_event_is_truncated_or_dropped() {
    let fixture = fixture(Mode::Blocking, 10, 1, Some(Truncation { event: 500, batch: 1_000 }), true);
    fixture.gate.add_permits(10);
    assert!(fixture.backends.write(event(1_000), fixture.backends.empty_reservation()).await);
    assert_eq!(fixture.written.load(Ordering::SeqCst), 1);
    let mut large = event(0);
    large.annotations.insert("k".to_owned(), "x".repeat(600));
    assert!(
        fixture.backends.write(large, fixture.backends.empty_reservation()).await,
        "the request is not refused"
    );
    assert_eq!(fixture.written.load(Ordering::SeqCst), 1);
    assert_eq!(count(&fixture.metrics, r#"apiserver_audit_error_total{plugin="truncate"}"#), 1);
}
