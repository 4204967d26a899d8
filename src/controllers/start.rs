//! Starts the loops on their own thread and starts them again when one of them panics.

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
use crate::pki::signing::Signer;
use crate::verbs::Backend;
use crate::verbs::stores::Stores;

use super::account_tokens::SignToken;
use super::client::Client;
use super::expiry::{self, Expiry};
use super::informer::{Hearing, Join, Member};
use super::known::Catalogs;
use super::lease::{LEASE, Lead, LeaseHolder};
use super::runner::{Loop, Runner, Stop, Surroundings};
use super::server_leases::{self, ServerLeases};
use super::service_repair::{self, ServiceRepair};
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
    /// The names of those that run.
    pub enabled: Vec<&'static str>,
    /// Whether the pods of a namespace go before the rest.
    pub pods_first: bool,
    /// How long events live.
    pub event_ttl: Duration,
    /// The certificates by which pods know this server.
    pub authority_pem: String,
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
}

/// What the loops are made from on their thread.
pub struct Kit {
    /// The verbs.
    pub backend: Backend,
    /// What is served.
    pub catalogs: Catalogs,
    /// Who says what others may do.
    pub authorizer: Addr<Authorizer>,
    /// Who signs certificates, if anybody does.
    pub signer: Option<Signer>,
    /// Who makes the tokens of service accounts.
    pub sign_token: SignToken,
}

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
}

/// The loops, running. They end when this is told to stop.
pub struct Running(Arbiter);

impl Running {
    /// Ends all loops where they stand: what they wrote is written, and what they did not is found again.
    pub fn stop(&self) {
        self.0.stop();
    }
}

/// Starts the loops.
pub fn start(
    settings: Settings,
    outside: Outside,
    make: impl FnOnce() -> Kit + Send + 'static,
) -> io::Result<Running> {
    let arbiter = Arbiter::try_new()?;
    let begun = arbiter.spawn_fn(move || House::new(outside, make()).open(&settings));
    if begun { Ok(Running(arbiter)) } else { Err(io::Error::other("the thread of the control loops ended")) }
}

/// Everything on the thread of the loops.
pub(super) struct House {
    backend: Rc<Backend>,
    catalogs: Rc<Catalogs>,
    pub(super) authorizer: Addr<Authorizer>,
    pub(super) signer: Option<Rc<Signer>>,
    pub(super) sign_token: SignToken,
    pub(super) hearing: Rc<Hearing>,
    uses: Rc<Mutex<UsesHeard>>,
    around: Surroundings,
    down: Rc<watch::Sender<Down>>,
}

impl House {
    fn new(outside: Outside, kit: Kit) -> House {
        let Outside { bells, stores, clock, metrics, down, uses } = outside;
        House {
            backend: Rc::new(kit.backend),
            catalogs: Rc::new(kit.catalogs),
            authorizer: kit.authorizer,
            signer: kit.signer.map(Rc::new),
            sign_token: kit.sign_token,
            hearing: Rc::new(Hearing::new(bells, stores)),
            uses: Rc::new(Mutex::new(uses)),
            around: Surroundings { clock, metrics, lead: Lead::default() },
            down: Rc::new(down),
        }
    }

    pub(super) fn client(&self, account: &str) -> Client {
        Client::new(self.backend.clone(), self.catalogs.clone(), account)
    }

    fn open(&self, settings: &Settings) {
        let clock = self.around.clock.clone();
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
        if settings.enabled.is_empty() {
            return;
        }
        let (client, lead) = (self.client("leader-election-controller"), self.around.lead.clone());
        let of_lease = clock.clone();
        self.keep(LEASE, move || LeaseHolder {
            client: client.clone(),
            clock: of_lease.clone(),
            lead: lead.clone(),
        });
        for name in &settings.enabled {
            self.keep_named(name, settings, &clock);
        }
    }

    pub(super) fn keep<L: Loop>(&self, name: &'static str, make: impl Fn() -> L + 'static) {
        actix::spawn(supervise(name, make, self.hearing.clone(), self.around.clone(), self.down.clone()));
    }
}

