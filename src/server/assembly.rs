//! Assembles the server: the only place that decides which actors run on which thread.
//!
//! The committer, the stores with their directory, and the controllers (`controller_setup.rs`) run on threads of their own. Each
//! worker thread runs its own broadcaster, authenticator and authorizer, so that checks and wakes cross no thread. Watch sessions
//! run on the worker of their connection. Each group of parts is assembled in a file of its own.

mod activity;
mod admission_settings;
mod allocators;
mod audit;
mod auth_setup;
mod authentication;
mod authorization;
mod controller_setup;
mod custom_resources;
mod debug_socket;
mod encryption;
mod etcd;
mod etcd_metrics;
mod etcd_overrides;
mod memory;
mod openid;
mod peers;
mod reload;
mod shared_state;
mod start_hooks;
pub(crate) mod storage;
mod traces;
mod watch_setup;
mod watched_file;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::{Actor as _, Addr};
use arc_swap::ArcSwap;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join, join_all};
use pilothouse_actors::authenticator::Authenticator;
use pilothouse_actors::authorizer::Authorizer;
use pilothouse_actors::broadcaster::{Broadcaster, CloseAll};
use pilothouse_actors::directory::{self, Stores as Storage};
use pilothouse_actors::throttle::Throttle;
use pilothouse_api::emulation::min_compatibility;
use pilothouse_api::gates::{
    ALLOW_UNSAFE_MALFORMED_OBJECT_DELETION, AUTHORIZE_WITH_SELECTORS, DECLARATIVE_VALIDATION,
    DECLARATIVE_VALIDATION_TAKEOVER,
};
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::Status;
use pilothouse_client::egress::DialObserver;
use pilothouse_client::upstream::pool::KeepAliveHandle;
use pilothouse_encryption::Encryption;
use pilothouse_kinds::validation_engines::Authority;
use pilothouse_types::lock::Lock;
use pilothouse_types::object::TypeName;
use tokio::task::JoinHandle;

use self::auth_setup::AuthSetup;
use self::authentication::extension_authentication;
use self::controller_setup::ControllerSetup;
use self::custom_resources::Builtins;
use self::debug_socket::DebugSocket;
use self::etcd::EtcdThread;
use self::memory::MemoryBudgets;
use self::reload::Reload;
use self::shared_state::SharedInputs;
use self::storage::{Addresses, OpenStorage, services};
use self::watch_setup::{WatchSetup, watch_deps};
use crate::admission;
use crate::apiextensions::shared_types::SharedTypes;
use crate::auth::service_account::legacy_use::day;
use crate::bootstrap::{self, ClusterInputs};
use crate::config::{Config, FeatureGates};
use crate::controllers::start::ExtraController;
use crate::flowcontrol::RequestLimiter;
use crate::flowcontrol::load_stats::LoadStats;
use crate::http::edge::Edge;
use crate::http::handler::app;
use crate::http::handler::worker::{Shared, Worker};
use crate::limits;
use crate::live_index::LiveIndexes;
use crate::metrics::Metrics;
use crate::metrics::exposition::Exposition;
use crate::metrics::requests::Meter;
use crate::metrics::storage::WriteMeter;
use crate::peers::OwnRecord;
use crate::pki::Pki;
use crate::registry::authorization::Access;
use crate::registry::conversion::Conversions;
use crate::registry::declarative_validation::DeclarativeValidation;
use crate::registry::loopback::{Loopback, source_address};
use crate::registry::objects::Objects;
use crate::registry::services::SERVICES;
use crate::registry::stores::Stores;
use crate::registry::write_hooks::WriteHooks;
use crate::registry::{Backend, DeletionSettings};
use crate::server::application::{Application, Assemble, Assembled, StartContext, StartError};

/// How error messages name the built-in API types.
const BUILTIN: &str = "the built-in API types";

