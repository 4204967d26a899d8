//! The lease that decides which server's loops work, should several servers share a store.
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

use super::client::{At, Client};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, Follows, ObjectChange};

/// The name of the lease. It differs from that of kube-controller-manager, which may run beside our loops.
pub const LEASE: &str = "pilothouse-controllers";
/// The duration of the lease without renewal.
const HOLDS: Duration = Duration::from_secs(60);
/// How often it is renewed: each renewal is a write.
const RENEWED_EVERY: Duration = Duration::from_secs(30);

/// The loops that run in every server.
const OF_EACH_SERVER: [&str; 9] = [
    super::availability::NAME,
    super::expiry::NAME,
    super::extension_documents::NAME,
    super::flow_schemas::NAME,
    super::own_objects::NAME,
    super::apiservice_registration::NAME,
    super::server_leases::NAME,
    super::service_repair::NAME,
    super::token_use::NAME,
];

/// Loops may work now that could not before. Answers nothing. On Full another is on its way; on Closed nobody waits.
#[derive(Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Wake;

/// Whether the loops of this server work. Shared by all of them.
#[derive(Clone, Default)]
pub struct Leadership(Rc<State>);

#[derive(Default)]
struct State {
    held: Cell<bool>,
    waiting: RefCell<Vec<Recipient<Wake>>>,
}

impl Leadership {
    /// Whether a loop may work. Loops of every server always may.
    pub fn allows(&self, name: &str) -> bool {
        self.0.held.get() || name == LEASE || OF_EACH_SERVER.contains(&name)
    }

    /// Wakes this loop when it may work.
    pub fn wakes(&self, waiting: Recipient<Wake>) {
        let mut all = self.0.waiting.borrow_mut();
        all.retain(Recipient::connected);
        all.push(waiting);
    }

    fn set(&self, held: bool) {
        if self.0.held.replace(held) != held {
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
    /// Tells the loops whether they may work.
    pub leadership: Leadership,
    /// Whether it has held the lease since the start. Whoever else is named before that is an earlier run of this server, perhaps
    /// under another host name: the store belongs to one process.
    pub has_begun: Cell<bool>,
}

impl LeaseHolder {
    async fn hold(&self) -> Result<Outcome> {
        let Ok(resource) = self.client.resource(LEASES) else {
            // Without the Lease API nobody else can hold it, either.
            self.leadership.set(true);
            return Ok(Outcome::Done);
        };
        let at = At { resource: &resource, namespace: SYSTEM_NAMESPACE, name: LEASE };
        let (me, now) = (self.identity().await?, self.clock.now());
        let Some(found) = self.client.read(at).await? else {
            self.client.create(at, &lease(&me, now)).await?;
            self.has_begun.set(true);
            self.leadership.set(true);
            return Ok(Outcome::After(RENEWED_EVERY));
        };
        let spec = found.get("spec").unwrap_or(&Value::Null);
        let renewed = until(spec, Duration::ZERO);
        if spec.str("holderIdentity") == me && renewed.plus(RENEWED_EVERY) > now && renewed <= now {
            self.has_begun.set(true);
            self.leadership.set(true);
            return Ok(Outcome::After(renewed.plus(RENEWED_EVERY).since(now)));
        }
        let holds =
            spec.get("leaseDurationSeconds").and_then(Value::as_int).and_then(|all| u64::try_from(all).ok());
        let ends = until(spec, Duration::from_secs(holds.unwrap_or(0)));
        let is_others = !matches!(spec.str("holderIdentity"), "" | "-") && spec.str("holderIdentity") != me;
        if is_others && ends > now && self.has_begun.get() {
            self.leadership.set(false);
            return Ok(Outcome::After(ends.since(now)));
        }
        self.client.edit(at, "", |lease| Ok(take(lease, &me, now))).await?;
        self.has_begun.set(true);
        self.leadership.set(true);
        Ok(Outcome::After(RENEWED_EVERY))
    }

    /// The identity of this server, which survives restarts.
    async fn identity(&self) -> Result<String> {
        let host =
            nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
        let resource = self.client.resource(NAMESPACES)?;
        let cluster = self
            .client
            .read_cached(At { resource: &resource, namespace: "", name: SYSTEM_NAMESPACE })
            .await?;
        let uid = cluster.map(|namespace| meta::of(&namespace).str("uid").to_owned()).unwrap_or_default();
        Ok(format!("{host}_{uid}"))
    }
}

/// When a lease ends, `span` after its last renewal.
fn until(spec: &Value, span: Duration) -> Timestamp {
    let (seconds, micros) = time::parse_micros(spec.str("renewTime")).unwrap_or_default();
    Timestamp::from_unix(seconds).plus(Duration::from_micros(micros.into())).plus(span)
}

fn moment(now: Timestamp) -> String {
    time::format_micros(now.unix_seconds(), now.subsec_micros())
}

fn lease(me: &str, now: Timestamp) -> Value {
    let text = format!(
        r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"{LEASE}","namespace":"{SYSTEM_NAMESPACE}"}}}}"#
    );
    let mut lease = json::read(text.as_bytes()).unwrap_or_default();
    take(&mut lease, me, now);
    lease.entry("spec").remove("leaseTransitions");
    lease
}

/// Makes this server the holder.
fn take(lease: &mut Value, me: &str, now: Timestamp) -> bool {
    let spec = lease.entry("spec");
    if spec.str("holderIdentity") != me {
        let transitions = spec.get("leaseTransitions").and_then(Value::as_int).unwrap_or(0);
        spec.set("leaseTransitions", transitions + 1);
        spec.set("acquireTime", moment(now));
        spec.set("holderIdentity", me);
    }
    spec.set("leaseDurationSeconds", i64::try_from(HOLDS.as_secs()).unwrap_or(i64::MAX));
    spec.set("renewTime", moment(now));
    true
}

impl Controller for LeaseHolder {
    type Key = ();

    fn follows(&self) -> Follows {
        Follows::These(&[LEASES])
    }

    fn longest_retry(&self) -> Duration {
        RENEWED_EVERY
    }

    fn begins_with(&self) -> Vec<()> {
        vec![()]
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<()>) {
        if change.at.is_some()
            && change.object.key.name() == LEASE
            && change.object.key.namespace() == SYSTEM_NAMESPACE
        {
            queue.add(());
        }
    }

    fn work(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Outcome> {
        async move { self.hold().await.unwrap_or_else(|status| Outcome::Again(status.to_string())) }
            .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_the_lease_from_another_is_a_transition() {
        let now = Timestamp(1_700_000_000_000_001);
        let mut held = lease("a", now);
        assert_eq!(held.at(&["spec", "leaseTransitions"]), None);
        assert_eq!(until(held.get("spec").unwrap(), HOLDS), now.plus(HOLDS));
        take(&mut held, "a", now);
        assert_eq!(held.at(&["spec", "leaseTransitions"]), None);
        take(&mut held, "b", now);
        assert_eq!(held.at(&["spec", "leaseTransitions"]), Some(&Value::Int(1)));
        assert_eq!(held.at(&["spec", "holderIdentity"]), Some(&"b".into()));
    }
}
