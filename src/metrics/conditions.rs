//! What is counted of the conditions under which authorization webhooks are asked. Operators choose the names.

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

const LABELS: [&str; 2] = ["type", "name"];
/// The only type that has conditions.
const WEBHOOK: &str = "Webhook";

/// How long conditions take, and what they come to.
#[derive(Clone)]
pub(super) struct Conditions {
    seconds: HistogramVec,
    exclusions: IntCounterVec,
    errors: IntCounterVec,
}

impl Conditions {
    pub(super) fn new() -> Result<Conditions, prometheus::Error> {
        let name = |what: &str| format!("apiserver_authorization_match_condition_{what}");
        let seconds = HistogramOpts::new(
            name("evaluation_seconds"),
            "How long the conditions of authorization webhooks took for one request, by type and name.",
        );
        let exclusions = Opts::new(
            name("exclusions_total"),
            "Requests about which an authorization webhook was not asked because of a condition, by type and name.",
        );
        let errors = Opts::new(
            name("evaluation_errors_total"),
            "Requests for which a condition of an authorization webhook failed, by type and name.",
        );
        Ok(Conditions {
            seconds: HistogramVec::new(
                seconds.buckets(vec![0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25]),
                &LABELS,
            )?,
            exclusions: IntCounterVec::new(exclusions, &LABELS)?,
            errors: IntCounterVec::new(errors, &LABELS)?,
        })
    }

    pub(super) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.seconds.clone()))?;
        registry.register(Box::new(self.exclusions.clone()))?;
        registry.register(Box::new(self.errors.clone()))
    }

    /// Counts what the conditions of one webhook came to for one request.
    pub(super) fn count(&self, name: &str, seconds: f64, excluded: bool, failed: bool) {
        let labels = [WEBHOOK, name];
        self.seconds.with_label_values(&labels).observe(seconds);
        if excluded {
            self.exclusions.with_label_values(&labels).inc();
        }
        if failed {
            self.errors.with_label_values(&labels).inc();
        }
    }
}
