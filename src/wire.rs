//! The one place of wiring: which actors run where, and what stands behind the edge.
//!
//! On threads of their own: the committer, and the stores with their directory. On the thread of each worker: its
//! broadcaster, authenticator and authorizer, so that guards and wakes cross no thread. Watch sessions run on the worker
//! of their connection.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::{Actor as _, Addr};
use arc_swap::ArcSwap;
use futures::future::{LocalBoxFuture, join_all};
use futures::{FutureExt as _, try_join};
use pilothouse_actors::authenticator::{Authenticator, House, Verifier};
use pilothouse_actors::authorizer::{Authorizer, Policy};
use pilothouse_actors::broadcaster::{Broadcaster, CloseAll};
use pilothouse_actors::clock::Clock;
use pilothouse_actors::directory::{self, Stores as Storage};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::engine::redb::Redb;
use pilothouse_actors::engine::{Engine, EngineError};
use pilothouse_actors::identity::Identity;
use pilothouse_actors::session::LiveSessions;
use tokio::sync::Semaphore;

use crate::api::catalog::Catalog;
use crate::api::catalog::build::Builtin;
use crate::api::catalog::runtime_config::RuntimeConfig;
use crate::api::discovery::Documents;
use crate::api::schema::Registry;
use crate::api::words::{ANONYMOUS, AUTHENTICATED, MASTERS, UNAUTHENTICATED};
use crate::auth::certificate::CertificateVerifier;
use crate::auth::defaults::DefaultRoles;
use crate::auth::modes::{AlwaysAllow, AlwaysDeny, Privileged};
use crate::auth::tokens::TokenFile;
use crate::config::{AuthorizationMode, Config, Engine as EngineChoice};
use crate::http::edge::Edge;
use crate::http::handler::app;
use crate::http::handler::health::Health;
use crate::http::handler::worker::{Places, Served, Shared, Worker};
use crate::pki::Pki;
use crate::server::StartError;
use crate::server::wiring::{Application, Boot, Wired, Wiring};
use crate::verbs::admission::{self, Chain};
use crate::verbs::bootstrap;
use crate::verbs::stores::Stores;
use crate::verbs::{Backend, Watching};

/// The file that the redb engine keeps, in the data directory.
const STORE_FILE: &str = "pilothouse.redb";

/// The wiring of the product.
pub struct Wires;

/// What every worker is made from.
struct Parts {
    storage: Storage,
    registry: Arc<Registry>,
    shared: Arc<Shared>,
    verifiers: Arc<[Arc<dyn Verifier>]>,
    policies: Arc<[Arc<dyn Policy>]>,
    house: Arc<House>,
    admission: admission::Settings,
    clock: Clock,
    live_sessions: LiveSessions,
    min_request_timeout: Duration,
    /// The broadcasters of all workers, to end their watches.
    broadcasters: Mutex<Vec<Addr<Broadcaster>>>,
}

impl Wiring for Wires {
    async fn start(self, boot: Boot, edge: Edge) -> Result<Wired, StartError> {
        let parts = Arc::new(parts(&boot)?);
        let of_workers = parts.clone();
        let serving = edge.serve(move || {
            let worker = Rc::new(worker(&of_workers));
            actix_web::App::new().configure(app::configure(worker))
        })?;
        Ok(Wired { serving, application: Rc::new(Running(parts)) })
    }
}

fn parts(boot: &Boot) -> Result<Parts, StartError> {
    let config = &boot.config;
    let broken = |error: &dyn std::fmt::Display| StartError::Store(error.to_string());
    let registry = Registry::builtin().map_err(|error| broken(&error))?;
    let catalog = catalog(config)?;
    let engine = engine(config).map_err(|error| broken(&error))?;
    let options = directory::Options { clock: boot.clock.clone(), ..directory::Options::default() };
    let storage = directory::start(engine, options).map_err(|error| broken(&error))?;
    let documents = Documents::new(&catalog, &boot.address.to_string());
    let shared = Shared {
        served: ArcSwap::from_pointee(Served { catalog, documents }),
        places: Places {
            reading: places(config.limits.max_requests_inflight),
            writing: places(config.limits.max_mutating_requests_inflight),
        },
        health: Health {
            committer: storage.committer.clone(),
            directory: storage.directory.clone(),
            fatal: storage.fatal.clone(),
            started: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        },
    };
    Ok(Parts {
        storage,
        registry: Arc::new(registry),
        shared: Arc::new(shared),
        verifiers: verifiers(config, &boot.pki, &boot.clock)?,
        policies: policies(config),
        house: Arc::new(house(config)),
        admission: admission::Settings {
            enabled: config.admission_plugins(),
            not_ready_seconds: config.api.default_not_ready_toleration_seconds,
            unreachable_seconds: config.api.default_unreachable_toleration_seconds,
        },
        clock: boot.clock.clone(),
        live_sessions: LiveSessions::default(),
        min_request_timeout: Duration::from_secs(u64::from(config.limits.min_request_timeout)),
        broadcasters: Mutex::default(),
    })
}

/// Zero means no limit, as in the reference.
fn places(asked: u32) -> Arc<Semaphore> {
    let most = if asked == 0 { Semaphore::MAX_PERMITS } else { asked as usize };
    Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)))
}

