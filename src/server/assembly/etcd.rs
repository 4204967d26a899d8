//! Opens etcd as the storage of objects.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use actix::Arbiter;
use futures::future::BoxFuture;
use pilothouse_actors::directory::{Options, Stores as Storage};
use pilothouse_actors::shared_log::decoding::decode_entries;
use pilothouse_actors::shared_log::scope::TypeScope;
use pilothouse_actors::shared_log::{SharedLog, SharedLogError};
use pilothouse_actors::shared_storage::{self, SharedLogs, StartError as SharedStartError};
use pilothouse_api::catalog::build::Builtin;
use pilothouse_api::gates::CBOR_SERVING_AND_STORAGE;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_client::egress::{Egress, TunnelDialer};
use pilothouse_encryption::Encryption;
use pilothouse_etcd::{Client, Dialer, Duplex, Settings};
use pilothouse_etcd_layout::values::{ValueCodec, ValueOptions};
use pilothouse_etcd_log::{EtcdForms, EtcdLog, EtcdLogOptions, Observer, Types};
use pilothouse_types::host_port::HostPort;
use pilothouse_types::object::TypeName;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::etcd_overrides::{self, OtherCluster};
use super::{BUILTIN, enabled_features};
use crate::apiextensions::shared_types::SharedTypes;
use crate::config::etcd::EtcdFlags;
use crate::limits::{STORAGE_PROBE_TIMEOUT, STORAGE_RETRY_MESSAGE_INTERVAL, STORAGE_RETRY_PAUSE};
use crate::live_index::defined_type::defined_type;
use crate::live_index::stored_object::CUSTOM_RESOURCE_DEFINITIONS;
use crate::server::application::{StartContext, StartError};

/// The storage in etcd, and what belongs to it.
pub(super) struct EtcdStorage {
    pub(super) storage: Storage,
    /// The clusters: first that of all types without an override.
    pub(super) logs: Vec<EtcdLog>,
    pub(super) types: SharedTypes,
    /// The connections.
    pub(super) thread: EtcdThread,
}

/// The thread on which the connections to etcd live, so that they wait for no request. It ends with this.
pub(super) struct EtcdThread(Arbiter);

impl EtcdThread {
    /// Starts it, and returns the runtime on it.
    async fn start() -> io::Result<(EtcdThread, Handle)> {
        let thread = EtcdThread(Arbiter::try_new()?);
        let (sender, receiver) = oneshot::channel();
        thread.0.spawn(async move {
            let _gone = sender.send(Handle::current());
        });
        let runtime = receiver.await.map_err(|_| io::Error::other("the thread has ended"))?;
        Ok((thread, runtime))
    }
}

impl Drop for EtcdThread {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Connects to etcd through the proxy that the egress selector names.
struct EgressDialer(Arc<TunnelDialer>);

impl fmt::Debug for EgressDialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EgressDialer")
    }
}

impl Dialer for EgressDialer {
    fn dial(&self, address: HostPort) -> BoxFuture<'_, Result<Box<dyn Duplex>, String>> {
        Box::pin(async move {
            let socket = self.0.dial(&address).await?;
            Ok(Box::new(socket) as Box<dyn Duplex>)
        })
    }
}

/// What the storage in etcd needs beside the flags about etcd.
pub(super) struct EtcdInputs<'a> {
    pub(super) registry: &'a Arc<Registry>,
    pub(super) options: Options,
    pub(super) encryption: Option<Arc<Encryption>>,
    /// Counts what is done with etcd.
    pub(super) observer: Arc<dyn Observer>,
}

/// Opens etcd, as the flags say. Waits for it as long as they allow.
pub(super) async fn open(
    context: &StartContext,
    flags: &EtcdFlags,
    inputs: EtcdInputs<'_>,
) -> Result<EtcdStorage, StartError> {
    let EtcdInputs { registry, options, encryption, observer } = inputs;
    let config = &context.config;
    let failed = StartError::part("etcd");
    let (thread, runtime) = EtcdThread::start().await.map_err(|error| failed(&error))?;
    let dialer = context.pool.routes().egress.dialer(Egress::Etcd);
    let connect = |settings: Settings| {
        let dialer = dialer.map(|dialer| -> Arc<dyn Dialer> { Arc::new(EgressDialer(Arc::clone(dialer))) });
        Client::new(Settings { dialer, ..settings }, runtime.clone()).map_err(|error| failed(&error))
    };
    let builtin = Builtin::load().map_err(|error| StartError::part(BUILTIN)(&error))?;
    let types = Arc::new(Types::new(flags.prefix(), &builtin));
    let value_options = ValueOptions {
        media_type: flags.access.storage_media_type,
        custom_cbor: config.gates().enabled(CBOR_SERVING_AND_STORAGE),
    };
    let codec = ValueCodec::new(Arc::clone(registry), value_options, enabled_features(config));
    let log = EtcdLog::new(
        connect(flags.client_settings())?,
        Arc::clone(&types),
        EtcdLogOptions {
            codec,
            encryption,
            event_ttl: Some(config.storage.event_ttl),
            lease_reuse: flags.lease_reuse(),
            clock: context.clock.clone(),
            observer: Some(observer),
        },
    );
    let overrides = flags.overrides().unwrap_or_default();
    for unused in etcd_overrides::unused(&overrides, &builtin) {
        tracing::warn!(resource = unused, "--etcd-servers-overrides has no effect for this resource");
    }
    let clusters = etcd_overrides::other_clusters(&overrides, &flags.servers(), &builtin);
    let log = log.with_scope(etcd_overrides::main_scope(&clusters));
    let mut others = Vec::new();
    for OtherCluster { servers, types } in clusters {
        let scope = TypeScope::Only(Arc::new(types.clone()));
        others.push((types, log.in_cluster(connect(flags.settings_for(servers))?, scope)));
    }
    let clusters = Clusters { main: &log, others: &others };
    let definitions = Definitions { types: &types, registry };
    let storage = start(clusters, &definitions, &options, flags.storage_initialization_timeout).await?;
    let logs: Vec<EtcdLog> = [log].into_iter().chain(others.into_iter().map(|(_, log)| log)).collect();
    if let Some(interval) = EtcdFlags::interval(config.storage.etcd_compaction_interval) {
        for log in &logs {
            thread.0.spawn(log.clone().compact_every(interval));
        }
    }
    let Some(type_changes) = storage.type_changes.clone() else { return Err(failed(&"it is not followed")) };
    Ok(EtcdStorage { storage, logs, types: SharedTypes { type_changes, types }, thread })
}

