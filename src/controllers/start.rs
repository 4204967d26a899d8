//! Starts the controllers on their own thread, and restarts those that panic.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::notifier::ChangeNotifiers;
use pilothouse_actors::start_steps::StartSteps;
use pilothouse_api::quota::Features;
use pilothouse_types::clock::Clock;
use tokio::sync::{Mutex, oneshot, watch};

use crate::activity::ActivityRegistry;
use crate::aggregation::Extensions;
use crate::auth::service_account::legacy_use::LegacyUseReceiver;
use crate::metrics::Metrics;
use crate::peers::{OwnRecord, Peers};
use crate::pki::signers::Signers;
use crate::registry::services::Services;
use crate::registry::stores::Stores;
use crate::registry::{Backend, Origin};

use super::apiservice_registration::{self, ApiServiceRegistration};
use super::availability::{self, Availability};
use super::bootstrap_tokens::KeyPart;
use super::client::Client;
use super::descriptors::ControllerDescriptor;
use super::expiry::{self, Expiry};
use super::extension_documents::{self, ExtensionDocuments};
use super::extension_openapi::{self, ExtensionOpenApi};
use super::flow_schemas::{self, FlowSchemas};
use super::informer::{AddSubscriber, InformerHandle, Subscriber};
use super::lease::{LEASE, Leadership, LeaseHolder, LeaseSettings, OWN_STORE, SHARED_STORE};
use super::own_objects::{self, OwnObjects, Reconcile};
use super::peer_discovery::{self, PeerDiscovery};
use super::peer_record::{self, PeerRecord};
use super::resource_index::ResourceIndexes;
use super::runner::{Controller, Runner, RunnerDeps, ShutdownFlag, Stop, WorkKey};
use super::server_identity::{self, IdentityLease, ServerIdentity};
use super::server_leases::{self, ServerLeases};
use super::service_repair::{self, ServiceRepair};
use super::serviceaccount_token::SignToken;
use super::storage_versions::{self, StorageVersions};
use super::token_use::{self, TokenUse};

/// The first pause before a panicked controller is restarted; doubled each time, up to the maximum.
const MIN_RESTART_DELAY: Duration = Duration::from_secs(1);
const MAX_RESTART_DELAY: Duration = Duration::from_secs(60);
/// How often Services are compared with allocations.
const REPAIR_INTERVAL: Duration = Duration::from_secs(180);
/// A controller that ran this long before it panicked starts with the first pause again.
const STABLE_AFTER: Duration = Duration::from_secs(300);

/// The controllers that are down, and why.
pub type Down = BTreeMap<&'static str, String>;

/// Settings of the controllers.
pub struct Settings {
    /// The enabled controllers.
    pub enabled: Vec<&'static ControllerDescriptor>,
    /// Whether the pods of a namespace are deleted before the rest.
    pub pods_first: bool,
    /// The lifetime of events.
    pub event_ttl: Duration,
    /// The maximum lifetime of signed certificates.
    pub max_certificate_lifetime: Duration,
    /// Whether objects in missing namespaces are deleted.
    pub require_namespaces: bool,
    /// Feature gates that change how quotas count.
    pub quota_features: Features,
    /// How often all quotas are counted; zero for never.
    pub quota_sync_period: Duration,
    /// How long legacy tokens must be unused before they are marked, and then before they are deleted.
    pub tokens_unused_for: Duration,
    /// The maximum number of finished pods; zero for no limit.
    pub max_finished_pods: u32,
    /// The part of a bootstrap token that signs cluster-info.
    pub signing_key_part: KeyPart,
    /// Whether API Priority and Fairness is enabled.
    pub flow_control_enabled: bool,
    /// Whether other servers share the store.
    pub shares_store: bool,
    /// The identity of this server, if it keeps a lease.
    pub identity: Option<ServerIdentity>,
    /// Feature gates about storage versions.
    pub storage_versions: StorageVersionFeatures,
    /// If this server elects the leaders of other components: the lease by which servers agree which of them does it.
    pub coordinated_election: Option<LeaseSettings>,
}

