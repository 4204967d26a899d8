//! Results of authorization, and metrics of authorization webhooks.

use prometheus::{HistogramVec, IntCounterVec};

use super::match_conditions::{Authorizer, Counts};

/// The result of authorizing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizationResult {
    /// An authorizer allowed it.
    Allowed,
    /// An authorizer denied it.
    Denied,
    /// No authorizer allowed it.
    NoOpinion,
    /// Authorization failed.
    Failed,
}

impl AuthorizationResult {
    pub(super) fn name(self) -> &'static str {
        match self {
            AuthorizationResult::Allowed => "allowed",
            AuthorizationResult::Denied => "denied",
            AuthorizationResult::NoOpinion => "no-opinion",
            AuthorizationResult::Failed => "error",
        }
    }
}

/// The counters of one authorization webhook. Operators choose the names.
#[derive(Clone)]
pub struct AuthorizationWebhookMeter {
    pub(super) name: String,
    pub(super) calls: IntCounterVec,
    pub(super) durations: HistogramVec,
    pub(super) fail_open: IntCounterVec,
    pub(super) conditions: Counts,
}

/// The result of a call to a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// The webhook answered.
    Success,
    /// The call timed out.
    Timeout,
    /// The call failed otherwise.
    Error,
}

impl CallResult {
    fn name(self) -> &'static str {
        match self {
            CallResult::Success => "success",
            CallResult::Timeout => "timeout",
            CallResult::Error => "error",
        }
    }
}

impl AuthorizationWebhookMeter {
    /// The configured name of the webhook.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counts an evaluation of its match conditions: its duration, whether they excluded the request, and whether it failed.
    pub fn count_match(&self, seconds: f64, excluded: bool, failed: bool) {
        let labels = Authorizer(&self.name);
        self.conditions.count_evaluation(&labels, usize::from(failed), seconds);
        if excluded {
            self.conditions.count_exclusion(&labels);
        }
    }

    /// Counts a call and its duration.
    pub fn count_call(&self, result: CallResult, seconds: f64) {
        let labels = [self.name.as_str(), result.name()];
        self.calls.with_label_values(&labels).inc();
        self.durations.with_label_values(&labels).observe(seconds);
    }

    /// Counts a request that is left to other authorizers after this result.
    pub fn count_fail_open(&self, result: CallResult) {
        self.fail_open.with_label_values(&[&self.name, result.name()]).inc();
    }
}
