//! Metrics of authentication. No label comes from a request: users are counted under a few names that every cluster has.

use std::fmt::Write as _;
use std::time::Duration;

use openssl::sha::sha256;
use pilothouse_types::clock::Timestamp;
use prometheus::{DEFAULT_BUCKETS, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge};

use super::registration::{MetricRegistry, Result};

/// The buckets of remaining certificate lifetimes, in seconds; the reference's.
const CERTIFICATE_SECONDS: [f64; 14] = [
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
/// The buckets of the latency of OpenID Connect tokens, in seconds; the reference's.
const LATENCY_SECONDS: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Users that are counted by name, as in the reference.
const NAMED_USERS: [&str; 5] =
    ["admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default"];
const EMAIL: &str = "email_id";
const OTHER: &str = "other";

/// The result of authenticating a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The user is authenticated, or anonymous requests are allowed.
    Success,
    /// The request has no credentials, and anonymous requests are not allowed.
    Failure,
    /// The credentials are invalid.
    Error,
}

/// The counters of one result.
struct ResultCounters {
    count: IntCounter,
    duration: Histogram,
}

impl ResultCounters {
    fn new(count: &IntCounterVec, duration: &HistogramVec, label: &str) -> ResultCounters {
        ResultCounters {
            count: count.with_label_values(&[label]),
            duration: duration.with_label_values(&[label]),
        }
    }
}

/// Counters of the token cache.
struct TokenCacheMetrics {
    hits: ResultCounters,
    misses: ResultCounters,
    /// Verifications in flight, succeeded and failed.
    fetches: (IntGauge, IntCounter, IntCounter),
}

impl TokenCacheMetrics {
    fn new(registry: &MetricRegistry<'_>) -> Result<TokenCacheMetrics> {
        let lookups = registry.counters(
            "authentication_token_cache_request_total",
            "Lookups in the token cache, by status: hit or miss.",
            &["status"],
        )?;
        let lookup_durations = registry.histograms(
            "authentication_token_cache_request_duration_seconds",
            "How long the authentication of tokens took, by cache status.",
            &["status"],
            DEFAULT_BUCKETS,
        )?;
        let fetches = registry.counters(
            "authentication_token_cache_fetch_total",
            "Tokens that were not cached and had to be verified, by status: ok or error.",
            &["status"],
        )?;
        let active = registry.gauges(
            "authentication_token_cache_active_fetch_count",
            "Tokens that are being verified because they were not cached.",
            &["status"],
        )?;
        Ok(TokenCacheMetrics {
            hits: ResultCounters::new(&lookups, &lookup_durations, "hit"),
            misses: ResultCounters::new(&lookups, &lookup_durations, "miss"),
            fetches: (
                active.with_label_values(&["in_flight"]),
                fetches.with_label_values(&["ok"]),
                fetches.with_label_values(&["error"]),
            ),
        })
    }
}

/// Counters of authentication. They are looked up once, because a lookup by labels costs more than counting.
pub struct Authentication {
    by_result: [ResultCounters; 3],
    /// By user: the named users, e-mail addresses, and all others.
    by_user: [IntCounter; NAMED_USERS.len() + 2],
    token_cache: TokenCacheMetrics,
    /// The remaining lifetimes of client certificates.
    pub certificate_left: Histogram,
    latencies: HistogramVec,
    reloads: IntCounterVec,
    reloaded_at: GaugeVec,
}

impl Authentication {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<Authentication> {
        let attempts = registry.counters(
            "authentication_attempts",
            "Authenticated requests, by result: success, failure or error.",
            &["result"],
        )?;
        let durations = registry.histograms(
            "authentication_duration_seconds",
            "How long authentication took, by result.",
            &["result"],
            &prometheus::exponential_buckets(0.001, 2.0, 15)?,
        )?;
        let users = registry.counters(
            "authenticated_user_requests",
            "Requests of authenticated users, by name for the users that every cluster has.",
            &["username"],
        )?;
        let reload_prefix = "apiserver_authentication_config_controller_automatic_reload";
        Ok(Authentication {
            by_result: ["success", "failure", "error"]
                .map(|label| ResultCounters::new(&attempts, &durations, label)),
            by_user: std::array::from_fn(|index| {
                let fallback = [EMAIL, OTHER].get(index.saturating_sub(NAMED_USERS.len())).copied();
                let name = NAMED_USERS.get(index).copied().or(fallback).unwrap_or(OTHER);
                users.with_label_values(&[name])
            }),
            token_cache: TokenCacheMetrics::new(registry)?,
            certificate_left: registry.histogram(
                "apiserver_client_certificate_expiration_seconds",
                "Remaining lifetimes of the client certificates of requests.",
                &CERTIFICATE_SECONDS,
            )?,
            latencies: registry.histograms(
                "apiserver_authentication_jwt_authenticator_latency_seconds",
                "How long the authentication of uncached OpenID Connect tokens took, by result and issuer.",
                &["result", "jwt_issuer_hash"],
                &LATENCY_SECONDS,
            )?,
            reloads: registry.counters(
                format!("{reload_prefix}s_total"),
                "Reloads of the authentication configuration, by status and server.",
                &["status", "apiserver_id_hash"],
            )?,
            reloaded_at: registry.float_gauges(
                format!("{reload_prefix}_last_timestamp_seconds"),
                "When the authentication configuration was last reloaded, by status and server.",
                &["status", "apiserver_id_hash"],
            )?,
        })
    }

