//! What is counted of decisions about requests, and of the webhooks that are asked for them.

use prometheus::{HistogramVec, IntCounterVec};

use super::conditions::{Authorizer, Counts};

/// What came of judging a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// It may pass.
    Allowed,
    /// A policy is against it.
    Denied,
    /// No policy is for it.
    NoOpinion,
    /// Nobody knows.
    Failed,
}

impl Judged {
    pub(super) fn name(self) -> &'static str {
        match self {
            Judged::Allowed => "allowed",
            Judged::Denied => "denied",
            Judged::NoOpinion => "no-opinion",
            Judged::Failed => "error",
        }
    }
}

/// What is counted of one authorization webhook. Operators choose the names.
#[derive(Clone)]
pub struct WebhookMeter {
    pub(super) name: String,
    pub(super) rounds: IntCounterVec,
    pub(super) durations: HistogramVec,
    pub(super) open: IntCounterVec,
    pub(super) conditions: Counts,
}

/// How a question to a webhook ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// With an answer.
    Success,
    /// With none in time.
    Timeout,
    /// With anything else.
    Error,
}

impl Round {
    fn name(self) -> &'static str {
        match self {
            Round::Success => "success",
            Round::Timeout => "timeout",
            Round::Error => "error",
        }
    }
}

impl WebhookMeter {
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
    pub fn asked(&self, round: Round, seconds: f64) {
        let labels = [self.name.as_str(), round.name()];
        self.rounds.with_label_values(&labels).inc();
        self.durations.with_label_values(&labels).observe(seconds);
    }

    /// Counts a question that others decide because of this end.
    pub fn left_open(&self, round: Round) {
        self.open.with_label_values(&[&self.name, round.name()]).inc();
    }
}
