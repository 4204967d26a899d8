//! Assembles the state that all workers share: the catalog, API Priority and Fairness, connections to kubelets and extensions.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use pilothouse_actors::directory::Stores as Storage;
use pilothouse_actors::start_steps::StartSteps;
use pilothouse_actors::throttle::Throttle;
use pilothouse_api::catalog::Catalog;
use pilothouse_api::catalog::build::Builtin;
use pilothouse_api::catalog::runtime_config::RuntimeConfig;
use pilothouse_api::connect::location::KubeletRules;
use pilothouse_api::gates::{
    AGGREGATED_DISCOVERY_REMOVE_BETA_TYPE, API_RESPONSE_COMPRESSION, CBOR_SERVING_AND_STORAGE,
    COMPONENT_FLAGZ, COMPONENT_STATUSZ, OPENAPI_ENUMS, PORT_FORWARD_WEBSOCKETS, REMOTE_REQUEST_HEADER_UID,
    TRANSLATE_STREAM_CLOSE_WEBSOCKET_REQUESTS, UNAUTHENTICATED_HTTP2_DOS_MITIGATION,
};
use pilothouse_api::openapi::Contents;
use pilothouse_client::upstream::{TlsError, Upstream};
use pilothouse_encryption::{Encryption, HealthCheck};
use pilothouse_etcd_log::{EtcdLog, PeerLeases};
use pilothouse_types::contention;

use crate::activity::ActivityRegistry;
use crate::aggregation::Extensions;
use crate::apiextensions::served_revision::ServedRevision;
use crate::auth::front_proxy::Headers;
use crate::auth::service_account::metadata::PublishedMetadata;
use crate::backups::{Backups, NoBackup};
use crate::config::{Config, EtcdFlags, FeatureGates};
use crate::flowcontrol::heavy_pool::HeavyPool;
use crate::flowcontrol::heavy_pool::costly_calls::CostlyCalls;
use crate::flowcontrol::load_stats::LoadStats;
use crate::flowcontrol::{FlowController, InFlightLimits, RequestLimiter};
use crate::http::drain::Drain;
use crate::http::handler::connect::ConnectDeps;
use crate::http::handler::connect::aggregated::Aggregation;
use crate::http::handler::debug_pages::{self, DebugPages};
use crate::http::handler::health::{Grace, Health, StartHook};
use crate::http::handler::merged_discovery::MergedDocuments;
use crate::http::handler::openapi::OpenApi;
use crate::http::handler::shutdown::Shutdown;
use crate::http::handler::storage_probe::StorageProbe;
use crate::http::handler::worker::{
    self, AuthenticationSettings, DebugSettings, Encodings, HeavyWork, RequestLimits, ResponseSettings,
    Served, ServerDocuments, Shared, Usage,
};
use crate::limits::STORAGE_PROBE_TIMEOUT;
use crate::live_index::LiveIndexes;
use crate::log_files::LogFiles;
use crate::metrics::Metrics;
use crate::profiles::Profiles;
use crate::server::application::{StartContext, StartError};

use super::auth_setup::AuthSetup;
use super::controller_setup::ControllerSetup;
use super::memory::MemoryBudgets;
use super::{BUILTIN, audit, peers, reload, start_hooks, traces};

/// The built-in resources that `--runtime-config` leaves enabled.
pub(super) fn catalog(config: &Config) -> Result<Catalog, StartError> {
    let flag_error = StartError::flag("--runtime-config");
    let pairs: Vec<String> = config
        .api
        .runtime_config
        .iter()
        .map(|setting| format!("{}={}", setting.key, setting.enabled))
        .collect();
    let runtime_config = RuntimeConfig::parse(&pairs.join(",")).map_err(|error| flag_error(&error))?;
    let builtin = Builtin::load().map_err(|error| StartError::part(BUILTIN)(&error))?;
    let gates = config.gates();
    let emulation = config.emulation.emulation();
    let served = builtin.serve_where(&runtime_config, &emulation, |gate| gates.enabled(gate));
    served.map_err(|error| flag_error(&error))
}

/// The contents of OpenAPI documents that depend on flags.
pub(super) fn openapi_contents(config: &Config) -> Contents {
    let gates = config.gates();
    Contents {
        cbor: gates.enabled(CBOR_SERVING_AND_STORAGE),
        allowed_values: gates.enabled(OPENAPI_ENUMS),
        release: config.emulation.release(),
        logs: config.log_files.enable_logs_handler,
    }
}

/// The parts from which the shared state is made.
pub(super) struct SharedInputs<'a> {
    pub storage: &'a Storage,
    pub indexes: &'a Arc<LiveIndexes>,
    pub auth: &'a AuthSetup,
    pub controllers: &'a ControllerSetup,
    pub load: &'a Arc<LoadStats>,
    pub metrics: &'a Arc<Metrics>,
    pub memory: &'a MemoryBudgets,
    pub encryption: Option<&'a Encryption>,
    /// The clusters of etcd that have the objects.
    pub etcd_logs: &'a [EtcdLog],
    /// The records by which the other servers on the same etcd are reached, if this one keeps one.
    pub peer_records: Option<&'a PeerLeases>,
    /// The issuer's metadata and public keys, served to those that verify service account tokens.
    pub token_metadata: Option<PublishedMetadata>,
}

