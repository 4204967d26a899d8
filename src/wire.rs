//! The one place of wiring: which actors run where, and what stands behind the edge.
//!
//! On threads of their own: the committer, the stores with their directory, and the control loops (`loops.rs`). On the thread of each worker: its
//! broadcaster, authenticator and authorizer, so that guards and wakes cross no thread. Watch sessions run on the worker
//! of their connection.

mod audit;
mod authentication;
mod authorization;
mod custom;
mod loops;
#[path = "wire/admission.rs"]
mod of_admission;
mod openid;
mod reload;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::{Actor as _, Addr};
use arc_swap::ArcSwap;
use futures::future::{LocalBoxFuture, join_all};
use futures::{FutureExt as _, try_join};
use pilothouse_actors::authenticator::{Authenticator, House, Verifier};
use pilothouse_actors::authorizer::Authorizer;
use pilothouse_actors::broadcaster::{Broadcaster, CloseAll};
use pilothouse_actors::clock::Clock;
use pilothouse_actors::directory::{self, Stores as Storage};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::engine::redb::Redb;
use pilothouse_actors::engine::{Engine, EngineError};
use pilothouse_actors::identity::Identity;
use pilothouse_actors::ports::{Pool, Ports};
use pilothouse_actors::session::LiveSessions;

use self::authentication::{told, verifiers};
use self::authorization::Deciding;
use self::openid::Callers;
use self::reload::Reload;
use crate::api::catalog::Catalog;
use crate::api::catalog::build::Builtin;
use crate::api::catalog::runtime_config::RuntimeConfig;
use crate::api::connect::place::KubeletRules;
use crate::api::kinds::engines::Authority;
use crate::api::schema::Registry;
use crate::api::services::addresses::AddressRange;
use crate::api::words::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED};
use crate::auth::certificate::CertificateVerifier;
use crate::auth::front_proxy::{FrontProxy, Headers};
use crate::auth::objects::Objects;
use crate::auth::rbac::{self, Roles};
use crate::auth::service_account::Tokens;
use crate::auth::service_account::issuer::Issuer;
use crate::auth::service_account::used::day;
use crate::config::{Config, Engine as EngineChoice, FeatureGates};
use crate::controllers::start::Guest;
use crate::flows::{Gate, Places, Room};
use crate::http::drain::Drain;
use crate::http::edge::Edge;
use crate::http::handler::app;
use crate::http::handler::connect::Connecting;
use crate::http::handler::connect::extension::Manners;
use crate::http::handler::health::Health;
use crate::http::handler::merged::MergedDocuments;
use crate::http::handler::openapi::OpenApi;
use crate::http::handler::worker::{self, Encodings, Served, Shared, Worker};
use crate::limits;
use crate::metrics::Metrics;
use crate::metrics::requests::Meter;
use crate::pki::{Pki, host};
use crate::upstream::pool::Wanted;
use crate::upstream::{TlsError, Upstream};
use crate::verbs::admission::policies::table;
use crate::verbs::admission::{self, Chain};
use crate::verbs::aggregation::Extensions;
use crate::verbs::bootstrap::{self, home::Home};
use crate::verbs::budget::Budget;
use crate::verbs::conversion::Conversions;
use crate::verbs::engines::Engines;
use crate::verbs::forced::Forced;
use crate::verbs::load::Load;
use crate::verbs::services::{Services, repair};
use crate::verbs::stores::Stores;
use crate::verbs::{Backend, Watching};
use crate::wiring::StartError;
use crate::wiring::{Application, Boot, Wired, Wiring};

use self::custom::Builtins;
use self::loops::Loops;

/// The file that the redb engine keeps, in the data directory.
const STORE_FILE: &str = "pilothouse.redb";
/// As errors name what this server is built with.
const BUILTIN: &str = "the kinds that are built in";

/// The wiring of the product.
#[derive(Default)]
pub struct Wires {
    /// Control loops that run beside those of the product.
    pub guests: Vec<Guest>,
}

