//! The rules of an election: who is asked, when, and who is elected. Pure functions of a lease, its candidates and the time.

use std::collections::BTreeMap;
use std::time::Duration;

use pilothouse_apimachinery::value::Value;
use pilothouse_types::clock::Timestamp;

use super::super::lease::micro_time;
use super::candidate::{Candidate, TICK};

/// The strategy by which this server elects: the candidate that emulates the oldest version leads, so that no component is newer than
/// its leader expects. Strategies of other names belong to other controllers.
pub const OLDEST_EMULATION_VERSION: &str = "OldestEmulationVersion";
/// How long a new leader may take to renew its lease for the first time; then it says itself how long the lease lasts.
const FIRST_LEASE_SECONDS: i64 = 5;
/// Candidates that have not renewed themselves for so long are asked whether they still exist.
const STALE_AFTER: Duration = Duration::from_secs(15 * 60);

/// What a lease says now.
#[derive(Clone, Debug)]
pub struct LeaseState {
    /// Its holder; empty if it has none.
    pub holder: String,
    /// Its strategy; empty if no leader was elected yet.
    pub strategy: String,
    /// How long it still lasts unless it is renewed.
    pub remaining: Duration,
}

impl LeaseState {
    fn is_held(&self) -> bool {
        !self.holder.is_empty() && !self.remaining.is_zero()
    }
}

/// The next step of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until the lease or a candidate changes.
    Wait,
    /// Nothing, until they change or this time has passed.
    CheckAfter(Duration),
    /// These candidates are asked whether they take part.
    Ping(Vec<String>),
    /// The election is decided.
    Conclude(Election),
    /// The candidates do not agree, for this reason.
    Disagree(String),
}

/// The result of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// The strategy of the candidates.
    pub strategy: String,
    /// Who is elected; `None` if another controller elects by this strategy.
    pub leader: Option<String>,
}

type NamedCandidate<'a> = (&'a str, &'a Candidate);

/// What to do next about a lease and all who want to hold it.
pub fn next_step(
    lease: Option<&LeaseState>,
    candidates: &BTreeMap<String, Candidate>,
    now: Timestamp,
) -> Step {
    let candidates: Vec<NamedCandidate<'_>> = candidates
        .iter()
        .map(|(name, candidate)| (name.as_str(), candidate))
        .filter(|(_, candidate)| candidate.renewed.is_some() && candidate.expiry() >= now)
        .collect();
    if candidates.is_empty() {
        return Step::Wait;
    }
    match lease.and_then(|lease| step_while_led(lease, &candidates, now)) {
        Some(step) => step,
        None => step_of_election(&candidates, now),
    }
}

