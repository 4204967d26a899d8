//! leader-election-controller: elects who holds a Lease among its LeaseCandidates, with the gate CoordinatedLeaderElection.
//!
//! Components create a candidate each and wait until the lease names them. The controller asks all candidates of a lease whether they
//! take part, by a time in them (`pingTime`) that they answer by another one (`renewTime`), and writes the winner into the lease, or into
//! `preferredHolder` of a lease that somebody else still renews. It keeps no election in memory: each step follows from the lease, its
//! candidates and the time, so that another server can go on at any point.

mod candidate;
mod election;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::stores::{LEASE_CANDIDATES, LEASES};
use pilothouse_types::clock::{Clock, Moment, Timestamp};
use pilothouse_types::object::{Key, Object, Revision, TypeName};

use crate::registry::Origin;

pub use self::candidate::{Candidate, TICK};
use self::candidate::{ELECTION_DURATION, parse_micro_time};
use self::election::{Election, LeaseState, Step, next_step};
use super::attempts;
use super::client::{Client, ObjectRef};
use super::lease::{Leadership, LeaseSettings, micro_time};
use super::lease_candidate_expiry::{self, CandidateExpiry};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};
use super::start::ControllerContext;

/// The name in health checks and metrics.
pub const NAME: &str = "leader-election-controller";
/// The lease by which API servers agree which of them elects. The reference's name, so that both can share an etcd.
pub const LEASE: &str = "leader-election-controller";
/// The name of its holder in health checks and metrics.
pub const LEASE_HOLDER: &str = "leader-election-controller-lease";
/// Candidates that are pinged at the same time.
const PINGS_IN_FLIGHT: usize = 8;
/// How long candidates that do not agree are left alone, unless one of them changes.
const DISAGREEMENT_PAUSE: Duration = Duration::from_secs(60);

/// Elects leaders.
pub struct CoordinatedElection {
    client: Client,
    clock: Clock,
    /// The candidates of each lease, by name. Followed in every server, so that each can take over at any time.
    candidates: RefCell<HashMap<Key, BTreeMap<String, Candidate>>>,
    /// Since when each lease with candidates says what it says. As among the holders of any lease, this decides when it ends: clocks of
    /// other hosts may differ.
    observed: RefCell<HashMap<Key, (Revision, Moment)>>,
}

impl CoordinatedElection {
    /// A controller that reads and writes through this client.
    pub fn new(client: Client, clock: Clock) -> CoordinatedElection {
        CoordinatedElection { client, clock, candidates: RefCell::default(), observed: RefCell::default() }
    }

    /// Notes that a lease was at this revision at this moment. Returns since when.
    fn observe(&self, lease: &Object, now: Moment) -> Moment {
        let mut observed = self.observed.borrow_mut();
        let entry = observed.entry(lease.key.clone()).or_insert((lease.revision, now));
        if entry.0 != lease.revision {
            *entry = (lease.revision, now);
        }
        entry.1
    }

    fn is_contested(&self, lease: &Key) -> bool {
        self.candidates.borrow().contains_key(lease)
    }

    /// Takes up a new state of a candidate. Returns its lease, if its election may go on now.
    fn update_candidate(&self, object: &Object, is_deleted: bool) -> Option<Key> {
        let (lease_name, candidate) = Candidate::read(&object.bytes)?;
        let lease = Key::namespaced(object.key.namespace(), &lease_name);
        let mut all = self.candidates.borrow_mut();
        if is_deleted {
            let candidates = all.get_mut(&lease)?;
            candidates.remove(object.key.name());
            if candidates.is_empty() {
                all.remove(&lease);
            }
            return Some(lease);
        }
        // A ping is our own work: only the answer is news.
        let is_news = !candidate.is_unanswered();
        all.entry(lease.clone()).or_default().insert(object.key.name().to_owned(), candidate);
        is_news.then_some(lease)
    }

    async fn advance(&self, key: &Key) -> Result<Outcome> {
        let (Ok(leases), Ok(candidates)) =
            (self.client.resource(LEASES), self.client.resource(LEASE_CANDIDATES))
        else {
            // Without the API nobody can be a candidate.
            return Ok(Outcome::Done);
        };
        let target = ObjectRef::new(&leases, key);
        let lease = match self.client.cached(target).await? {
            Some(object) => Some((self.client.load(&leases, &object)?, object)),
            None => None,
        };
        if !self.is_contested(key) {
            self.observed.borrow_mut().remove(key);
            return Ok(Outcome::Done);
        }
        let state = lease.as_ref().map(|(lease, object)| {
            let since = self.observe(object, self.clock.moment());
            lease_state(lease, self.clock.elapsed(since))
        });
        let now = self.clock.now();
        let step = match self.candidates.borrow().get(key) {
            Some(candidates) => next_step(state.as_ref(), candidates, now),
            None => Step::Wait,
        };
        match step {
            Step::Wait => Ok(Outcome::Done),
            Step::CheckAfter(pause) => Ok(Outcome::RequeueAfter(pause)),
            Step::Disagree(reason) => {
                tracing::warn!(lease = key.as_str(), reason, "no leader can be elected");
                Ok(Outcome::RequeueAfter(DISAGREEMENT_PAUSE))
            }
            Step::Ping(names) => {
                let pings = names.iter().map(|name| {
                    let target =
                        ObjectRef { resource: &candidates, namespace: key.namespace(), name: name.as_str() };
                    self.ping(target, now)
                });
                attempts::all(pings, PINGS_IN_FLIGHT).await?;
                Ok(Outcome::RequeueAfter(ELECTION_DURATION))
            }
            Step::Conclude(election) => {
                let is_expired = state.is_some_and(|state| state.remaining.is_zero());
                self.conclude(target, &election, lease.map(|(lease, _)| lease), is_expired).await?;
                Ok(Outcome::RequeueAfter(ELECTION_DURATION))
            }
        }
    }

