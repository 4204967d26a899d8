//! The lease that decides which server's controllers work, should several servers share a store.
//!
//! If one process owns the store, this server always has the lease. The holder's identity consists of the host and the cluster then, and
//! survives restarts: a restarted server need not wait for its own lease.
//!
//! Servers that share a store compete for it (`Rivals`) by the rules of client-go: clocks may differ, so each measures by its own how
//! long it has seen the lease without a change, and whoever cannot renew it stops working before others may begin.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use actix::prelude::*;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::stores::LEASES;
use pilothouse_apimachinery::well_known::{NAMESPACES, SYSTEM_NAMESPACE};
use pilothouse_types::clock::{Clock, Moment, Timestamp};

use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};
use crate::pki::random;

/// The name of the lease of most controllers. It differs from that of kube-controller-manager, which may run beside our controllers.
pub const LEASE: &str = "pilothouse-controllers";

/// A lease in kube-system: how long it lasts, and when it is renewed.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSettings {
    /// Its name.
    pub name: &'static str,
    /// Whether servers share the store, and so compete for it.
    pub has_rivals: bool,
    /// How long it lasts without a renewal.
    pub duration: Duration,
    /// How often it is renewed: each renewal is a write.
    pub renew_interval: Duration,
    /// How long the controllers of a server work without a renewal, if it has rivals. The rest is for what they have begun.
    pub work_duration: Duration,
    /// How soon a server that lacks the lease, or could not renew it, tries again.
    pub retry_interval: Duration,
}

/// [`LEASE`] if one process owns the store.
pub const OWN_STORE: LeaseSettings = LeaseSettings {
    name: LEASE,
    has_rivals: false,
    duration: Duration::from_secs(60),
    renew_interval: Duration::from_secs(30),
    work_duration: Duration::from_secs(60),
    retry_interval: Duration::from_secs(30),
};

/// The same among servers that share the store. Except for the interval of renewals, these are the defaults of client-go: LeaseDuration,
/// RenewDeadline (the work duration) and RetryPeriod.
pub const SHARED_STORE: LeaseSettings = LeaseSettings {
    name: LEASE,
    has_rivals: true,
    duration: Duration::from_secs(15),
    renew_interval: Duration::from_secs(4),
    work_duration: Duration::from_secs(10),
    retry_interval: Duration::from_secs(2),
};

/// Controllers may work now that could not before. Answers nothing. On Full another one is queued; on Closed nobody waits.
#[derive(Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Wake;

/// Whether the controllers of this server work. Shared by all of them.
#[derive(Clone, Default)]
pub struct Leadership(Rc<State>);

#[derive(Default)]
struct State {
    is_leader: Cell<bool>,
    /// The last renewal, without which leadership ends; `None` if no other server shares the store, so that it does not end.
    term: RefCell<Option<Term>>,
    waiting: RefCell<Vec<Recipient<Wake>>>,
}

struct Term {
    clock: Clock,
    renewed: Moment,
    length: Duration,
}

impl Leadership {
    /// Whether this server holds the lease.
    pub fn is_leader(&self) -> bool {
        let is_in_term = |term: &Term| term.clock.elapsed(term.renewed) < term.length;
        self.0.is_leader.get() && self.0.term.borrow().as_ref().is_none_or(is_in_term)
    }

    /// The server leads for a while: it began to renew the lease at this moment.
    fn renew(&self, clock: &Clock, renewed: Moment, length: Duration) {
        // If the last term is over, whoever waits has to be told that it begins again.
        self.0.is_leader.set(self.is_leader());
        *self.0.term.borrow_mut() = Some(Term { clock: clock.clone(), renewed, length });
        self.set(true);
    }

    /// Sends [`Wake`] to this runner when the lease changes.
    pub fn notify_when_leading(&self, runner: Recipient<Wake>) {
        let mut waiting = self.0.waiting.borrow_mut();
        waiting.retain(Recipient::connected);
        waiting.push(runner);
    }

    fn set(&self, held: bool) {
        if self.0.is_leader.replace(held) != held {
            tracing::info!(held, "the leader election lease changed");
            for waiting in self.0.waiting.borrow().iter() {
                let _gone = waiting.try_send(Wake);
            }
        }
    }
}

/// Holds and renews the lease.
pub struct LeaseHolder {
    settings: LeaseSettings,
    client: Client,
    clock: Clock,
    /// Tells the controllers whether they may work.
    leadership: Leadership,
    /// Whether it has held the lease since the start. Until then, any other holder is an earlier run of this server, perhaps
    /// under another host name: the store belongs to one process.
    has_held_lease: Cell<bool>,
    /// If servers share the store: what this one knows of the others.
    rivals: Option<Rivals>,
}

/// What a server knows of the others that compete for the lease.
struct Rivals {
    /// Tells this process from others, also on the same host.
    process: String,
    /// What the lease said last, and since when.
    observed: RefCell<Option<(Value, Moment)>>,
    /// When this server began to write what the lease says now.
    written: Cell<Option<Moment>>,
}