/// The state that all workers share.
pub(super) async fn shared(
    context: &StartContext,
    catalog: Catalog,
    inputs: SharedInputs<'_>,
) -> Result<Shared, StartError> {
    let SharedInputs {
        storage,
        indexes,
        auth,
        controllers,
        load,
        metrics,
        memory,
        encryption,
        etcd_logs,
        peer_records,
        token_metadata,
    } = inputs;
    let kms = encryption.map(Encryption::health_checks).unwrap_or_default();
    let (config, gates) = (&context.config, context.config.gates());
    let connect = connect(context, memory)?;
    let extensions = extensions(config, indexes, &connect, memory).await?;
    let openapi = OpenApi::new(Vec::new(), openapi_contents(config));
    let limiter = limiter(context, indexes, load, metrics).await?;
    let start = StartProgress {
        steps: StartSteps::default(),
        hooks: start_hooks::hooks(config, &catalog, peer_records.is_some()),
    };
    for step in [start_hooks::STORAGE, start_hooks::API_SERVICES_FOLLOWED, start_hooks::FLOW_TABLE] {
        start.steps.complete(step);
    }
    Ok(Shared {
        served_definitions: ServedRevision::default(),
        served: ArcSwap::from_pointee(Served::new(catalog, context.address.to_string().into(), openapi)),
        limits: RequestLimits { limiter, request_timeout: config.limits.request_timeout },
        shutdown: config.lifecycle.shutdown_send_retry_after.then(Shutdown::default),
        heavy: HeavyWork {
            pool: Arc::new(HeavyPool::new(config.heavy_threads(), metrics, &context.clock)),
            costly_calls: CostlyCalls::default(),
        },
        backups: Arc::new(backups(storage, etcd_logs)),
        audit: audit::open(context, metrics, memory)?,
        traces: traces::open(context, &gates, metrics, controllers.identity())?,
        metrics: metrics.clone(),
        usage: usage(context, memory, etcd_logs),
        health: health(context, storage, indexes, controllers, kms, start),
        authentication: AuthenticationSettings {
            front_headers: Headers::configured(&config.front_proxy),
            anonymous_paths: auth.openid.anonymous_paths(),
            closes_unauthenticated: gates.enabled(UNAUTHENTICATED_HTTP2_DOS_MITIGATION),
        },
        responses: responses(config, &gates)?,
        documents: ServerDocuments {
            release: config.api.release.clone(),
            token_metadata,
            merged: MergedDocuments::default(),
            serves_beta_discovery: !gates.enabled(AGGREGATED_DISCOVERY_REMOVE_BETA_TYPE),
        },
        debug: debug(context, &gates, memory),
        peers: peers::open(config, peer_records, &connect.upstream)?,
        connect: Arc::new(connect),
        aggregation: Aggregation {
            extensions: Arc::new(extensions),
            refuses_redirects: config.aggregation.aggregator_reject_forwarding_redirect,
            sends_uid: gates.enabled(REMOTE_REQUEST_HEADER_UID),
        },
    })
}

/// The extension API servers, and how they are reached.
async fn extensions(
    config: &Config,
    indexes: &LiveIndexes,
    connect: &ConnectDeps,
    memory: &MemoryBudgets,
) -> Result<Extensions, StartError> {
    let (upstream, openapi_memory) = (connect.upstream.clone(), memory.extension_openapi.clone());
    let to_endpoints = config.aggregation.enable_aggregator_routing;
    let extensions = Extensions::open(indexes, upstream, openapi_memory, to_endpoints).await;
    extensions.map_err(|error| StartError::store(&error))
}

/// How far the start is.
struct StartProgress {
    steps: StartSteps,
    /// What health checks show of it.
    hooks: Vec<StartHook>,
}

/// The settings of the debug pages.
fn debug(context: &StartContext, gates: &FeatureGates, memory: &MemoryBudgets) -> DebugSettings {
    let config = &context.config;
    let logs = &config.log_files;
    let has_profiles = config.logging.profiling || !config.logging.debug_socket_path.is_empty();
    if config.logging.contention_profiling && has_profiles {
        contention::enable(context.clock.clone());
    }
    DebugSettings {
        profiling: config.logging.profiling,
        activity: ActivityRegistry::default(),
        profiles: Arc::new(Profiles::new(memory.ledger.clone(), context.clock.clone())),
        pages: DebugPages {
            started: gates.enabled(COMPONENT_STATUSZ).then(|| context.clock.now()),
            flags: gates.enabled(COMPONENT_FLAGZ).then(|| debug_pages::flags_page(&config.flags)),
        },
        logs: logs.enable_logs_handler.then(|| LogFiles::new(logs.log_directory.clone())),
    }
}

