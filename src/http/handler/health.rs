//! /healthz, /livez and /readyz, with the reference's check names. Each check has something of its own to look at; a start hook stands
//! for the step of the start that does the same here, and is not listed where there is no such step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::Addr;
use actix_web::HttpResponse;
use pilothouse_actors::directory::{Directory, Types};
use pilothouse_actors::fatal::Fatal;
use pilothouse_actors::space::{Space, SpaceLevel};
use pilothouse_actors::start_steps::{StartSteps, StepOutcome};
use pilothouse_actors::throttle::Throttle;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::query::Query;
use pilothouse_encryption::HealthCheck as KmsCheck;
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::object::TypeName;
use tokio::sync::watch;

use crate::limits::UNREADABLE_GUARDS_LISTED;
use crate::live_index::{LiveIndexes, UnreadableObject};
use crate::telemetry;

use super::render::{PLAIN_TEXT, page_not_found, plain};
use super::storage_probe::StorageProbe;
use super::worker::Worker;

/// The state that the checks probe.
pub struct Health {
    /// Whether writes can be made durable.
    pub storage: Arc<StorageProbe>,
    /// The same for `etcd-readiness`, which may have a timeout of its own.
    pub readiness: Arc<StorageProbe>,
    /// Limits log lines about checks that fail.
    pub failures: Throttle,
    /// Answers only if stores can be found.
    pub directory: Addr<Directory>,
    /// Set when the server must end.
    pub fatal: Fatal,
    /// The steps of the start.
    pub steps: StartSteps,
    /// The start hooks that exist.
    pub hooks: Vec<StartHook>,
    /// The step after which the informer of the controllers follows the stores.
    pub informer_step: &'static str,
    /// Set when shutdown begins.
    pub stopping: AtomicBool,
    /// While the start may take so long, /livez takes it for complete.
    pub livez_grace: Grace,
    /// Whether any controller is enabled that is not part of the server itself.
    pub has_controllers: bool,
    /// The controllers that are down, with the reasons.
    pub down: watch::Receiver<BTreeMap<&'static str, String>>,
    /// Knows which objects cannot be read although something depends on them.
    pub indexes: Arc<LiveIndexes>,
    /// How much space the store has left.
    pub space: Space,
    /// How many stored objects could not be decrypted at the start, by type.
    pub undecryptable: Arc<BTreeMap<TypeName, usize>>,
    /// The checks of the KMS plugins that protect stored objects.
    pub kms: Vec<KmsCheck>,
}

/// A start hook of the reference that exists here.
#[derive(Clone, Copy, Debug)]
pub struct StartHook {
    /// The name of its check.
    pub name: &'static str,
    /// The step of the start that it stands for. A controller has the step of its own name.
    pub step: &'static str,
}

impl Health {
    /// Fails until a step was tried, and while the controller of this name is down.
    fn check_step(&self, step: &str) -> Result<(), String> {
        if self.steps.outcome(step).is_none() {
            return Err("not finished".to_owned());
        }
        self.down.borrow().get(step).map_or(Ok(()), |reason| Err(reason.clone()))
    }

    async fn check_storage(&self, probe: &Arc<StorageProbe>) -> Result<(), String> {
        match self.fatal.raised() {
            Some(reason) => Err(reason),
            None => probe.check().await,
        }
    }
}

/// A time that begins with the server.
#[derive(Clone, Copy, Debug)]
pub struct Grace {
    begun: Moment,
    length: Duration,
}

impl Grace {
    /// It begins now.
    pub fn new(clock: &Clock, length: Duration) -> Grace {
        Grace { begun: clock.moment(), length }
    }

    fn lasts(self, clock: &Clock) -> bool {
        clock.elapsed(self.begun) < self.length
    }
}