/// Feature gates about storage versions.
#[derive(Clone, Copy, Debug, Default)]
pub struct StorageVersionFeatures {
    /// Whether this server publishes its storage versions, under its identity.
    pub are_published: bool,
    /// Whether StorageVersionMigrations are carried out.
    pub migrates: bool,
}

/// Dependencies of the controllers that are made on their thread.
pub struct ControllerDeps {
    /// The dependencies of the verbs.
    pub backend: Rc<Backend>,
    /// Gives the current catalog.
    pub catalogs: ResourceIndexes,
    /// Signs service account tokens.
    pub sign_token: SignToken,
    /// Restores the server's own objects.
    pub restore_own_objects: Reconcile,
    /// Restores the built-in flow schemas and priority levels.
    pub restore_flow_control: Reconcile,
    /// Applies the configuration of API Priority and Fairness.
    pub apply_flow_control: Reconcile,
    /// The group versions that extension API servers serve.
    pub extensions: Arc<Extensions>,
    /// The allocator of cluster IPs and node ports.
    pub services: Rc<Services>,
    /// What belongs to the other API servers on the same etcd.
    pub peers: PeerDeps,
}

/// What belongs to the other API servers on the same etcd.
#[derive(Clone, Default)]
pub struct PeerDeps {
    /// The record by which they reach this one, if it keeps one.
    pub own_record: Option<Arc<OwnRecord>>,
    /// What is known of them, if requests are passed on to them.
    pub others: Option<Arc<Peers>>,
}

/// The CA and the signers, which can change at run time.
#[derive(PartialEq)]
pub struct Authorities {
    /// The CA bundle by which pods verify this server.
    pub root_pem: String,
    /// The CAs that sign certificates.
    pub signers: Signers,
}

/// A controller of a program that embeds the server: started and supervised like the built-in ones.
pub type ExtraController = Box<dyn FnOnce(&ControllerContext) + Send>;

/// Dependencies of the controllers that come from other threads.
pub struct SharedDeps {
    /// Where the informer adds its notifier.
    pub notifiers: ChangeNotifiers,
    /// Makes the informer's access to the stores.
    pub stores: Arc<dyn Fn() -> Stores + Send + Sync>,
    /// The source of time.
    pub clock: Clock,
    /// Counts the work of the controllers.
    pub metrics: Arc<Metrics>,
    /// Where the actors of controllers are known, to be asked what they do.
    pub activity: ActivityRegistry,
    /// Where each controller notes that it has seen all objects.
    pub steps: StartSteps,
    /// Publishes the controllers that are down.
    pub down: watch::Sender<Down>,
    /// Receives the use of legacy tokens.
    pub uses: LegacyUseReceiver,
    /// Receives changes of the CA and the signers.
    pub authorities: watch::Receiver<Arc<Authorities>>,
    /// Controllers of the embedding program.
    pub extra_controllers: Vec<ExtraController>,
}

/// The running controllers. They end with [`Running::stop`].
pub struct Running {
    arbiter: Arbiter,
    stopping: ShutdownFlag,
}

impl Running {
    /// Ends all controllers at once: completed writes stay, and unfinished work is found again at the next start.
    pub fn stop(&self) {
        // First, because the thread may end after the stores do.
        self.stopping.begin();
        self.arbiter.stop();
    }
}

/// Starts the controllers.
pub fn start(
    settings: Settings,
    shared: SharedDeps,
    make_deps: impl FnOnce() -> ControllerDeps + Send + 'static,
) -> io::Result<Running> {
    let (arbiter, stopping) = (Arbiter::try_new()?, ShutdownFlag::default());
    let shutdown = stopping.clone();
    let is_spawned = arbiter.spawn_fn(move || {
        let (context, extra_controllers) = ControllerContext::new(shared, make_deps(), shutdown);
        context.open(&settings, extra_controllers);
    });
    match is_spawned {
        true => Ok(Running { arbiter, stopping }),
        false => Err(io::Error::other("the controllers' thread has ended")),
    }
}

