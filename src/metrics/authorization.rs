//! What is counted of judging requests: by whom, with what result, and with which configuration.

use pilothouse_types::clock::Timestamp;
use prometheus::{DEFAULT_BUCKETS, GaugeVec, HistogramVec, IntCounter, IntCounterVec};

use super::authorization_webhooks::{AuthorizationResult, AuthorizationWebhookMeter};
use super::match_conditions::Counts;
use super::registration::{MetricRegistry, Result};

/// What came of asking whether somebody may.
pub struct Authorization {
    decisions: IntCounterVec,
    attempts: IntCounterVec,
    durations: HistogramVec,
    webhook_rounds: IntCounterVec,
    webhook_durations: HistogramVec,
    webhook_open: IntCounterVec,
    webhook_conditions: Counts,
    reloads: IntCounterVec,
    reloaded_at: GaugeVec,
}

impl Authorization {
    pub(super) fn new(page: &MetricRegistry<'_>) -> Result<Authorization> {
        let changed = "apiserver_authorization_config_controller_automatic_reload";
        Ok(Authorization {
            decisions: page.counters(
                "apiserver_authorization_decisions_total",
                "Terminal decisions of authorizers, by their type and name and the decision.",
                &["type", "name", "decision"],
            )?,
            attempts: page.counters(
                "authorization_attempts_total",
                "Requests that were judged, by result: allowed, denied, no-opinion or error.",
                &["result"],
            )?,
            durations: page.histograms(
                "authorization_duration_seconds",
                "How long judging requests took, by result.",
                &["result"],
                &prometheus::exponential_buckets(0.001, 2.0, 15)?,
            )?,
            webhook_rounds: page.counters(
                "apiserver_authorization_webhook_evaluations_total",
                "Questions to authorization webhooks, by webhook and result.",
                &["name", "result"],
            )?,
            webhook_durations: page.histograms(
                "apiserver_authorization_webhook_duration_seconds",
                "How long questions to authorization webhooks took, by webhook and result.",
                &["name", "result"],
                DEFAULT_BUCKETS,
            )?,
            webhook_open: page.counters(
                "apiserver_authorization_webhook_evaluations_fail_open_total",
                "Questions that others had to decide because a webhook did not answer, by webhook and result.",
                &["name", "result"],
            )?,
            webhook_conditions: Counts::of_authorization(page)?,
            reloads: page.counters(
                format!("{changed}s_total"),
                "Changes of the authorization configuration that were taken or not, by status and server.",
                &["status", "apiserver_id_hash"],
            )?,
            reloaded_at: page.measures(
                format!("{changed}_last_timestamp_seconds"),
                "When the authorization configuration was last taken or not, by status and server.",
                &["status", "apiserver_id_hash"],
            )?,
        })
    }

    /// What counts the allowing and the denying decisions of a policy.
    pub fn decisions(&self, sort: &str, name: &str) -> [IntCounter; 2] {
        ["allowed", "denied"].map(|decision| self.decisions.with_label_values(&[sort, name, decision]))
    }

    /// What counts the questions to an authorization webhook.
    pub fn webhook(&self, name: &str) -> AuthorizationWebhookMeter {
        AuthorizationWebhookMeter {
            name: name.to_owned(),
            rounds: self.webhook_rounds.clone(),
            durations: self.webhook_durations.clone(),
            open: self.webhook_open.clone(),
            conditions: self.webhook_conditions.clone(),
        }
    }

    /// Counts a change of the authorization configuration, taken or not.
    pub fn count_reload(&self, taken: bool, now: Timestamp) {
        let labels = [if taken { "success" } else { "failure" }, ""];
        self.reloads.with_label_values(&labels).inc();
        self.reloaded_at.with_label_values(&labels).set(now.fractional_seconds());
    }

    /// Counts a request that was judged.
    pub fn count_judged(&self, result: AuthorizationResult, seconds: f64) {
        let result = result.name();
        self.attempts.with_label_values(&[result]).inc();
        self.durations.with_label_values(&[result]).observe(seconds);
    }
}
