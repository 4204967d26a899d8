//! What is counted of admission policies. The labels name policies and bindings that exist.

use prometheus::{HistogramVec, IntCounterVec};

use super::registration::{MetricRegistry, Result};

const LABELS: [&str; 4] = ["policy", "policy_binding", "error_type", "enforcement_action"];
/// The bounds of the classes of duration; the reference server's.
const SECONDS: [f64; 5] = [0.000_000_5, 0.001, 0.01, 0.1, 1.0];

/// What policies found, and how long it took them.
pub struct Policies {
    checks: IntCounterVec,
    durations: HistogramVec,
}

impl Policies {
    pub(super) fn new(page: &MetricRegistry<'_>) -> Result<Policies> {
        let name = |what: &str| format!("apiserver_validating_admission_policy_{what}");
        Ok(Policies {
            checks: page.counters(
                name("check_total"),
                "What validating admission policies found, by policy, binding, error and action.",
                &LABELS,
            )?,
            durations: page.histograms(
                name("check_duration_seconds"),
                "How long validating admission policies took that found something, by policy, binding, error and action.",
                &LABELS,
                &SECONDS,
            )?,
        })
    }

    /// Counts one thing that a policy found.
    pub fn count(&self, policy: &str, binding: &str, error: &str, action: &str, seconds: f64) {
        let labels = [policy, binding, error, action];
        self.checks.with_label_values(&labels).inc();
        self.durations.with_label_values(&labels).observe(seconds);
    }
}