/// The state of the controllers' thread.
pub struct ControllerContext {
    backend: Rc<Backend>,
    catalogs: Rc<ResourceIndexes>,
    pub(super) sign_token: SignToken,
    pub(super) informers: Rc<InformerHandle>,
    restore_own_objects: Reconcile,
    restore_flow_control: Reconcile,
    apply_flow_control: Reconcile,
    pub(super) extensions: Arc<Extensions>,
    services: Rc<Services>,
    peers: PeerDeps,
    uses: Rc<Mutex<LegacyUseReceiver>>,
    authorities: watch::Receiver<Arc<Authorities>>,
    pub(super) deps: RunnerDeps,
    down: Rc<watch::Sender<Down>>,
}

impl ControllerContext {
    fn new(
        shared: SharedDeps,
        controller_deps: ControllerDeps,
        stopping: ShutdownFlag,
    ) -> (ControllerContext, Vec<ExtraController>) {
        let SharedDeps {
            notifiers,
            stores,
            clock,
            metrics,
            activity,
            steps,
            down,
            uses,
            authorities,
            extra_controllers,
        } = shared;
        let context = ControllerContext {
            backend: controller_deps.backend,
            catalogs: Rc::new(controller_deps.catalogs),
            sign_token: controller_deps.sign_token,
            informers: Rc::new(InformerHandle::new(notifiers, stores)),
            restore_own_objects: controller_deps.restore_own_objects,
            restore_flow_control: controller_deps.restore_flow_control,
            apply_flow_control: controller_deps.apply_flow_control,
            extensions: controller_deps.extensions,
            services: controller_deps.services,
            peers: controller_deps.peers,
            uses: Rc::new(Mutex::new(uses)),
            authorities,
            deps: RunnerDeps { clock, metrics, activity, steps, leadership: Leadership::default(), stopping },
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
        Client::for_controller_manager(self.backend.clone(), self.catalogs.clone(), part)
    }

    pub(super) fn server_client(&self, origin: Origin) -> Client {
        Client::for_server(self.backend.clone(), self.catalogs.clone(), origin)
    }

    fn open(&self, settings: &Settings, extra_controllers: Vec<ExtraController>) {
        let clock = self.deps.clock.clone();
        let (own_clock, reconcile) = (clock.clone(), self.restore_own_objects.clone());
        self.run(own_objects::NAME, move || OwnObjects {
            clock: own_clock.clone(),
            reconcile: reconcile.clone(),
        });
        let (client, ttl) = (self.server_client(Origin::Server), settings.event_ttl);
        if !ttl.is_zero() {
            let clock = clock.clone();
            self.run(expiry::NAME, move || Expiry::new(client.clone(), clock.clone(), ttl));
        }
        let client = self.server_client(Origin::Client);
        let lease_clock = clock.clone();
        self.run(server_leases::NAME, move || ServerLeases::new(client.clone(), lease_clock.clone()));
        let (services, client) = (self.services.clone(), self.server_client(Origin::Server));
        self.run(service_repair::NAME, move || {
            ServiceRepair::new(services.clone(), client.clone(), REPAIR_INTERVAL)
        });
        let (client, uses) = (self.server_client(Origin::Client), self.uses.clone());
        let use_clock = clock.clone();
        self.run(token_use::NAME, move || TokenUse {
            client: client.clone(),
            clock: use_clock.clone(),
            uses: uses.clone(),
        });
        let client = self.server_client(Origin::Server);
        let (flow_clock, restore) = (clock.clone(), self.restore_flow_control.clone());
        let (apply, writes_status) = (self.apply_flow_control.clone(), settings.flow_control_enabled);
        self.run(flow_schemas::NAME, move || FlowSchemas {
            client: client.clone(),
            clock: flow_clock.clone(),
            restore: restore.clone(),
            apply: apply.clone(),
            writes_status,
            recent_writes: RefCell::default(),
        });
        self.run_extensions();
        self.run_peers();
        if let Some(identity) = &settings.identity {
            self.run_with_identity(identity, settings.storage_versions);
        }
        if let Some(lease) = settings.coordinated_election {
            self.run_election(lease);
        }
        if settings.enabled.is_empty() && extra_controllers.is_empty() {
            return;
        }
        let lease = if settings.shares_store { SHARED_STORE } else { OWN_STORE };
        self.hold_lease(LEASE, lease, self.manager_client("leader-election"), &self.deps.leadership);
        for entry in &settings.enabled {
            self.run_descriptor(entry, settings, &clock);
        }
        extra_controllers.into_iter().for_each(|extra| extra(self));
    }

    /// Starts the controllers that maintain APIServices and extension API servers.
    fn run_extensions(&self) {
        let client = self.server_client(Origin::Server);
        let own_client = client.clone();
        self.run(apiservice_registration::NAME, move || ApiServiceRegistration {
            client: own_client.clone(),
        });
        let (own_client, extensions) = (client.clone(), self.extensions.clone());
        let metrics = self.deps.metrics.clone();
        self.run(availability::NAME, move || Availability {
            client: own_client.clone(),
            extensions: extensions.clone(),
            metrics: metrics.clone(),
        });
        let (own_client, extensions) = (client.clone(), self.extensions.clone());
        self.run(extension_documents::NAME, move || ExtensionDocuments {
            client: own_client.clone(),
            extensions: extensions.clone(),
        });
        let extensions = self.extensions.clone();
        self.run(extension_openapi::NAME, move || ExtensionOpenApi::new(client.clone(), extensions.clone()));
    }

    /// Starts the controllers about the other API servers on the same etcd.
    fn run_peers(&self) {
        if let Some(record) = self.peers.own_record.clone() {
            self.run(peer_record::NAME, move || PeerRecord { record: record.clone() });
        }
        if let Some(peers) = self.peers.others.clone() {
            let client = self.server_client(Origin::Server);
            self.run(peer_discovery::NAME, move || PeerDiscovery {
                client: client.clone(),
                peers: peers.clone(),
            });
        }
    }

    /// Starts the controller of this name that holds a lease, which decides about this leadership.
    pub(super) fn hold_lease(
        &self,
        name: &'static str,
        lease: LeaseSettings,
        client: Client,
        leadership: &Leadership,
    ) {
        let (clock, leadership) = (self.deps.clock.clone(), leadership.clone());
        self.run(name, move || LeaseHolder::new(lease, client.clone(), clock.clone(), leadership.clone()));
    }

    /// Starts the controllers that tell others about this server, under its identity.
    fn run_with_identity(&self, identity: &ServerIdentity, features: StorageVersionFeatures) {
        let (client, identity) = (self.server_client(Origin::Server), identity.clone());
        let (own_client, server) = (client.clone(), identity.id.clone());
        let (lease_clock, clock) = (self.deps.clock.clone(), self.deps.clock.clone());
        self.run(server_identity::NAME, move || IdentityLease {
            client: own_client.clone(),
            clock: lease_clock.clone(),
            identity: identity.clone(),
        });
        if !features.are_published {
            return;
        }
        self.run(storage_versions::NAME, move || StorageVersions {
            client: client.clone(),
            clock: clock.clone(),
            server: server.clone(),
        });
    }

    /// Runs the controller that `make` makes, and a new one after each panic. It works while this server holds the lease,
    /// unless [`Controller::needs_leader_election`] says otherwise.
    pub fn run<C: Controller>(&self, name: &'static str, make: impl Fn() -> C + 'static) {
        self.run_led_by(&self.deps.leadership, name, make);
    }

    /// The same, for a controller that works while this server holds another lease.
    pub(super) fn run_led_by<C: Controller>(
        &self,
        leadership: &Leadership,
        name: &'static str,
        make: impl Fn() -> C + 'static,
    ) {
        let never = || std::future::pending().boxed_local();
        self.supervise(name, Box::new(move || Rc::new(make())), Box::new(never), leadership);
    }

    /// Like [`ControllerContext::run`], for a controller that depends on the CA or the signers: it is restarted when they change.
    pub(super) fn run_with_authorities<C: Controller>(
        &self,
        name: &'static str,
        make: impl Fn(Arc<Authorities>) -> C + 'static,
    ) {
        let (current, changes) = (self.authorities.clone(), self.authorities.clone());
        let inputs_changed = move || {
            let mut changes = changes.clone();
            changes.mark_unchanged();
            let wait = async move {
                if changes.changed().await.is_err() {
                    // The server is stopping.
                    std::future::pending::<()>().await;
                }
            };
            wait.boxed_local()
        };
        let make = move || -> Rc<dyn Controller<Key = C::Key>> { Rc::new(make(current.borrow().clone())) };
        self.supervise(name, Box::new(make), Box::new(inputs_changed), &self.deps.leadership);
    }

    fn supervise<K: WorkKey>(
        &self,
        name: &'static str,
        make: MakeController<K>,
        inputs_changed: WaitForInputs,
        leadership: &Leadership,
    ) {
        let (informers, down) = (self.informers.clone(), self.down.clone());
        let deps = RunnerDeps { leadership: leadership.clone(), ..self.deps.clone() };
        actix::spawn(supervise(name, make, inputs_changed, informers, deps, down));
    }
}

/// Makes a controller.
type MakeController<K> = Box<dyn Fn() -> Rc<dyn Controller<Key = K>>>;

/// Waits until the inputs of a controller have changed since the call.
type WaitForInputs = Box<dyn Fn() -> LocalBoxFuture<'static, ()>>;

/// Why a controller ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    /// It panicked.
    Panicked,
    /// Its informer ended.
    InformerEnded,
    /// Its inputs have changed.
    InputsChanged,
}

