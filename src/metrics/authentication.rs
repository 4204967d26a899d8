//! What is counted of finding out who is asking. No label says what a client wrote: users are told apart by a few names that
//! every cluster has.

use std::fmt::Write as _;
use std::time::Duration;

use openssl::sha::sha256;
use pilothouse_types::clock::Timestamp;
use prometheus::{DEFAULT_BUCKETS, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge};

use super::registration::{MetricRegistry, Result};

/// The bounds of the classes of what certificates have left, in seconds; the reference server's.
const LEFT_SECONDS: [f64; 14] = [
    0.0,
    1_800.0,
    3_600.0,
    7_200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];
/// The bounds of the classes of how long tokens of providers take; the reference server's.
const LATENCY_SECONDS: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Users that are counted by name, as in the reference.
const NAMED: [&str; 5] =
    ["admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default"];
const EMAIL: &str = "email_id";
const OTHER: &str = "other";

/// What came of finding out who sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// They are known, or may be anybody.
    Success,
    /// They showed nothing, and that is not enough.
    Failure,
    /// What they showed is not accepted.
    Error,
}

/// The counters of one outcome.
struct Outcome {
    count: IntCounter,
    duration: Histogram,
}

/// What is counted of authentication. The counters of every request are found once, because finding one by its labels
/// costs more than counting.
pub struct Authentication {
    outcomes: [Outcome; 3],
    /// Those of the named users, of mail addresses and of all others.
    by_user: [IntCounter; NAMED.len() + 2],
    /// Those that were at hand, and those that were not.
    by_hit: [Outcome; 2],
    /// Those that are under way, that worked and that did not.
    by_fetch: (IntGauge, IntCounter, IntCounter),
    /// What the certificates had left by which requests were known.
    pub certificate_left: Histogram,
    latencies: HistogramVec,
    reloads: IntCounterVec,
    reloaded_at: GaugeVec,
}

impl Authentication {
    pub(super) fn new(page: &MetricRegistry<'_>) -> Result<Authentication> {
        let attempts = page.counters(
            "authentication_attempts",
            "Requests of which it was found out who sent them, by result: success, failure or error.",
            &["result"],
        )?;
        let durations = page.histograms(
            "authentication_duration_seconds",
            "How long it took to find out who sent requests, by result.",
            &["result"],
            &prometheus::exponential_buckets(0.001, 2.0, 15)?,
        )?;
        let users = page.counters(
            "authenticated_user_requests",
            "Requests of those who are known, by name where every cluster has it.",
            &["username"],
        )?;
        let lookups = page.counters(
            "authentication_token_cache_request_total",
            "Tokens that were looked up among those that are remembered, by whether they were: hit or miss.",
            &["status"],
        )?;
        let lookup_durations = page.histograms(
            "authentication_token_cache_request_duration_seconds",
            "How long it took to say whose tokens are, by whether they were remembered.",
            &["status"],
            DEFAULT_BUCKETS,
        )?;
        let fetches = page.counters(
            "authentication_token_cache_fetch_total",
            "Tokens that were not remembered and had to be verified, by whether that worked: ok or error.",
            &["status"],
        )?;
        let active = page.gauges(
            "authentication_token_cache_active_fetch_count",
            "Tokens that are being verified because they were not remembered.",
            &["status"],
        )?;
        let changed = "apiserver_authentication_config_controller_automatic_reload";
        let outcome = |count: &IntCounterVec, duration: &HistogramVec, label: &str| Outcome {
            count: count.with_label_values(&[label]),
            duration: duration.with_label_values(&[label]),
        };
        Ok(Authentication {
            outcomes: ["success", "failure", "error"].map(|label| outcome(&attempts, &durations, label)),
            by_user: std::array::from_fn(|at| {
                let rest = [EMAIL, OTHER].get(at.saturating_sub(NAMED.len())).copied();
                let name = NAMED.get(at).copied().or(rest).unwrap_or(OTHER);
                users.with_label_values(&[name])
            }),
            by_hit: ["hit", "miss"].map(|label| outcome(&lookups, &lookup_durations, label)),
            by_fetch: (
                active.with_label_values(&["in_flight"]),
                fetches.with_label_values(&["ok"]),
                fetches.with_label_values(&["error"]),
            ),
            certificate_left: page.histogram(
                "apiserver_client_certificate_expiration_seconds",
                "What the certificates had left by which requests were known.",
                &LEFT_SECONDS,
            )?,
            latencies: page.histograms(
                "apiserver_authentication_jwt_authenticator_latency_seconds",
                "How long it took to say whose tokens of a provider are that were not remembered, by result and issuer.",
                &["result", "jwt_issuer_hash"],
                &LATENCY_SECONDS,
            )?,
            reloads: page.counters(
                format!("{changed}s_total"),
                "Changes of the authentication configuration that were taken or not, by status and server.",
                &["status", "apiserver_id_hash"],
            )?,
            reloaded_at: page.measures(
                format!("{changed}_last_timestamp_seconds"),
                "When the authentication configuration was last taken or not, by status and server.",
                &["status", "apiserver_id_hash"],
            )?,
        })
    }

