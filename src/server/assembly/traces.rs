//! Reads the configuration of traces, and starts their export.

use std::path::Path;
use std::sync::Arc;

use pilothouse_api::gates::API_SERVER_TRACING;
use pilothouse_apimachinery::well_known::SERVICE_OF_TRACES;
use pilothouse_client::routes::Routes;
use pilothouse_plugins::{Dialer, Dialing, Duplex};
use pilothouse_traces::{ExportSettings, SpanExport, Tracer, Tracing, TracingConfiguration};
use pilothouse_types::host_port::HostPort;

use crate::config::FeatureGates;
use crate::controllers::server_identity::ServerIdentity;
use crate::http::handler::worker::Traces;
use crate::metrics::Metrics;
use crate::pki::random;
use crate::server::application::{StartContext, StartError};

/// Connects to the collector as to other servers of the control plane.
struct CollectorDialer(Routes);

impl Dialer for CollectorDialer {
    fn dial<'a>(&'a self, address: &'a HostPort) -> Dialing<'a> {
        Box::pin(async move {
            let socket = self.0.connect_grpc(address).await?;
            Ok(Box::new(socket) as Box<dyn Duplex>)
        })
    }
}

/// What happens to the traces of requests. `identity`: that of this server, if it has one for other purposes.
pub(super) fn open(
    context: &StartContext,
    gates: &FeatureGates,
    metrics: &Metrics,
    identity: Option<&ServerIdentity>,
) -> Result<Traces, StartError> {
    let is_enabled = gates.enabled(API_SERVER_TRACING);
    let Some(path) = &context.config.tracing.tracing_config_file else {
        let tracing = if is_enabled { Tracing::PassedOn } else { Tracing::Off };
        return Ok(Traces { tracing, export: None });
    };
    let failed = StartError::flag("--tracing-config-file");
    if !is_enabled {
        return Err(failed(&"APIServerTracing feature is not enabled, but tracing config file was provided"));
    }
    let configuration = read(path).map_err(|error| failed(&error))?;
    let identity = identity.cloned().unwrap_or_else(ServerIdentity::for_this_host);
    let settings = ExportSettings {
        collector: configuration.collector,
        dialer: Some(Arc::new(CollectorDialer(context.pool.routes().clone()))),
        service: SERVICE_OF_TRACES.to_owned(),
        instance: identity.id.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let export =
        SpanExport::start(settings, Arc::new(metrics.traces.clone())).map_err(|error| failed(&error))?;
    let (clock, sink) = (context.clock.clone(), export.sink());
    let tracer = Tracer::new(configuration.rate_per_million, clock, random::bytes, sink);
    Ok(Traces { tracing: Tracing::Recorded(tracer), export: Some(export) })
}

fn read(path: &Path) -> Result<TracingConfiguration, String> {
    let path_text = path.display();
    match std::fs::read(path) {
        Ok(text) => TracingConfiguration::read(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(format!("tracing-config-file {path_text} does not exist"))
        }
        Err(error) => Err(format!(
            "failed to read tracing config: unable to read tracing configuration from \"{path_text}\": {error}"
        )),
    }
}