/// Keeps a controller running. A controller that panicked, or whose informer ended, is restarted after a growing pause; one whose
/// inputs changed is restarted at once.
async fn supervise<K: WorkKey>(
    name: &'static str,
    make: MakeController<K>,
    inputs_changed: WaitForInputs,
    informers: Rc<InformerHandle>,
    deps: RunnerDeps,
    down: Rc<watch::Sender<Down>>,
) {
    let mut pause = MIN_RESTART_DELAY;
    loop {
        let started = deps.clock.moment();
        // Subscribed before the controller is made, so that a change in between is noticed.
        let inputs_changed = inputs_changed();
        let stop_reason = run(name, make(), inputs_changed, &informers, &deps).await;
        if deps.stopping.has_begun() {
            // At shutdown stores and controllers end in any order.
            return;
        }
        let reason = match stop_reason {
            StopReason::InputsChanged => continue,
            StopReason::Panicked => "panicked",
            StopReason::InformerEnded => "lost its informer",
        };
        if deps.clock.elapsed(started) > STABLE_AFTER {
            pause = MIN_RESTART_DELAY;
        }
        tracing::error!(controller = name, "a controller {reason} and is restarted in {pause:?}");
        deps.metrics.controllers.count_restart(name);
        down.send_modify(|down| {
            down.insert(name, format!("{reason} and waits to be restarted"));
        });
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_RESTART_DELAY);
        down.send_modify(|down| {
            down.remove(name);
        });
    }
}

