//! The spans that wait for the collector.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pilothouse_types::lock::Lock;
use pilothouse_types::trace::SpanSink;
use pilothouse_types::trace::span::{Attribute, AttributeValue, Span};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::limits::{BATCH_BYTES, BATCH_SPANS, WAITING_BYTES, WAITING_SPANS};

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

/// A queue with bounds. Workers put in what has ended, and never wait.
pub struct SpanQueue {
    waiting: Lock<Waiting>,
    /// Notified when there is a batch, and when the queue is closed.
    changed: Notify,
    is_closed: AtomicBool,
    observer: Arc<dyn ExportObserver>,
}

/// The spans, and the bytes that they take.
#[derive(Default)]
struct Waiting {
    spans: VecDeque<Span>,
    bytes: usize,
}

impl Waiting {
    fn has_batch(&self) -> bool {
        self.spans.len() >= BATCH_SPANS || self.bytes >= BATCH_BYTES
    }

    /// Adds a span, if there is room for it.
    fn push(&mut self, span: Span) -> bool {
        let bytes = self.bytes.saturating_add(size(&span));
        let has_room = self.spans.len() < WAITING_SPANS && bytes <= WAITING_BYTES;
        if has_room {
            self.bytes = bytes;
            self.spans.push_back(span);
        }
        has_room
    }

    fn take_batch(&mut self) -> Vec<Span> {
        let (mut count, mut bytes) = (0, 0);
        for span in self.spans.iter().take(BATCH_SPANS) {
            let size = size(span);
            if count > 0 && bytes + size > BATCH_BYTES {
                break;
            }
            (count, bytes) = (count + 1, bytes + size);
        }
        self.bytes -= bytes;
        self.spans.drain(..count).collect()
    }
}

/// The memory of a span.
fn size(span: &Span) -> usize {
    let text = |text: &Cow<'static, str>| match text {
        Cow::Borrowed(_) => 0,
        Cow::Owned(text) => text.capacity(),
    };
    let attributes = span.attributes.iter().map(|attribute| match &attribute.value {
        AttributeValue::Text(value) => text(value),
        AttributeValue::Number(_) => 0,
    });
    size_of::<Span>()
        + span.attributes.capacity() * size_of::<Attribute>()
        + text(&span.name)
        + span.trace_state.as_ref().map_or(0, String::capacity)
        + attributes.sum::<usize>()
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
        self.waiting.lock().take_batch()
    }

    /// Whether there is a full batch.
    pub fn has_batch(&self) -> bool {
        self.waiting.lock().has_batch()
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
        let had_batch = waiting.has_batch();
        let excess = spans.into_iter().map(|span| waiting.push(span)).filter(|has_room| !has_room).count();
        let has_batch = waiting.has_batch();
        drop(waiting);
        if excess > 0 {
            self.observer.lost(excess, Loss::Queue);
        }
        if has_batch && !had_batch {
            self.changed.notify_one();
        }
    }

    fn note_excess(&self) {
        self.observer.lost(1, Loss::Trace);
    }
}