    /// Counts a request; who sent it, if that is known.
    pub fn attempted(&self, attempt: Attempt, user: Option<&str>, took: Duration) {
        let [success, failure, error] = &self.outcomes;
        let outcome = match attempt {
            Attempt::Success => success,
            Attempt::Failure => failure,
            Attempt::Error => error,
        };
        outcome.count(took);
        if let Some(counter) = user.and_then(|user| self.by_user.get(place(user))) {
            counter.inc();
        }
    }

    /// Counts a token that was looked up: whether it was remembered.
    pub fn looked_up(&self, hit: bool, took: Duration) {
        let [found, missed] = &self.by_hit;
        if hit { found } else { missed }.count(took);
    }

    /// What counts how long tokens of this issuer take.
    pub fn latency(&self, issuer: &str) -> Latency {
        let mut hash = String::from("sha256:");
        for byte in sha256(issuer.as_bytes()) {
            // Writing to a string cannot fail.
            let _ = write!(hash, "{byte:02x}");
        }
        let of = |result| self.latencies.with_label_values(&[result, hash.as_str()]);
        Latency { success: of("success"), failure: of("failure") }
    }

    /// Counts a change of the authentication configuration, taken or not.
    pub fn count_reload(&self, taken: bool, now: Timestamp) {
        let labels = [if taken { "success" } else { "failure" }, ""];
        self.reloads.with_label_values(&labels).inc();
        self.reloaded_at.with_label_values(&labels).set(now.fractional_seconds());
    }

    /// Counts a token that is being verified because it was not remembered. Unless it says otherwise before it is
    /// dropped, that did not work.
    pub fn fetch(&self) -> Fetch {
        let (active, ok, error) = self.by_fetch.clone();
        active.inc();
        Fetch { active, ok, error: Some(error) }
    }
}

impl Outcome {
    fn count(&self, took: Duration) {
        self.count.inc();
        self.duration.observe(took.as_secs_f64());
    }
}

/// How long tokens of one issuer take.
#[derive(Clone)]
pub struct Latency {
    success: Histogram,
    failure: Histogram,
}

impl Latency {
    /// Counts a token, and whether somebody is known by it.
    pub fn count(&self, known: bool, took: Duration) {
        let histogram = if known { &self.success } else { &self.failure };
        histogram.observe(took.as_secs_f64());
    }
}

/// A token that is being verified.
pub struct Fetch {
    active: IntGauge,
    ok: IntCounter,
    error: Option<IntCounter>,
}

impl Fetch {
    /// It worked, whatever was found.
    pub fn succeeded(mut self) {
        self.error = None;
        self.ok.inc();
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.active.dec();
        if let Some(error) = &self.error {
            error.inc();
        }
    }
}

/// Where a user is counted.
fn place(user: &str) -> usize {
    let named = NAMED.iter().position(|name| *name == user);
    named.unwrap_or(if user.contains('@') { NAMED.len() } else { NAMED.len() + 1 })
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder as _, Registry, TextEncoder};

    use super::*;

    #[test]
    fn users_are_counted_under_names_that_nobody_can_choose() {
        let registry = Registry::new();
        let counted = Authentication::new(&MetricRegistry(&registry)).unwrap();
        for user in ["admin", "ann@example.com", "ann", "system:anonymous", "email_id"] {
            counted.attempted(Attempt::Success, Some(user), Duration::from_micros(3_000));
        }
        counted.attempted(Attempt::Failure, None, Duration::ZERO);
        counted.looked_up(true, Duration::ZERO);
        counted.fetch().succeeded();
        drop(counted.fetch());
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            "authenticated_user_requests{username=\"admin\"} 1",
            "authenticated_user_requests{username=\"email_id\"} 1",
            "authenticated_user_requests{username=\"other\"} 3",
            "authentication_attempts{result=\"success\"} 5",
            "authentication_attempts{result=\"failure\"} 1",
            "authentication_attempts{result=\"error\"} 0",
            "authentication_duration_seconds_bucket{result=\"success\",le=\"0.002\"} 0",
            "authentication_duration_seconds_bucket{result=\"success\",le=\"0.004\"} 5",
            "authentication_token_cache_request_total{status=\"hit\"} 1",
            "authentication_token_cache_fetch_total{status=\"ok\"} 1",
            "authentication_token_cache_fetch_total{status=\"error\"} 1",
            "authentication_token_cache_active_fetch_count{status=\"in_flight\"} 0",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("ann"));
    }
}
