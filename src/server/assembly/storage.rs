//! Opens the store, and the ranges of cluster IPs and node ports.

use std::path::PathBuf;
use std::sync::Arc;

use actix::{Actor as _, Addr};
use pilothouse_actors::directory::{self, Stores as Storage};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::engine::redb::Redb;
use pilothouse_actors::engine::{Engine, EngineError};
use pilothouse_actors::history_bounds::HistoryBounds;
use pilothouse_actors::ports::{PortAllocator, PortPool};
use pilothouse_actors::space::SpaceLimits;
use pilothouse_actors::window::WindowBounds;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_encryption::Encryption;
use pilothouse_etcd_log::EtcdLog;
use pilothouse_kinds::services::addresses::AddressRange;

use crate::apiextensions::shared_types::SharedTypes;
use crate::backups::schedule::Schedule;
use crate::bootstrap::kubernetes_service::KubernetesService;
use crate::config::{Config, Engine as EngineChoice};
use crate::encryption::StoredEncryption;
use crate::limits;
use crate::pki::host;
use crate::registry::services::{Services, repair};
use crate::registry::stores::Stores;
use crate::server::application::{StartContext, StartError};

use super::ServerParts;
use super::etcd::{self, EtcdStorage, EtcdThread};

/// The redb engine's file in the data directory.
pub(crate) const STORE_FILE: &str = "pilothouse.redb";

/// The storage of objects, and what belongs to it.
pub(super) struct OpenStorage {
    pub(super) storage: Storage,
    /// The types of the shared log, if there is one.
    pub(super) shared_types: Option<SharedTypes>,
    /// etcd, if objects are there.
    pub(super) etcd_log: Option<EtcdLog>,
    /// The thread of its connections.
    pub(super) etcd_thread: Option<EtcdThread>,
}

/// Opens etcd or the engine, and starts the actors that keep objects.
pub(super) async fn open(
    context: &StartContext,
    registry: &Arc<Registry>,
    window_bounds: WindowBounds,
    encryption: Option<Arc<Encryption>>,
) -> Result<OpenStorage, StartError> {
    let config = &context.config;
    let options = options(context, window_bounds);
    if let Some(flags) = config.etcd() {
        let EtcdStorage { storage, log, types, thread } =
            etcd::open(context, flags, registry, options, encryption).await?;
        let (shared_types, etcd_log, etcd_thread) = (Some(types), Some(log), Some(thread));
        return Ok(OpenStorage { storage, shared_types, etcd_log, etcd_thread });
    }
    let engine = engine(config, encryption).map_err(|error| start_error(config, &error))?;
    let storage = directory::start(engine, options).map_err(|error| start_error(config, &error))?;
    Ok(OpenStorage { storage, shared_types: None, etcd_log: None, etcd_thread: None })
}

fn options(context: &StartContext, window_bounds: WindowBounds) -> directory::Options {
    let config = &context.config;
    // Zero disables compaction in the reference: no history is dropped because of its age.
    let history = Some(config.storage.etcd_compaction_interval).filter(|history| !history.is_zero());
    let history = history.unwrap_or(limits::UNLIMITED_HISTORY);
    let clock = context.clock.clone();
    let quota_bytes = Some(config.storage.quota_backend_bytes).filter(|bytes| *bytes > 0);
    let space_limits = SpaceLimits { quota_bytes };
    let history_bounds = HistoryBounds::new(config.storage.history_bytes);
    let window_bounds = WindowBounds { history: history_bounds, ..window_bounds };
    directory::Options { clock, history, window_bounds, space_limits, ..directory::Options::default() }
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
    /// The actor that knows which Service has which node port.
    ports: Addr<PortAllocator>,
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
        log: Option<&EtcdLog>,
        registry: &Registry,
    ) -> Result<(Addresses, repair::AllocationsByService), StartError> {
        let (config, stores) = (&context.config, Stores::new(storage));
        let holdings =
            repair::read_allocations(&stores, registry).await.map_err(|error| StartError::store(&error))?;
        let range = config.api.service_node_port_range;
        let pool = PortPool::new(range.first, range.last, repair::node_ports(&holdings));
        let ranges = service_ranges(config)?;
        let address = host::reachable_address(config);
        let leases = log.zip(address).map(|(log, address)| log.endpoint_leases(address.to_string()));
        let addresses = Addresses {
            ports: PortAllocator::new(pool, storage.fatal.clone()).start(),
            kubernetes_service: KubernetesService {
                ranges: ranges.to_vec(),
                address,
                port: context.address.port(),
                leases,
            },
            ranges,
            node_port_range: range.to_string(),
        };
        Ok((addresses, holdings))
    }
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
    let Addresses { ports, ranges, node_port_range, .. } = &parts.addresses;
    Services::new(
        Stores::new(&parts.storage),
        parts.registry.clone(),
        parts.context.clock.clone(),
        ports.clone(),
        ranges.clone(),
        node_port_range.clone(),
    )
}
