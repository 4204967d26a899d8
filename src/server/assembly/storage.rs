//! Opens the store, and the ranges of cluster IPs and node ports.

use std::path::PathBuf;
use std::sync::Arc;

use pilothouse_actors::committer::CommitObserver;
use pilothouse_actors::directory::{self, Stores as Storage};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::engine::redb::Redb;
use pilothouse_actors::engine::{Engine, EngineError};
use pilothouse_actors::event_limits::EventLimits;
use pilothouse_actors::history_bounds::HistoryBounds;
use pilothouse_actors::space::SpaceLimits;
use pilothouse_actors::window::WindowBounds;
use pilothouse_api::gates::MULTI_CIDR_SERVICE_ALLOCATOR;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_encryption::Encryption;
use pilothouse_etcd_log::EtcdLog;
use pilothouse_kinds::services::addresses::AddressRange;
use pilothouse_types::object::TypeName;

use crate::apiextensions::shared_types::SharedTypes;
use crate::backups::schedule::Schedule;
use crate::bootstrap::kubernetes_service::{EndpointReconciler, KubernetesService, OwnEndpoint};
use crate::config::{Config, EndpointReconcilerType, Engine as EngineChoice, WatchCache};
use crate::encryption::StoredEncryption;
use crate::limits;
use crate::metrics::Metrics;
use crate::pki::host;
use crate::registry::services::address_records::AddressRecord;
use crate::registry::services::node_ports::NodePorts;
use crate::registry::services::{SERVICES, Services, repair};
use crate::registry::stores::Stores;
use crate::server::application::{StartContext, StartError};

use super::etcd::{self, EtcdInputs, EtcdStorage, EtcdThread};
use super::etcd_overrides::SERVER_RECORDS;
use super::{ServerParts, allocators};

/// The redb engine's file in the data directory.
pub(crate) const STORE_FILE: &str = "pilothouse.redb";

/// The storage of objects, and what belongs to it.
pub(super) struct OpenStorage {
    pub(super) storage: Storage,
    /// The types of the shared log, if there is one.
    pub(super) shared_types: Option<SharedTypes>,
    /// The clusters of etcd, if objects are there: first that of all resources without an override.
    pub(super) etcd_logs: Vec<EtcdLog>,
    /// The thread of its connections.
    pub(super) etcd_thread: Option<EtcdThread>,
}

/// Opens etcd or the engine, and starts the actors that keep objects.
pub(super) async fn open(
    context: &StartContext,
    registry: &Arc<Registry>,
    window_bounds: WindowBounds,
    encryption: Option<Arc<Encryption>>,
    metrics: &Metrics,
) -> Result<OpenStorage, StartError> {
    let config = &context.config;
    let options = options(context, window_bounds, metrics);
    if let Some(flags) = config.etcd() {
        let inputs = EtcdInputs { registry, options, encryption, observer: Arc::new(metrics.etcd.clone()) };
        let EtcdStorage { storage, logs, types, thread } = etcd::open(context, flags, inputs).await?;
        let (shared_types, etcd_thread) = (Some(types), Some(thread));
        return Ok(OpenStorage { storage, shared_types, etcd_logs: logs, etcd_thread });
    }
    let engine = engine(config, encryption).map_err(|error| start_error(config, &error))?;
    let storage = directory::start(engine, options).map_err(|error| start_error(config, &error))?;
    Ok(OpenStorage { storage, shared_types: None, etcd_logs: Vec::new(), etcd_thread: None })
}

fn options(context: &StartContext, window_bounds: WindowBounds, metrics: &Metrics) -> directory::Options {
    let config = &context.config;
    // Zero disables compaction in the reference: no history is dropped because of its age.
    let history = Some(config.storage.etcd_compaction_interval).filter(|history| !history.is_zero());
    let history = history.unwrap_or(limits::UNLIMITED_HISTORY);
    let clock = context.clock.clone();
    let quota_bytes = Some(config.storage.quota_backend_bytes).filter(|bytes| *bytes > 0);
    let space_limits = SpaceLimits { quota_bytes };
    let history_bounds = HistoryBounds::new(config.storage.history_bytes);
    let window_bounds =
        WindowBounds { history: history_bounds, events: event_limits(&config.watch_cache), ..window_bounds };
    let commit_observer: Option<Arc<dyn CommitObserver>> = Some(Arc::new(metrics.commits.clone()));
    let defaults = directory::Options::default();
    directory::Options { clock, history, window_bounds, space_limits, commit_observer, ..defaults }
}

/// How many events the window of each type holds.
fn event_limits(flags: &WatchCache) -> EventLimits {
    let sizes = flags.watch_cache_sizes.iter();
    let sizes = sizes.map(|size| (TypeName::new(&size.resource), size.events));
    EventLimits::new(flags.default_watch_cache_size, sizes)
}

/// Says what helps.
fn start_error(config: &Config, error: &EngineError) -> StartError {
    match (error, &config.storage.data_dir) {
        (EngineError::Damaged(_), Some(directory)) => {
            let directory = directory.display();
            StartError::store(&format_args!(
                "{error}. `pilothouse check --data-dir {directory}` names the damage, and `pilothouse repair --data-dir {directory} \
                 --replace` makes a new store of everything that can be read"
            ))
        }
        _ => StartError::store(error),
    }
}