/// What every worker is made from.
struct Parts {
    storage: Storage,
    registry: Arc<Registry>,
    /// Who knows which port on the nodes belongs to which service.
    ports: Addr<Ports>,
    service_ranges: Arc<[AddressRange]>,
    /// As messages name it.
    node_port_range: String,
    authority: Authority,
    /// Whether objects that cannot be read may be removed.
    forced_deletion: bool,
    /// What the kubernetes service says.
    home: Home,
    /// The certificates that are used now, of which extensions are told.
    trusted: Arc<ArcSwap<Pki>>,
    shared: Arc<Shared>,
    verifiers: Arc<[Arc<dyn Verifier>]>,
    /// One of them, whose authorities can change.
    certificates: Arc<CertificateVerifier>,
    /// Another one.
    front_proxy: Option<Arc<FrontProxy>>,
    /// What the server was started with.
    boot: Boot,
    /// Whose tokens of providers are accepted.
    callers: Arc<Callers>,
    /// Who decides what may be done.
    deciding: Arc<Deciding>,
    /// Who has which role.
    roles: Arc<Roles>,
    /// Which features are on.
    gates: FeatureGates,
    house: Arc<House>,
    /// What makes the tokens of service accounts.
    tokens: Arc<Issuer>,
    admission: admission::Settings,
    clock: Clock,
    live_sessions: LiveSessions,
    min_request_timeout: Duration,
    /// Whether watches may begin with what is there.
    initial_events: bool,
    /// How much the lists in flight hold.
    lists: Budget,
    /// What is known of what requests will cost.
    load: Arc<Load>,
    /// The broadcasters of all workers, to end their watches.
    broadcasters: Mutex<Vec<Addr<Broadcaster>>>,
    /// The control loops.
    loops: Loops,
    /// What is built in, to which definitions add.
    builtin: Builtins,
    /// The webhooks that turn objects of what is defined into other versions.
    converters: Mutex<Vec<Wanted>>,
}

impl Wiring for Wires {
    async fn start(self, boot: Boot, edge: Edge) -> Result<Wired, StartError> {
        let parts = Arc::new(parts(&boot, self.guests).await?);
        let of_workers = parts.clone();
        let serving = edge.serve(move || app::application(Rc::new(worker(&of_workers))))?;
        Ok(Wired { serving, application: Rc::new(Running(parts)) })
    }
}

