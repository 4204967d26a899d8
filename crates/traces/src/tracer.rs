//! Which requests are traced.
//!
//! A client that is trusted decides for itself: its span is the parent, and whether that is recorded decides. The span of any other
//! client is only linked to, because anybody could otherwise have every request recorded, or write into the traces of others. Who is
//! not told by a trusted client is traced at random.

use std::sync::Arc;

use pilothouse_types::clock::{Clock, Moment, Timestamp};
use pilothouse_types::trace::context::{Propagated, SpanContext};
use pilothouse_types::trace::span::{SpanId, TraceId};
use pilothouse_types::trace::{FirstSpan, OpenSpan, RequestTrace, SpanSink};

/// Bytes of randomness for a trace: its id, and the seed of those of its spans.
const RANDOM_BYTES: usize = 24;
const MILLION: u64 = 1_000_000;

/// What the headers of a request say about its trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IncomingContext {
    /// The span of the client.
    pub span: Option<SpanContext>,
    /// What is passed on.
    pub propagated: Propagated,
}

impl IncomingContext {
    /// Reads the headers.
    pub fn read(parent: Option<&str>, state: &[&str], baggage: &[&str]) -> IncomingContext {
        let span = parent.and_then(SpanContext::read);
        // Without a trace its state means nothing.
        let state = if span.is_some() { state } else { &[] };
        IncomingContext { span, propagated: Propagated::read(state, baggage) }
    }

    /// Passes it on unchanged, as part of no span of this server. Empty if there is nothing to pass on.
    pub fn pass_on(self) -> RequestTrace {
        let IncomingContext { span, propagated } = self;
        if span.is_none() && propagated.is_empty() {
            return RequestTrace::none();
        }
        let none =
            SpanContext { trace_id: TraceId::default(), span_id: SpanId::default(), is_sampled: false };
        RequestTrace::passed_on(span.unwrap_or(none), propagated)
    }
}

/// What happens to the traces of requests.
pub enum Tracing {
    /// Nothing.
    Off,
    /// What clients say about them is passed on to webhooks.
    PassedOn,
    /// They are recorded.
    Recorded(Tracer),
}

/// A request that may be traced.
pub struct TracedRequest {
    /// When it arrived, by both clocks.
    pub began: (Timestamp, Moment),
    /// What its headers say.
    pub incoming: IncomingContext,
    /// Whether its client decides.
    pub is_trusted: bool,
}

/// Begins traces. Cheap to clone.
#[derive(Clone)]
pub struct Tracer {
    rate_per_million: u32,
    clock: Clock,
    random: fn() -> [u8; RANDOM_BYTES],
    sink: Arc<dyn SpanSink>,
}

impl Tracer {
    /// A tracer whose spans are put into this sink.
    pub fn new(
        rate_per_million: u32,
        clock: Clock,
        random: fn() -> [u8; RANDOM_BYTES],
        sink: Arc<dyn SpanSink>,
    ) -> Tracer {
        Tracer { rate_per_million, clock, random, sink }
    }

    /// Begins the trace of a request, if it is to be traced. `name` is that of its span.
    pub fn begin(&self, request: TracedRequest, name: impl FnOnce() -> String) -> (RequestTrace, OpenSpan) {
        let TracedRequest { began, incoming, is_trusted } = request;
        let parent = incoming.span.filter(|_| is_trusted);
        if parent.is_none() && self.rate_per_million == 0 && incoming == IncomingContext::default() {
            return (RequestTrace::none(), OpenSpan::none());
        }
        let (new_id, seed) = self.draw();
        let is_sampled = parent.map_or_else(|| self.is_chosen(new_id), |parent| parent.is_sampled);
        let IncomingContext { span: context, mut propagated } = incoming;
        if parent.is_none() {
            // It belongs to another trace.
            propagated.state = None;
        }
        let trace_id = parent.map_or(new_id, |parent| parent.trace_id);
        if !is_sampled {
            let is_known = context.is_some() || !propagated.is_empty();
            let context = SpanContext { trace_id, span_id: SpanId(seed.max(1)), is_sampled };
            let trace =
                if is_known { RequestTrace::passed_on(context, propagated) } else { RequestTrace::none() };
            return (trace, OpenSpan::none());
        }
        let first = FirstSpan {
            trace_id,
            parent: parent.map(|parent| parent.span_id),
            link: context.filter(|_| !is_trusted),
            propagated,
            began,
            name: name(),
            seed,
        };
        RequestTrace::begin(first, self.clock.clone(), self.sink.clone())
    }

