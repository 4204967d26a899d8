//! The trace of a request: a tree of spans, each of which is a step of the work with its time.
//!
//! Whoever works on a request holds its [`RequestTrace`]. That of a request that is not traced is empty: everything that is asked of
//! it costs a comparison, and no attribute is made.
//!
//! A span that begins belongs to the span whose work is being polled ([`OpenSpan::run`]), so steps that run at the same time do not
//! get into each other's spans. Work on another thread gets a [branch](RequestTrace::branch), because both threads may be at it at the
//! same time.
//!
//! The spans of a request are kept here until the first one has ended, and are then handed over together, so a step costs no message.

pub mod context;
pub mod span;

use std::borrow::Cow;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use self::context::{Propagated, SpanContext};
use self::span::{Attribute, NANOS_PER_MICRO, Span, SpanId, SpanKind, TraceId};
use crate::clock::{Clock, Moment, Timestamp};
use crate::limits::SPANS_PER_TRACE;
use crate::lock::Lock;

/// Odd, so that the ids of the spans of a trace all differ.
const ID_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Takes the spans of traces.
pub trait SpanSink: Send + Sync {
    /// Takes spans that have ended. It must not block.
    fn take(&self, spans: Vec<Span>);

    /// A span was not recorded, because its trace has too many.
    fn note_excess(&self);
}

/// The trace of a request, or nothing if it is not traced. Cheap to clone.
#[derive(Clone, Default)]
pub struct RequestTrace(Option<Arc<Branch>>);

/// A part of the work on a request, one step of which is done at a time.
struct Branch {
    trace: Arc<Trace>,
    /// The id of the span whose work is being done.
    current: AtomicU64,
}

/// What the branches have in common.
struct Trace {
    id: TraceId,
    propagated: Propagated,
    /// `None` if the trace is only passed on.
    recorder: Option<Recorder>,
    is_sampled: bool,
}

/// Records the spans of a trace.
struct Recorder {
    clock: Clock,
    /// When the request arrived, by both clocks: a span has a date, but no time may jump within a trace.
    began: (Timestamp, Moment),
    /// From which the ids of the spans are made.
    seed: u64,
    begun: AtomicU32,
    ended: Lock<Vec<Span>>,
    sink: Arc<dyn SpanSink>,
}

/// The first span of a trace of this server.
pub struct FirstSpan {
    /// The trace.
    pub trace_id: TraceId,
    /// The span of the client to which it belongs.
    pub parent: Option<SpanId>,
    /// The span that caused it, but is of another trace.
    pub link: Option<SpanContext>,
    /// What is passed on to other servers.
    pub propagated: Propagated,
    /// When the request arrived, by both clocks.
    pub began: (Timestamp, Moment),
    /// Its name.
    pub name: String,
    /// A random number, from which the ids of all spans are made.
    pub seed: u64,
}

impl RequestTrace {
    /// That of a request which is not traced.
    pub const fn none() -> RequestTrace {
        RequestTrace(None)
    }

    /// Whether spans are recorded.
    pub fn is_recorded(&self) -> bool {
        self.0.as_ref().is_some_and(|branch| branch.trace.recorder.is_some())
    }

    /// A trace that is not recorded here, and passed on.
    pub fn passed_on(context: SpanContext, propagated: Propagated) -> RequestTrace {
        let SpanContext { trace_id: id, span_id, is_sampled } = context;
        let trace = Trace { id, propagated, recorder: None, is_sampled };
        RequestTrace(Some(Arc::new(Branch { trace: Arc::new(trace), current: AtomicU64::new(span_id.0) })))
    }

