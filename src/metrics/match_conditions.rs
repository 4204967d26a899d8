//! Metrics of match conditions, of admission webhooks and policies and of authorization webhooks. The labels name configured
//! objects.

use prometheus::{HistogramVec, IntCounterVec};

use super::registration::{MetricRegistry, Result};

/// The buckets of durations, in seconds; the reference's.
const SECONDS: [f64; 7] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];
/// The type of the only authorizers that have conditions.
const WEBHOOK: &str = "Webhook";

/// The labels of an owner of match conditions.
pub trait LabelSource {
    /// The values of the labels, in their order.
    fn labels(&self) -> impl AsRef<[&str]>;
}

/// The labels of an admission webhook or policy.
#[derive(Clone, Copy)]
pub struct ConditionLabels<'a> {
    /// The name of the webhook or policy.
    pub name: &'a str,
    /// `webhook` or `policy`.
    pub kind: &'a str,
    /// `admit` or `validating` for webhooks, `validate` for policies.
    pub sort: &'a str,
    /// The operation, as in rules.
    pub operation: &'a str,
}

impl LabelSource for ConditionLabels<'_> {
    fn labels(&self) -> impl AsRef<[&str]> {
        [self.name, self.kind, self.sort, self.operation]
    }
}

/// The authorization webhook of this name.
#[derive(Clone, Copy)]
pub struct Authorizer<'a>(pub &'a str);

impl LabelSource for Authorizer<'_> {
    fn labels(&self) -> impl AsRef<[&str]> {
        [WEBHOOK, self.0]
    }
}

/// Evaluations of match conditions.
#[derive(Clone)]
pub struct Counts {
    errors: IntCounterVec,
    exclusions: IntCounterVec,
    durations: HistogramVec,
}

impl Counts {
    pub(super) fn for_admission(registry: &MetricRegistry<'_>) -> Result<Counts> {
        Counts::new(registry, "admission", &["name", "kind", "type", "operation"])
    }

    pub(super) fn for_authorization(registry: &MetricRegistry<'_>) -> Result<Counts> {
        Counts::new(registry, "authorization", &["type", "name"])
    }

    fn new(registry: &MetricRegistry<'_>, subsystem: &str, labels: &[&str]) -> Result<Counts> {
        let name = |suffix: &str| format!("apiserver_{subsystem}_match_condition_{suffix}");
        let label_list = labels.join(", ");
        Ok(Counts {
            errors: registry.counters(
                name("evaluation_errors_total"),
                format!("Match conditions that could not be evaluated, by {label_list}."),
                labels,
            )?,
            exclusions: registry.counters(
                name("exclusions_total"),
                format!("Requests that match conditions excluded, by {label_list}."),
                labels,
            )?,
            durations: registry.histograms(
                name("evaluation_seconds"),
                format!("How long match conditions took, by {label_list}."),
                labels,
                &SECONDS,
            )?,
        })
    }

    /// Counts an evaluation of match conditions.
    pub fn count_evaluation(&self, source: &impl LabelSource, errors: usize, seconds: f64) {
        let labels = source.labels();
        if errors > 0 {
            self.errors.with_label_values(labels.as_ref()).inc_by(errors as u64);
        }
        self.durations.with_label_values(labels.as_ref()).observe(seconds);
    }

    /// Counts a request that match conditions excluded.
    pub fn count_exclusion(&self, source: &impl LabelSource) {
        self.exclusions.with_label_values(source.labels().as_ref()).inc();
    }
}
