//! The lease that decides which server's controllers work, should several servers share a store.
//!
//! Today one process owns the store, so this server always has the lease. The holder's identity consists of the host and the
//! cluster, and survives restarts: a restarted server need not wait for its own lease.

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
use pilothouse_types::clock::{Clock, Timestamp};

use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name of the lease. It differs from that of kube-controller-manager, which may run beside our controllers.
pub const LEASE: &str = "pilothouse-controllers";
/// The duration of the lease without renewal.
const LEASE_DURATION: Duration = Duration::from_secs(60);
/// How often it is renewed: each renewal is a write.
const RENEW_INTERVAL: Duration = Duration::from_secs(30);

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
    waiting: RefCell<Vec<Recipient<Wake>>>,
}

impl Leadership {
    /// Whether this server holds the lease.
    pub fn is_leader(&self) -> bool {
        self.0.is_leader.get()
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
    /// Reads and writes objects.
    pub client: Client,
    /// The source of time.
    pub clock: Clock,
    /// Tells the controllers whether they may work.
    pub leadership: Leadership,
    /// Whether it has held the lease since the start. Until then, any other holder is an earlier run of this server, perhaps
    /// under another host name: the store belongs to one process.
    pub has_held_lease: Cell<bool>,
}

impl LeaseHolder {
    async fn hold(&self) -> Result<Outcome> {
        let Ok(resource) = self.client.resource(LEASES) else {
            // Without the Lease API nobody else can hold it, either.
            self.leadership.set(true);
            return Ok(Outcome::Done);
        };
        let target = ObjectRef { resource: &resource, namespace: SYSTEM_NAMESPACE, name: LEASE };
        let (identity, now) = (self.identity().await?, self.clock.now());
        let Some(lease) = self.client.read(target).await? else {
            self.client.create(target, &new_lease(&identity, now)).await?;
            self.has_held_lease.set(true);
            self.leadership.set(true);
            return Ok(Outcome::RequeueAfter(RENEW_INTERVAL));
        };
        let spec = lease.get("spec").unwrap_or(&Value::Null);
        let renewed = renewed_plus(spec, Duration::ZERO);
        if spec.str("holderIdentity") == identity && renewed.plus(RENEW_INTERVAL) > now && renewed <= now {
            self.has_held_lease.set(true);
            self.leadership.set(true);
            return Ok(Outcome::RequeueAfter(renewed.plus(RENEW_INTERVAL).since(now)));
        }
        let duration = spec
            .get("leaseDurationSeconds")
            .and_then(Value::as_int)
            .and_then(|seconds| u64::try_from(seconds).ok());
        let expiry = renewed_plus(spec, Duration::from_secs(duration.unwrap_or(0)));
        let is_held_by_other =
            !matches!(spec.str("holderIdentity"), "" | "-") && spec.str("holderIdentity") != identity;
        if is_held_by_other && expiry > now && self.has_held_lease.get() {
            self.leadership.set(false);
            return Ok(Outcome::RequeueAfter(expiry.since(now)));
        }
        self.client.edit(target, "", |lease| Ok(acquire(lease, &identity, now))).await?;
        self.has_held_lease.set(true);
        self.leadership.set(true);
        Ok(Outcome::RequeueAfter(RENEW_INTERVAL))
    }

    /// The identity of this server, which survives restarts.
    async fn identity(&self) -> Result<String> {
        let host =
            nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
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

/// When a lease ends, `span` after its last renewal.
fn renewed_plus(spec: &Value, span: Duration) -> Timestamp {
    let (seconds, micros) = time::parse_micros(spec.str("renewTime")).unwrap_or_default();
    Timestamp::from_unix(seconds).plus(Duration::from_micros(micros.into())).plus(span)
}

fn micro_time(now: Timestamp) -> String {
    time::format_micros(now.unix_seconds(), now.subsec_micros())
}

fn new_lease(identity: &str, now: Timestamp) -> Value {
    let text = format!(
        r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"{LEASE}","namespace":"{SYSTEM_NAMESPACE}"}}}}"#
    );
    let mut lease = json::read(text.as_bytes()).unwrap_or_default();
    acquire(&mut lease, identity, now);
    lease.entry("spec").remove("leaseTransitions");
    lease
}

/// Makes this server the holder.
fn acquire(lease: &mut Value, identity: &str, now: Timestamp) -> bool {
    let spec = lease.entry("spec");
    if spec.str("holderIdentity") != identity {
        let transitions = spec.get("leaseTransitions").and_then(Value::as_int).unwrap_or(0);
        spec.set("leaseTransitions", transitions + 1);
        spec.set("acquireTime", micro_time(now));
        spec.set("holderIdentity", identity);
    }
    spec.set("leaseDurationSeconds", i64::try_from(LEASE_DURATION.as_secs()).unwrap_or(i64::MAX));
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
        RENEW_INTERVAL
    }

    fn initial_keys(&self) -> Vec<()> {
        vec![()]
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<()>) {
        if change.time.is_some()
            && change.object.key.name() == LEASE
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
    fn acquiring_the_lease_of_another_holder_counts_as_transition() {
        let now = Timestamp(1_700_000_000_000_001);
        let mut lease = new_lease("a", now);
        assert_eq!(lease.get_path(&["spec", "leaseTransitions"]), None);
        assert_eq!(renewed_plus(lease.get("spec").unwrap(), LEASE_DURATION), now.plus(LEASE_DURATION));
        acquire(&mut lease, "a", now);
        assert_eq!(lease.get_path(&["spec", "leaseTransitions"]), None);
        acquire(&mut lease, "b", now);
        assert_eq!(lease.get_path(&["spec", "leaseTransitions"]), Some(&Value::Int(1)));
        assert_eq!(lease.get_path(&["spec", "holderIdentity"]), Some(&"b".into()));
    }
}
