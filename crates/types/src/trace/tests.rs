use std::pin::pin;

use super::*;
use crate::limits::ATTRIBUTE_BYTES;

#[derive(Default)]
struct Collected {
    batches: Lock<Vec<Vec<Span>>>,
    excess: AtomicU32,
}

impl SpanSink for Collected {
    fn take(&self, spans: Vec<Span>) {
        self.batches.lock().push(spans);
    }

    fn note_excess(&self) {
        self.excess.fetch_add(1, Ordering::Relaxed);
    }
}

fn begin(clock: &Clock) -> (RequestTrace, OpenSpan, Arc<Collected>) {
    let sink = Arc::new(Collected::default());
    let first = FirstSpan {
        trace_id: TraceId([7; 16]),
        parent: None,
        link: None,
        propagated: Propagated { state: Some("a=1".to_owned()), baggage: None },
        began: (clock.now(), clock.moment()),
        name: "GET".to_owned(),
        seed: 5,
    };
    let (trace, span) = RequestTrace::begin(first, clock.clone(), sink.clone());
    (trace, span, sink)
}

/// Polls work that never waits.
fn poll<T>(work: impl Future<Output = T>) -> T {
    let Poll::Ready(result) = pin!(work).poll(&mut Context::from_waker(std::task::Waker::noop())) else {
        panic!("the work waits")
    };
    result
}

fn parent_of<'a>(spans: &'a [Span], name: &str) -> &'a str {
    let parent = spans.iter().find(|span| span.name == name).unwrap().parent;
    &spans.iter().find(|span| Some(span.id) == parent).unwrap().name
}

#[test]
fn spans_belong_to_the_span_whose_work_is_polled() {
    let clock = Clock::manual(Timestamp(1_000_000));
    let (trace, first, sink) = begin(&clock);
    let [left, right] = [trace.open("left"), trace.open("right")];
    let (other, ours) = (trace.clone(), trace.clone());
    // Both are open at the same time, and are polled in turns.
    let mut is_polled = false;
    let mut work = pin!(poll_fn(|_| {
        if std::mem::replace(&mut is_polled, true) {
            ours.open("of left").end();
            return Poll::Ready(());
        }
        Poll::Pending
    }));
    let mut waits_once = Box::pin(left.run(work.as_mut()));
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(waits_once.as_mut().poll(&mut context).is_pending());
    poll(right.run(pin!(async { other.branch(&OpenSpan::none()) }))).open("on a thread of right").end();
    other.branch(&left).open("on a thread of left").end();
    poll(right.run(pin!(async { other.open("of right").end() })));
    assert!(waits_once.as_mut().poll(&mut context).is_ready());
    trace.open("of the request").end();
    drop(waits_once);
    drop((left, right));
    assert!(sink.batches.lock().is_empty(), "they are handed over together");
    clock.advance(Duration::from_millis(3));
    first.end();
    let batches = sink.batches.lock();
    let spans = batches[0].as_slice();
    assert_eq!(parent_of(spans, "of left"), "left");
    assert_eq!(parent_of(spans, "of right"), "right");
    assert_eq!(parent_of(spans, "on a thread of right"), "right");
    assert_eq!(parent_of(spans, "on a thread of left"), "left");
    assert_eq!(parent_of(spans, "of the request"), "GET");
    let first = spans.last().unwrap();
    assert_eq!((first.began, first.ended), (1_000_000_000, 1_003_000_000));
    assert_eq!(first.trace_state.as_deref(), Some("a=1"));
}

#[test]
fn steps_have_their_times_and_attributes_and_late_ones_are_not_lost() {
    let clock = Clock::manual(Timestamp(0));
    let (trace, first, sink) = begin(&clock);
    let began = clock.moment();
    clock.advance(Duration::from_secs(1));
    trace.note("noted", began, Duration::from_millis(10));
    let long = "é".repeat(ATTRIBUTE_BYTES);
    let attributes = || vec![Attribute::text("long", long), Attribute::number("count", 3)];
    assert_eq!(poll(trace.step("step", attributes, pin!(async { 4 }))), 4);
    let mut late = trace.open("late");
    late.fail();
    late.set_client();
    first.end();
    late.end();
    drop(trace);
    let batches = sink.batches.lock();
    let [noted, step, ..] = batches[0].as_slice() else { panic!("{batches:?}") };
    assert_eq!((noted.began, noted.ended), (0, 10_000_000));
    let [Attribute { value: span::AttributeValue::Text(text), .. }, _] = step.attributes.as_slice() else {
        panic!("{step:?}")
    };
    assert_eq!(text.len(), ATTRIBUTE_BYTES);
    let late = &batches[1][0];
    assert_eq!((&*late.name, late.is_error, late.kind), ("late", true, SpanKind::Client));
}

#[test]
fn a_trace_has_a_bounded_number_of_spans_with_different_ids() {
    let clock = Clock::manual(Timestamp(0));
    let (trace, first, sink) = begin(&clock);
    for _ in 0..SPANS_PER_TRACE + 3 {
        trace.open("one of many").end();
    }
    first.end();
    let batches = sink.batches.lock();
    let ids: std::collections::HashSet<SpanId> = batches[0].iter().map(|span| span.id).collect();
    assert_eq!(ids.len(), SPANS_PER_TRACE as usize);
    assert_eq!(sink.excess.load(Ordering::Relaxed), 4);
}

#[test]
fn headers_name_the_current_span() {
    let clock = Clock::manual(Timestamp(0));
    let (trace, first, _sink) = begin(&clock);
    let outer = trace.headers(&OpenSpan::none());
    assert_eq!(outer[0], ("traceparent", format!("00-{}-0000000000000005-01", "07".repeat(16))));
    assert_eq!(outer[1], ("tracestate", "a=1".to_owned()));
    let span = trace.open("call");
    let inner = trace.headers(&span);
    assert_ne!(inner[0], outer[0]);
    assert_eq!(poll(span.run(pin!(async { trace.headers(&OpenSpan::none()) }))), inner);
    assert_eq!(trace.headers(&OpenSpan::none()), outer);
    first.end();
}

#[test]
fn requests_without_a_trace_record_nothing_and_make_no_attributes() {
    let none = RequestTrace::none();
    let attributes = || -> Vec<Attribute> { panic!("nobody needs them") };
    assert_eq!(poll(none.step("step", attributes, pin!(async { 1 }))), 1);
    assert!(none.headers(&OpenSpan::none()).is_empty() && none.branch(&OpenSpan::none()).0.is_none());
    let context = SpanContext { trace_id: TraceId([1; 16]), span_id: SpanId(2), is_sampled: false };
    let passed_on = RequestTrace::passed_on(context, Propagated::default());
    assert_eq!(poll(passed_on.step("step", attributes, pin!(async { 1 }))), 1);
    let expected = format!("00-{}-0000000000000002-00", "01".repeat(16));
    assert_eq!(passed_on.headers(&OpenSpan::none()), [("traceparent", expected)]);
}