async fn parts(boot: &Boot, guests: Vec<Guest>) -> Result<Parts, StartError> {
    let config = &boot.config;
    let broken = StartError::store;
    let registry = Registry::builtin().map_err(|error| StartError::part(BUILTIN)(&error))?;
    let catalog = catalog(config)?;
    let engine = engine(config).map_err(|error| broken(&error))?;
    // Zero switches it off in the reference: nothing is ever let go of for its age.
    let history = Some(config.storage.etcd_compaction_interval).filter(|history| !history.is_zero());
    let history = history.unwrap_or(limits::LONGEST_HISTORY);
    let options = directory::Options { clock: boot.clock.clone(), history, ..directory::Options::default() };
    let storage = directory::start(engine, options).map_err(|error| broken(&error))?;
    let (address, cbor) = (boot.address.to_string(), config.gates().enabled("CBORServingAndStorage"));
    let builtin = Builtins::new(&catalog, &address, cbor);
    let objects = Arc::new(Objects::new(storage.directory.clone()));
    let metrics =
        Arc::new(Metrics::new(boot.clock.now()).map_err(|error| StartError::part("metrics")(&error))?);
    let callers = Callers::open(boot, &metrics)?;
    let tokens = tokens(boot, &objects, &metrics)
        .map_err(|error| StartError::part("tokens of service accounts")(&error))?;
    let loops = Loops::new(config, &boot.pki, guests)?;
    tokens.verifier.tell(loops.uses());
    let connecting = connecting(boot)?;
    let to_endpoints = config.kubelets.enable_aggregator_routing;
    let extensions =
        Extensions::open(storage.directory.clone(), connecting.upstream.clone(), to_endpoints).await;
    let load = Arc::new(Load::default());
    let shared = Shared {
        served: ArcSwap::from_pointee(Served::new(catalog, address.into(), OpenApi::new(Vec::new(), cbor))),
        room: room(boot, &storage, &load, &metrics).await?,
        audit: audit::open(boot, &metrics)?,
        metrics,
        health: Health {
            committer: storage.committer.clone(),
            directory: storage.directory.clone(),
            fatal: storage.fatal.clone(),
            started: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            loops: loops.is_on().then(|| loops.down()),
        },
        transport_security: worker::transport_security(&config.serving.strict_transport_security_directives)
            .map_err(|error| StartError::flag("--strict-transport-security-directives")(&error))?,
        request_timeout: config.limits.request_timeout,
        closes_unknown: config.gates().enabled("UnauthenticatedHTTP2DOSMitigation"),
        encoding: Encodings {
            cbor: config.gates().enabled("CBORServingAndStorage"),
            gzip: config.gates().enabled("APIResponseCompression"),
        },
        connecting: Arc::new(connecting),
        extensions: Arc::new(extensions.map_err(|error| broken(&error))?),
        manners: Manners {
            refuses_redirects: config.aggregation.aggregator_reject_forwarding_redirect,
            tells_uid: config.gates().enabled("RemoteRequestHeaderUID"),
        },
        merged: MergedDocuments::default(),
        changes_flags: config.logging.profiling,
        token_metadata: tokens.metadata,
        front_headers: Headers::configured(&config.front_proxy),
        anonymous_paths: callers.anonymous_paths(),
    };
    let (registry, shared) = (Arc::new(registry), Arc::new(shared));
    let metrics = shared.metrics.clone();
    let certificates = certificates(boot, &shared.metrics)?;
    let front_proxy = front_proxy(boot)?;
    // Before anybody is served: a service must not get what another one has.
    let stores = Stores::new(storage.directory.clone());
    let held = repair::held(&stores, &registry).await.map_err(|error| broken(&error))?;
    let range = config.api.service_node_port_range;
    let pool = Pool::new(range.first, range.last, repair::ports(&held));
    let roles = rbac::open(storage.directory.clone()).await.map_err(|error| broken(&error))?;
    let roles = Arc::new(roles);
    let policies = table::open(storage.directory.clone()).await.map_err(|error| broken(&error))?;
    let deciding =
        Deciding::open(config, &roles, &storage, &shared.metrics, (&boot.clock, &boot.pool)).await?;
    let parts = Parts {
        ports: Ports::new(pool, storage.fatal.clone()).start(),
        home: Home {
            ranges: service_ranges(config)?.to_vec(),
            address: host::reachable_address(config),
            port: boot.address.port(),
        },
        trusted: Arc::new(ArcSwap::new(boot.pki.clone())),
        service_ranges: service_ranges(config)?,
        node_port_range: range.to_string(),
        authority: authority(config),
        admission: of_admission::settings(boot, &storage, &registry, shared.clone(), Arc::new(policies))
            .await?,
        forced_deletion: config.gates().enabled("AllowUnsafeMalformedObjectDeletion"),
        storage,
        registry,
        shared,
        verifiers: verifiers(
            boot,
            (&front_proxy, &certificates),
            &objects,
            Arc::new(tokens.verifier),
            callers.verifier(),
            &metrics,
        )?,
        certificates,
        front_proxy,
        boot: boot.clone(),
        tokens: tokens.issuer,
        deciding: Arc::new(deciding),
        roles,
        gates: config.gates(),
        house: Arc::new(house(config, &callers)),
        callers: Arc::new(callers),
        clock: boot.clock.clone(),
        live_sessions: LiveSessions::default(),
        min_request_timeout: Duration::from_secs(u64::from(config.limits.min_request_timeout)),
        initial_events: config.gates().enabled("WatchList"),
        lists: Budget::new(limits::LIST_BYTES),
        load,
        broadcasters: Mutex::default(),
        loops,
        builtin,
        converters: Mutex::default(),
    };
    services(&parts)
        .repair(&held)
        .await
        .map_err(|error| StartError::part("the addresses of services")(&error))?;
    Ok(parts)
}

