use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use pilothouse_plugins::testing::{PluginServer, Status};
use pilothouse_types::host_port::HostPort;
use pilothouse_types::trace::span::{SpanId, TraceId};

use super::*;
use crate::limits::{BATCH_BYTES, BATCH_SPANS, WAITING_BYTES, WAITING_SPANS};
use crate::messages::PartialSuccess;

#[derive(Default)]
struct Counts {
    exported: AtomicUsize,
    lost: [AtomicUsize; 3],
}

impl Counts {
    fn of(&self, loss: Loss) -> usize {
        self.lost[loss as usize].load(Ordering::SeqCst)
    }
}

impl ExportObserver for Counts {
    fn exported(&self, spans: usize) {
        self.exported.fetch_add(spans, Ordering::SeqCst);
    }

    fn lost(&self, spans: usize, loss: Loss) {
        self.lost[loss as usize].fetch_add(spans, Ordering::SeqCst);
    }
}

fn settings(address: SocketAddr) -> ExportSettings {
    ExportSettings {
        collector: Address::Tcp(HostPort::new(&address.ip().to_string(), address.port())),
        dialer: None,
        service: "apiserver".to_owned(),
        instance: "one".to_owned(),
        version: "1".to_owned(),
    }
}

fn span(number: u64) -> Span {
    Span {
        trace_id: TraceId([1; 16]),
        id: SpanId(number),
        parent: None,
        trace_state: None,
        name: "step".into(),
        kind: SpanKind::Internal,
        began: 1,
        ended: 2,
        attributes: vec![Attribute::number("count", 3), Attribute::text("text", "a")],
        link: None,
        is_error: true,
    }
}

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn close(export: &SpanExport) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(export.close());
}

#[test]
fn spans_reach_the_collector_and_those_that_it_rejects_are_counted() {
    let (sender, received) = mpsc::channel();
    let (_server, address) = PluginServer::start_tcp(ANY_PORT, move |call| {
        let sender = sender.clone();
        call.answer(move |request: ExportRequest| {
            sender.send(request).unwrap();
            let partial = PartialSuccess { rejected_spans: 1, error_message: "no".to_owned() };
            Ok(ExportResponse { partial_success: Some(partial) })
        })
    })
    .unwrap();
    let counts = Arc::new(Counts::default());
    let export = SpanExport::start(settings(address), counts.clone()).unwrap();
    export.sink().take(vec![span(1), span(2), span(3)]);
    close(&export);
    let request = received.recv().unwrap();
    let resource = &request.resource_spans[0];
    assert_eq!(
        resource.resource.as_ref().unwrap().attributes[1],
        key_value("service.instance.id", Value::Text("one".into()))
    );
    let spans = &resource.scope_spans[0].spans;
    assert_eq!((spans.len(), spans[2].span_id.as_slice()), (3, &[0, 0, 0, 0, 0, 0, 0, 3][..]));
    assert_eq!(spans[0].status.as_ref().map(|status| status.code), Some(STATUS_ERROR));
    assert_eq!((counts.exported.load(Ordering::SeqCst), counts.of(Loss::Collector)), (2, 1));
}

#[test]
fn a_collector_that_is_away_costs_spans_and_no_time() {
    // Nothing listens at this port any more.
    let address = std::net::TcpListener::bind(ANY_PORT).unwrap().local_addr().unwrap();
    let counts = Arc::new(Counts::default());
    let export = SpanExport::start(settings(address), counts.clone()).unwrap();
    for number in 0..WAITING_SPANS as u64 * 2 {
        export.sink().take(vec![span(number + 1)]);
    }
    assert!(counts.of(Loss::Queue) >= WAITING_SPANS - 2 * BATCH_SPANS);
    export.sink().note_excess();
    assert_eq!(counts.of(Loss::Trace), 1);
    close(&export);
    assert_eq!(counts.exported.load(Ordering::SeqCst), 0);
}

#[test]
fn large_spans_are_bounded_by_their_bytes() {
    const TEXT_BYTES: usize = 64 << 10;
    let counts = Arc::new(Counts::default());
    let queue = SpanQueue::new(counts.clone());
    let large = |number| Span { name: "a".repeat(TEXT_BYTES).into(), ..span(number) };
    let count = WAITING_BYTES / TEXT_BYTES;
    for number in 0..count as u64 {
        queue.take(vec![large(number + 1)]);
    }
    let lost = counts.of(Loss::Queue);
    assert!((1..10).contains(&lost), "what a span takes beside its texts has no room: {lost}");
    assert!(queue.has_batch(), "although there are few");
    let mut sent = Vec::new();
    loop {
        let batch = queue.take_batch();
        if batch.is_empty() {
            break;
        }
        assert!(batch.iter().map(|span| span.name.len()).sum::<usize>() <= BATCH_BYTES);
        sent.extend(batch.into_iter().map(|span| span.id.0));
    }
    assert_eq!(sent, (1..=(count - lost) as u64).collect::<Vec<_>>());
    // What was taken leaves room again, and one that is larger than a batch is a batch.
    queue.take(vec![Span { name: "a".repeat(2 * BATCH_BYTES).into(), ..span(1) }]);
    assert_eq!((queue.take_batch().len(), counts.of(Loss::Queue)), (1, lost));
}

#[test]
fn spans_wait_for_a_collector_that_comes_back() {
    let (sender, received) = mpsc::channel();
    let calls = Arc::new(AtomicUsize::new(0));
    let (_server, address) = PluginServer::start_tcp(ANY_PORT, move |call| {
        let (sender, calls) = (sender.clone(), calls.clone());
        call.answer(move |request: ExportRequest| {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                return Err(Status::unavailable("later"));
            }
            sender.send(request.resource_spans[0].scope_spans[0].spans.len()).unwrap();
            Ok(ExportResponse { partial_success: None })
        })
    })
    .unwrap();
    let counts = Arc::new(Counts::default());
    let export = SpanExport::start(settings(address), counts.clone()).unwrap();
    export.sink().take(vec![span(1)]);
    assert_eq!(received.recv().unwrap(), 1);
    close(&export);
    assert_eq!((counts.exported.load(Ordering::SeqCst), counts.of(Loss::Collector)), (1, 0));
}