/// Runs a controller until it panics, its informer ends, or its inputs change.
async fn run<K: WorkKey>(
    name: &'static str,
    inner: Rc<dyn Controller<Key = K>>,
    inputs_changed: LocalBoxFuture<'static, ()>,
    informers: &InformerHandle,
    deps: &RunnerDeps,
) -> StopReason {
    let (ended, mut end) = oneshot::channel();
    let watched_types = inner.watched_types();
    let (informer, mut liveness) = informers.informer();
    let runner = Runner::start_new(name, inner, deps.clone(), ended);
    deps.leadership.notify_when_leading(runner.clone().recipient());
    let subscriber = Subscriber {
        watched_types,
        listed: runner.clone().recipient(),
        changed: runner.clone().recipient(),
        caught_up: runner.clone().recipient(),
    };
    let informer_ended = async {
        match informer.send(AddSubscriber(subscriber)).await {
            // Nothing is ever sent on this channel, either.
            Ok(Ok(())) => drop(liveness.changed().await),
            Ok(Err(error)) if !deps.stopping.has_begun() => {
                tracing::warn!(%error, "a controller cannot list its objects");
            }
            _ => {}
        }
    };
    let reason = tokio::select! {
        _nothing_is_ever_sent = &mut end => StopReason::Panicked,
        () = informer_ended => StopReason::InformerEnded,
        () = inputs_changed => StopReason::InputsChanged,
    };
    if reason != StopReason::Panicked {
        let _already_ended = runner.send(Stop).await;
    }
    reason
}

#[cfg(test)]
mod tests;
