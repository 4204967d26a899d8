//! The ledger: where the records of requests go.
//!
//! Each place that gets records, the log (`log.rs`) and the webhook (`webhook.rs`), has a thread of its own and a bounded queue
//! before it (`batches.rs`). In batch mode nobody waits: a record that finds no room is lost, and counted. In the other modes a
//! request waits until its record is written. All records together, and the bodies that are kept for them, have one room.

pub mod batches;
pub mod log;
pub mod webhook;

use std::sync::Arc;

use futures::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::api::audit::event::Event;
use crate::config::audit::{Delivery, Mode};
use crate::limits::{AUDIT_BYTES, AUDIT_CLOSING};
use crate::metrics::audit::Audit as Counts;
use crate::verbs::budget::{Budget, Held};

use self::batches::{Entry, Word};

/// What metrics call a queue that is full.
const BUFFERED: &str = "buffered";

/// One place that gets records.
pub struct Place {
    mode: Mode,
    words: mpsc::Sender<Word>,
}

/// Where the records of requests go.
pub struct Ledger {
    places: Vec<Place>,
    room: Budget,
    counts: Counts,
}

impl Ledger {
    /// A ledger without places.
    pub fn new(counts: Counts) -> Ledger {
        Ledger { places: Vec::new(), room: Budget::new(AUDIT_BYTES), counts }
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
        self.room.nothing()
    }

    /// Whether requests wait for their records.
    pub fn is_waited_for(&self) -> bool {
        self.places.iter().any(|place| place.mode != Mode::Batch)
    }

    /// Makes room for a record, without its bodies if there is too little; `None` if there is none at all.
    fn fit(&self, event: &mut Event, mut held: Held) -> Option<Held> {
        if held.set(event.weight()).is_ok() {
            return Some(held);
        }
        event.truncate();
        held.set(event.weight()).is_ok().then_some(held)
    }

    /// Writes a record down, and waits for it where that is asked for. `false`: whoever must not go on without it shall not.
    pub async fn write(&self, mut event: Event, held: Held) -> bool {
        self.counts.made();
        let held = self.fit(&mut event, held).map(Arc::new);
        let event = Arc::new(event);
        let mut written = true;
        for place in &self.places {
            if place.mode == Mode::Batch {
                self.pass_on(place, &event, held.clone());
                continue;
            }
            let (done, answer) = oneshot::channel();
            let entry = Entry { event: event.clone(), held: held.clone(), done: Some(done) };
            let sent = place.words.send(Word::Write(entry)).await.is_ok();
            if !sent {
                self.counts.lost(BUFFERED, 1, "audit backend shut down");
            }
            let done = sent && answer.await.unwrap_or(false);
            written &= done || place.mode != Mode::BlockingStrict;
        }
        written
    }

    /// Writes a record down that nobody can wait for.
    pub fn write_later(self: &Arc<Self>, mut event: Event, held: Held) {
        self.counts.made();
        let held = self.fit(&mut event, held).map(Arc::new);
        let event = Arc::new(event);
        for place in &self.places {
            self.pass_on(place, &event, held.clone());
        }
    }

    fn pass_on(&self, place: &Place, event: &Arc<Event>, held: Option<Arc<Held>>) {
        if held.is_none() {
            return self.counts.lost(BUFFERED, 1, "audit buffer queue blocked");
        }
        let entry = Entry { event: event.clone(), held, done: None };
        match place.words.try_send(Word::Write(entry)) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.counts.lost(BUFFERED, 1, "audit buffer queue blocked");
            }
            Err(mpsc::error::TrySendError::Closed(_)) => {
                self.counts.lost(BUFFERED, 1, "audit backend shut down");
            }
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