/// The production wiring, for [`crate::Server::start_with`].
#[derive(Default)]
pub struct Assembly {
    /// Controllers of an embedder, which run beside the built-in ones.
    pub extra_controllers: Vec<ExtraController>,
}

/// The parts from which every worker is made.
struct ServerParts {
    /// The input of the start: configuration, certificates, address.
    context: StartContext,
    gates: FeatureGates,
    registry: Arc<Registry>,
    storage: Storage,
    /// The types of the shared log, if there is one.
    shared_types: Option<SharedTypes>,
    /// The connections to etcd, if there are any.
    _etcd_thread: Option<EtcdThread>,
    /// Encryption at rest, if it is configured.
    encryption: Option<Arc<Encryption>>,
    /// The cluster IPs and node ports for Services.
    addresses: Addresses,
    auth: AuthSetup,
    admission: admission::Settings,
    shared: Arc<Shared>,
    watches: WatchSetup,
    /// The memory of requests, watches and caches.
    memory: MemoryBudgets,
    /// Audits the requests of the server itself and of its controllers.
    loopback: Arc<Loopback>,
    /// Counts of objects and watches, from which API Priority and Fairness estimates the cost of a request.
    load: Arc<LoadStats>,
    controllers: ControllerSetup,
    /// The certificates in use, from which extension-apiserver-authentication is written.
    current_pki: Arc<ArcSwap<Pki>>,
    /// The built-in resources, to which CustomResourceDefinitions add.
    builtin: Builtins,
    /// The connections to conversion webhooks.
    conversion_keep_alives: Lock<Vec<KeepAliveHandle>>,
    /// The record by which the other servers on the same etcd reach this one.
    own_record: Option<Arc<OwnRecord>>,
    /// The debug pages on a Unix socket, if there is one.
    debug_socket: Lock<Option<DebugSocket>>,
    /// The task that takes this server out of the endpoints, once it ends.
    leaving: Lock<Option<JoinHandle<()>>>,
}

impl Assemble for Assembly {
    async fn start(self, context: StartContext, edge: Edge) -> Result<Assembled, StartError> {
        let parts = Arc::new(parts(&context, self.extra_controllers).await?);
        activity::register(&parts);
        let (worker_parts, heavy_parts) = (parts.clone(), parts.clone());
        let started = parts.shared.heavy.pool.start(move || {
            backend(&heavy_parts, Authorizer::with_source(heavy_parts.auth.authorizers.source()).start())
        });
        started.map_err(|error| StartError::part("the threads for heavy work")(&error))?;
        let serving = edge.serve(move || app::application(Rc::new(worker(&worker_parts))))?;
        Ok(Assembled { serving, application: Rc::new(RunningServer(parts)) })
    }
}

/// The budgets of memory, among them that of the connections that are open already.
fn memory_budgets(context: &StartContext) -> Result<MemoryBudgets, StartError> {
    let memory = MemoryBudgets::new(&context.config.limits, &context.clock)?;
    memory.start_sampling()?;
    context.connections.set_memory_budget(memory.connections.clone());
    Ok(memory)
}

/// What all other parts are built on: the objects, and what counts and bounds the work on them.
struct Foundation {
    registry: Arc<Registry>,
    metrics: Arc<Metrics>,
    memory: MemoryBudgets,
    encryption: Option<Arc<Encryption>>,
    opened: OpenStorage,
    indexes: Arc<LiveIndexes>,
}

impl Foundation {
    async fn open(context: &StartContext, gates: &FeatureGates) -> Result<Foundation, StartError> {
        let registry = Arc::new(Registry::builtin().map_err(|error| StartError::part(BUILTIN)(&error))?);
        let metrics = metrics(context, gates)?;
        context.pool.set_observer(Arc::new(metrics.outgoing.clone()));
        let memory = memory_budgets(context)?;
        let encryption = encryption::load(context, &metrics)?;
        let windows = memory.windows.clone();
        let opened = storage::open(context, &registry, windows, encryption.clone(), &metrics).await?;
        let indexes = Arc::new(LiveIndexes::new(opened.storage.directory.clone(), registry.clone()));
        Ok(Foundation { registry, metrics, memory, encryption, opened, indexes })
    }
}

