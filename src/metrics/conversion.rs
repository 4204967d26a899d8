//! What is counted of the webhooks that turn custom objects into other versions.

use pilothouse_api::custom_resource::conversion::FailureKind;
use prometheus::{HistogramVec, IntCounterVec};

use super::registration::{MetricRegistry, Result};

/// The bounds of the classes of duration, in seconds; the reference server's.
const SECONDS: [f64; 15] =
    [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
/// The first bound of the classes by definition; each is twice the one before.
const FIRST_SECONDS: f64 = 0.001;
const LABELS: [&str; 2] = ["result", "failure_type"];

/// How conversions went.
pub struct Conversions {
    requests: IntCounterVec,
    durations: HistogramVec,
    by_definition: HistogramVec,
}

impl Conversions {
    pub(super) fn new(page: &MetricRegistry<'_>) -> Result<Conversions> {
        Ok(Conversions {
            requests: page.counters(
                "apiserver_conversion_webhook_request_total",
                "Questions to webhooks that convert custom objects, by result and kind of failure.",
                &LABELS,
            )?,
            durations: page.histograms(
                "apiserver_conversion_webhook_duration_seconds",
                "How long questions to webhooks that convert custom objects took, by result and kind of failure.",
                &LABELS,
                &SECONDS,
            )?,
            by_definition: page.histograms(
                "apiserver_crd_conversion_webhook_duration_seconds",
                "How long conversions of custom objects took, by definition, versions and whether they succeeded.",
                &["crd_name", "from_version", "to_version", "succeeded"],
                &prometheus::exponential_buckets(FIRST_SECONDS, 2.0, 15)?,
            )?,
        })
    }

    /// Counts one question: of which definition, from which version to which, and what went wrong.
    pub fn asked(
        &self,
        (definition, from, to): (&str, &str, &str),
        seconds: f64,
        failure: Option<FailureKind>,
    ) {
        let labels = match failure {
            None => ["success", ""],
            Some(failure) => ["failure", failure.word()],
        };
        self.requests.with_label_values(&labels).inc();
        self.durations.with_label_values(&labels).observe(seconds);
        let succeeded = failure.is_none().to_string();
        self.by_definition.with_label_values(&[definition, from, to, &succeeded]).observe(seconds);
    }
}
