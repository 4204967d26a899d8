//! Assembles the server: the only place that decides which actors run on which thread.
//!
//! The committer, the stores with their directory, and the control loops (`loops.rs`) run on threads of their own. Each worker
//! thread runs its own broadcaster, authenticator and authorizer, so that checks and wakes cross no thread. Watch sessions run on
//! the worker of their connection. Each group of parts is assembled in a file of its own.

mod admitting;
mod audit;
mod authentication;
mod authorization;
mod custom;
mod first;
mod guards;
mod loops;
mod openid;
mod reload;
mod serving;
mod storage;
mod watching;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use actix::{Actor as _, Addr};
use arc_swap::ArcSwap;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all};
use pilothouse_actors::authenticator::Authenticator;
use pilothouse_actors::authorizer::Authorizer;
use pilothouse_actors::broadcaster::CloseAll;
use pilothouse_actors::directory::{self, Stores as Storage};
use pilothouse_actors::lock::Lock;

use self::authentication::told;
use self::custom::Builtins;
use self::guards::Guards;
use self::loops::Loops;
use self::reload::Reload;
use self::serving::Told;
use self::storage::{Addresses, services};
use self::watching::{Watches, watching};
use crate::api::features::EnabledFeatures;
use crate::api::kinds::validation_engines::Authority;
use crate::api::schema::Registry;
use crate::config::{Config, FeatureGates};
use crate::controllers::start::Guest;
use crate::flows::Room;
use crate::http::edge::Edge;
use crate::http::handler::app;
use crate::http::handler::worker::{Shared, Worker};
use crate::limits;
use crate::metrics::Metrics;
use crate::metrics::requests::Meter;
use crate::pki::Pki;
use crate::upstream::pool::Wanted;
use crate::verbs::Backend;
use crate::verbs::admission::{self, Chain};
use crate::verbs::budget::Budget;
use crate::verbs::conversion::Conversions;
use crate::verbs::engines::Engines;
use crate::verbs::forced::Forced;
use crate::verbs::load::Load;
use crate::verbs::stores::Stores;
use crate::wiring::{Application, Boot, StartError, Wired, Wiring};

/// How error messages name the built-in kinds.
const BUILTIN: &str = "the kinds that are built in";

/// The production wiring, for [`crate::Server::start_with`].
#[derive(Default)]
pub struct Wires {
    /// Control loops of an embedder, which run beside the built-in ones.
    pub guests: Vec<Guest>,
}

/// The parts from which every worker is made.
struct Parts {
    /// The input of the start: configuration, certificates, address.
    boot: Boot,
    gates: FeatureGates,
    registry: Arc<Registry>,
    storage: Storage,
    /// The cluster IPs and node ports for Services.
    addresses: Addresses,
    guards: Guards,
    admission: admission::Settings,
    shared: Arc<Shared>,
    watches: Watches,
    /// The memory budget of list responses in flight.
    lists: Budget,
    /// Counts of objects and watches, from which API Priority and Fairness estimates the cost of a request.
    load: Arc<Load>,
    loops: Loops,
    /// The certificates in use, from which extension-apiserver-authentication is written.
    trusted: Arc<ArcSwap<Pki>>,
    /// The built-in resources, to which CustomResourceDefinitions add.
    builtin: Builtins,
    /// The webhooks that turn objects of what is defined into other versions.
    converters: Lock<Vec<Wanted>>,
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
    let (config, gates) = (&boot.config, boot.config.gates());
    let registry = Arc::new(Registry::builtin().map_err(|error| StartError::part(BUILTIN)(&error))?);
    let catalog = serving::catalog(config)?;
    let metrics = Metrics::new(boot.clock.now())
        .and_then(|metrics| metrics.of(&config.api.release))
        .map_err(|error| StartError::part("metrics")(&error))?;
    let features = gates.all().map(|(name, stage, on)| (name, stage.word(), on)).collect();
    let metrics = Arc::new(metrics.telling(features));
    let storage = storage::open(boot)?;
    let builtin = Builtins::new(&catalog, &boot.address.to_string(), gates.enabled("CBORServingAndStorage"));
    let loops = Loops::new(config, &boot.pki, guests)?;
    let (guards, token_metadata) = Guards::open(boot, &storage, &metrics, loops.uses()).await?;
    let load = Arc::new(Load::default());
    let told = Told {
        storage: &storage,
        guards: &guards,
        loops: &loops,
        load: &load,
        metrics: &metrics,
        token_metadata,
    };
    let shared = Arc::new(serving::shared(boot, catalog, told).await?);
    let (addresses, held) = Addresses::open(boot, &storage, &registry).await?;
    let admission = admitting::settings(boot, &storage, &registry, shared.clone()).await?;
    let parts = Parts {
        boot: boot.clone(),
        gates,
        registry,
        storage,
        addresses,
        guards,
        admission,
        shared,
        watches: Watches::new(config),
        lists: Budget::new(limits::LIST_BYTES),
        load,
        loops,
        trusted: Arc::new(ArcSwap::new(boot.pki.clone())),
        builtin,
        converters: Lock::default(),
    };
    let repaired = services(&parts).repair(&held).await;
    repaired.map_err(|error| StartError::part("the addresses of services")(&error))?;
    Ok(parts)
}