/// One named check.
#[derive(Clone, Copy)]
enum Check {
    /// Always passes: the server answers.
    Ping,
    /// The thread that writes the log has not ended.
    Log,
    /// The storage accepts writes. Named as in the reference, because clients exclude the check by that name.
    Etcd,
    /// The same probe under the name that only /readyz uses.
    EtcdReadiness,
    /// A start hook: passes once its step was tried and while its controller is not down.
    Hook(StartHook),
    /// The KMS plugins are healthy: the check at this place among those of the configuration.
    Kms(usize),
    /// The stores can be found.
    Directory,
    /// The catalog is not empty.
    Catalog,
    /// The informer of the controllers follows the stores.
    InformerSync,
    /// No controller is down.
    Controllers,
    /// Every stored object that guards something can be read.
    Guards,
    /// How much space the store has left. It never fails: reads, deletions and watches go on when the store is full, and a server
    /// that is taken out of service could not be asked to delete anything.
    Space,
    /// Every stored object could be decrypted at the start. It never fails, like [`Check::Space`]: everything else works, and a
    /// restart would not help.
    Decryption,
    /// Shutdown has not begun.
    Shutdown,
}

impl Check {
    fn name(self, health: &Health) -> &str {
        match self {
            Check::Kms(index) => health.kms.get(index).map_or("", KmsCheck::name),
            Check::Ping => "ping",
            Check::Log => "log",
            Check::Etcd => "etcd",
            Check::EtcdReadiness => "etcd-readiness",
            Check::Hook(hook) => hook.name,
            Check::Directory => "poststarthook/start-store-directory",
            Check::Catalog => "poststarthook/publish-catalog",
            Check::InformerSync => "informer-sync",
            Check::Controllers => "poststarthook/start-controllers",
            Check::Guards => "readable-guards",
            Check::Space => "storage-space",
            Check::Decryption => "storage-decryption",
            Check::Shutdown => "shutdown",
        }
    }

    /// Whether it fails only because the start is not complete.
    fn is_of_start(self) -> bool {
        matches!(self, Check::Hook(_) | Check::Catalog)
    }

    /// Runs it for one of the health paths.
    async fn run_for(self, endpoint: &str, worker: &Worker) -> Result<(), String> {
        let grace = worker.shared.health.livez_grace;
        match endpoint == "livez" && self.is_of_start() && grace.lasts(&worker.backend.clock) {
            true => Ok(()),
            false => self.run(worker).await,
        }
    }

    /// What an operator should know although the check passes.
    fn warning(self, health: &Health) -> Option<String> {
        match (self, health.space.level()) {
            (Check::Space, SpaceLevel::Low) => Some("the store has little space left".to_owned()),
            (Check::Space, SpaceLevel::Full) => {
                Some("the store has no space left, growing writes are refused".to_owned())
            }
            (Check::Decryption, _) => {
                let counts = health.undecryptable.iter().map(|(name, count)| format!("{count} of {name}"));
                let counts: Vec<String> = counts.collect();
                Some(format!("objects that could not be decrypted at the start: {}", counts.join(", ")))
            }
            (Check::Hook(hook), _) => {
                let is_refused = health.steps.outcome(hook.step) == Some(StepOutcome::Refused);
                // It does not fail: whoever has to remove what refuses it must reach the server.
                is_refused.then(|| "something was refused, it is repeated".to_owned())
            }
            _ => None,
        }
    }

    async fn run(self, worker: &Worker) -> Result<(), String> {
        let health = &worker.shared.health;
        match self {
            Check::Ping | Check::Space | Check::Decryption => Ok(()),
            Check::Log => check_flag(!telemetry::has_writer_ended(), "the log is not written any more"),
            Check::Etcd => health.check_storage(&health.storage).await,
            Check::EtcdReadiness => health.check_storage(&health.readiness).await,
            Check::Kms(index) => match health.kms.get(index) {
                Some(check) => check.check().await,
                None => Ok(()),
            },
            Check::Directory => {
                health.directory.send(Types).await.map(drop).map_err(|error| error.to_string())
            }
            Check::Catalog => {
                let empty = worker.served().catalog.resources().next().is_none();
                if empty { Err("no resource is served".to_owned()) } else { Ok(()) }
            }
            Check::InformerSync => health.check_step(health.informer_step),
            Check::Hook(hook) => health.check_step(hook.step),
            Check::Controllers => check_controllers(&health.down.borrow()),
            Check::Guards => check_guards(&health.indexes.unreadable().await),
            Check::Shutdown => {
                check_flag(!health.stopping.load(Ordering::Acquire), "process is shutting down")
            }
        }
    }
}