/// The parts, each after those that it needs: storage, who may do what, what workers share, addresses, admission.
async fn parts(
    context: &StartContext,
    extra_controllers: Vec<ExtraController>,
) -> Result<ServerParts, StartError> {
    let (config, gates) = (&context.config, context.config.gates());
    let catalog = shared_state::catalog(config)?;
    let Foundation { registry, metrics, memory, encryption, opened, indexes } =
        Foundation::open(context, &gates).await?;
    let OpenStorage { storage, shared_types, etcd_logs, etcd_thread } = opened;
    let builtin =
        Builtins::new(&catalog, &context.address.to_string(), shared_state::openapi_contents(config));

    let controllers = ControllerSetup::new(context, extra_controllers)?;
    let peer_records = peers::records(context, &etcd_logs, controllers.identity());
    let (auth, token_metadata) =
        AuthSetup::open(context, &storage, &indexes, &metrics, controllers.uses()).await?;

    let load = Arc::new(LoadStats::default());
    let inputs = SharedInputs {
        storage: &storage,
        indexes: &indexes,
        auth: &auth,
        controllers: &controllers,
        load: &load,
        metrics: &metrics,
        memory: &memory,
        encryption: encryption.as_deref(),
        etcd_logs: &etcd_logs,
        peer_records: peer_records.as_ref(),
        token_metadata,
    };
    let shared = Arc::new(shared_state::shared(context, catalog, inputs).await?);

    let (addresses, holdings) = Addresses::open(context, &storage, &etcd_logs, &registry).await?;
    let loopback = loopback(context, &shared, &registry);
    let admission =
        admission_settings::settings(context, &storage, &indexes, &registry, shared.clone(), &loopback)
            .await?;
    shared.health.steps.complete(start_hooks::ADMISSION);

    let parts = ServerParts {
        context: context.clone(),
        gates,
        registry,
        storage,
        shared_types,
        _etcd_thread: etcd_thread,
        encryption,
        addresses,
        auth,
        admission,
        shared,
        watches: WatchSetup::new(config),
        memory,
        loopback,
        load,
        controllers,
        current_pki: Arc::new(ArcSwap::new(context.pki.clone())),
        builtin,
        conversion_keep_alives: Lock::default(),
        own_record: peer_records.map(|records| Arc::new(OwnRecord::new(records))),
        debug_socket: Lock::default(),
        leaving: Lock::default(),
    };
    let result = services(&parts).repair(&holdings).await;
    result.map_err(|error| StartError::part("the addresses of services")(&error))?;
    Ok(parts)
}

fn loopback(context: &StartContext, shared: &Shared, registry: &Arc<Registry>) -> Arc<Loopback> {
    Arc::new(Loopback {
        audit: shared.audit.clone(),
        metrics: shared.metrics.clone(),
        clock: context.clock.clone(),
        registry: registry.clone(),
        source: source_address(context.address.ip()),
        refusals: Throttle::default(),
    })
}

fn metrics(context: &StartContext, gates: &FeatureGates) -> Result<Arc<Metrics>, StartError> {
    let flags = &context.config.metrics;
    let exposition = Exposition {
        disabled: flags.disabled_metrics.iter().cloned().collect(),
        allowed: flags.allowed_labels()?,
        shows_hidden: flags.shows_hidden(),
    };
    let metrics = Metrics::new(context.clock.now())
        .and_then(|metrics| metrics.with_release(&context.config.api.release))
        .and_then(|metrics| metrics.with_exposition(exposition))
        .map_err(|error| StartError::part("metrics")(&error))?;
    let observer: Arc<dyn DialObserver> = Arc::new(metrics.egress.clone());
    context.pool.routes().egress.set_observer(&observer);
    let features = gates.all().map(|(name, stage, is_enabled)| (name, stage.word(), is_enabled)).collect();
    let config = &context.config;
    let metrics = metrics.with_features(features).with_store_file(storage::file(config));
    Ok(Arc::new(metrics.with_etcd(config.etcd().is_some())))
}