    /// A random id of a trace, and the seed of those of its spans.
    fn draw(&self) -> (TraceId, u64) {
        let bytes = (self.random)();
        let (mut id, mut seed) = ([0; 16], [0; 8]);
        id.copy_from_slice(&bytes[..16]);
        seed.copy_from_slice(&bytes[16..]);
        (TraceId(id), u64::from_be_bytes(seed))
    }

    /// Whether a trace with this id is one of those that are recorded. As in OpenTelemetry, the id decides, so servers with the same
    /// rate choose the same traces.
    fn is_chosen(&self, id: TraceId) -> bool {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&id.0[8..]);
        let rate = u64::from(self.rate_per_million);
        let limit = u128::from(rate) * (1_u128 << 63) / u128::from(MILLION);
        rate >= MILLION || u128::from(u64::from_be_bytes(bytes) >> 1) < limit
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_types::lock::Lock;
    use pilothouse_types::trace::span::Span;

    use super::*;

    #[derive(Default)]
    struct Collected(Lock<Vec<Span>>);

    impl SpanSink for Collected {
        fn take(&self, spans: Vec<Span>) {
            self.0.lock().extend(spans);
        }

        fn note_excess(&self) {}
    }

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    /// The span of a request, and the `traceparent` that is passed on.
    fn trace(rate: u32, parent: Option<&str>, is_trusted: bool) -> (Option<Span>, Option<String>) {
        let (sink, clock) = (Arc::new(Collected::default()), Clock::manual(Timestamp(5)));
        // The part of an id that decides is then 63/255 of its largest value.
        let random = || [0x3f; RANDOM_BYTES];
        let tracer = Tracer::new(rate, clock.clone(), random, sink.clone());
        let incoming = IncomingContext::read(parent, &["a=1"], &[]);
        let began = (clock.now(), clock.moment());
        let (trace, span) = tracer.begin(TracedRequest { began, incoming, is_trusted }, || "GET".to_owned());
        let header = trace.headers(&span).into_iter().find(|(name, _)| *name == "traceparent");
        span.end();
        (sink.0.lock().pop(), header.map(|(_, value)| value))
    }

    #[test]
    fn trusted_clients_decide_whether_they_are_traced() {
        let (span, header) = trace(0, Some(SAMPLED), true);
        let span = span.unwrap();
        assert_eq!(span.trace_id, SpanContext::read(SAMPLED).unwrap().trace_id);
        assert_eq!((span.parent, span.link), (Some(SpanId(0xb7ad_6b71_6920_3331)), None));
        assert_eq!(span.trace_state.as_deref(), Some("a=1"));
        assert!(header.unwrap().ends_with("-01"));
        let (span, header) = trace(1_000_000, Some(UNSAMPLED), true);
        assert_eq!(span, None);
        assert!(header.is_some_and(|header| header.starts_with(&UNSAMPLED[..36]) && header.ends_with("-00")));
    }

    #[test]
    fn spans_of_other_clients_are_only_linked_to() {
        assert_eq!(trace(0, Some(SAMPLED), false).0, None);
        let span = trace(1_000_000, Some(UNSAMPLED), false).0.unwrap();
        assert_eq!((span.parent, span.trace_id), (None, TraceId([0x3f; 16])));
        assert_eq!(span.link, SpanContext::read(UNSAMPLED));
        assert_eq!(span.trace_state, None);
    }

    #[test]
    fn the_rate_chooses_among_requests_without_a_parent() {
        // 63/255 of a million are 247,059.
        for (rate, is_traced) in [(0, false), (247_058, false), (247_059, true), (1_000_000, true)] {
            assert_eq!(trace(rate, None, true).0.is_some(), is_traced, "{rate}");
            assert_eq!(trace(rate, Some("nonsense"), true).0.is_some(), is_traced, "{rate}");
        }
        assert_eq!(trace(0, None, true), (None, None));
    }

    #[test]
    fn without_a_tracer_the_context_is_passed_on_unchanged() {
        let headers = |parent, baggage: &[&str]| {
            IncomingContext::read(parent, &["a=1"], baggage).pass_on().headers(&OpenSpan::none())
        };
        assert_eq!(headers(Some(SAMPLED), &[])[0], ("traceparent", SAMPLED.to_owned()));
        assert_eq!(headers(None, &["b=1"]), [("baggage", "b=1".to_owned())]);
        assert!(headers(None, &[]).is_empty());
    }
}