/// Fails if controllers are down, and names them with the reasons.
fn check_controllers(down: &BTreeMap<&'static str, String>) -> Result<(), String> {
    let reasons: Vec<String> = down.iter().map(|(name, reason)| format!("{name} {reason}")).collect();
    check_flag(reasons.is_empty(), &reasons.join(", "))
}

/// Fails if objects that guard something cannot be read, and names them, up to a bound.
fn check_guards(unreadable: &[UnreadableObject]) -> Result<(), String> {
    let guards = || unreadable.iter().filter(|object| object.is_guard);
    let named = guards().take(UNREADABLE_GUARDS_LISTED);
    let mut names: Vec<String> = named
        .map(|object| {
            format!("{} {} cannot be read: {}", object.resource, quoted(object.key.as_str()), object.reason)
        })
        .collect();
    let count = guards().count();
    if count > names.len() {
        names.push(format!("{} more", count - names.len()));
    }
    check_flag(names.is_empty(), &names.join(", "))
}

fn check_flag(is_ok: bool, error: &str) -> Result<(), String> {
    if is_ok { Ok(()) } else { Err(error.to_owned()) }
}

const ENDPOINTS: [&str; 3] = ["healthz", "livez", "readyz"];
/// The checks that every endpoint lists first.
const FIRST: [Check; 3] = [Check::Ping, Check::Log, Check::Etcd];
/// Checks that only this server has.
const OWN: [Check; 2] = [Check::Directory, Check::Catalog];

/// Serves a health path; `None` for any other path.
pub async fn respond(worker: &Worker, path: &str, query: &Query<'_>) -> Option<HttpResponse> {
    let (endpoint, rest) = split(path)?;
    if path.ends_with('/') {
        return Some(page_not_found());
    }
    let checks = checks_for(worker, endpoint);
    let checks = checks.as_slice();
    if rest.is_empty() {
        return Some(run_checks(worker, endpoint, checks, query).await);
    }
    let Some(check) = checks.iter().find(|check| check.name(&worker.shared.health) == rest) else {
        return Some(page_not_found());
    };
    Some(match check.run_for(endpoint, worker).await {
        // Only an error of a single check has the headers of one.
        Ok(()) => HttpResponse::Ok().content_type(PLAIN_TEXT).body("ok"),
        Err(error) => plain(500, format!("internal server error: {error}\n")),
    })
}

fn checks_for(worker: &Worker, endpoint: &str) -> Vec<Check> {
    let is_ready = endpoint == "readyz";
    let mut checks = FIRST.to_vec();
    checks.extend([Check::EtcdReadiness].iter().filter(|_| is_ready));
    // Not of /livez: a restart would not mend a plugin.
    let kms = 0..worker.shared.health.kms.len();
    checks.extend(kms.map(Check::Kms).filter(|_| endpoint != "livez"));
    checks.extend([Check::InformerSync].iter().filter(|_| is_ready));
    checks.extend(worker.shared.health.hooks.iter().copied().map(Check::Hook));
    checks.extend(OWN);
    checks.extend([Check::Controllers].iter().filter(|_| is_ready && worker.shared.health.has_controllers));
    // Not of /livez: a restart would not help.
    checks.extend([Check::Guards, Check::Space].iter().filter(|_| is_ready));
    let is_undecryptable = !worker.shared.health.undecryptable.is_empty();
    checks.extend([Check::Decryption].iter().filter(|_| is_ready && is_undecryptable));
    checks.extend([Check::Shutdown].iter().filter(|_| is_ready));
    checks
}

