//! Traces of requests.
//!
//! - [`TracingConfiguration`] is the file of `--tracing-config-file`;
//! - [`Tracer`] decides which requests are traced, and begins their traces;
//! - [`SpanExport`] sends their spans to a collector, by OTLP over gRPC, on a thread of its own.
//!
//! What a trace is while its request is served is in [`pilothouse_types::trace`].

mod configuration;
mod export;
pub mod limits;
mod messages;
mod queue;
mod tracer;

pub use configuration::TracingConfiguration;
pub use export::{ExportSettings, SpanExport};
pub use pilothouse_plugins::Address;
pub use queue::{ExportObserver, Loss};
pub use tracer::{IncomingContext, TracedRequest, Tracer, Tracing};
