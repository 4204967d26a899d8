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
use tokio::sync::{oneshot, watch};

use crate::metrics::Metrics;
use crate::pki::signing::Signer;
use crate::verbs::Backend;
use crate::verbs::stores::Stores;

use super::account_tokens::{AccountTokens, SignToken};
use super::bootstrap_tokens::{BootstrapSigner, TokenCleaner};
use super::certificate_cleaner::CertificateCleaner;
use super::certificates::{CertificateApprover, CertificateSigner};
use super::client::Client;
use super::expiry::{self, Expiry};
use super::finished::TtlAfterFinished;
use super::garbage::GarbageCollector;
use super::gathered_roles::GatheredRoles;
use super::informer::{Informer, Join, Member};
use super::known::Catalogs;
use super::lease::{LEASE, Lead, LeaseHolder};
use super::namespace::NamespaceController;
use super::per_namespace::{Made, PerNamespace};
use super::protection::{Protected, Protection};
use super::runner::{Loop, Runner, Surroundings};

/// How long a loop that panicked waits at first; twice as long each time, up to the other.
const FIRST_RESTART: Duration = Duration::from_secs(1);
const LONGEST_RESTART: Duration = Duration::from_secs(60);
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
struct House {
    backend: Rc<Backend>,
    catalogs: Rc<Catalogs>,
    authorizer: Addr<Authorizer>,
    signer: Option<Rc<Signer>>,
    sign_token: SignToken,
    informer: Addr<Informer>,
    around: Surroundings,
    down: Rc<watch::Sender<Down>>,
}

impl House {
    fn new(outside: Outside, kit: Kit) -> House {
        let Outside { bells, stores, clock, metrics, down } = outside;
        House {
            backend: Rc::new(kit.backend),
            catalogs: Rc::new(kit.catalogs),
            authorizer: kit.authorizer,
            signer: kit.signer.map(Rc::new),
            sign_token: kit.sign_token,
            informer: Informer::begin(&bells, stores),
            around: Surroundings { clock, metrics, lead: Lead::default() },
            down: Rc::new(down),
        }
    }

    fn client(&self, account: &str) -> Client {
        Client::new(self.backend.clone(), self.catalogs.clone(), account)
    }