/// Whether declarative or handwritten validation decides. The second gate has no effect without the first.
fn authority(config: &Config) -> Authority {
    let gates = config.gates();
    match (gates.enabled(DECLARATIVE_VALIDATION), gates.enabled(DECLARATIVE_VALIDATION_TAKEOVER)) {
        (false, _) => Authority::Handwritten,
        (true, false) => Authority::Compared,
        (true, true) => Authority::Declarative,
    }
}

/// Starts the actors of the calling worker thread, and gives it the shared state.
fn worker(parts: &ServerParts) -> Worker {
    Worker {
        backend: Rc::new(backend(parts, Authorizer::with_source(parts.auth.authorizers.source()).start())),
        watching: watch_deps(parts),
        shared: parts.shared.clone(),
        meter: Meter::new(parts.shared.metrics.clone()),
        services: services(parts),
        refusals: Throttle::default(),
    }
}

/// The features of objects that flags and gates enable.
fn enabled_features(config: &Config) -> EnabledFeatures {
    let gates = config.gates();
    EnabledFeatures::new(|name| gates.enabled(name), config.api.allow_privileged)
        .compatible_with(min_compatibility(config.emulation.release()))
}

fn backend(parts: &ServerParts, authorizer: Addr<Authorizer>) -> Backend {
    let [shared, also_shared, served] = std::array::from_fn(|_| parts.shared.clone());
    let (verifiers, config) = (parts.auth.verifiers.clone(), parts.auth.authenticator_config.clone());
    let authenticator = Authenticator::new(verifiers, config).start();
    parts.shared.debug.activity.add("authenticator", "", &authenticator);
    parts.shared.debug.activity.add("authorizer", "", &authorizer);
    Backend {
        objects: Objects {
            registry: parts.registry.clone(),
            features: enabled_features(&parts.context.config),
            allows_unsafe_deletion: parts
                .context
                .config
                .gates()
                .enabled(ALLOW_UNSAFE_MALFORMED_OBJECT_DELETION),
            validation: DeclarativeValidation {
                authority: authority(&parts.context.config),
                metrics: parts.shared.metrics.clone(),
            },
            clock: parts.context.clock.clone(),
            encodings: parts.memory.encodings.clone(),
        },
        stores: Stores::new(&parts.storage)
            .with_meter(WriteMeter::new(&parts.shared.metrics, &parts.context.clock)),
        health: parts.storage.health.clone(),
        admission: admission::chain(&parts.admission),
        deletions: DeletionSettings {
            collects_garbage: parts.context.config.controllers.enable_garbage_collector,
            concurrent: parts.context.config.limits.concurrent_deletions(),
        },
        clock: parts.context.clock.clone(),
        write_hooks: WriteHooks::default().with(TypeName::new(SERVICES), Rc::new(services(parts))),
        tokens: parts.auth.tokens.clone(),
        definitions: parts.memory.definitions.clone(),
        requests: parts.memory.requests.clone(),
        lists: parts.memory.lists.clone(),
        load: parts.load.clone(),
        access: Access {
            authenticator,
            authorizer,
            roles: parts.auth.roles.clone(),
            uses_selectors: parts.gates.enabled(AUTHORIZE_WITH_SELECTORS),
        },
        loopback: parts.loopback.clone(),
        conversions: Rc::new(Conversions::new(
            parts.admission.webhooks.to_endpoints,
            parts.shared.metrics.clone(),
            parts.context.clock.clone(),
            parts.context.pool.clone(),
        )),
        current_resource: Rc::new(move |resource| custom_resources::current_resource(&shared, resource)),
        served_version: Rc::new(move |resource| custom_resources::served_version(&also_shared, resource)),
        find_resource: Rc::new(move |gv, plural| {
            served.served.load().catalog.find(&gv.group, &gv.version, plural).cloned()
        }),
    }
}

