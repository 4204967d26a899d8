//! The audit backends.
//!
//! Each backend, the log (`log.rs`) and the webhook (`webhook.rs`), has a thread of its own and a bounded queue (`batches.rs`).
//! In batch mode requests do not wait: an event that does not fit is dropped and counted. In the other modes a request waits until its
//! event is written; its last event waits even if the client has gone. Events and their bodies have separate memory budgets, so
//! that large responses to slow readers can only cost other events their bodies.

pub mod batches;
pub mod log;
pub mod webhook;

use std::sync::Arc;

use futures::future::join_all;
use pilothouse_api::audit::event::Event;
use pilothouse_types::memory::{MemoryBudget, Reservation};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, Notify, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::config::audit::{Delivery, Mode};
use crate::limits::{AUDIT_CLOSE_TIMEOUT, AUDIT_DETACHED_EVENTS};
use crate::metrics::audit::Audit as Counts;

use self::batches::{EventReservation, NotifyOnRelease, QueueItem, QueuedEvent};

/// The metrics label of a full queue.
const BUFFERED: &str = "buffered";
/// Why events are dropped.
const FULL: &str = "audit buffer queue blocked";
const CLOSED: &str = "audit backend shut down";

/// One backend.
pub struct AuditBackend {
    mode: Mode,
    sender: mpsc::Sender<QueueItem>,
}

/// All audit backends.
pub struct AuditBackends {
    backends: Vec<AuditBackend>,
    heads: MemoryBudget,
    bodies: MemoryBudget,
    /// Held while an event waits for budget, so that a large event is not overtaken for ever.
    wait_turn: Mutex<()>,
    /// Wakes events that wait for budget.
    released: Arc<Notify>,
    /// Bounds the last events that wait without a client.
    detached_writes: Arc<Semaphore>,
    counts: Counts,
}

/// An event that waits for the queues of so many backends. If the request is cancelled meanwhile, the loss is counted.
struct UnqueuedEvent<'a> {
    backends: usize,
    counts: &'a Counts,
}

impl UnqueuedEvent<'_> {
    /// The event has entered the queues.
    fn queued(mut self) {
        self.backends = 0;
    }
}

impl Drop for UnqueuedEvent<'_> {
    fn drop(&mut self) {
        if self.backends > 0 {
            self.counts.count_lost(BUFFERED, self.backends, FULL);
        }
    }
}

impl AuditBackends {
    /// No backends yet.
    pub fn new(counts: Counts, heads: MemoryBudget, bodies: MemoryBudget) -> AuditBackends {
        AuditBackends {
            backends: Vec::new(),
            heads,
            bodies,
            wait_turn: Mutex::default(),
            released: Arc::default(),
            detached_writes: Arc::new(Semaphore::new(AUDIT_DETACHED_EVENTS)),
            counts,
        }
    }

    /// Adds a backend; `spawn` starts the thread that reads its queue.
    pub fn add(
        &mut self,
        delivery: Delivery,
        spawn: impl FnOnce(mpsc::Receiver<QueueItem>) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let (sender, queue) = mpsc::channel(delivery.batching.waiting);
        spawn(queue)?;
        self.backends.push(AuditBackend { mode: delivery.mode, sender });
        // Blocking backends come first.
        self.backends.sort_by_key(|backend| backend.mode == Mode::Batch);
        Ok(())
    }

    /// Whether there are no backends.
    pub fn is_empty(&self) -> bool {
        self.backends.is_empty()
    }

    /// The audit metrics.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// An empty reservation of the budget for bodies.
    pub fn empty_reservation(&self) -> Reservation {
        self.bodies.empty_reservation()
    }

    /// Takes budget for the bodies of an event, or drops them.
    fn reserve_bodies(&self, event: &mut Event, mut bodies: Reservation) -> Reservation {
        if bodies.set(event.body_bytes()).is_err() {
            event.shrink();
            // Releasing budget cannot fail.
            let _ = bodies.set(0);
        }
        bodies
    }

    fn reservation(&self, head: Reservation, bodies: Reservation) -> Arc<EventReservation> {
        Arc::new(EventReservation {
            _head: head,
            _bodies: bodies,
            _released: NotifyOnRelease(self.released.clone()),
        })
    }

    /// Waits for the budget of an event without its bodies.
    async fn reserve_head(&self, bytes: usize) -> Reservation {
        let _wait_turn = self.wait_turn.lock().await;
        loop {
            let released = self.released.notified();
            if let Ok(head) = self.heads.take(bytes) {
                return head;
            }
            released.await;
        }
    }

