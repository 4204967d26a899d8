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
use crate::limits::{AUDIT_BATCH_BYTES, AUDIT_LINES_AT_ONCE};
use crate::metrics::audit::Audit as Counts;

/// The memory budget that an event holds.
pub struct EventReservation {
    /// For everything but its bodies.
    pub(super) _head: Reservation,
    /// For its bodies.
    pub(super) _bodies: Reservation,
    /// Dropped last, so that the budget is released before waiters wake.
    pub(super) _freed: NotifyOnRelease,
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
    /// The end: write everything before, and confirm.
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
            // The request may have gone.
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
struct Rate {
    per_second: f64,
    most: f64,
    tokens: f64,
    at: Moment,
}

impl Rate {
    fn new((per_second, burst): (f64, u32), now: Moment) -> Rate {
        Rate { per_second, most: f64::from(burst), tokens: f64::from(burst), at: now }
    }

    /// Takes a token, and answers how long to wait for it.
    fn take(&mut self, now: Moment) -> Duration {
        let passed = now.since(self.at).as_secs_f64();
        self.at = now;
        self.tokens = (self.tokens + passed * self.per_second).min(self.most) - 1.0;
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
    (delivery, clock, counts): (Delivery, Clock, Counts),
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
        _ => Batching { most: AUDIT_LINES_AT_ONCE, wait: Duration::ZERO, rate: None, ..delivery.batching },
    }
}

/// The approximate encoded size of an event.
fn weight(entry: &QueuedEvent) -> usize {
    entry.event.head_bytes() + entry.event.body_bytes()
}

/// Splits lines into batches within a size limit; a single larger line is a batch of its own.
fn split(lines: Vec<EncodedEvent>, most: usize) -> Vec<Vec<EncodedEvent>> {
    let (mut batches, mut bytes): (Vec<Vec<EncodedEvent>>, usize) = (Vec::new(), 0);
    for line in lines {
        match batches.last_mut() {
            Some(batch) if bytes + line.text.len() <= most => {
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
    rate: Option<Rate>,
    clock: Clock,
    counts: Counts,
}

impl Batches {
    async fn run(mut self, mut writer: impl Writer) {
        self.rate = self.batching.rate.map(|rate| Rate::new(rate, self.clock.moment()));
        loop {
            let (entries, end) = self.gather().await;
            let lines = entries.into_iter().filter_map(|entry| self.line(&writer, entry)).collect();
            for lines in split(lines, self.most_bytes()) {
                if let Some(rate) = &mut self.rate {
                    sleep(rate.take(self.clock.moment())).await;
                }
                writer.write(lines).await;
            }
            if let Some(done) = end {
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
                && let Some(line) = self.line(writer, entry)
            {
                writer.write(vec![line]).await;
            }
        }
        writer.finish().await;
    }

    /// The next batch of at least one event; and whether it is the last, with the sender to confirm.
    async fn gather(&mut self) -> (Vec<QueuedEvent>, Option<Option<oneshot::Sender<()>>>) {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        match self.queue.recv().await {
            None => return (entries, Some(None)),
            Some(QueueItem::Close(done)) => return (entries, Some(Some(done))),
            Some(QueueItem::Write(entry)) => {
                bytes += weight(&entry);
                entries.push(entry);
            }
        }
        let most = self.most_bytes();
        let wait = self.batching.wait;
        let until = self.clock.moment().plus(wait);
        while entries.len() < self.batching.most && bytes < most {
            let item = match self.queue.try_recv() {
                Ok(item) => item,
                Err(mpsc::error::TryRecvError::Disconnected) => return (entries, Some(None)),
                Err(mpsc::error::TryRecvError::Empty) => {
                    let left = until.since(self.clock.moment());
                    if left.is_zero() {
                        break;
                    }
                    match timeout(left.min(wait), self.queue.recv()).await {
                        Ok(Some(item)) => item,
                        Ok(None) => return (entries, Some(None)),
                        Err(_) => break,
                    }
                }
            };
            match item {
                QueueItem::Close(done) => return (entries, Some(Some(done))),
                QueueItem::Write(entry) => {
                    bytes += weight(&entry);
                    entries.push(entry);
                }
            }
        }
        (entries, None)
    }

    /// The maximum size of a batch.
    fn most_bytes(&self) -> usize {
        self.truncation.map_or(AUDIT_BATCH_BYTES, |bounds| bounds.batch.min(AUDIT_BATCH_BYTES))
    }

    /// Encodes an event, truncated to the size limit.
    fn line(&self, writer: &impl Writer, mut entry: QueuedEvent) -> Option<EncodedEvent> {
        let size = |event: &Event| {
            let mut text = Vec::new();
            event.write_json(&mut text, true);
            text.len() + 1
        };
        if let Some(bounds) = self.truncation {
            let mut bytes = size(&entry.event);
            if bytes > bounds.event && entry.event.head.level >= Level::Request {
                let mut smaller = Event::clone(&entry.event);
                smaller.truncate();
                bytes = size(&smaller);
                entry.event = Arc::new(smaller);
            }
            if bytes > bounds.event {
                self.counts.lost("truncate", 1, "event is too large even after truncating");
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
    fn batches_are_few_after_the_first() {
        let later = Moment::default().plus(Duration::from_secs(10));
        let mut rate = Rate::new((10.0, 2), Moment::default());
        assert_eq!(rate.take(Moment::default()), Duration::ZERO);
        assert_eq!(rate.take(Moment::default()), Duration::ZERO);
        assert_eq!(rate.take(Moment::default()), Duration::from_millis(100));
        assert_eq!(rate.take(Moment::default()), Duration::from_millis(200));
        assert_eq!(rate.take(later), Duration::ZERO, "rest fills it again");
        assert_eq!(rate.take(later), Duration::ZERO);
        assert_ne!(rate.take(later), Duration::ZERO, "and no more than that");
    }

    #[test]
    fn no_batch_is_larger_than_may_go_together() {
        let budget = MemoryBudget::alone(1_000);
        let line = |bytes: usize| {
            let reservation = Arc::new(EventReservation {
                _head: budget.nothing(),
                _bodies: budget.nothing(),
                _freed: NotifyOnRelease(Arc::default()),
            });
            EncodedEvent {
                text: vec![b'x'; bytes],
                entry: QueuedEvent { event: event(), reservation, done: None },
            }
        };
        let sizes = |lines: &[usize]| -> Vec<Vec<usize>> {
            let batches = split(lines.iter().map(|bytes| line(*bytes)).collect(), 10);
            batches.iter().map(|batch| batch.iter().map(|line| line.text.len()).collect()).collect()
        };
        assert_eq!(sizes(&[4, 6, 1, 9, 3]), [vec![4, 6], vec![1, 9], vec![3]]);
        assert_eq!(sizes(&[9, 20, 1]), [vec![9], vec![20], vec![1]], "one alone may be larger");
        assert!(sizes(&[]).is_empty());
    }

    fn event() -> Arc<Event> {
        Arc::new(Event {
            head: Arc::default(),
            stage: Stage::RequestReceived,
            acts_as: None,
            object: None,
            answered: None,
            request: None,
            response: None,
            at: Timestamp(0),
            notes: [].into(),
        })
    }
}