/// What to do about a lease that needs no election now; `None` if it needs one. Candidates that did not answer are not asked again
/// until they show themselves, so they do not cause elections either.
fn step_while_led(lease: &LeaseState, candidates: &[NamedCandidate<'_>], now: Timestamp) -> Option<Step> {
    let is_left_to_others = lease.strategy != OLDEST_EMULATION_VERSION
        && candidates.iter().all(|(_, candidate)| candidate.strategy == lease.strategy);
    if is_left_to_others {
        return Some(Step::Wait);
    }
    if !lease.is_held() {
        return None;
    }
    let responsive: Vec<NamedCandidate<'_>> =
        candidates.iter().copied().filter(|(_, candidate)| !candidate.is_silent(now)).collect();
    let oldest_renewal = responsive.iter().filter_map(|(_, candidate)| candidate.renewed).min();
    let fresh_for = oldest_renewal.map(|renewed| renewed.plus(STALE_AFTER + TICK).since(now));
    if fresh_for.is_some_and(|fresh_for| fresh_for.is_zero()) {
        return None;
    }
    let pause = fresh_for.map_or(lease.remaining, |fresh_for| fresh_for.min(lease.remaining));
    let is_settled = match strategy_of(&responsive) {
        Err(reason) => return Some(Step::Disagree(reason)),
        Ok(Some(OLDEST_EMULATION_VERSION)) => best_of(&responsive).is_none_or(|best| best == lease.holder),
        Ok(_) => true,
    };
    is_settled.then_some(Step::CheckAfter(pause))
}

fn step_of_election(candidates: &[NamedCandidate<'_>], now: Timestamp) -> Step {
    let needs_ping = |candidate: &Candidate| !candidate.is_present(now) && !candidate.is_unanswered();
    let to_ping = candidates.iter().filter(|(_, candidate)| needs_ping(candidate));
    let to_ping: Vec<String> = to_ping.map(|(name, _)| (*name).to_owned()).collect();
    if !to_ping.is_empty() {
        return Step::Ping(to_ping);
    }
    let pending = candidates.iter().filter(|(_, candidate)| candidate.is_pending(now));
    if let Some(longest) = pending.map(|(_, candidate)| candidate.answer_time(now)).max() {
        return Step::CheckAfter(longest);
    }
    let present: Vec<NamedCandidate<'_>> =
        candidates.iter().copied().filter(|(_, candidate)| candidate.is_present(now)).collect();
    let strategy = match strategy_of(&present) {
        Err(reason) => return Step::Disagree(reason),
        // Nobody answers. Whoever comes back renews itself, which starts another election.
        Ok(None) => return Step::Wait,
        Ok(Some(strategy)) => strategy.to_owned(),
    };
    if strategy != OLDEST_EMULATION_VERSION {
        return Step::Conclude(Election { strategy, leader: None });
    }
    match best_of(&present) {
        Some(best) => Step::Conclude(Election { strategy, leader: Some(best.to_owned()) }),
        None => Step::Disagree("no candidate has a valid version".to_owned()),
    }
}

/// The strategy of the candidates with the newest binaries; `None` without candidates. These must agree.
fn strategy_of<'a>(candidates: &[NamedCandidate<'a>]) -> Result<Option<&'a str>, String> {
    let newest = candidates.iter().map(|(_, candidate)| &candidate.binary_version).max();
    let mut newest = candidates.iter().filter(|(_, candidate)| Some(&candidate.binary_version) == newest);
    let Some((first, candidate)) = newest.next() else { return Ok(None) };
    let strategy = candidate.strategy.as_str();
    match newest.find(|(_, other)| other.strategy != strategy) {
        None => Ok(Some(strategy)),
        Some((other, candidate)) => Err(format!(
            "candidates \"{first}\", \"{other}\" at same binary version but received differing strategies {strategy}, {}",
            candidate.strategy
        )),
    }
}

/// The candidate that emulates the oldest version. Among equals, the one with the oldest binary, then the first one.
fn best_of<'a>(candidates: &[NamedCandidate<'a>]) -> Option<&'a str> {
    let ranked = candidates.iter().filter_map(|(name, candidate)| {
        let versions = (candidate.emulation_version.as_ref()?, candidate.binary_version.as_ref()?);
        Some(((versions, candidate.created, *name), *name))
    });
    ranked.min_by(|(left, _), (right, _)| left.cmp(right)).map(|(_, name)| name)
}

impl Election {
    /// The lease of a leader who is the first.
    pub fn new_lease(&self, namespace: &str, name: &str, now: Timestamp) -> Value {
        let mut lease = Value::object();
        lease.set("apiVersion", "coordination.k8s.io/v1");
        lease.set("kind", "Lease");
        lease.entry("metadata").set("name", name);
        lease.entry("metadata").set("namespace", namespace);
        let spec = lease.entry("spec");
        spec.set("strategy", self.strategy.as_str());
        spec.set("leaseDurationSeconds", FIRST_LEASE_SECONDS);
        spec.set("renewTime", micro_time(now));
        if let Some(leader) = &self.leader {
            spec.set("holderIdentity", leader.as_str());
        }
        lease
    }

    /// Writes the result into a lease. A holder who still renews it is asked to hand it over; otherwise the leader gets it at once.
    /// Returns whether anything has changed.
    pub fn record(&self, lease: &mut Value, is_expired: bool, now: Timestamp) -> bool {
        let spec = lease.entry("spec");
        let before = spec.clone();
        if spec.str("strategy") != self.strategy {
            spec.set("strategy", self.strategy.as_str());
        }
        let Some(leader) = self.leader.as_deref() else { return *spec != before };
        let holder = spec.str("holderIdentity").to_owned();
        if holder.is_empty() || (is_expired && holder != leader) {
            spec.set("holderIdentity", leader);
            spec.set("renewTime", micro_time(now));
            spec.set("leaseDurationSeconds", FIRST_LEASE_SECONDS);
            spec.remove("preferredHolder");
            spec.remove("acquireTime");
        } else if holder != leader {
            spec.set("preferredHolder", leader);
        }
        *spec != before
    }
}