/// What decides who is let in.
async fn room(
    boot: &Boot,
    storage: &Storage,
    load: &Arc<Load>,
    metrics: &Arc<Metrics>,
) -> Result<Room, StartError> {
    let limits = &boot.config.limits;
    let (reading, writing) = (limits.max_requests_inflight, limits.max_mutating_requests_inflight);
    if !limits.enable_priority_and_fairness {
        return Ok(Room::Plain(Places::new(reading, writing, metrics, &boot.clock)));
    }
    let total = reading.saturating_add(writing);
    let gate = Gate::open(storage.directory.clone(), total, load.clone(), metrics, &boot.clock).await;
    gate.map(Room::Fair).map_err(|error| StartError::store(&error))
}

/// How kubelets, pods and services are reached.
fn connecting(boot: &Boot) -> Result<Connecting, StartError> {
    let config = &boot.config;
    let broken = |error: TlsError| StartError::part("connections to kubelets and extension servers")(&error);
    let kubelets = &config.kubelets;
    let upstream =
        Upstream::new(&reload::kubelet_files(kubelets), kubelets.kubelet_timeout, boot.pool.clone())
            .map_err(broken)?;
    let shown = reload::proxy_identity(&config.aggregation).map_err(broken)?;
    upstream.show_to_extensions(shown).map_err(broken)?;
    Ok(Connecting {
        rules: KubeletRules {
            address_types: kubelets.kubelet_preferred_address_types.clone(),
            port: kubelets.kubelet_port,
        },
        upstream: Arc::new(upstream),
        translates_streams: config.gates().enabled("TranslateStreamCloseWebsocketRequests"),
        unpacks_tunnels: config.gates().enabled("PortForwardWebsockets"),
        pages: Budget::new(limits::PROXY_PAGES_BYTES),
        leaving: Drain::default(),
    })
}

/// The addresses that services get.
fn service_ranges(config: &Config) -> Result<Arc<[AddressRange]>, StartError> {
    let ranges = config.api.service_cluster_ip_range.iter().map(|range| {
        let wrong = || StartError::flag("--service-cluster-ip-range")(&format!("{range} is too large"));
        AddressRange::new(range.network, range.prefix).ok_or_else(wrong)
    });
    ranges.collect()
}

/// Which engine of validation decides. Without the first gate the second means nothing.
fn authority(config: &Config) -> Authority {
    let gates = config.gates();
    match (gates.enabled("DeclarativeValidation"), gates.enabled("DeclarativeValidationTakeover")) {
        (false, _) => Authority::Alone,
        (true, false) => Authority::Compared,
        (true, true) => Authority::Rules,
    }
}

fn catalog(config: &Config) -> Result<Catalog, StartError> {
    let wrong = StartError::flag("--runtime-config");
    let pairs: Vec<String> = config
        .api
        .runtime_config
        .iter()
        .map(|setting| format!("{}={}", setting.key, setting.enabled))
        .collect();
    let switches = RuntimeConfig::parse(&pairs.join(",")).map_err(|error| wrong(&error))?;
    let builtin = Builtin::load().map_err(|error| StartError::part(BUILTIN)(&error))?;
    builtin.serve(&switches).map_err(|error| wrong(&error))
}

fn engine(config: &Config) -> Result<Box<dyn Engine>, EngineError> {
    match (&config.storage.data_dir, config.storage.engine) {
        (Some(directory), EngineChoice::Redb) => Ok(Box::new(Redb::open(&directory.join(STORE_FILE))?)),
        _ => Ok(Box::new(Memory::new())),
    }
}

