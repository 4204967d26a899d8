//! What is counted of conditions: those of admission webhooks and policies, and those of authorization webhooks. The labels name
//! what operators made.

use prometheus::{HistogramVec, IntCounterVec};

use super::registration::{MetricRegistry, Result};

/// The bounds of the classes of duration, in seconds; the reference server's.
const SECONDS: [f64; 7] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];
/// The type of the only authorizers that have conditions.
const WEBHOOK: &str = "Webhook";

/// Whose conditions they are, in the words of the labels.
pub trait LabelSource {
    /// The values of the labels, in their order.
    fn labels(&self) -> impl AsRef<[&str]>;
}

/// Of a webhook or policy of admission: whose, when, and about what.
#[derive(Clone, Copy)]
pub struct ConditionLabels<'a> {
    /// The name of the webhook or policy.
    pub name: &'a str,
    /// `webhook` or `policy`.
    pub kind: &'a str,
    /// `admit` or `validating` for webhooks, `validate` for policies.
    pub sort: &'a str,
    /// What is done, in the words of rules.
    pub operation: &'a str,
}

impl LabelSource for ConditionLabels<'_> {
    fn labels(&self) -> impl AsRef<[&str]> {
        [self.name, self.kind, self.sort, self.operation]
    }
}

/// Of the authorization webhook of this name.
#[derive(Clone, Copy)]
pub struct Authorizer<'a>(pub &'a str);

impl LabelSource for Authorizer<'_> {
    fn labels(&self) -> impl AsRef<[&str]> {
        [WEBHOOK, self.0]
    }
}

/// How conditions were evaluated.
#[derive(Clone)]
pub struct Counts {
    errors: IntCounterVec,
    exclusions: IntCounterVec,
    durations: HistogramVec,
}

impl Counts {
    pub(super) fn of_admission(page: &MetricRegistry<'_>) -> Result<Counts> {
        Counts::new(page, "admission", &["name", "kind", "type", "operation"])
    }

    pub(super) fn of_authorization(page: &MetricRegistry<'_>) -> Result<Counts> {
        Counts::new(page, "authorization", &["type", "name"])
    }

    fn new(page: &MetricRegistry<'_>, part: &str, labels: &[&str]) -> Result<Counts> {
        let name = |what: &str| format!("apiserver_{part}_match_condition_{what}");
        let by = labels.join(", ");
        Ok(Counts {
            errors: page.counters(
                name("evaluation_errors_total"),
                format!("Match conditions that could not be evaluated, by {by}."),
                labels,
            )?,
            exclusions: page.counters(
                name("exclusions_total"),
                format!("Requests that match conditions kept away, by {by}."),
                labels,
            )?,
            durations: page.histograms(
                name("evaluation_seconds"),
                format!("How long match conditions took, by {by}."),
                labels,
                &SECONDS,
            )?,
        })
    }

    /// Counts that the conditions of one of them were evaluated.
    pub fn evaluated(&self, of: &impl LabelSource, errors: usize, seconds: f64) {
        let labels = of.labels();
        if errors > 0 {
            self.errors.with_label_values(labels.as_ref()).inc_by(errors as u64);
        }
        self.durations.with_label_values(labels.as_ref()).observe(seconds);
    }

    /// Counts that they kept a request away.
    pub fn excluded(&self, of: &impl LabelSource) {
        self.exclusions.with_label_values(of.labels().as_ref()).inc();
    }
}
