//! Starts the loops on their own thread, and restarts those that panic.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use pilothouse_actors::authorizer::Authorizer;
use pilothouse_actors::bell::Bells;
use pilothouse_actors::clock::Clock;
use tokio::sync::{Mutex, oneshot, watch};

use crate::api::quota::Features;
use crate::auth::service_account::legacy_use::LegacyUseReceiver;
use crate::metrics::Metrics;
use crate::pki::signers::Signers;
use crate::verbs::Backend;
use crate::verbs::aggregation::Extensions;
use crate::verbs::stores::Stores;

use super::availability::{self, Availability};
use super::client::Client;
use super::expiry::{self, Expiry};
use super::extension_documents::{self, ExtensionDocuments};
use super::flow_schemas::{self, FlowSchemas};
use super::informer::{Hearing, Join, Member};
use super::known::Catalogs;
use super::lease::{LEASE, Lead, LeaseHolder};
use super::own_objects::{self, OwnObjects, Settle};
use super::registrations::{self, Registrations};
use super::roster::Entry;
use super::runner::{Leaving, Loop, Runner, Stop, Surroundings};
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
    pub enabled: Vec<&'static Entry>,
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
pub struct Kit {
    /// The dependencies of the verbs.
    pub backend: Backend,
    /// Gives the current catalog.
    pub catalogs: Catalogs,
    /// Checks rights of other users.
    pub authorizer: Addr<Authorizer>,
    /// Signs service account tokens.
    pub sign_token: SignToken,
    /// Restores the server's own objects.
    pub settle: Settle,
    /// Restores the built-in flow schemas and priority levels.
    pub settle_flows: Settle,
    /// Applies the configuration of API Priority and Fairness.
    pub count_flows: Settle,
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
pub type Guest = Box<dyn FnOnce(&House) + Send>;

/// Dependencies of the loops that come from other threads.
pub struct Outside {
    /// Where the informer adds its bell.
    pub bells: Bells,
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
    pub guests: Vec<Guest>,
}

/// The running loops. They end with [`Running::stop`].
pub struct Running {
    arbiter: Arbiter,
    leaving: Leaving,
}

impl Running {
    /// Ends all loops at once: completed writes stay, and unfinished work is found again at the next start.
    pub fn stop(&self) {
        // First, because the thread may end after the stores do.
        self.leaving.begin();
        self.arbiter.stop();
    }
}

/// Starts the loops.
pub fn start(
    settings: Settings,
    outside: Outside,
    make: impl FnOnce() -> Kit + Send + 'static,
) -> io::Result<Running> {
    let (arbiter, leaving) = (Arbiter::try_new()?, Leaving::default());
    let of_house = leaving.clone();
    let begun = arbiter.spawn_fn(move || {
        let (house, guests) = House::new(outside, make(), of_house);
        house.open(&settings, guests);
    });
    match begun {
        true => Ok(Running { arbiter, leaving }),
        false => Err(io::Error::other("the thread of the control loops ended")),
    }
}

/// The state of the loops' thread.
pub struct House {
    backend: Rc<Backend>,
    catalogs: Rc<Catalogs>,
    pub(super) authorizer: Addr<Authorizer>,
    pub(super) sign_token: SignToken,
    pub(super) hearing: Rc<Hearing>,
    settle: Settle,
    settle_flows: Settle,
    count_flows: Settle,
    pub(super) extensions: Arc<Extensions>,
    uses: Rc<Mutex<LegacyUseReceiver>>,
    authorities: watch::Receiver<Arc<Authorities>>,
    around: Surroundings,
    down: Rc<watch::Sender<Down>>,
}

impl House {
    fn new(outside: Outside, kit: Kit, leaving: Leaving) -> (House, Vec<Guest>) {
        let Outside { bells, stores, clock, metrics, down, uses, authorities, guests } = outside;
        let house = House {
            backend: Rc::new(kit.backend),
            catalogs: Rc::new(kit.catalogs),
            authorizer: kit.authorizer,
            sign_token: kit.sign_token,
            hearing: Rc::new(Hearing::new(bells, stores)),
            settle: kit.settle,
            settle_flows: kit.settle_flows,
            count_flows: kit.count_flows,
            extensions: kit.extensions,
            uses: Rc::new(Mutex::new(uses)),
            authorities,
            around: Surroundings { clock, metrics, lead: Lead::default(), leaving },
            down: Rc::new(down),
        };
        (house, guests)
    }

    /// A client that acts as a service account in kube-system.
    pub fn client(&self, account: &str) -> Client {
        Client::new(self.backend.clone(), self.catalogs.clone(), account)
    }