/// What makes and verifies the tokens of service accounts.
fn tokens(boot: &Boot, objects: &Arc<Objects>, metrics: &Arc<Metrics>) -> Result<Tokens, String> {
    let (config, port) = (&boot.config, boot.address.port());
    let address = match &config.serving.external_hostname {
        Some(host) => format!("{host}:{port}"),
        None => {
            let host = host::reachable_address(config).unwrap_or(boot.address.ip());
            SocketAddr::new(host, port).to_string()
        }
    };
    Tokens::new(config, &boot.pki.tokens, &address, objects.clone(), metrics.clone(), boot.clock.clone())
}

/// Who believes what a proxy says, if there is one.
fn front_proxy(boot: &Boot) -> Result<Option<Arc<FrontProxy>>, StartError> {
    let Some(pem) = &boot.pki.proxy_ca_pem else { return Ok(None) };
    let verifier = FrontProxy::new(pem, boot.config.front_proxy.allowed(), boot.clock.clone());
    let broken = StartError::flag("--requestheader-client-ca-file");
    verifier.map(|verifier| Some(Arc::new(verifier))).map_err(|error| broken(&error))
}

fn certificates(boot: &Boot, metrics: &Metrics) -> Result<Arc<CertificateVerifier>, StartError> {
    let reads_uid = boot.config.gates().enabled("AllowParsingUserUIDFromCertAuth");
    let left = metrics.authentication.certificate_left.clone();
    let verifier = CertificateVerifier::new(&boot.pki.client_ca_pem, reads_uid, left, boot.clock.clone());
    let broken = StartError::part("the authority of client certificates");
    verifier.map(Arc::new).map_err(|error| broken(&error))
}

fn house(config: &Config, callers: &Callers) -> House {
    let anonymous = Identity {
        name: ANONYMOUS.to_owned(),
        groups: vec![UNAUTHENTICATED.to_owned()],
        ..Identity::default()
    };
    House {
        anonymous: Arc::new(anonymous),
        admits_anonymous: callers.admits_anonymous(),
        authenticated_group: AUTHENTICATED.to_owned(),
        audiences: config.audiences().into(),
    }
}

/// Starts the actors of the calling worker thread.
fn worker(parts: &Parts) -> Worker {
    let authorizer = Authorizer::asking(parts.deciding.panel()).start();
    let backend = Rc::new(backend(parts, &authorizer));
    Worker {
        watching: watching(parts),
        authenticator: backend.authenticator.clone(),
        backend,
        authorizer,
        shared: parts.shared.clone(),
        meter: Meter::new(parts.shared.metrics.clone()),
        quiet_until: Cell::default(),
    }
}

fn backend(parts: &Parts, authorizer: &Addr<Authorizer>) -> Backend {
    Backend {
        registry: parts.registry.clone(),
        stores: Stores::new(parts.storage.directory.clone()),
        admission: Chain::new(&parts.admission, authorizer),
        clock: parts.clock.clone(),
        services: Rc::new(services(parts)),
        engines: Engines { authority: parts.authority, metrics: parts.shared.metrics.clone() },
        forced: parts.forced_deletion.then(|| Forced::asking(authorizer)),
        tokens: parts.tokens.clone(),
        lists: parts.lists.clone(),
        load: parts.load.clone(),
        authenticator: Authenticator::new(parts.verifiers.clone(), parts.house.clone()).start(),
        authorizer: authorizer.clone(),
        roles: parts.roles.clone(),
        conversions: Rc::new(Conversions::new(
            parts.admission.webhooks.to_endpoints,
            parts.shared.metrics.clone(),
            parts.clock.clone(),
            parts.boot.pool.clone(),
        )),
        judges_selectors: parts.gates.enabled("AuthorizeWithSelectors"),
    }
}

fn services(parts: &Parts) -> Services {
    Services::new(
        Stores::new(parts.storage.directory.clone()),
        parts.registry.clone(),
        parts.clock.clone(),
        parts.ports.clone(),
        parts.service_ranges.clone(),
        parts.node_port_range.clone(),
    )
}

