//! Metrics of admission webhooks. Operators choose the names in labels; labels from responses are bounded.

use prometheus::{HistogramVec, IntCounterVec};

use super::match_conditions::Counts;
use super::registration::{MetricRegistry, Result};

/// The buckets of durations, in seconds; the reference's.
const SECONDS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// All codes above count as this one.
const LAST_CODE: u16 = 600;

/// Why a request was rejected at a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The webhook rejected it.
    None,
    /// The webhook could not be called.
    Calling,
    /// The response of the webhook could not be processed.
    Server,
}

impl Fault {
    fn word(self) -> &'static str {
        match self {
            Fault::None => "no_error",
            Fault::Calling => "calling_webhook_error",
            Fault::Server => "apiserver_internal_error",
        }
    }
}

/// The labels of a call to a webhook.
#[derive(Clone, Copy)]
pub struct WebhookLabels<'a> {
    /// The name of the webhook.
    pub name: &'a str,
    /// `admit` or `validating`.
    pub sort: &'a str,
    /// The operation, as in rules.
    pub operation: &'a str,
}

/// Calls to admission webhooks.
pub struct AdmissionWebhooks {
    /// Evaluations of match conditions, also those of policies.
    pub conditions: Counts,
    durations: HistogramVec,
    rejections: IntCounterVec,
    fail_open: IntCounterVec,
    requests: IntCounterVec,
}

impl AdmissionWebhooks {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<AdmissionWebhooks> {
        Ok(AdmissionWebhooks {
            conditions: Counts::for_admission(registry)?,
            durations: registry.histograms(
                "apiserver_admission_webhook_admission_duration_seconds",
                "How long calls to admission webhooks took, by webhook, type, operation and whether they rejected the request.",
                &["name", "type", "operation", "rejected"],
                &SECONDS,
            )?,
            rejections: registry.counters(
                "apiserver_admission_webhook_rejection_count",
                "Requests that admission webhooks rejected, or that were rejected because one failed, by webhook, type, \
                 operation, kind of error and code.",
                &["name", "type", "operation", "error_type", "rejection_code"],
            )?,
            fail_open: registry.counters(
                "apiserver_admission_webhook_fail_open_count",
                "Requests that were admitted although an admission webhook could not be called, by webhook and type.",
                &["name", "type"],
            )?,
            requests: registry.counters(
                "apiserver_admission_webhook_request_total",
                "Calls to admission webhooks, by webhook, type, operation, code and whether they rejected the request.",
                &["name", "type", "operation", "code", "rejected"],
            )?,
        })
    }

    /// Counts a call. `rejected`: why the request was rejected, if it was.
    pub fn count_call(&self, labels: WebhookLabels<'_>, seconds: f64, code: u16, rejected: Option<Fault>) {
        let WebhookLabels { name, sort, operation } = labels;
        let (code, is_rejected) = (code.min(LAST_CODE).to_string(), rejected.is_some().to_string());
        if let Some(fault) = rejected {
            self.rejections.with_label_values(&[name, sort, operation, fault.word(), &code]).inc();
        }
        self.requests.with_label_values(&[name, sort, operation, &code, &is_rejected]).inc();
        self.durations.with_label_values(&[name, sort, operation, &is_rejected]).observe(seconds);
    }

    /// Counts a request that was admitted although the call failed.
    pub fn count_fail_open(&self, labels: WebhookLabels<'_>) {
        self.fail_open.with_label_values(&[labels.name, labels.sort]).inc();
    }
}