/// The state that the health checks probe, before the server is ready.
fn health(
    context: &StartContext,
    storage: &Storage,
    indexes: &Arc<LiveIndexes>,
    controllers: &ControllerSetup,
    kms: Vec<HealthCheck>,
    start: StartProgress,
) -> Health {
    let StartProgress { steps, hooks } = start;
    let probe = |timeout| StorageProbe::new(storage.health.clone(), timeout, context.clock.clone());
    let (storage_probe, readiness) = match context.config.etcd().map(EtcdFlags::check_timeouts) {
        Some([health, readiness]) => (probe(health), probe(readiness)),
        None => {
            let probe = probe(STORAGE_PROBE_TIMEOUT);
            (Arc::clone(&probe), probe)
        }
    };
    Health {
        storage: storage_probe,
        readiness,
        failures: Throttle::default(),
        directory: storage.directory.clone(),
        fatal: storage.fatal.clone(),
        stopping: AtomicBool::new(false),
        livez_grace: Grace::new(&context.clock, context.config.lifecycle.livez_grace_period),
        has_controllers: controllers.is_enabled(),
        down: controllers.down(),
        indexes: indexes.clone(),
        space: storage.space.clone(),
        undecryptable: storage.undecryptable.clone(),
        kms,
        hooks,
        informer_step: start_hooks::INFORMER,
        steps,
    }
}

/// Makes the limit on concurrent requests: API Priority and Fairness, or the plain in-flight limits.
async fn limiter(
    context: &StartContext,
    indexes: &LiveIndexes,
    load: &Arc<LoadStats>,
    metrics: &Arc<Metrics>,
) -> Result<RequestLimiter, StartError> {
    let limits = &context.config.limits;
    let (reading, writing) = (limits.max_requests_inflight, limits.max_mutating_requests_inflight);
    if !limits.enable_priority_and_fairness {
        return Ok(RequestLimiter::Plain(InFlightLimits::new(reading, writing, metrics, &context.clock)));
    }
    let total = reading.saturating_add(writing);
    let flow_controller = FlowController::open(indexes, total, load.clone(), metrics, &context.clock).await;
    flow_controller.map(RequestLimiter::Fair).map_err(|error| StartError::store(&error))
}

/// The form of responses.
fn responses(config: &Config, gates: &FeatureGates) -> Result<ResponseSettings, StartError> {
    let encoding = Encodings {
        cbor: gates.enabled(CBOR_SERVING_AND_STORAGE),
        gzip: gates.enabled(API_RESPONSE_COMPRESSION),
    };
    let transport_security = worker::transport_security(&config.serving.strict_transport_security_directives)
        .map_err(|error| StartError::flag("--strict-transport-security-directives")(&error))?;
    let allowed_origins = config.serving.cors_allowed_origins.clone();
    Ok(ResponseSettings { encoding, transport_security, allowed_origins })
}

/// Who may make a backup now.
fn backups(storage: &Storage, etcd_logs: &[EtcdLog]) -> Backups {
    let reason = if etcd_logs.is_empty() { NoBackup::InMemory } else { NoBackup::InEtcd };
    Backups::new(storage.backup.clone().ok_or(reason), env!("CARGO_PKG_VERSION").to_owned())
}

fn usage(context: &StartContext, memory: &MemoryBudgets, etcd_logs: &[EtcdLog]) -> Usage {
    let (memory, connections) = (memory.ledger.clone(), context.connections.clone());
    Usage { memory, connections, etcd: etcd_logs.to_vec() }
}

/// Makes the connections to kubelets, pods and services.
fn connect(context: &StartContext, memory: &MemoryBudgets) -> Result<ConnectDeps, StartError> {
    let config = &context.config;
    let part_error =
        |error: TlsError| StartError::part("connections to kubelets and extension servers")(&error);
    let kubelets = &config.kubelets;
    let upstream =
        Upstream::new(&reload::kubelet_files(kubelets), kubelets.kubelet_timeout, context.pool.clone())
            .map_err(part_error)?;
    let proxy_identity = reload::proxy_identity(&config.aggregation).map_err(part_error)?;
    upstream.set_extension_identity(proxy_identity).map_err(part_error)?;
    Ok(ConnectDeps {
        rules: KubeletRules {
            address_types: kubelets.kubelet_preferred_address_types.clone(),
            port: kubelets.kubelet_port,
        },
        upstream: Arc::new(upstream),
        translates_streams: config.gates().enabled(TRANSLATE_STREAM_CLOSE_WEBSOCKET_REQUESTS),
        unpacks_tunnels: config.gates().enabled(PORT_FORWARD_WEBSOCKETS),
        upgraded_bytes_per_second: config.limits.max_connection_rate(),
        pages: memory.proxied_pages.clone(),
        drain: Drain::default(),
    })
}
