//! Starts the loops on their own thread, and restarts those that panic.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use pilothouse_actors::notifier::ChangeNotifiers;
use pilothouse_api::quota::Features;
use pilothouse_types::clock::Clock;
use tokio::sync::{Mutex, oneshot, watch};

use crate::auth::service_account::legacy_use::LegacyUseReceiver;
use crate::backend::aggregation::Extensions;
use crate::backend::stores::Stores;
use crate::backend::{Backend, Origin};
use crate::metrics::Metrics;
use crate::pki::signers::Signers;

use super::apiservice_registration::{self, ApiServiceRegistration};
use super::availability::{self, Availability};
use super::client::Client;
use super::descriptors::ControllerDescriptor;
use super::expiry::{self, Expiry};
use super::extension_documents::{self, ExtensionDocuments};
use super::flow_schemas::{self, FlowSchemas};
use super::informer::{AddSubscriber, InformerHandle, Subscriber};
use super::lease::{LEASE, Leadership, LeaseHolder};
use super::own_objects::{self, OwnObjects, Reconcile};
use super::resource_index::ResourceIndexes;
use super::runner::{Controller, Runner, RunnerDeps, ShutdownFlag, Stop};
use super::server_leases::{self, ServerLeases};
use super::service_repair::{self, ServiceRepair};
use super::serviceaccount_token::SignToken;
use super::token_use::{self, TokenUse};

/// The first pause before a panicked loop is restarted; doubled each time, up to the maximum.
const FIRST_RESTART: Duration = Duration::from_secs(1);
const LONGEST_RESTART: Duration = Duration::from_secs(60);
/// How often Services are compared with allocations.
const REPAIRED_EVERY: Duration = Duration::from_secs(180);
/// A loop that ran this long before it panicked starts with the first pause again.
const RAN_WELL: Duration = Duration::from_secs(300);

/// The loops that are down, and why.
pub type Down = BTreeMap<&'static str, String>;

/// Settings of the loops.
pub struct Settings {
    /// The enabled loops.
    pub enabled: Vec<&'static ControllerDescriptor>,
    /// Whether the pods of a namespace are deleted before the rest.
    pub pods_first: bool,
    /// The lifetime of events.
    pub event_ttl: Duration,
    /// The maximum lifetime of signed certificates.
    pub longest_certificate: Duration,
    /// Whether objects in missing namespaces are deleted.
    pub namespaces_needed: bool,
    /// Feature gates that change how quotas count.
    pub quota_features: Features,
    /// How often all quotas are counted; zero for never.
    pub quotas_counted_every: Duration,
    /// How long legacy tokens must be unused before they are marked, and then before they are deleted.
    pub tokens_unused_for: Duration,
    /// The maximum number of finished pods; zero for no limit.
    pub pods_that_are_over: u32,
    /// Whether API Priority and Fairness is enabled.
    pub has_flows: bool,
}

/// Dependencies of the loops that are made on their thread.
pub struct ControllerDeps {
    /// The dependencies of the verbs.
    pub backend: Rc<Backend>,
    /// Gives the current catalog.
    pub catalogs: ResourceIndexes,
    /// Signs service account tokens.
    pub sign_token: SignToken,
    /// Restores the server's own objects.
    pub settle: Reconcile,
    /// Restores the built-in flow schemas and priority levels.
    pub settle_flows: Reconcile,
    /// Applies the configuration of API Priority and Fairness.
    pub count_flows: Reconcile,
    /// The group versions that extension API servers serve.
    pub extensions: Arc<Extensions>,
}

/// The CA and the signers, which can change at run time.
#[derive(PartialEq)]
pub struct Authorities {
    /// The CA bundle by which pods verify this server.
    pub root_pem: String,
    /// The CAs that sign certificates.
    pub signers: Signers,
}

/// A loop of a program that embeds the server: started and supervised like the built-in ones.
pub type ExtraController = Box<dyn FnOnce(&ControllerContext) + Send>;

/// Dependencies of the loops that come from other threads.
pub struct SharedDeps {
    /// Where the informer adds its notifier.
    pub notifiers: ChangeNotifiers,
    /// Makes the informer's access to the stores.
    pub stores: Arc<dyn Fn() -> Stores + Send + Sync>,
    /// The source of time.
    pub clock: Clock,
    /// Counts the work of the loops.
    pub metrics: Arc<Metrics>,
    /// Publishes the loops that are down.
    pub down: watch::Sender<Down>,
    /// Receives the use of legacy tokens.
    pub uses: LegacyUseReceiver,
    /// Receives changes of the CA and the signers.
    pub authorities: watch::Receiver<Arc<Authorities>>,
    /// Loops of the embedding program.
    pub extra_controllers: Vec<ExtraController>,
}

/// The running loops. They end with [`Running::stop`].
pub struct Running {
    arbiter: Arbiter,
    stopping: ShutdownFlag,
}

impl Running {
    /// Ends all loops at once: completed writes stay, and unfinished work is found again at the next start.
    pub fn stop(&self) {
        // First, because the thread may end after the stores do.
        self.stopping.begin();
        self.arbiter.stop();
    }
}

