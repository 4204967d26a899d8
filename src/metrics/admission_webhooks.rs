//! What is counted of admission webhooks. Operators choose their names; what a webhook answers is bounded.

use prometheus::{HistogramVec, IntCounterVec};

use super::match_conditions::Counts;
use super::registration::{MetricRegistry, Result};

/// The bounds of the classes of duration, in seconds; the reference server's.
const SECONDS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// All codes above count as this one.
const LAST_CODE: u16 = 600;

/// Why a webhook refused a request, or seems to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It did.
    None,
    /// It could not be asked.
    Calling,
    /// Neither: the server could not make anything of its answer.
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

/// Which webhook was asked, when, and about what.
#[derive(Clone, Copy)]
pub struct WebhookLabels<'a> {
    /// Its name.
    pub name: &'a str,
    /// `admit` or `validating`.
    pub sort: &'a str,
    /// What is done, in the words of rules.
    pub operation: &'a str,
}

/// What admission webhooks are asked and say.
pub struct AdmissionWebhooks {
    /// How conditions were evaluated, of policies too.
    pub conditions: Counts,
    durations: HistogramVec,
    rejections: IntCounterVec,
    open: IntCounterVec,
    requests: IntCounterVec,
}

impl AdmissionWebhooks {
    pub(super) fn new(page: &MetricRegistry<'_>) -> Result<AdmissionWebhooks> {
        Ok(AdmissionWebhooks {
            conditions: Counts::of_admission(page)?,
            durations: page.histograms(
                "apiserver_admission_webhook_admission_duration_seconds",
                "How long questions to admission webhooks took, by webhook, type, operation and whether they refused.",
                &["name", "type", "operation", "rejected"],
                &SECONDS,
            )?,
            rejections: page.counters(
                "apiserver_admission_webhook_rejection_count",
                "Requests that admission webhooks refused, or that were refused because one failed, by webhook, type, \
                 operation, kind of error and code.",
                &["name", "type", "operation", "error_type", "rejection_code"],
            )?,
            open: page.counters(
                "apiserver_admission_webhook_fail_open_count",
                "Requests that went on although an admission webhook could not be asked, by webhook and type.",
                &["name", "type"],
            )?,
            requests: page.counters(
                "apiserver_admission_webhook_request_total",
                "Questions to admission webhooks, by webhook, type, operation, code and whether they refused.",
                &["name", "type", "operation", "code", "rejected"],
            )?,
        })
    }

    /// Counts a question. `rejected` says why the request was refused, if it was.
    pub fn asked(&self, asked: WebhookLabels<'_>, seconds: f64, code: u16, rejected: Option<Fault>) {
        let WebhookLabels { name, sort, operation } = asked;
        let (code, is_rejected) = (code.min(LAST_CODE).to_string(), rejected.is_some().to_string());
        if let Some(fault) = rejected {
            self.rejections.with_label_values(&[name, sort, operation, fault.word(), &code]).inc();
        }
        self.requests.with_label_values(&[name, sort, operation, &code, &is_rejected]).inc();
        self.durations.with_label_values(&[name, sort, operation, &is_rejected]).observe(seconds);
    }

    /// Counts a request that went on although nobody answered.
    pub fn left_open(&self, asked: WebhookLabels<'_>) {
        self.open.with_label_values(&[asked.name, asked.sort]).inc();
    }
}