/// All health paths, for the index of paths.
pub fn paths(worker: &Worker) -> Vec<String> {
    let paths_for = |endpoint: &&str| {
        let checks = checks_for(worker, endpoint).into_iter();
        let health = &worker.shared.health;
        let single: Vec<String> = checks.map(|check| format!("/{endpoint}/{}", check.name(health))).collect();
        [format!("/{endpoint}")].into_iter().chain(single)
    };
    ENDPOINTS.iter().flat_map(paths_for).collect()
}

/// Whether this is a health path.
pub fn is_health(path: &str) -> bool {
    split(path).is_some()
}

fn split(path: &str) -> Option<(&str, &str)> {
    let path = path.strip_prefix('/')?;
    let (endpoint, rest) = path.split_once('/').unwrap_or((path, ""));
    ENDPOINTS.contains(&endpoint).then_some((endpoint, rest))
}

async fn run_checks(worker: &Worker, endpoint: &str, checks: &[Check], query: &Query<'_>) -> HttpResponse {
    let mut excluded: BTreeSet<String> = query.all("exclude").map(str::to_owned).collect();
    let mut lines = String::new();
    let mut has_failed = false;
    for check in checks {
        let name = check.name(&worker.shared.health);
        if excluded.remove(name) {
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        let result = check.run_for(endpoint, worker).await;
        worker.shared.metrics.slis.count_check(name, endpoint, result.is_ok());
        match result {
            Ok(()) => match check.warning(&worker.shared.health) {
                Some(warning) => lines.push_str(&format!("[+]{name} ok: warning: {warning}\n")),
                None => lines.push_str(&format!("[+]{name} ok\n")),
            },
            Err(error) => {
                if worker.shared.health.failures.allows(worker.backend.clock.moment()) {
                    tracing::warn!(check = name, %error, "{endpoint} check failed");
                }
                // Anybody may read this page. The reason is only in the log and on the page of the check itself.
                lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
                has_failed = true;
            }
        }
    }
    if !excluded.is_empty() {
        let names: Vec<String> = excluded.iter().map(|name| quoted(name)).collect();
        lines.push_str(&format!(
            "warn: some health checks cannot be excluded: no matches for {}\n",
            names.join(",")
        ));
    }
    if has_failed {
        return plain(500, format!("{lines}{endpoint} check failed\n"));
    }
    if query.get("verbose").is_none() {
        return plain(200, "ok".to_owned());
    }
    plain(200, format!("{lines}{endpoint} check passed\n"))
}

#[cfg(test)]
mod tests {
    use pilothouse_types::clock::Timestamp;

    use super::*;

    #[test]
    fn controllers_check_names_controllers_that_are_down() {
        let mut down = BTreeMap::new();
        assert_eq!(check_controllers(&down), Ok(()));
        down.insert("namespace-controller", "panicked and waits to be restarted".to_owned());
        down.insert("event-expiry", "lost its informer and waits to be restarted".to_owned());
        let expected = "event-expiry lost its informer and waits to be restarted, \
                    namespace-controller panicked and waits to be restarted";
        assert_eq!(check_controllers(&down), Err(expected.to_owned()));
    }

    #[test]
    fn grace_ends_with_its_time() {
        let clock = Clock::manual(Timestamp(1));
        let grace = Grace::new(&clock, Duration::from_secs(5));
        clock.advance(Duration::from_secs(4));
        assert!(grace.lasts(&clock));
        clock.advance(Duration::from_secs(1));
        assert!(!grace.lasts(&clock) && !Grace::new(&clock, Duration::ZERO).lasts(&clock));
    }

    #[test]
    fn health_path_is_split_into_endpoint_and_check() {
        assert_eq!(split("/livez"), Some(("livez", "")));
        assert_eq!(split("/readyz/poststarthook/x"), Some(("readyz", "poststarthook/x")));
        assert_eq!(split("/livezz"), None);
        assert_eq!(split("/api"), None);
    }
}