/// The clusters that are opened.
#[derive(Clone, Copy)]
struct Clusters<'a> {
    main: &'a EtcdLog,
    /// With their types.
    others: &'a [(HashSet<TypeName>, EtcdLog)],
}

impl Clusters<'_> {
    /// Whether all of them answer, and have all objects. The error says which member does what.
    async fn check(self) -> Result<(), SharedLogError> {
        for log in [self.main].into_iter().chain(self.others.iter().map(|(_, log)| log)) {
            log.check(STORAGE_PROBE_TIMEOUT).await?;
            // Half of the objects would look like all of them.
            log.check_complete().await?;
        }
        Ok(())
    }

    /// The logs, for the stores.
    fn shared_logs(self) -> SharedLogs {
        let shared = |log: &EtcdLog| -> Arc<dyn SharedLog> { Arc::new(log.clone()) };
        let others = self.others.iter().map(|(types, log)| (types.clone(), shared(log)));
        SharedLogs { main: shared(self.main), others: others.collect() }
    }
}

/// The definitions of custom types that are in etcd at the start.
struct Definitions<'a> {
    types: &'a Types,
    registry: &'a Arc<Registry>,
}

impl Definitions<'_> {
    /// Adds the types of all definitions that are served, before anything else is read, so that the history of their objects is read,
    /// too. Later ones are added when they are served, and so are those that cannot be read.
    async fn add_types(&self, log: &EtcdLog) -> Result<HashSet<TypeName>, SharedLogError> {
        let type_name = CUSTOM_RESOURCE_DEFINITIONS.type_name();
        let mut added = HashSet::new();
        let entries = log.load_type(&type_name).await?.entries;
        for (_, object) in decode_entries(log, entries).await {
            let Some(resource) = defined_type(&object, self.registry) else { continue };
            if self.types.add(&resource) {
                added.extend(resource.stored().map(|stored| stored.store.clone()));
            }
        }
        Ok(added)
    }
}

/// Reads etcd. Tries again until the time is over, and says why.
async fn start(
    clusters: Clusters<'_>,
    definitions: &Definitions<'_>,
    options: &Options,
    max_wait: Duration,
) -> Result<Storage, StartError> {
    let began = options.clock.moment();
    let mut last_warning = None;
    loop {
        let attempt = async {
            clusters.check().await?;
            let known = definitions.add_types(clusters.main).await?;
            let forms = Arc::new(EtcdForms::new(clusters.main.clone()));
            shared_storage::start(clusters.shared_logs(), forms, known, options.clone()).await
        };
        let left = max_wait.saturating_sub(options.clock.elapsed(began));
        let error = match timeout(left, attempt).await {
            Ok(Ok(storage)) => {
                // A copy may have begun meanwhile, and what was read would be a part of it.
                let checked = clusters.check().await;
                return checked
                    .map(|()| storage)
                    .map_err(|error| StartError::part("etcd")(&error.to_string()));
            }
            Ok(Err(error @ SharedStartError::Thread(_))) => return Err(StartError::store(&error)),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "its objects could not be read in time".to_owned(),
        };
        let waited = options.clock.elapsed(began);
        if waited + STORAGE_RETRY_PAUSE >= max_wait {
            let reason = format!("{error}; tried for {} seconds", waited.as_secs());
            return Err(StartError::part("etcd")(&reason));
        }
        if last_warning.is_none_or(|last| waited >= last + STORAGE_RETRY_MESSAGE_INTERVAL) {
            last_warning = Some(waited);
            tracing::warn!(error, "etcd cannot be read yet; trying again");
        }
        sleep(STORAGE_RETRY_PAUSE).await;
    }
}