/// Starts the loops.
pub fn start(
    settings: Settings,
    shared: SharedDeps,
    make: impl FnOnce() -> ControllerDeps + Send + 'static,
) -> io::Result<Running> {
    let (arbiter, stopping) = (Arbiter::try_new()?, ShutdownFlag::default());
    let of_house = stopping.clone();
    let begun = arbiter.spawn_fn(move || {
        let (context, extra_controllers) = ControllerContext::new(shared, make(), of_house);
        context.open(&settings, extra_controllers);
    });
    match begun {
        true => Ok(Running { arbiter, stopping }),
        false => Err(io::Error::other("the thread of the control loops ended")),
    }
}

/// The state of the loops' thread.
pub struct ControllerContext {
    backend: Rc<Backend>,
    catalogs: Rc<ResourceIndexes>,
    pub(super) sign_token: SignToken,
    pub(super) informers: Rc<InformerHandle>,
    settle: Reconcile,
    settle_flows: Reconcile,
    count_flows: Reconcile,
    pub(super) extensions: Arc<Extensions>,
    uses: Rc<Mutex<LegacyUseReceiver>>,
    authorities: watch::Receiver<Arc<Authorities>>,
    deps: RunnerDeps,
    down: Rc<watch::Sender<Down>>,
}

impl ControllerContext {
    fn new(
        shared: SharedDeps,
        controller_deps: ControllerDeps,
        stopping: ShutdownFlag,
    ) -> (ControllerContext, Vec<ExtraController>) {
        let SharedDeps { notifiers, stores, clock, metrics, down, uses, authorities, extra_controllers } =
            shared;
        let context = ControllerContext {
            backend: controller_deps.backend,
            catalogs: Rc::new(controller_deps.catalogs),
            sign_token: controller_deps.sign_token,
            informers: Rc::new(InformerHandle::new(notifiers, stores)),
            settle: controller_deps.settle,
            settle_flows: controller_deps.settle_flows,
            count_flows: controller_deps.count_flows,
            extensions: controller_deps.extensions,
            uses: Rc::new(Mutex::new(uses)),
            authorities,
            deps: RunnerDeps { clock, metrics, leadership: Leadership::default(), stopping },
            down: Rc::new(down),
        };
        (context, extra_controllers)
    }

    /// A client that acts as a service account in kube-system.
    pub fn client(&self, account: &str) -> Client {
        Client::new(self.backend.clone(), self.catalogs.clone(), account)
    }

    /// A client that acts as kube-controller-manager itself, for a part of it.
    pub(super) fn manager_client(&self, part: &str) -> Client {
        Client::of_manager(self.backend.clone(), self.catalogs.clone(), part)
    }

    fn server_client(&self, origin: Origin) -> Client {
        Client::of_server(self.backend.clone(), self.catalogs.clone(), origin)
    }

    fn open(&self, settings: &Settings, extra_controllers: Vec<ExtraController>) {
        let clock = self.deps.clock.clone();
        let (of_server, settle) = (clock.clone(), self.settle.clone());
        self.run(own_objects::NAME, move || OwnObjects { clock: of_server.clone(), settle: settle.clone() });
        let (client, ttl) = (self.server_client(Origin::Server), settings.event_ttl);
        if !ttl.is_zero() {
            let clock = clock.clone();
            self.run(expiry::NAME, move || Expiry::new(client.clone(), clock.clone(), ttl));
        }
        let client = self.server_client(Origin::Client);
        self.run(server_leases::NAME, move || ServerLeases { client: client.clone() });
        let client = self.server_client(Origin::Server);
        self.run(service_repair::NAME, move || ServiceRepair::new(client.clone(), REPAIRED_EVERY));
        let (client, uses) = (self.server_client(Origin::Client), self.uses.clone());
        let of_uses = clock.clone();
        self.run(token_use::NAME, move || TokenUse {
            client: client.clone(),
            clock: of_uses.clone(),
            uses: uses.clone(),
        });
        let client = self.server_client(Origin::Server);
        let (of_flows, settle, tells) = (clock.clone(), self.settle_flows.clone(), settings.has_flows);
        let count = self.count_flows.clone();
        self.run(flow_schemas::NAME, move || FlowSchemas {
            client: client.clone(),
            clock: of_flows.clone(),
            settle: settle.clone(),
            count: count.clone(),
            tells,
            written: RefCell::default(),
        });
        self.run_extensions();
        if settings.enabled.is_empty() && extra_controllers.is_empty() {
            return;
        }
        let (client, leadership) = (self.manager_client("leader-election"), self.deps.leadership.clone());
        let of_lease = clock.clone();
        self.run(LEASE, move || LeaseHolder {
            client: client.clone(),
            clock: of_lease.clone(),
            leadership: leadership.clone(),
            has_begun: Cell::new(false),
        });
        for entry in &settings.enabled {
            self.run_descriptor(entry, settings, &clock);
        }
        extra_controllers.into_iter().for_each(|extra| extra(self));
    }