/// Keeps a loop running: one that has panicked, or that nobody tells anything any more, is started again after a pause that
/// grows.
async fn supervise<L: Loop>(
    name: &'static str,
    make: impl Fn() -> L,
    hearing: Rc<Hearing>,
    around: Surroundings,
    down: Rc<watch::Sender<Down>>,
) {
    let mut pause = FIRST_RESTART;
    loop {
        let began = around.clock.now();
        let why = run(make(), &hearing, &around).await;
        if began.plus(RAN_WELL) < around.clock.now() {
            pause = FIRST_RESTART;
        }
        tracing::error!(controller = name, "a control loop {why} and is started again in {pause:?}");
        around.metrics.count_restart(name);
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

/// Runs a loop until it ends, which it does only in a panic, or until it hears nothing any more. Answers which.
async fn run<L: Loop>(inner: L, hearing: &Hearing, around: &Surroundings) -> &'static str {
    let (ended, mut end) = oneshot::channel();
    let follows = inner.follows();
    let (informer, mut lives) = hearing.informer();
    let runner = Runner::begin(inner, around.clone(), ended);
    around.lead.wakes(runner.clone().recipient());
    let member = Member {
        follows,
        listed: runner.clone().recipient(),
        heard: runner.clone().recipient(),
        caught_up: runner.clone().recipient(),
    };
    let told = informer.send(Join(member));
    let panicked = tokio::select! {
        _nothing_is_ever_sent = &mut end => true,
        joined = told => match joined {
            // Nothing is ever sent there either.
            Ok(true) => tokio::select! {
                _ended = &mut end => true,
                _ended = lives.changed() => false,
            },
            _ => false,
        },
    };
    if panicked {
        return "panicked";
    }
    let _already_gone = runner.send(Stop).await;
    "hears nothing"
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::FutureExt as _;
    use futures::future::LocalBoxFuture;
    use pilothouse_actors::clock::Timestamp;
    use pilothouse_actors::directory;
    use pilothouse_actors::engine::memory::Memory;

    use super::super::informer::Break;
    use super::super::queue::{Outcome, Queue};
    use super::super::runner::{Follows, News};
    use super::*;

    /// Panics as often as it is told to.
    struct Fragile {
        left: Rc<Cell<u32>>,
        done: Rc<Cell<bool>>,
    }

    impl Loop for Fragile {
        type Key = ();

        fn name(&self) -> &'static str {
            // One that needs no lease.
            expiry::NAME
        }

        fn follows(&self) -> Follows {
            Follows::These(&[])
        }

        fn begins_with(&self) -> Vec<()> {
            vec![()]
        }

        fn hear(&self, _: &News<'_>, _: &mut Queue<()>) {}

        fn work(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Outcome> {
            async move {
                let left = self.left.get();
                self.left.set(left.saturating_sub(1));
                assert_eq!(left, 0, "a loop that fails on purpose");
                self.done.set(true);
                Outcome::Done
            }
            .boxed_local()
        }
    }

    #[actix_rt::test]
    async fn a_loop_that_panics_is_told_of_and_started_again() {
        let (_storage, hearing, around) = surroundings();
        let metrics = around.metrics.clone();
        let (tell, mut down) = watch::channel(Down::new());
        let (left, done) = (Rc::new(Cell::new(1)), Rc::new(Cell::new(false)));
        let make = {
            let (left, done) = (left.clone(), done.clone());
            move || Fragile { left: left.clone(), done: done.clone() }
        };
        actix::spawn(supervise(expiry::NAME, make, hearing, around, Rc::new(tell)));
        let first = down.wait_for(|down| down.contains_key(expiry::NAME)).await.unwrap().clone();
        assert_eq!(first[expiry::NAME], "panicked and waits to be started again");
        assert!(!done.get());
        drop(down.wait_for(Down::is_empty).await.unwrap());
        while !done.get() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let text = String::from_utf8(metrics.text().unwrap()).unwrap();
        assert!(text.contains("pilothouse_controller_restarts_total{name=\"event-expiry\"} 1"), "{text}");
    }

    /// A server's stores without a server, the hearing on them, and what loops are given besides.
    fn surroundings() -> (directory::Stores, Rc<Hearing>, Surroundings) {
        let storage = directory::start(Box::new(Memory::new()), directory::Options::default()).unwrap();
        let finder = storage.directory.clone();
        let stores = Arc::new(move || Stores::new(finder.clone()));
        let hearing = Rc::new(Hearing::new(storage.bells.clone(), stores));
        let metrics = Arc::new(Metrics::new(Timestamp(0)).unwrap());
        (storage, hearing, Surroundings { clock: Clock::system(), metrics, lead: Lead::default() })
    }

    #[actix_rt::test]
    async fn loops_that_hear_nothing_any_more_are_started_again_with_a_new_informer() {
        let (_storage, hearing, around) = surroundings();
        let (tell, mut down) = watch::channel(Down::new());
        let (made, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let make = {
            let (made, done) = (made.clone(), done.clone());
            move || {
                made.set(made.get() + 1);
                Fragile { left: Rc::default(), done: done.clone() }
            }
        };
        actix::spawn(supervise(expiry::NAME, make, hearing.clone(), around, Rc::new(tell)));
        while !done.get() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        done.set(false);
        let (broken, _) = hearing.informer();
        assert!(broken.send(Break).await.is_err());
        let said = down.wait_for(|down| down.contains_key(expiry::NAME)).await.unwrap().clone();
        assert_eq!(said[expiry::NAME], "hears nothing and waits to be started again");
        while !done.get() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(made.get(), 2);
        assert!(down.borrow().is_empty() && hearing.informer().0.connected() && !broken.connected());
    }
}
