//! Takes events from the queue of one backend, batches them within size limits, and passes them to the writer.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_api::audit::Level;
use pilothouse_api::audit::event::Event;
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::memory::Reservation;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::config::audit::{Batching, Delivery, Mode, Truncation};
use crate::limits::{AUDIT_BATCH_BYTES, AUDIT_LINES_PER_WRITE};
use crate::metrics::audit::Audit as Counts;

/// The memory budget that an event holds.
pub struct EventReservation {
    /// Reserves everything but its bodies.
    pub(super) _head: Reservation,
    /// Reserves its bodies.
    pub(super) _bodies: Reservation,
    /// Dropped last, so that the budget is released before waiters wake.
    pub(super) _released: NotifyOnRelease,
}

/// Wakes waiters when budget is released.
pub struct NotifyOnRelease(pub(super) Arc<Notify>);

impl Drop for NotifyOnRelease {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

/// A queued event.
pub struct QueuedEvent {
    /// The event itself.
    pub event: Arc<Event>,
    /// Its budget, released when all backends are done with it.
    pub reservation: Arc<EventReservation>,
    /// Notifies the waiting request.
    pub done: Option<oneshot::Sender<bool>>,
}

/// An item of the queue.
pub enum QueueItem {
    /// An event to write.
    Write(QueuedEvent),
    /// Writes all earlier events, confirms, and ends the thread.
    Close(oneshot::Sender<()>),
}

/// An encoded event.
pub struct EncodedEvent {
    /// The encoded text.
    pub text: Vec<u8>,
    entry: QueuedEvent,
}

impl EncodedEvent {
    /// Notifies the waiting request of the result.
    pub fn done(self, written: bool) {
        if let Some(done) = self.entry.done {
            // The request may have been cancelled.
            let _ = done.send(written);
        }
    }
}

/// Writes events.
pub trait Writer {
    /// Encodes an event.
    fn text(&self, event: &Event) -> Vec<u8>;

    /// Writes events, and notifies waiting requests.
    fn write(&mut self, lines: Vec<EncodedEvent>) -> impl Future<Output = ()>;

    /// Waits until everything is written.
    fn finish(&mut self) -> impl Future<Output = ()>;
}

/// A rate limit of batches.
struct RateLimit {
    per_second: f64,
    burst: f64,
    tokens: f64,
    last_take: Moment,
}

impl RateLimit {
    fn new(per_second: f64, burst: u32, now: Moment) -> RateLimit {
        RateLimit { per_second, burst: f64::from(burst), tokens: f64::from(burst), last_take: now }
    }

    /// Takes a token, and returns how long to wait for it.
    fn take(&mut self, now: Moment) -> Duration {
        let elapsed = now.since(self.last_take).as_secs_f64();
        self.last_take = now;
        self.tokens = (self.tokens + elapsed * self.per_second).min(self.burst) - 1.0;
        if self.tokens >= 0.0 || self.per_second <= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.tokens / self.per_second).unwrap_or_default()
    }
}