    /// Starts the loops that maintain APIServices and extension API servers.
    fn run_extensions(&self) {
        let client = self.server_client(Origin::Server);
        let of_server = client.clone();
        self.run(apiservice_registration::NAME, move || ApiServiceRegistration { client: of_server.clone() });
        let (of_server, extensions) = (client.clone(), self.extensions.clone());
        let metrics = self.deps.metrics.clone();
        self.run(availability::NAME, move || Availability {
            client: of_server.clone(),
            extensions: extensions.clone(),
            metrics: metrics.clone(),
        });
        let extensions = self.extensions.clone();
        self.run(extension_documents::NAME, move || ExtensionDocuments {
            client: client.clone(),
            extensions: extensions.clone(),
        });
    }

    /// Runs the loop that `make` makes, and a new one after each panic. It works while this server holds the lease.
    pub fn run<L: Controller>(&self, name: &'static str, make: impl Fn() -> L + 'static) {
        let never = std::future::pending;
        actix::spawn(self.supervised(name, make, never));
    }

    /// Like [`ControllerContext::run`], for a loop that depends on the CA or the signers: it is restarted when they change.
    pub(super) fn run_with_authorities<L: Controller>(
        &self,
        name: &'static str,
        make: impl Fn(Arc<Authorities>) -> L + 'static,
    ) {
        let (told, changes) = (self.authorities.clone(), self.authorities.clone());
        let stale = move || {
            let mut changes = changes.clone();
            changes.mark_unchanged();
            async move {
                if changes.changed().await.is_err() {
                    // The server is stopping.
                    std::future::pending::<()>().await;
                }
            }
        };
        let make = move || make(told.borrow().clone());
        actix::spawn(self.supervised(name, make, stale));
    }

    fn supervised<L: Controller, S: Future<Output = ()> + 'static>(
        &self,
        name: &'static str,
        make: impl Fn() -> L + 'static,
        stale: impl Fn() -> S + 'static,
    ) -> impl Future<Output = ()> + 'static {
        supervise(name, make, stale, self.informers.clone(), self.deps.clone(), self.down.clone())
    }
}

/// Why a loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It panicked.
    Panicked,
    /// Its informer ended.
    Deaf,
    /// Its inputs have changed.
    Stale,
}

/// Keeps a loop running. A loop that panicked, or whose informer ended, is restarted after a growing pause; one whose inputs
/// changed is restarted at once.
async fn supervise<L: Controller, S: Future<Output = ()>>(
    name: &'static str,
    make: impl Fn() -> L,
    stale: impl Fn() -> S,
    informers: Rc<InformerHandle>,
    deps: RunnerDeps,
    down: Rc<watch::Sender<Down>>,
) {
    let mut pause = FIRST_RESTART;
    loop {
        let began = deps.clock.moment();
        // Subscribed before the loop is made, so that a change in between is noticed.
        let stale = stale();
        let end = run(name, make(), stale, &informers, &deps).await;
        if deps.stopping.has_begun() {
            // At shutdown stores and loops end in any order.
            return;
        }
        let why = match end {
            End::Stale => continue,
            End::Panicked => "panicked",
            End::Deaf => "hears nothing",
        };
        if deps.clock.elapsed(began) > RAN_WELL {
            pause = FIRST_RESTART;
        }
        tracing::error!(controller = name, "a control loop {why} and is started again in {pause:?}");
        deps.metrics.loops.count_restart(name);
        down.send_modify(|down| {
            down.insert(name, format!("{why} and waits to be started again"));
        });
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_RESTART);
        down.send_modify(|down| {
            down.remove(name);
        });
    }
}

/// Runs a loop until it panics, its informer ends, or its inputs change.
async fn run<L: Controller>(
    name: &'static str,
    inner: L,
    stale: impl Future<Output = ()>,
    informers: &InformerHandle,
    deps: &RunnerDeps,
) -> End {
    let (ended, mut end) = oneshot::channel();
    let follows = inner.follows();
    let (informer, mut lives) = informers.informer();
    let runner = Runner::begin(name, inner, deps.clone(), ended);
    deps.leadership.wakes(runner.clone().recipient());
    let subscriber = Subscriber {
        follows,
        listed: runner.clone().recipient(),
        changed: runner.clone().recipient(),
        caught_up: runner.clone().recipient(),
    };
    let deaf = async {
        match informer.send(AddSubscriber(subscriber)).await {
            // Nothing is ever sent on this channel, either.
            Ok(Ok(())) => drop(lives.changed().await),
            Ok(Err(error)) if !deps.stopping.has_begun() => {
                tracing::warn!(%error, "a controller cannot list its objects");
            }
            _ => {}
        }
    };
    let why = tokio::select! {
        _nothing_is_ever_sent = &mut end => End::Panicked,
        () = deaf => End::Deaf,
        () = stale => End::Stale,
    };
    if why != End::Panicked {
        let _already_gone = runner.send(Stop).await;
    }
    why
}

#[cfg(test)]
mod tests;