    fn open(&self, settings: &Settings) {
        let clock = self.around.clock.clone();
        let (client, ttl) = (self.client("event-expiry"), settings.event_ttl);
        if !ttl.is_zero() {
            let clock = clock.clone();
            self.keep(expiry::NAME, move || Expiry::new(client.clone(), clock.clone(), ttl));
        }
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

    fn keep_named(&self, name: &'static str, settings: &Settings, clock: &Clock) {
        match name {
            "namespace-controller" => {
                let (client, clock, pods_first) =
                    (self.client("namespace-controller"), clock.clone(), settings.pods_first);
                self.keep(name, move || NamespaceController::new(client.clone(), clock.clone(), pods_first));
            }
            "garbage-collector-controller" => {
                let (client, informer) = (self.client("generic-garbage-collector"), self.informer.clone());
                self.keep(name, move || GarbageCollector::new(client.clone(), informer.clone()));
            }
            "serviceaccount-controller" => {
                let (client, made) =
                    (self.client("service-account-controller"), Rc::new(Made::default_account()));
                self.keep(name, move || PerNamespace::new(client.clone(), made.clone()));
            }
            "root-ca-certificate-publisher-controller" => {
                let made = Rc::new(Made::root_certificate(&settings.authority_pem));
                let client = self.client("root-ca-cert-publisher");
                self.keep(name, move || PerNamespace::new(client.clone(), made.clone()));
            }
            "serviceaccount-token-controller" => {
                let (client, sign) =
                    (self.client("service-account-token-controller"), self.sign_token.clone());
                let authority_pem: Rc<str> = settings.authority_pem.as_str().into();
                self.keep(name, move || AccountTokens {
                    client: client.clone(),
                    authority_pem: authority_pem.clone(),
                    sign: sign.clone(),
                });
            }
            "bootstrap-signer-controller" => {
                let client = self.client("bootstrap-signer");
                self.keep(name, move || BootstrapSigner { client: client.clone() });
            }
            "token-cleaner-controller" => {
                let client = self.client("token-cleaner");
                self.keep(name, move || TokenCleaner { client: client.clone() });
            }
            "ttl-after-finished-controller" => {
                let client = self.client("ttl-after-finished-controller");
                self.keep(name, move || TtlAfterFinished { client: client.clone() });
            }
            "persistentvolumeclaim-protection-controller" => {
                let client = self.client("pvc-protection-controller");
                self.keep(name, move || Protection::new(client.clone(), Protected::Claims));
            }
            "persistentvolume-protection-controller" => {
                let client = self.client("pv-protection-controller");
                self.keep(name, move || Protection::new(client.clone(), Protected::Volumes));
            }
            "certificatesigningrequest-cleaner-controller" => {
                let client = self.client("certificate-controller");
                self.keep(name, move || CertificateCleaner { client: client.clone() });
            }
            "certificatesigningrequest-approving-controller" => {
                let (client, authorizer) = (self.client("certificate-controller"), self.authorizer.clone());
                self.keep(name, move || CertificateApprover {
                    client: client.clone(),
                    authorizer: authorizer.clone(),
                });
            }
            "certificatesigningrequest-signing-controller" => {
                let Some(signer) = self.signer.clone() else { return };
                let (client, clock, longest) =
                    (self.client("certificate-controller"), clock.clone(), settings.longest_certificate);
                self.keep(name, move || CertificateSigner {
                    client: client.clone(),
                    clock: clock.clone(),
                    signer: signer.clone(),
                    longest,
                });
            }
            "clusterrole-aggregation-controller" => {
                let client = self.client(name);
                self.keep(name, move || GatheredRoles::new(client.clone()));
            }
            _ => tracing::warn!(controller = name, "no such control loop"),
        }
    }

    fn keep<L: Loop>(&self, name: &'static str, make: impl Fn() -> L + 'static) {
        actix::spawn(supervise(name, make, self.informer.clone(), self.around.clone(), self.down.clone()));
    }
}

/// Keeps a loop running: one that has panicked is started again, after a pause that grows.
async fn supervise<L: Loop>(
    name: &'static str,
    make: impl Fn() -> L,
    informer: Addr<Informer>,
    around: Surroundings,
    down: Rc<watch::Sender<Down>>,
) {
    let mut pause = FIRST_RESTART;
    loop {
        let began = around.clock.now();
        run(make(), &informer, &around).await;
        if began.plus(RAN_WELL) < around.clock.now() {
            pause = FIRST_RESTART;
        }
        tracing::error!(controller = name, "a control loop has panicked and is started again in {pause:?}");
        around.metrics.count_restart(name);
        down.send_modify(|down| {
            down.insert(name, "panicked and waits to be started again".to_owned());
        });
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_RESTART);
        down.send_modify(|down| {
            down.remove(name);
        });
    }
}

/// Runs a loop until it ends, which it does only in a panic.
async fn run<L: Loop>(inner: L, informer: &Addr<Informer>, around: &Surroundings) {
    let (ended, end) = oneshot::channel();
    let follows = inner.follows();
    let runner = Runner::begin(inner, around.clone(), ended);
    around.lead.wakes(runner.clone().recipient());
    let member = Member {
        follows,
        listed: runner.clone().recipient(),
        heard: runner.clone().recipient(),
        caught_up: runner.recipient(),
    };
    let _informer_lives_as_long_as_the_thread = informer.send(Join(member)).await;
    let _nothing_is_ever_sent = end.await;
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::FutureExt as _;
    use futures::future::LocalBoxFuture;
    use pilothouse_actors::clock::Timestamp;
    use pilothouse_actors::directory;
    use pilothouse_actors::engine::memory::Memory;

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
        let storage = directory::start(Box::new(Memory::new()), directory::Options::default()).unwrap();
        let finder = storage.directory.clone();
        let informer = Informer::begin(&storage.bells, Arc::new(move || Stores::new(finder.clone())));
        let metrics = Arc::new(Metrics::new(Timestamp(0)).unwrap());
        let around = Surroundings { clock: Clock::system(), metrics: metrics.clone(), lead: Lead::default() };
        let (tell, mut down) = watch::channel(Down::new());
        let (left, done) = (Rc::new(Cell::new(1)), Rc::new(Cell::new(false)));
        let make = {
            let (left, done) = (left.clone(), done.clone());
            move || Fragile { left: left.clone(), done: done.clone() }
        };
        actix::spawn(supervise(expiry::NAME, make, informer, around, Rc::new(tell)));
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
}