impl Rivals {
    /// Nothing is known of them.
    fn new() -> Rivals {
        Rivals { process: random::uuid(), observed: RefCell::default(), written: Cell::default() }
    }

    /// Notes what the lease says. Returns since when it has said so.
    fn observe(&self, spec: &Value, now: Moment) -> Moment {
        let mut observed = self.observed.borrow_mut();
        match &*observed {
            Some((known, since)) if known == spec => *since,
            _ => {
                *observed = Some((spec.clone(), now));
                now
            }
        }
    }
}

impl LeaseHolder {
    /// Holds this lease from now on, and tells by `leadership` whether it does.
    pub fn new(settings: LeaseSettings, client: Client, clock: Clock, leadership: Leadership) -> LeaseHolder {
        LeaseHolder {
            settings,
            client,
            clock,
            leadership,
            has_held_lease: Cell::new(false),
            rivals: settings.has_rivals.then(Rivals::new),
        }
    }

    async fn hold(&self) -> Result<Outcome> {
        let Ok(resource) = self.client.resource(LEASES) else {
            // Without the Lease API nobody else can hold it, either: among servers that share the store nobody may work then.
            self.leadership.set(self.rivals.is_none());
            return Ok(Outcome::Done);
        };
        let target = ObjectRef { resource: &resource, namespace: SYSTEM_NAMESPACE, name: self.settings.name };
        let LeaseSettings { duration, renew_interval, .. } = self.settings;
        if let Some(rivals) = &self.rivals {
            return self.compete(rivals, target).await;
        }
        let (identity, now) = (self.identity().await?, self.clock.now());
        let Some(lease) = self.client.read(target).await? else {
            self.client.create(target, &new_lease(target.name, &identity, duration, now)).await?;
            self.has_held_lease.set(true);
            self.leadership.set(true);
            return Ok(Outcome::RequeueAfter(renew_interval));
        };
        let spec = lease.get("spec").unwrap_or(&Value::Null);
        let renewed = renewed_plus(spec, Duration::ZERO);
        if spec.str("holderIdentity") == identity && renewed.plus(renew_interval) > now && renewed <= now {
            self.has_held_lease.set(true);
            self.leadership.set(true);
            return Ok(Outcome::RequeueAfter(renewed.plus(renew_interval).since(now)));
        }
        let lasts = spec
            .get("leaseDurationSeconds")
            .and_then(Value::as_int)
            .and_then(|seconds| u64::try_from(seconds).ok());
        let expiry = renewed_plus(spec, Duration::from_secs(lasts.unwrap_or(0)));
        let is_held_by_other =
            !matches!(spec.str("holderIdentity"), "" | "-") && spec.str("holderIdentity") != identity;
        if is_held_by_other && expiry > now && self.has_held_lease.get() {
            self.leadership.set(false);
            return Ok(Outcome::RequeueAfter(expiry.since(now)));
        }
        self.client.edit(target, "", |lease| Ok(acquire(lease, &identity, duration, now))).await?;
        self.has_held_lease.set(true);
        self.leadership.set(true);
        Ok(Outcome::RequeueAfter(renew_interval))
    }

    /// Renews the lease, or takes it over when its holder has not renewed it for as long as it lasts.
    async fn compete(&self, rivals: &Rivals, target: ObjectRef<'_>) -> Result<Outcome> {
        let (identity, now) = (format!("{}_{}", host_name(), rivals.process), self.clock.now());
        let LeaseSettings { duration, renew_interval, work_duration, retry_interval, .. } = self.settings;
        let Some(lease) = self.client.read(target).await? else {
            rivals.written.set(Some(self.clock.moment()));
            self.client.create(target, &new_lease(target.name, &identity, duration, now)).await?;
            return Ok(Outcome::RequeueAfter(Duration::ZERO));
        };
        let spec = lease.get("spec").unwrap_or(&Value::Null);
        let unchanged_for = self.clock.elapsed(rivals.observe(spec, self.clock.moment()));
        let holder = spec.str("holderIdentity");
        if holder == identity {
            if let Some(written) = rivals.written.get() {
                self.leadership.renew(&self.clock, written, work_duration);
            }
            if unchanged_for < renew_interval {
                return Ok(Outcome::RequeueAfter(renew_interval - unchanged_for));
            }
        } else {
            self.leadership.set(false);
            let seconds = spec.get("leaseDurationSeconds").and_then(Value::as_int);
            let lasts =
                Duration::from_secs(seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0));
            if !matches!(holder, "" | "-") && unchanged_for < lasts {
                return Ok(Outcome::RequeueAfter((lasts - unchanged_for).min(retry_interval)));
            }
        }
        // What it says afterwards decides: another server may have been faster.
        let began = self.clock.moment();
        let acquired = |lease: &mut Value| Ok(acquire(lease, &identity, duration, now));
        self.client.edit_if_unchanged(target, "", &lease, acquired).await?;
        rivals.written.set(Some(began));
        Ok(Outcome::RequeueAfter(Duration::ZERO))
    }

    /// The identity of this server, which survives restarts.
    async fn identity(&self) -> Result<String> {
        let host = host_name();
        let resource = self.client.resource(NAMESPACES)?;
        let cluster = self
            .client
            .read_cached(ObjectRef { resource: &resource, namespace: "", name: SYSTEM_NAMESPACE })
            .await?;
        let uid =
            cluster.map(|namespace| meta::metadata(&namespace).str("uid").to_owned()).unwrap_or_default();
        Ok(format!("{host}_{uid}"))
    }
}