    /// Begins to record a trace. It ends with its first span.
    pub fn begin(first: FirstSpan, clock: Clock, sink: Arc<dyn SpanSink>) -> (RequestTrace, OpenSpan) {
        let FirstSpan { trace_id, parent, link, propagated, began, name, seed } = first;
        let recorder =
            Recorder { clock, began, seed, begun: AtomicU32::new(0), ended: Lock::default(), sink };
        let id = recorder.next_id().unwrap_or(SpanId(seed));
        let span = Span {
            trace_id,
            id,
            parent,
            trace_state: propagated.state.clone(),
            name: Cow::Owned(name),
            kind: SpanKind::Server,
            began: recorder.nanos(began.1),
            ended: 0,
            attributes: Vec::new(),
            link,
            is_error: false,
        };
        let trace = Trace { id: trace_id, propagated, recorder: Some(recorder), is_sampled: true };
        let branch = Arc::new(Branch { trace: Arc::new(trace), current: AtomicU64::new(id.0) });
        let opened = Opened { branch: branch.clone(), span: Some(span), is_first: true };
        (RequestTrace(Some(branch)), OpenSpan(Some(Box::new(opened))))
    }

    /// The same trace for work on another thread, which belongs to this span, or to the current one if there is none.
    #[must_use]
    pub fn branch(&self, span: &OpenSpan) -> RequestTrace {
        RequestTrace(self.0.as_ref().map(|branch| {
            let current = span.id().map_or_else(|| branch.current.load(Ordering::Relaxed), |id| id.0);
            Arc::new(Branch { trace: branch.trace.clone(), current: AtomicU64::new(current) })
        }))
    }

    /// Begins a span.
    pub fn open(&self, name: impl Into<Cow<'static, str>>) -> OpenSpan {
        let Some((branch, recorder)) = self.recording() else { return OpenSpan(None) };
        let began = recorder.clock.moment();
        OpenSpan::begin(branch, recorder, name.into(), began)
    }

    /// Begins a span that began at a moment, which somebody has measured for another purpose.
    pub fn open_at(&self, name: impl Into<Cow<'static, str>>, began: Moment) -> OpenSpan {
        match self.recording() {
            Some((branch, recorder)) => OpenSpan::begin(branch, recorder, name.into(), began),
            None => OpenSpan(None),
        }
    }

    /// Records a span that has ended.
    pub fn note(&self, name: &'static str, began: Moment, took: Duration) {
        self.open_at(name, began).end_at(began.plus(took));
    }

    /// Does work in a span. `attributes` is called only if the span is recorded.
    pub async fn step<T>(
        &self,
        name: impl Into<Cow<'static, str>>,
        attributes: impl FnOnce() -> Vec<Attribute>,
        work: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    ) -> T {
        if self.0.is_none() {
            return work.await;
        }
        let mut span = self.open(name);
        span.describe(attributes);
        span.run(work).await
    }

    /// The headers by which other servers continue the trace, as part of this span, or of the current one if there is none.
    pub fn headers(&self, span: &OpenSpan) -> Vec<(&'static str, String)> {
        let Some(branch) = &self.0 else { return Vec::new() };
        let Trace { id, propagated, is_sampled, .. } = &*branch.trace;
        let span_id = span.id().unwrap_or_else(|| SpanId(branch.current.load(Ordering::Relaxed)));
        propagated.headers(SpanContext { trace_id: *id, span_id, is_sampled: *is_sampled })
    }

    fn recording(&self) -> Option<(&Arc<Branch>, &Recorder)> {
        let branch = self.0.as_ref()?;
        branch.trace.recorder.as_ref().map(|recorder| (branch, recorder))
    }
}

impl fmt::Debug for RequestTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestTrace").field(&self.0.as_ref().map(|branch| branch.trace.id)).finish()
    }
}

