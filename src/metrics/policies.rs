//! What is counted of admission policies. The labels name policies and bindings that exist.

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

const LABELS: [&str; 4] = ["policy", "policy_binding", "error_type", "enforcement_action"];

/// What policies found, and how long it took them.
pub struct Policies {
    checks: IntCounterVec,
    durations: HistogramVec,
}

impl Policies {
    pub(super) fn new() -> Result<Policies, prometheus::Error> {
        let name = |what: &str| format!("apiserver_validating_admission_policy_{what}");
        let checks = Opts::new(
            name("check_total"),
            "What validating admission policies found, by policy, binding, error and action.",
        );
        let durations = HistogramOpts::new(
            name("check_duration_seconds"),
            "How long validating admission policies took that found something, by policy, binding, error and action.",
        );
        Ok(Policies {
            checks: IntCounterVec::new(checks, &LABELS)?,
            durations: HistogramVec::new(
                durations.buckets(vec![0.000_000_5, 0.001, 0.01, 0.1, 1.0]),
                &LABELS,
            )?,
        })
    }

    pub(super) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.checks.clone()))?;
        registry.register(Box::new(self.durations.clone()))
    }

    /// Counts one thing that a policy found.
    pub fn count(&self, policy: &str, binding: &str, error: &str, action: &str, seconds: f64) {
        let labels = [policy, binding, error, action];
        self.checks.with_label_values(&labels).inc();
        self.durations.with_label_values(&labels).observe(seconds);
    }
}