fn host_name() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default()
}

/// When a lease ends, `span` after its last renewal.
fn renewed_plus(spec: &Value, span: Duration) -> Timestamp {
    let (seconds, micros) = time::parse_micros(spec.str("renewTime")).unwrap_or_default();
    Timestamp::from_unix(seconds).plus(Duration::from_micros(micros.into())).plus(span)
}

pub(super) fn micro_time(now: Timestamp) -> String {
    time::format_micros(now.unix_seconds(), now.subsec_micros())
}

fn new_lease(name: &str, identity: &str, duration: Duration, now: Timestamp) -> Value {
    let text = format!(
        r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"{name}","namespace":"{SYSTEM_NAMESPACE}"}}}}"#
    );
    let mut lease = json::read(text.as_bytes()).unwrap_or_default();
    acquire(&mut lease, identity, duration, now);
    lease.entry("spec").remove("leaseTransitions");
    lease
}

/// Makes this server the holder.
fn acquire(lease: &mut Value, identity: &str, duration: Duration, now: Timestamp) -> bool {
    let spec = lease.entry("spec");
    if spec.str("holderIdentity") != identity {
        let transitions = spec.get("leaseTransitions").and_then(Value::as_int).unwrap_or(0);
        spec.set("leaseTransitions", transitions + 1);
        spec.set("acquireTime", micro_time(now));
        spec.set("holderIdentity", identity);
    }
    spec.set("leaseDurationSeconds", i64::try_from(duration.as_secs()).unwrap_or(i64::MAX));
    spec.set("renewTime", micro_time(now));
    true
}

impl Controller for LeaseHolder {
    type Key = ();

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[LEASES])
    }

    fn max_retry_delay(&self) -> Duration {
        self.settings.retry_interval
    }

    fn initial_keys(&self) -> Vec<()> {
        vec![()]
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<()>) {
        if change.time.is_some()
            && change.object.key.name() == self.settings.name
            && change.object.key.namespace() == SYSTEM_NAMESPACE
        {
            queue.add(());
        }
    }

    fn reconcile(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.hold().await }.boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn term_ends_without_renewal() {
        let clock = Clock::manual(Timestamp(1));
        let leadership = Leadership::default();
        let length = SHARED_STORE.work_duration;
        assert!(!leadership.is_leader());
        leadership.renew(&clock, clock.moment(), length);
        clock.advance(length - Duration::from_secs(1));
        assert!(leadership.is_leader());
        clock.advance(Duration::from_secs(1));
        assert!(!leadership.is_leader(), "others may not begin for a while yet");
        leadership.renew(&clock, clock.moment(), length);
        assert!(leadership.is_leader());
        leadership.set(false);
        assert!(!leadership.is_leader());
    }

    #[test]
    fn lease_counts_from_its_last_change_as_this_server_saw_it() {
        let (clock, rivals) = (Clock::manual(Timestamp(1)), Rivals::new());
        let spec = |renewed: u64| {
            let mut lease = new_lease(LEASE, "other", SHARED_STORE.duration, Timestamp(renewed));
            lease.entry("spec").clone()
        };
        let first = clock.moment();
        assert_eq!(rivals.observe(&spec(1), first), first);
        clock.advance(Duration::from_secs(9));
        assert_eq!(rivals.observe(&spec(1), clock.moment()), first, "whatever its times say");
        let second = clock.moment();
        assert_eq!(rivals.observe(&spec(2), second), second);
    }

    #[test]
    fn acquiring_the_lease_of_another_holder_counts_as_transition() {
        let now = Timestamp(1_700_000_000_000_001);
        let duration = OWN_STORE.duration;
        let mut lease = new_lease(LEASE, "a", duration, now);
        assert_eq!(lease.get_path(&["spec", "leaseTransitions"]), None);
        assert_eq!(renewed_plus(lease.get("spec").unwrap(), duration), now.plus(duration));
        acquire(&mut lease, "a", duration, now);
        assert_eq!(lease.get_path(&["spec", "leaseTransitions"]), None);
        acquire(&mut lease, "b", duration, now);
        assert_eq!(lease.get_path(&["spec", "leaseTransitions"]), Some(&Value::Int(1)));
        assert_eq!(lease.get_path(&["spec", "holderIdentity"]), Some(&"b".into()));
    }
}