/// Creates the objects of a fresh cluster. Fails only if the store has failed: other refusals are retried.
async fn create_bootstrap_objects(parts: &Arc<ServerParts>, backend: Rc<Backend>) -> Result<(), StartError> {
    // A weak reference: the server may end before all objects can be created.
    let weak_parts = Arc::downgrade(parts);
    let inputs = move || {
        let parts = weak_parts.upgrade()?;
        let gates = parts.gates.clone();
        Some(ClusterInputs {
            catalog: parts.shared.served.load_full(),
            is_enabled: Box::new(move |gate| gates.enabled(gate)),
            kubernetes_service: parts.addresses.kubernetes_service.clone(),
            authentication: extension_authentication(&parts),
            steps: parts.shared.health.steps.clone(),
            today: day(parts.context.clock.now()),
        })
    };
    match bootstrap::create_objects(backend, inputs).await {
        Err(status) if parts.storage.fatal.is_raised() => {
            Err(StartError::part("the bootstrap objects")(&status))
        }
        _ => Ok(()),
    }
}

/// The application while it runs.
struct RunningServer(Arc<ServerParts>);

impl Application for RunningServer {
    fn ready(&self) -> LocalBoxFuture<'_, Result<(), StartError>> {
        async {
            let authorizer = Authorizer::with_source(self.0.auth.authorizers.source()).start();
            let backend = self::backend(&self.0, authorizer);
            // First, because admission policies for the bootstrap objects may name custom kinds.
            custom_resources::follow(&self.0).await?;
            let steps = &self.0.shared.health.steps;
            steps.complete(start_hooks::DEFINITIONS);
            create_bootstrap_objects(&self.0, Rc::new(backend)).await?;
            actix::spawn(self.0.auth.authorizers.clone().follow_file(self.0.shared.clone()));
            actix::spawn(self.0.auth.openid.clone().follow_file(self.0.shared.clone()));
            actix::spawn(audit::follow_policy(self.0.context.clone(), self.0.shared.clone()));
            let (context, certificates) = (self.0.context.clone(), self.0.auth.certificates.clone());
            let reload = Reload {
                context,
                certificates,
                front_proxy: self.0.auth.front_proxy.clone(),
                current_pki: self.0.current_pki.clone(),
                authorities: self.0.controllers.authorities(),
                shared: self.0.shared.clone(),
            };
            actix::spawn(reload.run());
            let logging = &self.0.context.config.logging;
            let profiles = &self.0.shared.debug.profiles;
            *self.0.debug_socket.lock() = DebugSocket::open(&logging.debug_socket_path, profiles)?;
            let directory = &self.0.shared.health.directory;
            encryption::follow_changes(&self.0.context, self.0.encryption.as_ref(), directory);
            if let Some(schedule) = storage::backup_schedule(&self.0.context.config) {
                let (backups, clock) = (self.0.shared.backups.clone(), self.0.context.clock.clone());
                actix::spawn(schedule.run(backups, clock, self.0.shared.metrics.backups.clone()));
            }
            if let RequestLimiter::Fair(flow_controller) = &self.0.shared.limits.limiter {
                let seats = flow_controller.seats();
                actix::spawn(async move { seats.run().await });
                steps.complete(start_hooks::SEATS);
            }
            let indexes = self.0.shared.health.indexes.clone();
            actix::spawn(async move {
                // Keeps the indexes up to date, so that a health check, which anybody may request, has little work on a worker.
                loop {
                    indexes.unreadable().await;
                    tokio::time::sleep(limits::UNREADABLE_CHECK_INTERVAL).await;
                }
            });
            etcd_metrics::start(&self.0);
            self.0.controllers.start(&self.0)?;
            let hooks = start_hooks::wait_for(steps, &self.0.shared.health.hooks);
            if tokio::time::timeout(limits::START_HOOKS_TIMEOUT, hooks).await.is_err() {
                tracing::warn!("some start hooks have not run yet; the health checks name them");
            }
            Ok(())
        }
        .boxed_local()
    }

    fn refuse_readiness(&self) {
        self.0.shared.health.stopping.store(true, Ordering::Release);
        let mut leaving = self.0.leaving.lock();
        if leaving.is_none() {
            *leaving = Some(actix::spawn(leave_endpoints(self.0.clone())));
        }
    }

    fn refuse_requests(&self) -> LocalBoxFuture<'_, ()> {
        async {
            if let Some(shutdown) = &self.0.shared.shutdown {
                shutdown.refuse_requests().await;
            }
        }
        .boxed_local()
    }

    fn end_watches(&self, within: Duration) -> LocalBoxFuture<'_, ()> {
        self.0.shared.connect.drain.begin();
        self.0.controllers.stop();
        let broadcasters = self.0.watches.broadcasters();
        // A broadcaster that is gone has no watches left.
        let close = move |broadcaster: &Addr<Broadcaster>| broadcaster.send(CloseAll { within });
        async move { join_all(broadcasters.iter().map(close)).map(drop).await }.boxed_local()
    }

    fn flush(&self) -> LocalBoxFuture<'_, Result<(), String>> {
        async {
            close_debug_socket(&self.0).await;
            join(close_audit(&self.0), close_traces(&self.0)).await;
            let leaving = self.0.leaving.lock().take();
            if let Some(leaving) = leaving {
                let _ended = leaving.await;
            }
            match self.0.storage.directory.send(directory::Stop).await {
                Ok(stopped) => stopped.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            }
        }
        .boxed_local()
    }

    fn failed(&self) -> LocalBoxFuture<'_, String> {
        self.0.storage.fatal.wait().boxed_local()
    }

    fn give_up(&self) -> LocalBoxFuture<'_, ()> {
        self.0.controllers.stop();
        async {
            close_debug_socket(&self.0).await;
            // The last audit events and traces may explain the failure.
            join(close_audit(&self.0), close_traces(&self.0)).await;
        }
        .boxed_local()
    }
}