/// Starts a thread that reads a queue. `writer` is made there.
pub fn spawn<W: Writer>(
    name: &str,
    queue: mpsc::Receiver<QueueItem>,
    delivery: Delivery,
    clock: Clock,
    counts: Counts,
    writer: impl FnOnce() -> W + Send + 'static,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = move || {
        let local = tokio::task::LocalSet::new();
        let batches = Batches {
            queue,
            batching: batching(&delivery),
            truncation: delivery.truncation,
            rate: None,
            clock,
            counts,
        };
        local.block_on(&runtime, batches.run(writer()));
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// In blocking modes nothing waits for a batch to fill: available events are written at once.
fn batching(delivery: &Delivery) -> Batching {
    match delivery.mode {
        Mode::Batch => delivery.batching,
        _ => Batching {
            max_batch_size: AUDIT_LINES_PER_WRITE,
            wait: Duration::ZERO,
            rate: None,
            ..delivery.batching
        },
    }
}

/// The approximate encoded size of an event.
fn approximate_size(entry: &QueuedEvent) -> usize {
    entry.event.head_bytes() + entry.event.body_bytes()
}

/// Splits lines into batches within a size limit; a single larger line is a batch of its own.
fn split(lines: Vec<EncodedEvent>, max_bytes: usize) -> Vec<Vec<EncodedEvent>> {
    let (mut batches, mut bytes): (Vec<Vec<EncodedEvent>>, usize) = (Vec::new(), 0);
    for line in lines {
        match batches.last_mut() {
            Some(batch) if bytes + line.text.len() <= max_bytes => {
                bytes += line.text.len();
                batch.push(line);
            }
            _ => {
                bytes = line.text.len();
                batches.push(vec![line]);
            }
        }
    }
    batches
}

struct Batches {
    queue: mpsc::Receiver<QueueItem>,
    batching: Batching,
    truncation: Option<Truncation>,
    rate: Option<RateLimit>,
    clock: Clock,
    counts: Counts,
}

impl Batches {
    async fn run(mut self, mut writer: impl Writer) {
        self.rate = self
            .batching
            .rate
            .map(|(per_second, burst)| RateLimit::new(per_second, burst, self.clock.moment()));
        loop {
            let (entries, close) = self.next_batch().await;
            let lines = entries.into_iter().filter_map(|entry| self.encode(&writer, entry)).collect();
            for lines in split(lines, self.max_batch_bytes()) {
                if let Some(rate) = &mut self.rate {
                    sleep(rate.take(self.clock.moment())).await;
                }
                writer.write(lines).await;
            }
            if let Some(done) = close {
                // The queue accepts nothing more, and is drained.
                self.queue.close();
                self.drain(&mut writer).await;
                if let Some(done) = done {
                    let _ = done.send(());
                }
                return;
            }
        }
    }

    /// Writes the rest of a closed queue.
    async fn drain(&mut self, writer: &mut impl Writer) {
        while let Some(item) = self.queue.recv().await {
            if let QueueItem::Write(entry) = item
                && let Some(encoded) = self.encode(writer, entry)
            {
                writer.write(vec![encoded]).await;
            }
        }
        writer.finish().await;
    }

    /// The next batch of at least one event; and whether it is the last, with the sender to confirm.
    async fn next_batch(&mut self) -> (Vec<QueuedEvent>, Option<Option<oneshot::Sender<()>>>) {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        match self.queue.recv().await {
            None => return (entries, Some(None)),
            Some(QueueItem::Close(done)) => return (entries, Some(Some(done))),
            Some(QueueItem::Write(entry)) => {
                bytes += approximate_size(&entry);
                entries.push(entry);
            }
        }
        let max_bytes = self.max_batch_bytes();
        let wait = self.batching.wait;
        let deadline = self.clock.moment().plus(wait);
        while entries.len() < self.batching.max_batch_size && bytes < max_bytes {
            let item = match self.queue.try_recv() {
                Ok(item) => item,
                Err(mpsc::error::TryRecvError::Disconnected) => return (entries, Some(None)),
                Err(mpsc::error::TryRecvError::Empty) => {
                    let remaining = deadline.since(self.clock.moment());
                    if remaining.is_zero() {
                        break;
                    }
                    match timeout(remaining.min(wait), self.queue.recv()).await {
                        Ok(Some(item)) => item,
                        Ok(None) => return (entries, Some(None)),
                        Err(_) => break,
                    }
                }
            };
            match item {
                QueueItem::Close(done) => return (entries, Some(Some(done))),
                QueueItem::Write(entry) => {
                    bytes += approximate_size(&entry);
                    entries.push(entry);
                }
            }
        }
        (entries, None)
    }

    /// The maximum size of a batch.
    fn max_batch_bytes(&self) -> usize {
        self.truncation.map_or(AUDIT_BATCH_BYTES, |limits| limits.batch.min(AUDIT_BATCH_BYTES))
    }

    /// Encodes an event, truncated to the size limit; `None` if it is too large even then.
    fn encode(&self, writer: &impl Writer, mut entry: QueuedEvent) -> Option<EncodedEvent> {
        let size = |event: &Event| {
            let mut text = Vec::new();
            event.write_json(&mut text, true);
            text.len() + 1
        };
        if let Some(limits) = self.truncation {
            let mut bytes = size(&entry.event);
            if bytes > limits.event && entry.event.head.level >= Level::Request {
                let mut truncated = Event::clone(&entry.event);
                truncated.truncate();
                bytes = size(&truncated);
                entry.event = Arc::new(truncated);
            }
            if bytes > limits.event {
                self.counts.count_lost("truncate", 1, "event is too large even after truncating");
                EncodedEvent { text: Vec::new(), entry }.done(true);
                return None;
            }
        }
        Some(EncodedEvent { text: writer.text(&entry.event), entry })
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_api::audit::Stage;
    use pilothouse_types::clock::Timestamp;
    use pilothouse_types::memory::MemoryBudget;

    use super::*;

    #[test]
    fn audit_batch_rate_is_limited_after_the_burst() {
        let ten_seconds_later = Moment::default().plus(Duration::from_secs(10));
        let mut rate = RateLimit::new(10.0, 2, Moment::default());
        assert_eq!(rate.take(Moment::default()), Duration::ZERO);
        assert_eq!(rate.take(Moment::default()), Duration::ZERO);
        assert_eq!(rate.take(Moment::default()), Duration::from_millis(100));
        assert_eq!(rate.take(Moment::default()), Duration::from_millis(200));
        assert_eq!(rate.take(ten_seconds_later), Duration::ZERO, "idle time refills the tokens");
        assert_eq!(rate.take(ten_seconds_later), Duration::ZERO);
        assert_ne!(rate.take(ten_seconds_later), Duration::ZERO, "only up to the burst");
    }

    #[test]
    fn audit_batches_are_split_by_size() {
        let budget = MemoryBudget::standalone(1_000);
        let make_line = |bytes: usize| {
            let reservation = Arc::new(EventReservation {
                _head: budget.empty_reservation(),
                _bodies: budget.empty_reservation(),
                _released: NotifyOnRelease(Arc::default()),
            });
            EncodedEvent {
                text: vec![b'x'; bytes],
                entry: QueuedEvent { event: event(), reservation, done: None },
            }
        };
        let sizes = |lines: &[usize]| -> Vec<Vec<usize>> {
            let batches = split(lines.iter().map(|bytes| make_line(*bytes)).collect(), 10);
            batches.iter().map(|batch| batch.iter().map(|line| line.text.len()).collect()).collect()
        };
        assert_eq!(sizes(&[4, 6, 1, 9, 3]), [vec![4, 6], vec![1, 9], vec![3]]);
        assert_eq!(sizes(&[9, 20, 1]), [vec![9], vec![20], vec![1]], "a single event may be larger");
        assert!(sizes(&[]).is_empty());
    }

    fn event() -> Arc<Event> {
        Arc::new(Event {
            head: Arc::default(),
            stage: Stage::RequestReceived,
            impersonated_user: None,
            object: None,
            response_status: None,
            request: None,
            response: None,
            stage_timestamp: Timestamp(0),
            annotations: [].into(),
        })
    }
}