impl Recorder {
    /// The id of the next span; `None` if there are too many.
    fn next_id(&self) -> Option<SpanId> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        if number >= SPANS_PER_TRACE {
            self.begun.store(SPANS_PER_TRACE, Ordering::Relaxed);
            self.sink.note_excess();
            return None;
        }
        let id = self.seed.wrapping_add(u64::from(number).wrapping_mul(ID_STEP));
        // Zero is no id.
        Some(SpanId(id.max(1)))
    }

    /// A moment as nanoseconds since the Unix epoch.
    fn nanos(&self, moment: Moment) -> u64 {
        let (date, began) = self.began;
        let since = u64::try_from(moment.since(began).as_nanos()).unwrap_or(u64::MAX);
        date.0.saturating_mul(NANOS_PER_MICRO).saturating_add(since)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Those that ended after the first one: a store may work on when the response is sent.
        let late = std::mem::take(&mut *self.ended.lock());
        if !late.is_empty() {
            self.sink.take(late);
        }
    }
}

/// A span that has not ended, or nothing if none is recorded. It ends at the latest when this is dropped.
#[derive(Default)]
#[must_use]
pub struct OpenSpan(Option<Box<Opened>>);

struct Opened {
    branch: Arc<Branch>,
    /// Until it has ended.
    span: Option<Span>,
    /// Whether the others are handed over when it ends.
    is_first: bool,
}

impl OpenSpan {
    /// None.
    pub const fn none() -> OpenSpan {
        OpenSpan(None)
    }

    fn begin(branch: &Arc<Branch>, recorder: &Recorder, name: Cow<'static, str>, began: Moment) -> OpenSpan {
        let Some(id) = recorder.next_id() else { return OpenSpan(None) };
        let span = Span {
            trace_id: branch.trace.id,
            id,
            parent: Some(SpanId(branch.current.load(Ordering::Relaxed))),
            trace_state: branch.trace.propagated.state.clone(),
            name,
            kind: SpanKind::Internal,
            began: recorder.nanos(began),
            ended: 0,
            attributes: Vec::new(),
            link: None,
            is_error: false,
        };
        OpenSpan(Some(Box::new(Opened { branch: branch.clone(), span: Some(span), is_first: false })))
    }

    /// Does work during which this span is the current one.
    pub async fn run<T>(&self, mut work: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> T {
        let (Some(opened), Some(id)) = (&self.0, self.id()) else { return work.await };
        let current = &opened.branch.current;
        poll_fn(|context: &mut Context<'_>| -> Poll<T> {
            let before = current.swap(id.0, Ordering::Relaxed);
            let result = work.as_mut().poll(context);
            current.store(before, Ordering::Relaxed);
            result
        })
        .await
    }

    /// Adds attributes, which are made only if the span is recorded.
    pub fn describe(&mut self, attributes: impl FnOnce() -> Vec<Attribute>) {
        if let Some(span) = self.span() {
            span.attributes.extend(attributes().into_iter().map(Attribute::shortened));
        }
    }

    /// Says that it is a request to another server.
    pub fn set_client(&mut self) {
        if let Some(span) = self.span() {
            span.kind = SpanKind::Client;
        }
    }

    /// Says that the step has failed.
    pub fn fail(&mut self) {
        if let Some(span) = self.span() {
            span.is_error = true;
        }
    }

    /// Ends it now.
    pub fn end(self) {
        drop(self);
    }

    /// Ends it at a moment, which somebody has measured for another purpose.
    pub fn end_at(mut self, moment: Moment) {
        if let Some(opened) = &mut self.0 {
            opened.end(Some(moment));
        }
    }

    fn id(&self) -> Option<SpanId> {
        self.0.as_ref()?.span.as_ref().map(|span| span.id)
    }

    fn span(&mut self) -> Option<&mut Span> {
        self.0.as_mut()?.span.as_mut()
    }
}

impl Opened {
    fn end(&mut self, moment: Option<Moment>) {
        let (Some(mut span), Some(recorder)) = (self.span.take(), &self.branch.trace.recorder) else {
            return;
        };
        span.ended = recorder.nanos(moment.unwrap_or_else(|| recorder.clock.moment()));
        let mut ended = recorder.ended.lock();
        ended.push(span);
        if self.is_first {
            let spans = std::mem::take(&mut *ended);
            drop(ended);
            recorder.sink.take(spans);
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.end(None);
    }
}

#[cfg(test)]
mod tests;