/// Takes this server out of the endpoints of the `kubernetes` service, and from where other servers find it, at the beginning of its
/// end, so that clients go elsewhere.
async fn leave_endpoints(parts: Arc<ServerParts>) {
    let backend = backend(&parts, Authorizer::with_source(parts.auth.authorizers.source()).start());
    let served = parts.shared.served.load_full();
    let service = &parts.addresses.kubernetes_service;
    let left = async {
        let record = async {
            match &parts.own_record {
                Some(record) => record.leave().await.map_err(|error| Status::unavailable(error.to_string())),
                None => Ok(()),
            }
        };
        let endpoints = bootstrap::kubernetes_service::leave(&backend, &served.catalog, service);
        let (record, endpoints) = join(record, endpoints).await;
        record.and(endpoints)
    };
    match tokio::time::timeout(limits::STORAGE_PROBE_TIMEOUT, left).await {
        Ok(Ok(())) => {}
        // The others remove it when its record has expired.
        Ok(Err(status)) => tracing::debug!(%status, "this server cannot be taken out of the endpoints"),
        Err(_) => tracing::debug!("this server was not taken out of the endpoints in time"),
    }
}

/// Closes the debug socket, if it is open.
async fn close_debug_socket(parts: &ServerParts) {
    let socket = parts.debug_socket.lock().take();
    if let Some(socket) = socket {
        socket.close().await;
    }
}

/// Waits a bounded time for the last spans to be sent.
async fn close_traces(parts: &ServerParts) {
    if let Some(export) = &parts.shared.traces.export {
        export.close().await;
    }
}

/// Waits a bounded time for the last audit events to be written.
async fn close_audit(parts: &ServerParts) {
    if let Some(audit) = &parts.shared.audit {
        audit.backends.close().await;
    }
}