fn catalog(config: &Config) -> Result<Catalog, StartError> {
    let wrong = |error: &dyn std::fmt::Display| StartError::Store(format!("--runtime-config: {error}"));
    let pairs: Vec<String> = config
        .api
        .runtime_config
        .iter()
        .map(|setting| format!("{}={}", setting.key, setting.enabled))
        .collect();
    let switches = RuntimeConfig::parse(&pairs.join(",")).map_err(|error| wrong(&error))?;
    let builtin = Builtin::load().map_err(|error| wrong(&error))?;
    builtin.serve(&switches).map_err(|error| wrong(&error))
}

fn engine(config: &Config) -> Result<Box<dyn Engine>, EngineError> {
    match (&config.storage.data_dir, config.storage.engine) {
        (Some(directory), EngineChoice::Redb) => Ok(Box::new(Redb::open(&directory.join(STORE_FILE))?)),
        _ => Ok(Box::new(Memory::new())),
    }
}

fn verifiers(config: &Config, pki: &Pki, clock: &Clock) -> Result<Arc<[Arc<dyn Verifier>]>, StartError> {
    let broken = |what: &str, error: &dyn std::fmt::Display| StartError::Store(format!("{what}: {error}"));
    let certificates = CertificateVerifier::new(&pki.client_ca_pem, clock.clone())
        .map_err(|error| broken("the client certificate authority", &error))?;
    // Also without a file: a token that nobody knows is refused and does not become anonymous.
    let tokens = match &config.authentication.token_auth_file {
        None => TokenFile::default(),
        Some(path) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|error| broken(&name, &error))?;
            TokenFile::parse(&text).map_err(|error| broken(&name, &error))?
        }
    };
    let all: [Arc<dyn Verifier>; 2] = [Arc::new(certificates), Arc::new(tokens)];
    Ok(all.into())
}

fn policies(config: &Config) -> Arc<[Arc<dyn Policy>]> {
    let mut all: Vec<Arc<dyn Policy>> = vec![Arc::new(Privileged(MASTERS))];
    for mode in &config.authorization.authorization_mode {
        match mode {
            AuthorizationMode::AlwaysAllow => all.push(Arc::new(AlwaysAllow)),
            AuthorizationMode::AlwaysDeny => all.push(Arc::new(AlwaysDeny)),
            AuthorizationMode::Rbac => all.push(Arc::new(DefaultRoles)),
            // Accepted so that start scripts work; they grant nothing yet, which is the safe side.
            AuthorizationMode::Abac | AuthorizationMode::Webhook | AuthorizationMode::Node => {}
        }
    }
    all.into()
}

fn house(config: &Config) -> House {
    let anonymous = Identity {
        name: ANONYMOUS.to_owned(),
        groups: vec![UNAUTHENTICATED.to_owned()],
        ..Identity::default()
    };
    House {
        anonymous: Arc::new(anonymous),
        admits_anonymous: config.authentication.anonymous_auth,
        authenticated_group: AUTHENTICATED.to_owned(),
    }
}

/// Starts the actors of the calling worker thread.
fn worker(parts: &Parts) -> Worker {
    let authorizer = Authorizer::new(parts.policies.clone()).start();
    Worker {
        backend: Rc::new(backend(parts, &authorizer)),
        watching: watching(parts),
        authenticator: Authenticator::new(parts.verifiers.clone(), parts.house.clone()).start(),
        authorizer,
        shared: parts.shared.clone(),
    }
}

fn backend(parts: &Parts, authorizer: &Addr<Authorizer>) -> Backend {
    Backend {
        registry: parts.registry.clone(),
        stores: Stores::new(parts.storage.directory.clone()),
        admission: Chain::new(&parts.admission, authorizer),
        clock: parts.clock.clone(),
    }
}

fn watching(parts: &Parts) -> Watching {
    let broadcaster = Broadcaster::begin(&parts.storage.bells);
    parts.broadcasters.lock().unwrap_or_else(PoisonError::into_inner).push(broadcaster.clone());
    Watching {
        broadcaster,
        live_sessions: parts.live_sessions.clone(),
        min_request_timeout: parts.min_request_timeout,
    }
}

/// The application while it runs.
struct Running(Arc<Parts>);

impl Application for Running {
    fn ready(&self) -> LocalBoxFuture<'_, Result<(), StartError>> {
        async {
            let authorizer = Authorizer::new(self.0.policies.clone()).start();
            let backend = backend(&self.0, &authorizer);
            let served = self.0.shared.served.load_full();
            let made = try_join!(
                bootstrap::namespaces(&backend, &served.catalog),
                bootstrap::priority_classes(&backend, &served.catalog),
                bootstrap::flow_control(&backend, &served.catalog),
            );
            made.map_err(|status| StartError::Store(format!("the first objects: {status}")))?;
            self.0.shared.health.started.store(true, Ordering::Release);
            Ok(())
        }
        .boxed_local()
    }

    fn refuse_readiness(&self) {
        self.0.shared.health.stopping.store(true, Ordering::Release);
    }

    fn end_watches(&self) -> LocalBoxFuture<'_, ()> {
        let all = self.0.broadcasters.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A broadcaster that is gone has no watches left.
        async move { join_all(all.iter().map(|broadcaster| broadcaster.send(CloseAll))).map(drop).await }
            .boxed_local()
    }

    fn flush(&self) -> LocalBoxFuture<'_, Result<(), String>> {
        async {
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
}
