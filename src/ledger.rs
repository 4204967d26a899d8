//! The ledger: where the records of requests go.
//!
//! Each place that gets records, the log (`log.rs`) and the webhook (`webhook.rs`), has a thread of its own and a bounded queue
//! before it (`batches.rs`). In batch mode nobody waits: a record that finds no room is lost, and counted. In the other modes a
//! request waits until its record is written. All records together have one room and their bodies another, so that large answers
//! which somebody reads slowly cost the records of others their bodies at most.

pub mod batches;
pub mod log;
pub mod webhook;

use std::sync::Arc;

use futures::future::join_all;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::api::audit::event::Event;
use crate::config::audit::{Delivery, Mode};
use crate::limits::{AUDIT_BODIES_BYTES, AUDIT_CLOSING, AUDIT_HEADS_BYTES};
use crate::metrics::audit::Audit as Counts;
use crate::verbs::budget::{Budget, Held};

use self::batches::{Entry, Rooms, Word};

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
    counts: Counts,
}

/// A record that waits for its turn to enter a full queue. Whoever goes away meanwhile takes it along, which is counted.
struct Outside<'a> {
    word: Option<Word>,
    counts: &'a Counts,
}

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        if self.word.is_some() {
            self.counts.lost(BUFFERED, 1, FULL);
        }
    }
}

impl Ledger {
    /// A ledger without places.
    pub fn new(counts: Counts) -> Ledger {
        let (heads, bodies) = (Budget::new(AUDIT_HEADS_BYTES), Budget::new(AUDIT_BODIES_BYTES));
        Ledger { places: Vec::new(), heads, bodies, counts }
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

    /// Makes room for a record, without its bodies if there is too little for those; `None` if there is none for the rest.
    fn fit(&self, event: &mut Event, mut bodies: Held) -> Option<Rooms> {
        if bodies.set(event.body_bytes()).is_err() {
            event.shrink();
            // To need less is always possible.
            let _ = bodies.set(0);
        }
        let head = self.heads.take(event.head_bytes()).ok()?;
        Some(Rooms { _head: head, _bodies: bodies })
    }

    /// Writes a record down, and waits for it where that is asked for. `false`: whoever must not go on without it shall not.
    pub async fn write(&self, mut event: Event, bodies: Held) -> bool {
        self.counts.made();
        let rooms = self.fit(&mut event, bodies).map(Arc::new);
        let event = Arc::new(event);
        // All places hear of it before anybody waits: a client that hangs up meanwhile keeps no record from any of them.
        let delivered = self.places.iter().map(|place| self.deliver(place, &event, rooms.clone()));
        join_all(delivered).await.into_iter().all(|may_go_on| may_go_on)
    }

    /// Writes a record down that nobody can wait for.
    pub fn write_later(&self, mut event: Event, bodies: Held) {
        self.counts.made();
        let rooms = self.fit(&mut event, bodies).map(Arc::new);
        let event = Arc::new(event);
        for place in &self.places {
            self.pass_on(place, &event, rooms.clone());
        }
    }

    /// Brings a record to a place as that wants it. Whether the request may go on.
    async fn deliver(&self, place: &Place, event: &Arc<Event>, rooms: Option<Arc<Rooms>>) -> bool {
        if place.mode == Mode::Batch {
            self.pass_on(place, event, rooms);
            return true;
        }
        let written = match rooms {
            Some(rooms) => {
                let (done, answer) = oneshot::channel();
                let word = Word::Write(Entry { event: event.clone(), rooms, done: Some(done) });
                self.enter(place, word).await && answer.await.unwrap_or(false)
            }
            None => {
                self.counts.lost(BUFFERED, 1, FULL);
                false
            }
        };
        written || place.mode != Mode::BlockingStrict
    }

    /// Puts a word into the queue of a place, when there is room. `false`: nobody takes any out.
    async fn enter(&self, place: &Place, word: Word) -> bool {
        let word = match place.words.try_send(word) {
            Ok(()) => return true,
            Err(TrySendError::Full(word) | TrySendError::Closed(word)) => word,
        };
        let mut outside = Outside { word: Some(word), counts: &self.counts };
        let room = place.words.reserve().await;
        match (room, outside.word.take()) {
            (Ok(room), Some(word)) => {
                room.send(word);
                true
            }
            _ => {
                self.counts.lost(BUFFERED, 1, CLOSED);
                false
            }
        }
    }

    fn pass_on(&self, place: &Place, event: &Arc<Event>, rooms: Option<Arc<Rooms>>) {
        let Some(rooms) = rooms else { return self.counts.lost(BUFFERED, 1, FULL) };
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