fn engine(config: &Config, encryption: Option<Arc<Encryption>>) -> Result<Box<dyn Engine>, EngineError> {
    match file(config) {
        Some(file) => {
            let encryption = Arc::new(StoredEncryption::new(encryption));
            Ok(Box::new(Redb::open(&file)?.with_encryption(encryption)))
        }
        // Nothing of it comes to rest.
        None => Ok(Box::new(Memory::new())),
    }
}

/// The file that keeps the objects, unless memory does.
pub(super) fn file(config: &Config) -> Option<PathBuf> {
    let directory = config
        .storage
        .data_dir
        .as_ref()
        .filter(|_| config.storage.engine == EngineChoice::Redb && config.etcd().is_none())?;
    Some(directory.join(STORE_FILE))
}

/// The backups that the server makes by itself, if any.
pub(super) fn backup_schedule(config: &Config) -> Option<Schedule> {
    let Config { storage, .. } = config;
    Some(Schedule {
        directory: storage.backup_dir.clone()?,
        // Zero would make one after another.
        interval: storage.backup_interval.max(limits::BACKUP_MIN_INTERVAL),
        retention: storage.backup_retention,
    })
}

/// The cluster IPs and node ports that Services get.
pub(super) struct Addresses {
    /// What knows which node ports are taken.
    ports: NodePorts,
    /// The records of the ranges that servers share, if there are any.
    address_records: Arc<[AddressRecord]>,
    ranges: Arc<[AddressRange]>,
    /// The range as messages print it.
    node_port_range: String,
    /// The addresses and ports of the `kubernetes` service.
    pub kubernetes_service: KubernetesService,
}

impl Addresses {
    /// Finds the node ports and addresses that are in use. Before the first request, so that no two Services get the same one.
    pub(super) async fn open(
        context: &StartContext,
        storage: &Storage,
        etcd_logs: &[EtcdLog],
        registry: &Registry,
    ) -> Result<(Addresses, repair::AllocationsByService), StartError> {
        let (config, stores) = (&context.config, Stores::new(storage));
        let holdings =
            repair::read_allocations(&stores, registry).await.map_err(|error| StartError::store(&error))?;
        let range = config.api.service_node_port_range;
        let ranges = service_ranges(config)?;
        // As in the reference, the records are beside the objects.
        let log_of = |name: &str| etcd_logs.iter().find(|log| log.has(&TypeName::new(name)));
        let log = log_of(SERVICES);
        let addresses = Addresses {
            ports: allocators::node_ports(config, storage, log, &holdings),
            address_records: allocators::address_records(config, storage, log, &ranges),
            kubernetes_service: KubernetesService {
                node_port: config.api.kubernetes_node_port(),
                ranges: ranges.to_vec(),
                has_range_object: config.gates().enabled(MULTI_CIDR_SERVICE_ALLOCATOR),
                endpoint: own_endpoint(context, log_of(SERVER_RECORDS)),
            },
            ranges,
            node_port_range: range.to_string(),
        };
        Ok((addresses, holdings))
    }
}

/// The endpoint of this server.
fn own_endpoint(context: &StartContext, log: Option<&EtcdLog>) -> OwnEndpoint {
    let config = &context.config;
    let address = host::reachable_address(config);
    if let Some(address) = address
        && context.address.ip().is_loopback()
    {
        tracing::info!(%address, "the endpoints of the service kubernetes name an address where this server does not listen: see --bind-address");
    }
    let leases = log.zip(address).map(|(log, address)| log.endpoint_leases(address.to_string()));
    let reconciler = match config.api.endpoint_reconciler_type {
        EndpointReconcilerType::Lease => EndpointReconciler::Lease(leases),
        EndpointReconcilerType::MasterCount => {
            EndpointReconciler::MasterCount(usize::try_from(config.api.apiserver_count).unwrap_or(1))
        }
        EndpointReconcilerType::None => EndpointReconciler::None,
    };
    OwnEndpoint::new(reconciler, address, context.address.port())
}

/// The ranges of cluster IPs.
fn service_ranges(config: &Config) -> Result<Arc<[AddressRange]>, StartError> {
    let ranges = config.api.service_cluster_ip_range.iter().map(|range| {
        let too_large = || StartError::flag("--service-cluster-ip-range")(&format!("{range} is too large"));
        AddressRange::new(range.0).ok_or_else(too_large)
    });
    ranges.collect()
}

/// Makes one worker's allocator of cluster IPs and node ports.
pub(super) fn services(parts: &ServerParts) -> Services {
    let Addresses { ports, address_records, ranges, node_port_range, .. } = &parts.addresses;
    Services::new(
        Stores::new(&parts.storage),
        parts.registry.clone(),
        parts.context.clock.clone(),
        ports.clone(),
        ranges.clone(),
        node_port_range.clone(),
    )
    .with_address_records(address_records.clone())
    .with_metrics(parts.shared.metrics.clone())
    .with_objects(parts.gates.enabled(MULTI_CIDR_SERVICE_ALLOCATOR))
}
