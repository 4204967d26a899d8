//! The ledger: where the records of requests go.
//!
//! Each place that gets records, the log (`log.rs`) and the webhook (`webhook.rs`), has a thread of its own and a bounded queue
//! before it (`batches.rs`). In batch mode nobody waits: a record that finds no room is lost, and counted. In the other modes a
//! request waits until there is room for its record and it is written; the last record of a request waits also when whoever
//! asked has gone. All records together have one room and their bodies another, so that large answers which somebody reads slowly cost the records of others their bodies at most.

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

/// What metrics call a queue that is full.
const BUFFERED: &str = "buffered";
/// Why records are lost there.
const FULL: &str = "audit buffer queue blocked";
const CLOSED: &str = "audit backend shut down";

/// One place that gets records.
pub struct Place {
    mode: Mode,
    words: mpsc::Sender<Word>,
}

/// Where the records of requests go.
pub struct Ledger {
    places: Vec<Place>,
    heads: Budget,
    bodies: Budget,
    /// Whoever waits for room; the others wait for them, so that a large record is not overtaken for ever.
    turn: Mutex<()>,
    /// Wakes them.
    freed: Arc<Notify>,
    /// The records of requests that are over which may wait without anybody who asked.
    unattended: Arc<Semaphore>,
    counts: Counts,
}

/// A record that waits for its turn to get in, at so many places. Whoever goes away meanwhile takes it along, which is counted.
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
    /// A ledger without places.
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

    /// Adds a place; `spawn` starts the thread that takes what comes out of its queue.
    pub fn add(
        &mut self,
        delivery: Delivery,
        spawn: impl FnOnce(mpsc::Receiver<Word>) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let (words, queue) = mpsc::channel(delivery.batching.waiting);
        spawn(queue)?;
        self.places.push(Place { mode: delivery.mode, words });
        // Those that are waited for come first.
        self.places.sort_by_key(|place| place.mode == Mode::Batch);
        Ok(())
    }

    /// Whether nobody gets records.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// What is counted.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Room for a body that grows.
    pub fn room(&self) -> Held {
        self.bodies.nothing()
    }

    /// Makes room for the bodies of a record, which loses them if there is too little.
    fn fit(&self, event: &mut Event, mut bodies: Held) -> Held {
        if bodies.set(event.body_bytes()).is_err() {
            event.shrink();
            // To need less is always possible.
            let _ = bodies.set(0);
        }
        bodies
    }

    fn rooms(&self, head: Held, bodies: Held) -> Arc<Rooms> {
        Arc::new(Rooms { _head: head, _bodies: bodies, _freed: Freed(self.freed.clone()) })
    }

    /// Room for all of a record but its bodies, when there is some.
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

    /// Writes a record down, and waits for it where that is asked for. `false`: whoever must not go on without it shall not.
    pub async fn write(&self, mut event: Event, bodies: Held) -> bool {
        self.counts.made();
        let bodies = self.fit(&mut event, bodies);
        let event = Arc::new(event);
        let free = self.turn.try_lock().ok().and_then(|_turn| self.heads.take(event.head_bytes()).ok());
        let (rooms, heard) = match free {
            Some(head) => (self.rooms(head, bodies), &self.places[..]),
            None => {
                // Those of batch mode come last: nobody waits for them.
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
        // All places hear of it before anybody waits: a client that hangs up meanwhile keeps no record from any of them.
        let delivered = heard.iter().map(|place| self.deliver(place, &event, rooms.clone()));
        join_all(delivered).await.into_iter().all(|may_go_on| may_go_on)
    }

    /// Writes down the last record of a request. What the request has done is done: whoever hangs up while its record waits does not
    /// take the record along.
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
        // An error: the server ends.
        let _ended = writing.await;
    }

    /// How many places are waited for.
    fn patient(&self) -> usize {
        self.places.partition_point(|place| place.mode != Mode::Batch)
    }

    /// Writes a record down that nobody can wait for.
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

    /// Brings a record to a place as that wants it. Whether the request may go on.
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

    /// Puts a word into the queue of a place, when there is room. `false`: nobody takes any out.
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

    /// Waits until all records are written, for a while. Those that come later are lost.
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
