//! Starts the loops on their own thread and starts them again when one of them panics.

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
use crate::auth::service_account::used::UsesHeard;
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

/// How long a loop that panicked waits at first; twice as long each time, up to the other.
const FIRST_RESTART: Duration = Duration::from_secs(1);
const LONGEST_RESTART: Duration = Duration::from_secs(60);
/// How often services are held against what is taken for them.
const REPAIRED_EVERY: Duration = Duration::from_secs(180);
/// A loop that ran for so long before it panicked waits as if it were its first time.
const RAN_WELL: Duration = Duration::from_secs(300);

/// The loops that are down, and why.
pub type Down = BTreeMap<&'static str, String>;

/// What the loops are told.
pub struct Settings {
    /// Those that run.
    pub enabled: Vec<&'static Entry>,
    /// Whether the pods of a namespace go before the rest.
    pub pods_first: bool,
    /// How long events live.
    pub event_ttl: Duration,
    /// How long signed certificates live at most.
    pub longest_certificate: Duration,
    /// Whether nothing may stand in a namespace that is not there.
    pub namespaces_needed: bool,
    /// What quotas count.
    pub quota_features: Features,
    /// How often all quotas are counted; zero for never.
    pub quotas_counted_every: Duration,
    /// How long tokens that lie in Secrets must be unused before they are marked, and then before they go.
    pub tokens_unused_for: Duration,
    /// How many pods that are over may stay; zero for all.
    pub pods_that_are_over: u32,
    /// Whether requests are put to flow schemas.
    pub has_flows: bool,
}

/// What the loops are made from on their thread.
pub struct Kit {
    /// The verbs.
    pub backend: Backend,
    /// What is served.
    pub catalogs: Catalogs,
    /// Who says what others may do.
    pub authorizer: Addr<Authorizer>,
    /// Who makes the tokens of service accounts.
    pub sign_token: SignToken,
    /// Makes what the server itself needs to be as it should be.
    pub settle: Settle,
    /// The same for the configuration of priority and fairness.
    pub settle_flows: Settle,
    /// Lets that configuration count.
    pub count_flows: Settle,
    /// The groups that other servers serve.
    pub extensions: Arc<Extensions>,
}

/// What others trust of this server, which can change while it runs.
#[derive(PartialEq)]
pub struct Authorities {
    /// The certificates by which pods know this server.
    pub root_pem: String,
    /// Who signs certificates.
    pub signers: Signers,
}

/// A loop that somebody adds who runs a server inside their own process: it is started beside the others, and looked after
/// like them.
pub type Guest = Box<dyn FnOnce(&House) + Send>;

/// What the loops need besides, which may come from any thread.
pub struct Outside {
    /// Where the informer joins.
    pub bells: Bells,
    /// Finds the stores.
    pub stores: Arc<dyn Fn() -> Stores + Send + Sync>,
    /// The time.
    pub clock: Clock,
    /// Where loops are counted.
    pub metrics: Arc<Metrics>,
    /// Who wants to know which loops are down.
    pub down: watch::Sender<Down>,
    /// Which tokens that lie in Secrets are used.
    pub uses: UsesHeard,
    /// What others trust of this server.
    pub authorities: watch::Receiver<Arc<Authorities>>,
    /// Loops of others.
    pub guests: Vec<Guest>,
}

/// The loops, running. They end when this is told to stop.
pub struct Running {
    arbiter: Arbiter,
    leaving: Leaving,
}

impl Running {
    /// Ends all loops where they stand: what they wrote is written, and what they did not is found again.
    pub fn stop(&self) {
        // Their thread may take a while to hear of its end, and the stores do not wait for it.
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

/// Everything on the thread of the loops.
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
    uses: Rc<Mutex<UsesHeard>>,
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

    /// A client that acts as an account of the cluster's own namespace.
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

    /// Runs the loops that look after versions which others serve, and after the objects that say who serves what.
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

    /// Runs the loop that `make` makes, and another one whenever it has panicked. It works while this server holds the lease.
    pub fn keep<L: Loop>(&self, name: &'static str, make: impl Fn() -> L + 'static) {
        let never = std::future::pending;
        actix::spawn(self.supervised(name, make, never));
    }

    /// As [`House::keep`], for a loop that is made from what others trust of this server: it is made anew when that changes.
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
                    // The server ends.
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
    /// Nobody tells it anything any more.
    Deaf,
    /// What it was made from has changed.
    Stale,
}

/// Keeps a loop running: one that has panicked, or that nobody tells anything any more, is started again after a pause that
/// grows; one whose makings have changed at once.
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
        // Asked for before it is made: what changes in between is a change.
        let stale = stale();
        let end = run(name, make(), stale, &hearing, &around).await;
        if around.leaving.has_begun() {
            // Stores and loops end together, in any order.
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

/// Runs a loop until it ends, which it does only in a panic, until it hears nothing any more, or until it is stale.
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
            // Nothing is ever sent there either.
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
