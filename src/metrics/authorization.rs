//! Metrics of authorization: decisions, durations, webhooks and configuration reloads.

use pilothouse_types::clock::Timestamp;
use prometheus::{DEFAULT_BUCKETS, GaugeVec, HistogramVec, IntCounter, IntCounterVec};

use super::authorization_webhooks::{AuthorizationResult, AuthorizationWebhookMeter};
use super::match_conditions::Counts;
use super::registration::{MetricRegistry, Result};

/// Counters of authorization.
pub struct Authorization {
    decisions: IntCounterVec,
    attempts: IntCounterVec,
    durations: HistogramVec,
    webhook_calls: IntCounterVec,
    webhook_durations: HistogramVec,
    webhook_open: IntCounterVec,
    webhook_conditions: Counts,
    reloads: IntCounterVec,
    reloaded_at: GaugeVec,
}

impl Authorization {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<Authorization> {
        let reload_prefix = "apiserver_authorization_config_controller_automatic_reload";
        Ok(Authorization {
            decisions: registry.counters(
                "apiserver_authorization_decisions_total",
                "Terminal decisions of authorizers, by their type and name and the decision.",
                &["type", "name", "decision"],
            )?,
            attempts: registry.counters(
                "authorization_attempts_total",
                "Authorized requests, by result: allowed, denied, no-opinion or error.",
                &["result"],
            )?,
            durations: registry.histograms(
                "authorization_duration_seconds",
                "How long authorization took, by result.",
                &["result"],
                &prometheus::exponential_buckets(0.001, 2.0, 15)?,
            )?,
            webhook_calls: registry.counters(
                "apiserver_authorization_webhook_evaluations_total",
                "Calls to authorization webhooks, by webhook and result.",
                &["name", "result"],
            )?,
            webhook_durations: registry.histograms(
                "apiserver_authorization_webhook_duration_seconds",
                "How long calls to authorization webhooks took, by webhook and result.",
                &["name", "result"],
                DEFAULT_BUCKETS,
            )?,
            webhook_open: registry.counters(
                "apiserver_authorization_webhook_evaluations_fail_open_total",
                "Requests that were left to other authorizers because a webhook failed, by webhook and result.",
                &["name", "result"],
            )?,
            webhook_conditions: Counts::for_authorization(registry)?,
            reloads: registry.counters(
                format!("{reload_prefix}s_total"),
                "Reloads of the authorization configuration, by status and server.",
                &["status", "apiserver_id_hash"],
            )?,
            reloaded_at: registry.float_gauges(
                format!("{reload_prefix}_last_timestamp_seconds"),
                "When the authorization configuration was last reloaded, by status and server.",
                &["status", "apiserver_id_hash"],
            )?,
        })
    }

    /// The counters of the allowing and the denying decisions of an authorizer.
    pub fn decisions(&self, sort: &str, name: &str) -> [IntCounter; 2] {
        ["allowed", "denied"].map(|decision| self.decisions.with_label_values(&[sort, name, decision]))
    }

    /// The counters of an authorization webhook.
    pub fn webhook(&self, name: &str) -> AuthorizationWebhookMeter {
        AuthorizationWebhookMeter {
            name: name.to_owned(),
            calls: self.webhook_calls.clone(),
            durations: self.webhook_durations.clone(),
            fail_open: self.webhook_open.clone(),
            conditions: self.webhook_conditions.clone(),
        }
    }

    /// Counts a reload of the authorization configuration.
    pub fn count_reload(&self, is_applied: bool, now: Timestamp) {
        let labels = [if is_applied { "success" } else { "failure" }, ""];
        self.reloads.with_label_values(&labels).inc();
        self.reloaded_at.with_label_values(&labels).set(now.fractional_seconds());
    }

    /// Counts an authorized request by its result.
    pub fn count_authorized(&self, result: AuthorizationResult, seconds: f64) {
        let result = result.name();
        self.attempts.with_label_values(&[result]).inc();
        self.durations.with_label_values(&[result]).observe(seconds);
    }
}