    /// Asks a candidate whether it takes part, unless that was done meanwhile.
    async fn ping(&self, target: ObjectRef<'_>, now: Timestamp) -> Result<()> {
        let ping = |candidate: &mut Value| {
            let spec = candidate.entry("spec");
            let is_unanswered = parse_micro_time(spec.str("pingTime")).is_some_and(|pinged| {
                parse_micro_time(spec.str("renewTime")).is_none_or(|time| time < pinged)
            });
            if !is_unanswered {
                spec.set("pingTime", micro_time(now));
            }
            Ok(!is_unanswered)
        };
        self.client.edit(target, "", ping).await.ignore_not_found().map(drop)
    }

    /// Writes the result of an election. Another change of the lease begins the next step.
    async fn conclude(
        &self,
        target: ObjectRef<'_>,
        election: &Election,
        lease: Option<Value>,
        is_expired: bool,
    ) -> Result<()> {
        let (namespace, name, now) = (target.namespace, target.name, self.clock.now());
        let Some(lease) = lease else {
            self.client.create(target, &election.new_lease(namespace, name, now)).await?;
            tracing::info!(namespace, lease = name, leader = election.leader, "elected a leader");
            return Ok(());
        };
        if !election.record(&mut lease.clone(), is_expired, now) {
            return Ok(());
        }
        let record = |lease: &mut Value| Ok(election.record(lease, is_expired, now));
        self.client.edit_if_unchanged(target, "", &lease, record).await?;
        tracing::info!(namespace, lease = name, leader = election.leader, "elected another leader");
        Ok(())
    }
}

/// What a lease says that has not changed for this long.
fn lease_state(lease: &Value, unchanged_for: Duration) -> LeaseState {
    let spec = lease.get("spec").unwrap_or(&Value::Null);
    let seconds = spec.get("leaseDurationSeconds").and_then(Value::as_int);
    let duration = seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    let has_begun = parse_micro_time(spec.str("renewTime")).is_some();
    LeaseState {
        holder: spec.str("holderIdentity").to_owned(),
        strategy: spec.str("strategy").to_owned(),
        remaining: duration.filter(|_| has_begun).unwrap_or_default().saturating_sub(unchanged_for),
    }
}

impl ControllerContext {
    /// Starts the controllers of coordinated leader election. They work in one of the servers that share a store, the holder of this
    /// lease.
    pub(super) fn run_election(&self, lease: LeaseSettings) {
        let (client, leadership) = (self.server_client(Origin::Client), Leadership::default());
        self.hold_lease(LEASE_HOLDER, lease, client.clone(), &leadership);
        let (own_client, clock) = (client.clone(), self.deps.clock.clone());
        self.run_led_by(&leadership, NAME, move || {
            CoordinatedElection::new(own_client.clone(), clock.clone())
        });
        let clock = self.deps.clock.clone();
        self.run_led_by(&leadership, lease_candidate_expiry::NAME, move || CandidateExpiry {
            client: client.clone(),
            clock: clock.clone(),
        });
    }
}

impl Controller for CoordinatedElection {
    /// A lease.
    type Key = Key;

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[LEASES, LEASE_CANDIDATES])
    }

    fn max_retry_delay(&self) -> Duration {
        ELECTION_DURATION
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        if change.type_name.as_str() == LEASE_CANDIDATES {
            if let Some(lease) = self.update_candidate(change.object, change.is_deleted) {
                queue.add(lease);
            }
            return;
        }
        // Most leases have no candidates, and some of them are renewed all the time: those of nodes.
        let lease = &change.object.key;
        if !self.is_contested(lease) {
            return;
        }
        if change.is_deleted {
            self.observed.borrow_mut().remove(lease);
        } else {
            self.observe(change.object, self.clock.moment().minus(change.age));
        }
        queue.add(lease.clone());
    }

    fn on_list(&self, type_name: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Key>) {
        if type_name.as_str() == LEASE_CANDIDATES {
            // Deletions may have been missed. An election that goes on without a candidate finds out by itself.
            let known = std::mem::take(&mut *self.candidates.borrow_mut());
            known.into_keys().for_each(|lease| queue.add(lease));
        }
        self.on_each_object(type_name, snapshot, queue);
    }

    fn reconcile(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.advance(&key).await }.boxed_local()
    }
}

#[cfg(test)]
mod tests;