    fn open(&self, settings: &Settings, guests: Vec<Guest>) {
        let clock = self.around.clock.clone();
        let (of_server, settle) = (clock.clone(), self.settle.clone());
        self.keep(own_objects::NAME, move || OwnObjects { clock: of_server.clone(), settle: settle.clone() });
        let (client, ttl) = (self.client("event-expiry"), settings.event_ttl);
        if !ttl.is_zero() {
            let clock = clock.clone();
            self.keep(expiry::NAME, move || Expiry::new(client.clone(), clock.clone(), ttl));
        }
        let client = self.client("apiserver-lease-expiry");
        self.keep(server_leases::NAME, move || ServerLeases { client: client.clone() });
        let client = self.client("service-repair");
        self.keep(service_repair::NAME, move || ServiceRepair::new(client.clone(), REPAIRED_EVERY));
        let (client, uses) = (self.client("legacy-token-tracking"), self.uses.clone());
        let of_uses = clock.clone();
        self.keep(token_use::NAME, move || TokenUse {
            client: client.clone(),
            clock: of_uses.clone(),
            uses: uses.clone(),
        });
        let client = Client::of_server(self.backend.clone(), self.catalogs.clone());
        let (of_flows, settle, tells) = (clock.clone(), self.settle_flows.clone(), settings.has_flows);
        let count = self.count_flows.clone();
        self.keep(flow_schemas::NAME, move || FlowSchemas {
            client: client.clone(),
            clock: of_flows.clone(),
            settle: settle.clone(),
            count: count.clone(),
            tells,
            written: RefCell::default(),
        });
        self.keep_extensions();
        if settings.enabled.is_empty() && guests.is_empty() {
            return;
        }
        let (client, lead) = (self.client("leader-election-controller"), self.around.lead.clone());
        let of_lease = clock.clone();
        self.keep(LEASE, move || LeaseHolder {
            client: client.clone(),
            clock: of_lease.clone(),
            lead: lead.clone(),
            has_begun: Cell::new(false),
        });
        for entry in &settings.enabled {
            self.keep_entry(entry, settings, &clock);
        }
        guests.into_iter().for_each(|guest| guest(self));
    }

    /// Starts the loops that maintain APIServices and extension API servers.
    fn keep_extensions(&self) {
        let client = Client::of_server(self.backend.clone(), self.catalogs.clone());
        let of_server = client.clone();
        self.keep(registrations::NAME, move || Registrations { client: of_server.clone() });
        let (of_server, extensions) = (client.clone(), self.extensions.clone());
        let metrics = self.around.metrics.clone();
        self.keep(availability::NAME, move || Availability {
            client: of_server.clone(),
            extensions: extensions.clone(),
            metrics: metrics.clone(),
        });
        let extensions = self.extensions.clone();
        self.keep(extension_documents::NAME, move || ExtensionDocuments {
            client: client.clone(),
            extensions: extensions.clone(),
        });
    }

    /// Runs the loop that `make` makes, and a new one after each panic. It works while this server holds the lease.
    pub fn keep<L: Loop>(&self, name: &'static str, make: impl Fn() -> L + 'static) {
        let never = std::future::pending;
        actix::spawn(self.supervised(name, make, never));
    }

    /// Like [`House::keep`], for a loop that depends on the CA or the signers: it is restarted when they change.
    pub(super) fn keep_told<L: Loop>(
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

    fn supervised<L: Loop, S: Future<Output = ()> + 'static>(
        &self,
        name: &'static str,
        make: impl Fn() -> L + 'static,
        stale: impl Fn() -> S + 'static,
    ) -> impl Future<Output = ()> + 'static {
        supervise(name, make, stale, self.hearing.clone(), self.around.clone(), self.down.clone())
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
async fn supervise<L: Loop, S: Future<Output = ()>>(
    name: &'static str,
    make: impl Fn() -> L,
    stale: impl Fn() -> S,
    hearing: Rc<Hearing>,
    around: Surroundings,
    down: Rc<watch::Sender<Down>>,
) {
    let mut pause = FIRST_RESTART;
    loop {
        let began = around.clock.now();
        // Subscribed before the loop is made, so that a change in between is noticed.
        let stale = stale();
        let end = run(name, make(), stale, &hearing, &around).await;
        if around.leaving.has_begun() {
            // At shutdown stores and loops end in any order.
            return;
        }
        let why = match end {
            End::Stale => continue,
            End::Panicked => "panicked",
            End::Deaf => "hears nothing",
        };
        if began.plus(RAN_WELL) < around.clock.now() {
            pause = FIRST_RESTART;
        }
        tracing::error!(controller = name, "a control loop {why} and is started again in {pause:?}");
        around.metrics.loops.count_restart(name);
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
async fn run<L: Loop>(
    name: &'static str,
    inner: L,
    stale: impl Future<Output = ()>,
    hearing: &Hearing,
    around: &Surroundings,
) -> End {
    let (ended, mut end) = oneshot::channel();
    let follows = inner.follows();
    let (informer, mut lives) = hearing.informer();
    let runner = Runner::begin(name, inner, around.clone(), ended);
    around.lead.wakes(runner.clone().recipient());
    let member = Member {
        follows,
        listed: runner.clone().recipient(),
        heard: runner.clone().recipient(),
        caught_up: runner.clone().recipient(),
    };
    let deaf = async {
        match informer.send(Join(member)).await {
            // Nothing is ever sent on this channel, either.
            Ok(Ok(())) => drop(lives.changed().await),
            Ok(Err(error)) if !around.leaving.has_begun() => {
                tracing::warn!(%error, "a control loop cannot be told what there is");
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
