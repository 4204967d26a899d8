//! The audit backends.
//!
//! Each backend, the log (`log.rs`) and the webhook (`webhook.rs`), has a thread of its own and a bounded queue (`batches.rs`).
//! In batch mode nobody waits: an event that does not fit is dropped and counted. In the other modes a request waits until its
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
use crate::limits::{AUDIT_CLOSING, AUDIT_UNATTENDED};
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
    turn: Mutex<()>,
    /// Wakes waiting events.
    freed: Arc<Notify>,
    /// Bounds the last events that wait without a client.
    unattended: Arc<Semaphore>,
    counts: Counts,
}

/// An event that waits for the queues of so many backends. If the request is cancelled meanwhile, the loss is counted.
struct UnqueuedEvent<'a> {
    backends: usize,
    counts: &'a Counts,
}

impl UnqueuedEvent<'_> {
    fn enter(mut self) {
        self.backends = 0;
    }
}

impl Drop for UnqueuedEvent<'_> {
    fn drop(&mut self) {
        if self.backends > 0 {
            self.counts.lost(BUFFERED, self.backends, FULL);
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
            turn: Mutex::default(),
            freed: Arc::default(),
            unattended: Arc::new(Semaphore::new(AUDIT_UNATTENDED)),
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

    /// An empty share of the budget for bodies.
    pub fn room(&self) -> Reservation {
        self.bodies.nothing()
    }

    /// Takes budget for the bodies of an event, or drops them.
    fn fit(&self, event: &mut Event, mut bodies: Reservation) -> Reservation {
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
            _freed: NotifyOnRelease(self.freed.clone()),
        })
    }

    /// Waits for the budget of an event without its bodies.
    async fn head(&self, bytes: usize) -> Reservation {
        let _turn = self.turn.lock().await;
        loop {
            let freed = self.freed.notified();
            if let Ok(head) = self.heads.take(bytes) {
                return head;
            }
            freed.await;
        }
    }

    /// Writes an event, and waits if a backend requires it. `false`: a blocking backend failed, and the request must not go on.
    pub async fn write(&self, mut event: Event, bodies: Reservation) -> bool {
        self.counts.made();
        let bodies = self.fit(&mut event, bodies);
        let event = Arc::new(event);
        let free = self.turn.try_lock().ok().and_then(|_turn| self.heads.take(event.head_bytes()).ok());
        let (reservation, heard) = match free {
            Some(head) => (self.reservation(head, bodies), &self.backends[..]),
            None => {
                // Batch backends come last: nobody waits for them.
                let (patient, others) = self.backends.split_at(self.patient());
                if !others.is_empty() {
                    self.counts.lost(BUFFERED, others.len(), FULL);
                }
                if patient.is_empty() {
                    return true;
                }
                let outside = UnqueuedEvent { backends: patient.len(), counts: &self.counts };
                let head = self.head(event.head_bytes()).await;
                outside.enter();
                (self.reservation(head, bodies), patient)
            }
        };
        // All backends get the event before anybody waits: a client that disconnects meanwhile withholds it from none of them.
        let delivered = heard.iter().map(|backend| self.deliver(backend, &event, reservation.clone()));
        join_all(delivered).await.into_iter().all(|may_go_on| may_go_on)
    }

    /// Writes the last event of a request. Its effects are done, so a client that disconnects must not cancel it.
    pub async fn write_last(self: &Arc<Self>, event: Event, bodies: Reservation) {
        let unattended =
            if self.patient() > 0 { self.unattended.clone().try_acquire_owned().ok() } else { None };
        let Some(unattended) = unattended else {
            self.write(event, bodies).await;
            return;
        };
        let ledger = self.clone();
        let writing = tokio::task::spawn_local(async move {
            ledger.write(event, bodies).await;
            drop(unattended);
        });
        // An error means that the server ends.
        let _ended = writing.await;
    }

    /// The number of blocking backends.
    fn patient(&self) -> usize {
        self.backends.partition_point(|backend| backend.mode != Mode::Batch)
    }

    /// Writes an event that nobody can wait for.
    pub fn write_later(&self, mut event: Event, bodies: Reservation) {
        self.counts.made();
        let bodies = self.fit(&mut event, bodies);
        let Ok(head) = self.heads.take(event.head_bytes()) else {
            return self.counts.lost(BUFFERED, self.backends.len(), FULL);
        };
        let (event, reservation) = (Arc::new(event), self.reservation(head, bodies));
        for backend in &self.backends {
            self.pass_on(backend, &event, reservation.clone());
        }
    }

    /// Delivers an event in the mode of a backend. Answers whether the request may go on.
    async fn deliver(
        &self,
        backend: &AuditBackend,
        event: &Arc<Event>,
        reservation: Arc<EventReservation>,
    ) -> bool {
        if backend.mode == Mode::Batch {
            self.pass_on(backend, event, reservation);
            return true;
        }
        let (done, answer) = oneshot::channel();
        let item = QueueItem::Write(QueuedEvent { event: event.clone(), reservation, done: Some(done) });
        let written = self.enter(backend, item).await && answer.await.unwrap_or(false);
        written || backend.mode != Mode::BlockingStrict
    }

    /// Puts a word into a backend's queue, waiting for space. `false`: the backend has ended.
    async fn enter(&self, backend: &AuditBackend, item: QueueItem) -> bool {
        let item = match backend.sender.try_send(item) {
            Ok(()) => return true,
            Err(TrySendError::Full(item) | TrySendError::Closed(item)) => item,
        };
        let outside = UnqueuedEvent { backends: 1, counts: &self.counts };
        let room = backend.sender.reserve().await;
        outside.enter();
        match room {
            Ok(room) => {
                room.send(item);
                true
            }
            Err(_) => {
                self.counts.lost(BUFFERED, 1, CLOSED);
                false
            }
        }
    }

    fn pass_on(&self, backend: &AuditBackend, event: &Arc<Event>, reservation: Arc<EventReservation>) {
        let entry = QueuedEvent { event: event.clone(), reservation, done: None };
        match backend.sender.try_send(QueueItem::Write(entry)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.counts.lost(BUFFERED, 1, FULL),
            Err(TrySendError::Closed(_)) => self.counts.lost(BUFFERED, 1, CLOSED),
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
        if timeout(AUDIT_CLOSING, join_all(self.backends.iter().map(close))).await.is_err() {
            tracing::warn!("the last audit events could not be written in time");
        }
    }
}

#[cfg(test)]
mod tests;
