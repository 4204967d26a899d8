//! Metrics of validating admission policies. The labels name policies and bindings that exist.

use prometheus::{HistogramVec, IntCounterVec};

use super::registration::{MetricRegistry, Result};

const LABELS: [&str; 4] = ["policy", "policy_binding", "error_type", "enforcement_action"];
/// The buckets of durations, in seconds; the reference's.
const SECONDS: [f64; 5] = [0.000_000_5, 0.001, 0.01, 0.1, 1.0];

/// Violations of policies, and their durations.
pub struct Policies {
    checks: IntCounterVec,
    durations: HistogramVec,
}

impl Policies {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<Policies> {
        let name = |suffix: &str| format!("apiserver_validating_admission_policy_{suffix}");
        Ok(Policies {
            checks: registry.counters(
                name("check_total"),
                "Violations of validating admission policies, by policy, binding, error and action.",
                &LABELS,
            )?,
            durations: registry.histograms(
                name("check_duration_seconds"),
                "How long validating admission policies with violations took, by policy, binding, error and action.",
                &LABELS,
                &SECONDS,
            )?,
        })
    }

    /// Counts one violation of a policy.
    pub fn count(&self, policy: &str, binding: &str, error: &str, action: &str, seconds: f64) {
        let labels = [policy, binding, error, action];
        self.checks.with_label_values(&labels).inc();
        self.durations.with_label_values(&labels).observe(seconds);
    }
}
