//! A fake collector of traces: it takes spans by OTLP over gRPC, in the messages that OpenTelemetry publishes.

use std::net::SocketAddr;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use pilothouse_plugins::testing::PluginServer;
use pilothouse_types::lock::Lock;

use super::wait::{TIMEOUT, poll};

/// A running collector.
pub struct Collector {
    pub address: SocketAddr,
    received: Arc<Lock<Vec<(Resource, Span)>>>,
    _server: PluginServer,
}

impl Collector {
    pub fn start() -> Collector {
        let received = Arc::<Lock<Vec<(Resource, Span)>>>::default();
        let spans = received.clone();
        let (server, address) = PluginServer::start_tcp(SocketAddr::from(([127, 0, 0, 1], 0)), move |call| {
            assert_eq!(call.method(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
            let spans = spans.clone();
            call.answer(move |request: ExportTraceServiceRequest| {
                let mut received = spans.lock();
                for resource_spans in request.resource_spans {
                    let resource = resource_spans.resource.expect("the server");
                    let spans = resource_spans.scope_spans.into_iter().flat_map(|scope| scope.spans);
                    received.extend(spans.map(|span| (resource.clone(), span)));
                }
                Ok(ExportTraceServiceResponse { partial_success: None })
            })
        })
        .unwrap();
        Collector { address, received, _server: server }
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.received.lock().iter().map(|(_, span)| span.clone()).collect()
    }

    /// The server that has sent the first span.
    pub fn resource(&self) -> Resource {
        self.received.lock()[0].0.clone()
    }

    /// The spans of a trace, once one of this name is among them.
    pub fn trace_with(&self, trace_id: &[u8], name: &str) -> Trace {
        let trace = || Trace(self.spans().into_iter().filter(|span| span.trace_id == trace_id).collect());
        let complete = poll(TIMEOUT, || Some(trace()).filter(|trace| trace.get(name).is_some()));
        complete.unwrap_or_else(|| panic!("no {name} in {:?}", trace().names()))
    }
}

/// The spans of a trace.
pub struct Trace(pub Vec<Span>);

impl Trace {
    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|span| span.name.as_str()).collect()
    }

    pub fn get(&self, name: &str) -> Option<&Span> {
        self.0.iter().find(|span| span.name == name)
    }

    pub fn span(&self, name: &str) -> &Span {
        self.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.names()))
    }

    /// The names of a span and of those that it belongs to, up to the first of this server.
    pub fn path(&self, name: &str) -> Vec<&str> {
        let mut span = self.span(name);
        let mut path = vec![span.name.as_str()];
        while let Some(parent) = self.0.iter().find(|other| other.span_id == span.parent_span_id) {
            assert!(
                parent.start_time_unix_nano <= span.start_time_unix_nano,
                "{name} begins before its parent"
            );
            path.push(&parent.name);
            span = parent;
        }
        path
    }
}

/// The value of an attribute as text, empty if there is none.
pub fn attribute(attributes: &[KeyValue], key: &str) -> String {
    let value = attributes.iter().find(|attribute| attribute.key == key);
    match value.and_then(|attribute| attribute.value.as_ref()?.value.clone()) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => {
            assert!(other.is_none(), "{key} is {other:?}");
            String::new()
        }
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
