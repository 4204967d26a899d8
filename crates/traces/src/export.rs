//! Sends spans to a collector, by OTLP over gRPC.
//!
//! All of it happens on one thread. A collector that is away costs spans and nothing else: those that do not fit into the queue are
//! dropped and counted, and the pauses between attempts grow.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_plugins::{Address, CallError, CallTimes, Code, Dialer, PluginClient, PluginRuntime};
use pilothouse_types::lock::Lock;
use pilothouse_types::trace::SpanSink;
use pilothouse_types::trace::span::{Attribute, AttributeValue, Span, SpanKind};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::limits::{
    ANSWER_BYTES, BATCH_INTERVAL, CLOSE_TIMEOUT, CONNECT_TIMEOUT, EXPORT_TIMEOUT, FIRST_PAUSE, LONGEST_PAUSE,
};
use crate::messages::{
    self, AnyValue, EXPORT, ExportRequest, ExportResponse, KeyValue, Link, Resource, ResourceSpans, Scope,
    ScopeSpans, SpanStatus, Value,
};
use crate::queue::{ExportObserver, Loss, SpanQueue};

/// The program, in the spans that it sends.
const SCOPE: &str = "pilothouse";
/// The code of the status of a failed span.
const STATUS_ERROR: i32 = 2;
/// The flag of a span whose trace is recorded.
const SAMPLED: u32 = 1;

/// Where spans go, and who sends them.
pub struct ExportSettings {
    /// The collector.
    pub collector: Address,
    /// How it is connected to, unless directly.
    pub dialer: Option<Arc<dyn Dialer>>,
    /// The service, as traces name it.
    pub service: String,
    /// The server among those of the service.
    pub instance: String,
    /// The version of the program.
    pub version: String,
}

/// The export of spans.
pub struct SpanExport {
    queue: Arc<SpanQueue>,
    /// Ends when the exporter has sent everything after the queue was closed.
    ended: Lock<Option<oneshot::Receiver<()>>>,
    _runtime: PluginRuntime,
}

impl SpanExport {
    /// Starts the thread.
    pub fn start(settings: ExportSettings, observer: Arc<dyn ExportObserver>) -> io::Result<SpanExport> {
        let runtime = PluginRuntime::start("traces")?;
        let queue = Arc::new(SpanQueue::new(observer.clone()));
        let (end, ended) = oneshot::channel();
        let client =
            PluginClient::new(settings.collector.clone(), ANSWER_BYTES).with_dialer(settings.dialer.clone());
        let exporter = Exporter { queue: queue.clone(), client, settings, observer };
        runtime.spawn(async move {
            exporter.run().await;
            // Nobody waits unless the server ends.
            let _ = end.send(());
        });
        Ok(SpanExport { queue, ended: Lock::new(Some(ended)), _runtime: runtime })
    }

    /// Where spans are put.
    pub fn sink(&self) -> Arc<dyn SpanSink> {
        self.queue.clone()
    }

    /// Sends what waits, for a bounded time.
    pub async fn close(&self) {
        self.queue.close();
        let ended = self.ended.lock().take();
        if let Some(ended) = ended {
            // Late spans are lost.
            let _late = timeout(CLOSE_TIMEOUT, ended).await;
        }
    }
}

/// The task that sends.
struct Exporter {
    queue: Arc<SpanQueue>,
    client: PluginClient,
    settings: ExportSettings,
    observer: Arc<dyn ExportObserver>,
}

impl Exporter {
    async fn run(self) {
        loop {
            if !self.queue.has_batch() {
                self.queue.wait(BATCH_INTERVAL).await;
            }
            let spans = self.queue.take_batch();
            if !spans.is_empty() {
                self.send(&spans).await;
            } else if self.queue.is_closed() {
                return;
            }
        }
    }

    /// Sends a batch, again and again while the collector is away.
    async fn send(&self, spans: &[Span]) {
        let request = self.request(spans);
        let times = CallTimes { connect: CONNECT_TIMEOUT, response: EXPORT_TIMEOUT };
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.client.call::<_, ExportResponse>(EXPORT, request.clone(), times).await {
                Ok(response) => return self.count(spans.len(), response),
                Err(error) => error,
            };
            if error.code == Code::DeadlineExceeded {
                // It may have gone without a word.
                self.client.disconnect().await;
            }
            let collector = &self.settings.collector;
            if !is_passing(&error) || self.queue.is_closed() {
                tracing::warn!(%collector, %error, spans = spans.len(), "the collector does not take spans");
                return self.observer.lost(spans.len(), Loss::Collector);
            }
            tracing::warn!(%collector, %error, ?pause, "the collector of traces cannot be reached");
            self.pause(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Waits, but at most [`FIRST_PAUSE`] after the queue was closed.
    async fn pause(&self, pause: Duration) {
        let mut rest = pause;
        while !rest.is_zero() && !self.queue.is_closed() {
            let step = rest.min(FIRST_PAUSE);
            sleep(step).await;
            rest = rest.saturating_sub(step);
        }
    }

    fn count(&self, sent: usize, response: ExportResponse) {
        let partial = response.partial_success.unwrap_or_default();
        let rejected = usize::try_from(partial.rejected_spans).unwrap_or_default().min(sent);
        if rejected > 0 {
            let reason = pilothouse_plugins::clipped(&partial.error_message);
            tracing::warn!(collector = %self.settings.collector, rejected, reason, "the collector rejects spans");
            self.observer.lost(rejected, Loss::Collector);
        }
        self.observer.exported(sent - rejected);
    }

    fn request(&self, spans: &[Span]) -> ExportRequest {
        let ExportSettings { service, instance, version, .. } = &self.settings;
        let text = |key: &str, value: &str| key_value(key, Value::Text(value.to_owned()));
        let attributes = vec![text("service.name", service), text("service.instance.id", instance)];
        let scope = Scope { name: SCOPE.to_owned(), version: version.clone() };
        let scope_spans = ScopeSpans { scope: Some(scope), spans: spans.iter().map(message).collect() };
        let resource_spans =
            ResourceSpans { resource: Some(Resource { attributes }), scope_spans: vec![scope_spans] };
        ExportRequest { resource_spans: vec![resource_spans] }
    }
}

/// Whether the call may succeed later; the list of the protocol.
fn is_passing(error: &CallError) -> bool {
    matches!(
        error.code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    )
}

fn key_value(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn message(span: &Span) -> messages::Span {
    let attribute = |Attribute { key, value }: &Attribute| match value {
        AttributeValue::Text(text) => key_value(key, Value::Text(text.clone().into_owned())),
        AttributeValue::Number(number) => key_value(key, Value::Number(*number)),
    };
    let link = span.link.map(|link| Link {
        trace_id: link.trace_id.0.to_vec(),
        span_id: link.span_id.0.to_be_bytes().to_vec(),
        flags: u32::from(link.is_sampled),
    });
    messages::Span {
        trace_id: span.trace_id.0.to_vec(),
        span_id: span.id.0.to_be_bytes().to_vec(),
        trace_state: span.trace_state.clone().unwrap_or_default(),
        parent_span_id: span.parent.map(|parent| parent.0.to_be_bytes().to_vec()).unwrap_or_default(),
        name: span.name.clone().into_owned(),
        kind: match span.kind {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        },
        start_time_unix_nano: span.began,
        end_time_unix_nano: span.ended,
        attributes: span.attributes.iter().map(attribute).collect(),
        links: link.into_iter().collect(),
        status: span.is_error.then(|| SpanStatus { message: String::new(), code: STATUS_ERROR }),
        flags: SAMPLED,
    }
}

#[cfg(test)]
mod tests;
