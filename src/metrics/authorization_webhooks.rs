//! What is counted of decisions about requests, and of the webhooks that are asked for them.

use prometheus::{HistogramVec, IntCounterVec};

use super::match_conditions::{Authorizer, Counts};

/// What came of judging a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizationResult {
    /// It may pass.
    Allowed,
    /// A policy is against it.
    Denied,
    /// No policy is for it.
    NoOpinion,
    /// Nobody knows.
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

/// What is counted of one authorization webhook. Operators choose the names.
#[derive(Clone)]
pub struct AuthorizationWebhookMeter {
    pub(super) name: String,
    pub(super) rounds: IntCounterVec,
    pub(super) durations: HistogramVec,
    pub(super) open: IntCounterVec,
    pub(super) conditions: Counts,
}

/// How a question to a webhook ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// With an answer.
    Success,
    /// With none in time.
    Timeout,
    /// With anything else.
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
    /// What operators call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counts how long its conditions took, whether they left a request to others, and whether some failed.
    pub fn matched(&self, seconds: f64, excluded: bool, failed: bool) {
        let of = Authorizer(&self.name);
        self.conditions.evaluated(&of, usize::from(failed), seconds);
        if excluded {
            self.conditions.excluded(&of);
        }
    }

    /// Counts one question and how long it took.
    pub fn asked(&self, round: CallResult, seconds: f64) {
        let labels = [self.name.as_str(), round.name()];
        self.rounds.with_label_values(&labels).inc();
        self.durations.with_label_values(&labels).observe(seconds);
    }

    /// Counts a question that others decide because of this end.
    pub fn left_open(&self, round: CallResult) {
        self.open.with_label_values(&[&self.name, round.name()]).inc();
    }
}