    /// Counts a request, and its user if authenticated.
    pub fn count_attempt(&self, attempt: Attempt, user: Option<&str>, elapsed: Duration) {
        let [success, failure, error] = &self.by_result;
        let outcome = match attempt {
            Attempt::Success => success,
            Attempt::Failure => failure,
            Attempt::Error => error,
        };
        outcome.count(elapsed);
        if let Some(counter) = user.and_then(|user| self.by_user.get(user_index(user))) {
            counter.inc();
        }
    }

    /// Counts a lookup in the token cache.
    pub fn count_cache_lookup(&self, hit: bool, elapsed: Duration) {
        let TokenCacheMetrics { hits, misses, .. } = &self.token_cache;
        if hit { hits } else { misses }.count(elapsed);
    }

    /// The latency histograms of an issuer's tokens.
    pub fn latency(&self, issuer: &str) -> Latency {
        let mut hash = String::from("sha256:");
        for byte in sha256(issuer.as_bytes()) {
            // Writing to a string cannot fail.
            let _ = write!(hash, "{byte:02x}");
        }
        let histogram = |result| self.latencies.with_label_values(&[result, hash.as_str()]);
        Latency { success: histogram("success"), failure: histogram("failure") }
    }

    /// Counts a reload of the authentication configuration.
    pub fn count_reload(&self, is_applied: bool, now: Timestamp) {
        let labels = [if is_applied { "success" } else { "failure" }, ""];
        self.reloads.with_label_values(&labels).inc();
        self.reloaded_at.with_label_values(&labels).set(now.fractional_seconds());
    }

    /// Counts the verification of a token that was not cached. It counts as failed unless [`Fetch::succeeded`] is called.
    pub fn fetch(&self) -> Fetch {
        let (active, ok, error) = self.token_cache.fetches.clone();
        active.inc();
        Fetch { active, ok, error: Some(error) }
    }
}

impl ResultCounters {
    fn count(&self, elapsed: Duration) {
        self.count.inc();
        self.duration.observe(elapsed.as_secs_f64());
    }
}

/// The latency histograms of one issuer.
#[derive(Clone)]
pub struct Latency {
    success: Histogram,
    failure: Histogram,
}

impl Latency {
    /// Counts the verification of a token.
    pub fn count(&self, is_authenticated: bool, elapsed: Duration) {
        let histogram = if is_authenticated { &self.success } else { &self.failure };
        histogram.observe(elapsed.as_secs_f64());
    }
}

/// A token that is being verified.
pub struct Fetch {
    active: IntGauge,
    ok: IntCounter,
    error: Option<IntCounter>,
}

impl Fetch {
    /// Counts the verification as done, whether the token is valid or not.
    pub fn count_success(mut self) {
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

/// The index of a user's counter.
fn user_index(user: &str) -> usize {
    let index = NAMED_USERS.iter().position(|name| *name == user);
    index.unwrap_or(if user.contains('@') { NAMED_USERS.len() } else { NAMED_USERS.len() + 1 })
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder as _, Registry, TextEncoder};

    use super::*;

    #[test]
    fn authenticated_users_are_counted_under_fixed_labels() {
        let registry = Registry::new();
        let metrics = Authentication::new(&MetricRegistry::new(&registry)).unwrap();
        for user in ["admin", "ann@example.com", "ann", "system:anonymous", "email_id"] {
            metrics.count_attempt(Attempt::Success, Some(user), Duration::from_micros(3_000));
        }
        metrics.count_attempt(Attempt::Failure, None, Duration::ZERO);
        metrics.count_cache_lookup(true, Duration::ZERO);
        metrics.fetch().count_success();
        drop(metrics.fetch());
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