/// Whether declarative or handwritten validation decides. The second gate has no effect without the first.
fn authority(config: &Config) -> Authority {
    let gates = config.gates();
    match (gates.enabled("DeclarativeValidation"), gates.enabled("DeclarativeValidationTakeover")) {
        (false, _) => Authority::Alone,
        (true, false) => Authority::Compared,
        (true, true) => Authority::Rules,
    }
}

/// Starts the actors of the calling worker thread, and gives it the shared state.
fn worker(parts: &Parts) -> Worker {
    let authorizer = Authorizer::asking(parts.guards.deciding.panel()).start();
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
    let shared = parts.shared.clone();
    Backend {
        registry: parts.registry.clone(),
        features: EnabledFeatures::new(
            |name| parts.gates.enabled(name),
            parts.boot.config.api.allow_privileged,
        ),
        stores: Stores::new(parts.storage.directory.clone()),
        admission: Chain::new(&parts.admission, authorizer),
        clock: parts.boot.clock.clone(),
        services: Rc::new(services(parts)),
        engines: Engines { authority: authority(&parts.boot.config), metrics: parts.shared.metrics.clone() },
        forced: parts.gates.enabled("AllowUnsafeMalformedObjectDeletion").then(|| Forced::asking(authorizer)),
        tokens: parts.guards.tokens.clone(),
        lists: parts.lists.clone(),
        load: parts.load.clone(),
        authenticator: Authenticator::new(parts.guards.verifiers.clone(), parts.guards.house.clone()).start(),
        authorizer: authorizer.clone(),
        roles: parts.guards.roles.clone(),
        conversions: Rc::new(Conversions::new(
            parts.admission.webhooks.to_endpoints,
            parts.shared.metrics.clone(),
            parts.boot.clock.clone(),
            parts.boot.pool.clone(),
        )),
        judges_selectors: parts.gates.enabled("AuthorizeWithSelectors"),
        served_now: Rc::new(move |resource| custom::served_now(&shared, resource)),
    }
}

/// The application while it runs.
struct Running(Arc<Parts>);

impl Application for Running {
    fn ready(&self) -> LocalBoxFuture<'_, Result<(), StartError>> {
        async {
            let authorizer = Authorizer::asking(self.0.guards.deciding.panel()).start();
            let backend = self::backend(&self.0, &authorizer);
            // First, so that policies on the way of the first objects find the kinds that they name. What was defined before the
            // server stopped is served from the start.
            custom::follow(&self.0).await?;
            first::make(&self.0, Rc::new(backend)).await?;
            actix::spawn(self.0.guards.deciding.clone().follow_file(self.0.shared.clone()));
            actix::spawn(self.0.guards.callers.clone().follow_file(self.0.shared.clone()));
            let (boot, certificates) = (self.0.boot.clone(), self.0.guards.certificates.clone());
            let reload = Reload {
                boot,
                certificates,
                front_proxy: self.0.guards.front_proxy.clone(),
                trusted: self.0.trusted.clone(),
                authorities: self.0.loops.authorities(),
                shared: self.0.shared.clone(),
            };
            actix::spawn(reload.run());
            if let Room::Fair(gate) = &self.0.shared.room {
                let seats = gate.seats();
                actix::spawn(async move { seats.keep().await });
            }
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
        let all = self.0.watches.broadcasters();
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
        // The last audit events may explain the failure.
        close_ledger(&self.0).boxed_local()
    }
}

/// Waits a bounded time for the last audit events to be written.
async fn close_ledger(parts: &Parts) {
    if let Some(audit) = &parts.shared.audit {
        audit.ledger.close().await;
    }
}
