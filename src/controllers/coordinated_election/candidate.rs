//! A candidate of an election, as its LeaseCandidate describes it.

use std::borrow::Cow;
use std::time::Duration;

use pilothouse_apimachinery::semver::Semver;
use pilothouse_apimachinery::time;
use pilothouse_types::clock::Timestamp;
use serde::Deserialize;

/// How long a candidate has to answer a ping, and how long its answer counts.
pub const ELECTION_DURATION: Duration = Duration::from_secs(5);
/// How long a candidate that does not renew itself stays one.
pub const CANDIDATE_LIFETIME: Duration = Duration::from_secs(30 * 60);

/// A time has passed only after its last microsecond: the times of leases and candidates are no finer.
pub const TICK: Duration = Duration::from_micros(1);

/// A candidate.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The strategy that it asks for.
    pub strategy: String,
    /// The version that it emulates; `None` if that is not a version.
    pub emulation_version: Option<Semver>,
    /// The version that it is; `None` if that is not a version.
    pub binary_version: Option<Semver>,
    /// When it was created.
    pub created: Timestamp,
    /// When it renewed itself last.
    pub renewed: Option<Timestamp>,
    /// When it was pinged last.
    pub pinged: Option<Timestamp>,
}

/// What is read of a LeaseCandidate. All versions have these fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
    #[serde(borrow, default)]
    spec: Spec<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow, default)]
    creation_timestamp: Option<Cow<'a, str>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec<'a> {
    #[serde(borrow)]
    lease_name: Cow<'a, str>,
    #[serde(borrow)]
    strategy: Cow<'a, str>,
    #[serde(borrow)]
    emulation_version: Cow<'a, str>,
    #[serde(borrow)]
    binary_version: Cow<'a, str>,
    #[serde(borrow)]
    renew_time: Option<Cow<'a, str>>,
    #[serde(borrow)]
    ping_time: Option<Cow<'a, str>>,
}

/// Reads a time with microseconds; `None` if there is none.
pub fn parse_micro_time(text: &str) -> Option<Timestamp> {
    let (seconds, micros) = time::parse_micros(text).ok()?;
    Some(Timestamp::from_unix(seconds).plus(Duration::from_micros(micros.into())))
}

impl Candidate {
    /// The candidate of a stored object, and the name of the lease that it is a candidate for.
    pub fn read(object: &[u8]) -> Option<(String, Candidate)> {
        let Document { metadata, spec } = serde_json::from_slice(object).ok()?;
        let created = metadata.creation_timestamp.and_then(|text| time::parse_seconds(&text).ok());
        let candidate = Candidate {
            strategy: spec.strategy.into_owned(),
            emulation_version: Semver::parse(&spec.emulation_version).ok(),
            binary_version: Semver::parse(&spec.binary_version).ok(),
            created: Timestamp::from_unix(created.unwrap_or_default()),
            renewed: spec.renew_time.as_deref().and_then(parse_micro_time),
            pinged: spec.ping_time.as_deref().and_then(parse_micro_time),
        };
        Some((spec.lease_name.into_owned(), candidate))
    }

    /// Whether it has not answered its last ping.
    pub fn is_unanswered(&self) -> bool {
        self.pinged.is_some_and(|pinged| self.renewed.is_none_or(|renewed| renewed < pinged))
    }

    /// Whether it was pinged and may still answer.
    pub fn is_pending(&self, now: Timestamp) -> bool {
        self.is_unanswered() && !self.answer_time(now).is_zero()
    }

    /// Whether it has not answered its last ping in time.
    pub fn is_silent(&self, now: Timestamp) -> bool {
        self.is_unanswered() && self.answer_time(now).is_zero()
    }

    /// How much of the time for an answer is left.
    pub fn answer_time(&self, now: Timestamp) -> Duration {
        self.pinged.map(|pinged| pinged.plus(ELECTION_DURATION).since(now)).unwrap_or_default()
    }

    /// Whether it has renewed itself so recently that it takes part in an election.
    pub fn is_present(&self, now: Timestamp) -> bool {
        self.renewed.is_some_and(|renewed| renewed.plus(ELECTION_DURATION) > now)
    }

    /// When it stops to be a candidate unless it renews itself. One that never did has as long as the others.
    pub fn expiry(&self) -> Timestamp {
        self.renewed.unwrap_or(self.created).plus(CANDIDATE_LIFETIME)
    }
}
