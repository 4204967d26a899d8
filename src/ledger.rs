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
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, Notify, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::api::audit::event::Event;
use crate::config::audit::{Delivery, Mode};
use crate::limits::{AUDIT_BODIES_BYTES, AUDIT_CLOSING, AUDIT_HEADS_BYTES, AUDIT_UNATTENDED};
use crate::metrics::audit::Audit as Counts;
use crate::verbs::budget::{Budget, Held};

use self::batches::{Entry, Freed, Rooms, Word};

/// The metrics label of a full queue.
const BUFFERED: &str = "buffered";
/// Why events are dropped.
const FULL: &str = "audit buffer queue blocked";
const CLOSED: &str = "audit backend shut down";

/// One backend.
pub struct Place {
    mode: Mode,
    words: mpsc::Sender<Word>,
}

/// All audit backends.
pub struct Ledger {
    places: Vec<Place>,
    heads: Budget,
    bodies: Budget,
    /// Held while an event waits for budget, so that a large event is not overtaken for ever.
    turn: Mutex<()>,
    /// Wakes waiting events.
    freed: Arc<Notify>,
    /// Bounds the last events that wait without a client.
    unattended: Arc<Semaphore>,
    counts: Counts,
}

/// An event that waits for the queues of so many backends. If the request is cancelled meanwhile, the loss is counted.
struct Outside<'a> {
    places: usize,
    counts: &'a Counts,
}

impl Outside<'_> {
    fn enter(mut self) {
        self.places = 0;
    }
}

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        if self.places > 0 {
            self.counts.lost(BUFFERED, self.places, FULL);
        }
    }
}

impl Ledger {
    /// A ledger without backends.
    pub fn new(counts: Counts) -> Ledger {
        let (heads, bodies) = (Budget::new(AUDIT_HEADS_BYTES), Budget::new(AUDIT_BODIES_BYTES));
        Ledger {
            places: Vec::new(),
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
        spawn: impl FnOnce(mpsc::Receiver<Word>) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let (words, queue) = mpsc::channel(delivery.batching.waiting);
        spawn(queue)?;
        self.places.push(Place { mode: delivery.mode, words });
        // Blocking backends come first.
        self.places.sort_by_key(|place| place.mode == Mode::Batch);
        Ok(())
    }

    /// Whether there are no backends.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The audit metrics.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// An empty share of the budget for bodies.
    pub fn room(&self) -> Held {
        self.bodies.nothing()
    }

    /// Takes budget for the bodies of an event, or drops them.
    fn fit(&self, event: &mut Event, mut bodies: Held) -> Held {
        if bodies.set(event.body_bytes()).is_err() {
            event.shrink();
            // Releasing budget cannot fail.
            let _ = bodies.set(0);
        }
        bodies
    }

    fn rooms(&self, head: Held, bodies: Held) -> Arc<Rooms> {
        Arc::new(Rooms { _head: head, _bodies: bodies, _freed: Freed(self.freed.clone()) })
    }

    /// Waits for the budget of an event without its bodies.
    async fn head(&self, bytes: usize) -> Held {
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
    pub async fn write(&self, mut event: Event, bodies: Held) -> bool {
        self.counts.made();
        let bodies = self.fit(&mut event, bodies);
        let event = Arc::new(event);
        let free = self.turn.try_lock().ok().and_then(|_turn| self.heads.take(event.head_bytes()).ok());
        let (rooms, heard) = match free {
            Some(head) => (self.rooms(head, bodies), &self.places[..]),
            None => {
                // Batch backends come last: nobody waits for them.
                let (patient, others) = self.places.split_at(self.patient());
                if !others.is_empty() {
                    self.counts.lost(BUFFERED, others.len(), FULL);
                }
                if patient.is_empty() {
                    return true;
                }
                let outside = Outside { places: patient.len(), counts: &self.counts };
                let head = self.head(event.head_bytes()).await;
                outside.enter();
                (self.rooms(head, bodies), patient)
            }
        };
        // All backends get the event before anybody waits: a client that disconnects meanwhile withholds it from none of them.
        let delivered = heard.iter().map(|place| self.deliver(place, &event, rooms.clone()));
        join_all(delivered).await.into_iter().all(|may_go_on| may_go_on)
    }

    /// Writes the last event of a request. Its effects are done, so a client that disconnects must not cancel it.
    pub async fn write_last(self: &Arc<Self>, event: Event, bodies: Held) {
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
        self.places.partition_point(|place| place.mode != Mode::Batch)
    }

    /// Writes an event that nobody can wait for.
    pub fn write_later(&self, mut event: Event, bodies: Held) {
        self.counts.made();
        let bodies = self.fit(&mut event, bodies);
        let Ok(head) = self.heads.take(event.head_bytes()) else {
            return self.counts.lost(BUFFERED, self.places.len(), FULL);
        };
        let (event, rooms) = (Arc::new(event), self.rooms(head, bodies));
        for place in &self.places {
            self.pass_on(place, &event, rooms.clone());
        }
    }

    /// Delivers an event in the mode of a backend. Answers whether the request may go on.
    async fn deliver(&self, place: &Place, event: &Arc<Event>, rooms: Arc<Rooms>) -> bool {
        if place.mode == Mode::Batch {
            self.pass_on(place, event, rooms);
            return true;
        }
        let (done, answer) = oneshot::channel();
        let word = Word::Write(Entry { event: event.clone(), rooms, done: Some(done) });
        let written = self.enter(place, word).await && answer.await.unwrap_or(false);
        written || place.mode != Mode::BlockingStrict
    }

    /// Puts a word into a backend's queue, waiting for space. `false`: the backend has ended.
    async fn enter(&self, place: &Place, word: Word) -> bool {
        let word = match place.words.try_send(word) {
            Ok(()) => return true,
            Err(TrySendError::Full(word) | TrySendError::Closed(word)) => word,
        };
        let outside = Outside { places: 1, counts: &self.counts };
        let room = place.words.reserve().await;
        outside.enter();
        match room {
            Ok(room) => {
                room.send(word);
                true
            }
            Err(_) => {
                self.counts.lost(BUFFERED, 1, CLOSED);
                false
            }
        }
    }

    fn pass_on(&self, place: &Place, event: &Arc<Event>, rooms: Arc<Rooms>) {
        let entry = Entry { event: event.clone(), rooms, done: None };
        match place.words.try_send(Word::Write(entry)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.counts.lost(BUFFERED, 1, FULL),
            Err(TrySendError::Closed(_)) => self.counts.lost(BUFFERED, 1, CLOSED),
        }
    }

    /// Waits a bounded time until all events are written. Later ones are dropped.
    pub async fn close(&self) {
        let close = |place: &Place| {
            let words = place.words.clone();
            async move {
                let (done, closed): (oneshot::Sender<()>, _) = oneshot::channel();
                if words.send(Word::Close(done)).await.is_ok() {
                    let _ = closed.await;
                }
            }
        };
        if timeout(AUDIT_CLOSING, join_all(self.places.iter().map(close))).await.is_err() {
            tracing::warn!("the last records of requests could not be written in time");
        }
    }
}

#[cfg(test)]
mod tests;
