//! Metrics of conversion webhooks.

use pilothouse_api::custom_resource::conversion::FailureKind;
use prometheus::{HistogramVec, IntCounterVec};

use super::registration::{MetricRegistry, Result};

/// The buckets of durations, in seconds; the reference's.
const SECONDS: [f64; 15] =
    [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
/// The first bucket of durations by definition; each is twice the one before.
const FIRST_SECONDS: f64 = 0.001;
const LABELS: [&str; 2] = ["result", "failure_type"];

/// The labels of a call to a conversion webhook.
#[derive(Clone, Copy)]
pub struct ConversionLabels<'a> {
    /// The name of the definition.
    pub definition: &'a str,
    /// The version of the objects.
    pub from: &'a str,
    /// The requested version.
    pub to: &'a str,
}

/// Calls to conversion webhooks.
pub struct Conversions {
    requests: IntCounterVec,
    durations: HistogramVec,
    by_definition: HistogramVec,
}

impl Conversions {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<Conversions> {
        Ok(Conversions {
            requests: registry.counters(
                "apiserver_conversion_webhook_request_total",
                "Calls to conversion webhooks, by result and kind of failure.",
                &LABELS,
            )?,
            durations: registry.histograms(
                "apiserver_conversion_webhook_duration_seconds",
                "How long calls to conversion webhooks took, by result and kind of failure.",
                &LABELS,
                &SECONDS,
            )?,
            by_definition: registry.histograms(
                "apiserver_crd_conversion_webhook_duration_seconds",
                "How long conversions of custom objects took, by definition, versions and whether they succeeded.",
                &["crd_name", "from_version", "to_version", "succeeded"],
                &prometheus::exponential_buckets(FIRST_SECONDS, 2.0, 15)?,
            )?,
        })
    }

    /// Counts a call.
    pub fn count_call(&self, conversion: ConversionLabels<'_>, seconds: f64, failure: Option<FailureKind>) {
        let ConversionLabels { definition, from, to } = conversion;
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
