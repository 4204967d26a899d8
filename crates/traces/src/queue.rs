//! The spans that wait for the collector.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pilothouse_types::lock::Lock;
use pilothouse_types::trace::SpanSink;
use pilothouse_types::trace::span::Span;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::limits::{BATCH_SPANS, WAITING_SPANS};

/// Why a span does not reach the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its trace has too many.
    Trace,
    /// Too many wait for the collector.
    Queue,
    /// The collector does not take it.
    Collector,
}

/// Hears what becomes of spans.
pub trait ExportObserver: Send + Sync {
    /// The collector has taken some.
    fn exported(&self, spans: usize);

    /// Some are lost.
    fn lost(&self, spans: usize, loss: Loss);
}

/// A queue with a bound. Workers put in what has ended, and never wait.
pub struct SpanQueue {
    waiting: Lock<VecDeque<Span>>,
    /// Notified when there is a batch, and when the queue is closed.
    changed: Notify,
    is_closed: AtomicBool,
    observer: Arc<dyn ExportObserver>,
}

impl SpanQueue {
    /// An empty queue.
    pub fn new(observer: Arc<dyn ExportObserver>) -> SpanQueue {
        SpanQueue {
            waiting: Lock::default(),
            changed: Notify::new(),
            is_closed: AtomicBool::new(false),
            observer,
        }
    }

    /// Waits for a full batch, but not for longer than this, nor if the queue is closed.
    pub async fn wait(&self, limit: Duration) {
        if !self.is_closed() {
            // Either way, what is there is sent.
            let _full = timeout(limit, self.changed.notified()).await;
        }
    }

    /// Takes the oldest spans.
    pub fn take_batch(&self) -> Vec<Span> {
        let mut waiting = self.waiting.lock();
        let count = waiting.len().min(BATCH_SPANS);
        waiting.drain(..count).collect()
    }

    /// Whether there is a full batch.
    pub fn has_batch(&self) -> bool {
        self.waiting.lock().len() >= BATCH_SPANS
    }

    /// No more is waited for: what is there is sent.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

impl SpanSink for SpanQueue {
    fn take(&self, spans: Vec<Span>) {
        let mut waiting = self.waiting.lock();
        let room = WAITING_SPANS.saturating_sub(waiting.len());
        let excess = spans.len().saturating_sub(room);
        let was_full = waiting.len() >= BATCH_SPANS;
        waiting.extend(spans.into_iter().take(room));
        let is_full = waiting.len() >= BATCH_SPANS;
        drop(waiting);
        if excess > 0 {
            self.observer.lost(excess, Loss::Queue);
        }
        if is_full && !was_full {
            self.changed.notify_one();
        }
    }

    fn note_excess(&self) {
        self.observer.lost(1, Loss::Trace);
    }
}