    /// Writes an event, and waits if a backend requires it. `false`: a blocking backend failed, and the request must not go on.
    pub async fn write(&self, mut event: Event, bodies: Reservation) -> bool {
        self.counts.count_event();
        let bodies = self.reserve_bodies(&mut event, bodies);
        let event = Arc::new(event);
        let available =
            self.wait_turn.try_lock().ok().and_then(|_wait_turn| self.heads.take(event.head_bytes()).ok());
        let (reservation, receivers) = match available {
            Some(head) => (self.reservation(head, bodies), &self.backends[..]),
            None => {
                // Batch backends come last: no request waits for them.
                let (blocking, batch_backends) = self.backends.split_at(self.blocking_count());
                if !batch_backends.is_empty() {
                    self.counts.count_lost(BUFFERED, batch_backends.len(), FULL);
                }
                if blocking.is_empty() {
                    return true;
                }
                let unqueued = UnqueuedEvent { backends: blocking.len(), counts: &self.counts };
                let head = self.reserve_head(event.head_bytes()).await;
                unqueued.queued();
                (self.reservation(head, bodies), blocking)
            }
        };
        // All backends get the event before the request waits: a client that disconnects meanwhile withholds it from none of them.
        let delivered = receivers.iter().map(|backend| self.deliver(backend, &event, reservation.clone()));
        join_all(delivered).await.into_iter().all(|may_continue| may_continue)
    }

    /// Writes the last event of a request. Its effects are done, so a client that disconnects must not cancel it.
    pub async fn write_last(self: &Arc<Self>, event: Event, bodies: Reservation) {
        let detached_writes = if self.blocking_count() > 0 {
            self.detached_writes.clone().try_acquire_owned().ok()
        } else {
            None
        };
        let Some(detached_writes) = detached_writes else {
            self.write(event, bodies).await;
            return;
        };
        let backends = self.clone();
        let task = tokio::task::spawn_local(async move {
            backends.write(event, bodies).await;
            drop(detached_writes);
        });
        // An error means that the server is shutting down.
        let _ended = task.await;
    }

    /// The number of blocking backends.
    fn blocking_count(&self) -> usize {
        self.backends.partition_point(|backend| backend.mode != Mode::Batch)
    }

    /// Writes an event without waiting.
    pub fn write_later(&self, mut event: Event, bodies: Reservation) {
        self.counts.count_event();
        let bodies = self.reserve_bodies(&mut event, bodies);
        let Ok(head) = self.heads.take(event.head_bytes()) else {
            return self.counts.count_lost(BUFFERED, self.backends.len(), FULL);
        };
        let (event, reservation) = (Arc::new(event), self.reservation(head, bodies));
        for backend in &self.backends {
            self.enqueue_or_drop(backend, &event, reservation.clone());
        }
    }

    /// Delivers an event in the mode of a backend. Returns whether the request may go on.
    async fn deliver(
        &self,
        backend: &AuditBackend,
        event: &Arc<Event>,
        reservation: Arc<EventReservation>,
    ) -> bool {
        if backend.mode == Mode::Batch {
            self.enqueue_or_drop(backend, event, reservation);
            return true;
        }
        let (done, result) = oneshot::channel();
        let item = QueueItem::Write(QueuedEvent { event: event.clone(), reservation, done: Some(done) });
        let written = self.enqueue(backend, item).await && result.await.unwrap_or(false);
        written || backend.mode != Mode::BlockingStrict
    }

    /// Puts an item into a backend's queue, waiting for space. `false`: the backend has ended.
    async fn enqueue(&self, backend: &AuditBackend, item: QueueItem) -> bool {
        let item = match backend.sender.try_send(item) {
            Ok(()) => return true,
            Err(TrySendError::Full(item) | TrySendError::Closed(item)) => item,
        };
        let unqueued = UnqueuedEvent { backends: 1, counts: &self.counts };
        let slot = backend.sender.reserve().await;
        unqueued.queued();
        match slot {
            Ok(slot) => {
                slot.send(item);
                true
            }
            Err(_) => {
                self.counts.count_lost(BUFFERED, 1, CLOSED);
                false
            }
        }
    }

    fn enqueue_or_drop(
        &self,
        backend: &AuditBackend,
        event: &Arc<Event>,
        reservation: Arc<EventReservation>,
    ) {
        let entry = QueuedEvent { event: event.clone(), reservation, done: None };
        match backend.sender.try_send(QueueItem::Write(entry)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.counts.count_lost(BUFFERED, 1, FULL),
            Err(TrySendError::Closed(_)) => self.counts.count_lost(BUFFERED, 1, CLOSED),
        }
    }

    /// Waits a bounded time until all events are written. Later ones are dropped.
    pub async fn close(&self) {
        let close = |backend: &AuditBackend| {
            let sender = backend.sender.clone();
            async move {
                let (done, closed): (oneshot::Sender<()>, _) = oneshot::channel();
                if sender.send(QueueItem::Close(done)).await.is_ok() {
                    let _ = closed.await;
                }
            }
        };
        if timeout(AUDIT_CLOSE_TIMEOUT, join_all(self.backends.iter().map(close))).await.is_err() {
            tracing::warn!("the last audit events could not be written in time");
        }
    }
}

#[cfg(test)]
mod tests;