fn watching(parts: &Parts) -> Watching {
    let broadcaster = Broadcaster::begin(&parts.storage.bells, &parts.storage.fatal);
    parts.broadcasters.lock().unwrap_or_else(PoisonError::into_inner).push(broadcaster.clone());
    let shared = parts.shared.clone();
    Watching {
        broadcaster,
        live_sessions: parts.live_sessions.clone(),
        min_request_timeout: parts.min_request_timeout,
        initial_events: parts.initial_events,
        metrics: parts.shared.metrics.clone(),
        is_served: Rc::new(move |resource| custom::is_served(&shared, resource)),
    }
}

/// The application while it runs.
struct Running(Arc<Parts>);

impl Application for Running {
    fn ready(&self) -> LocalBoxFuture<'_, Result<(), StartError>> {
        async {
            let authorizer = Authorizer::asking(self.0.deciding.panel()).start();
            let backend = self::backend(&self.0, &authorizer);
            let served = self.0.shared.served.load_full();
            let gates = &self.0.gates;
            let made = try_join!(
                async {
                    bootstrap::namespaces(&backend, &served.catalog).await?;
                    // Some of them stand in those.
                    bootstrap::roles(&backend, &served.catalog, |gate| gates.enabled(gate)).await
                },
                bootstrap::priority_classes(&backend, &served.catalog),
                bootstrap::flow_control(&backend, &served.catalog),
                bootstrap::api_services(&backend, &served.catalog),
            );
            made.map_err(|status| StartError::part("the first objects")(&status))?;
            let today = day(self.0.clock.now());
            let made = try_join!(
                bootstrap::home::kubernetes(&backend, &served.catalog, &self.0.home),
                bootstrap::trust::authentication(&backend, &served.catalog, told(&self.0)),
                bootstrap::trust::token_tracking(&backend, &served.catalog, &today),
            );
            made.map_err(|status| StartError::part("what others know of this server")(&status))?;
            actix::spawn(self.0.deciding.clone().follow_file(self.0.shared.clone()));
            actix::spawn(self.0.callers.clone().follow_file(self.0.shared.clone()));
            let (boot, certificates) = (self.0.boot.clone(), self.0.certificates.clone());
            let reload = Reload {
                boot,
                certificates,
                front_proxy: self.0.front_proxy.clone(),
                trusted: self.0.trusted.clone(),
                authorities: self.0.loops.authorities(),
                shared: self.0.shared.clone(),
            };
            actix::spawn(reload.run());
            if let Room::Fair(gate) = &self.0.shared.room {
                let seats = gate.seats();
                actix::spawn(async move { seats.keep().await });
            }
            // Before the server is ready: what was defined before it stopped is served from the start.
            custom::follow(&self.0).await?;
            self.0.shared.health.started.store(true, Ordering::Release);
            self.0.loops.start(&self.0)?;
            Ok(())
        }
        .boxed_local()
    }

    fn refuse_readiness(&self) {
        self.0.shared.health.stopping.store(true, Ordering::Release);
    }

    fn end_watches(&self) -> LocalBoxFuture<'_, ()> {
        self.0.shared.connecting.leaving.begin();
        self.0.loops.stop();
        let all = self.0.broadcasters.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A broadcaster that is gone has no watches left.
        async move { join_all(all.iter().map(|broadcaster| broadcaster.send(CloseAll))).map(drop).await }
            .boxed_local()
    }

    fn flush(&self) -> LocalBoxFuture<'_, Result<(), String>> {
        async {
            close_ledger(&self.0).await;
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
        self.0.loops.stop();
        // What was asked last may be why it came to this.
        close_ledger(&self.0).boxed_local()
    }
}

/// Lets the last records of requests be written, for a while.
async fn close_ledger(parts: &Parts) {
    if let Some(audit) = &parts.shared.audit {
        audit.ledger.close().await;
    }
}
