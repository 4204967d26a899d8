//! What is counted of the records of requests.

use pilothouse_api::audit::Level;
use prometheus::{IntCounter, IntCounterVec};

use super::registration::{MetricRegistry, Result};

/// What is written down of requests, and what is not.
#[derive(Clone)]
pub struct Audit {
    events: IntCounter,
    errors: IntCounterVec,
    levels: IntCounterVec,
    rejected: IntCounter,
}

impl Audit {
    pub(super) fn new(page: &MetricRegistry<'_>) -> Result<Audit> {
        Ok(Audit {
            events: page.counter(
                "apiserver_audit_event_total",
                "Records of requests that were made and passed on to be written.",
            )?,
            errors: page.counters(
                "apiserver_audit_error_total",
                "Records that were lost, by what lost them: buffered (nobody took them in time), truncate, log or webhook.",
                &["plugin"],
            )?,
            levels: page.counters(
                "apiserver_audit_level_total",
                "Requests, by how much is written down of them.",
                &["level"],
            )?,
            rejected: page.counter(
                "apiserver_audit_requests_rejected_total",
                "Requests that were refused because they could not be written down.",
            )?,
        })
    }

    /// Counts a request by how much is written down of it.
    pub fn decided(&self, level: Level) {
        self.levels.with_label_values(&[level.word()]).inc();
    }

    /// Counts a record.
    pub fn made(&self) {
        self.events.inc();
    }

    /// Counts records that were lost. The log is told of the first, and then whenever there are twice as many: who loses many
    /// shall not fill a disk with that.
    pub fn lost(&self, plugin: &str, records: usize, why: &str) {
        let lost = self.errors.with_label_values(&[plugin]);
        let before = lost.get();
        lost.inc_by(records as u64);
        let lost = before + records as u64;
        if before.checked_ilog2() != lost.checked_ilog2() {
            tracing::warn!(plugin, lost, why, "audit events were lost");
        }
    }

    /// Counts a request that was refused for want of a record.
    pub fn refused(&self) {
        self.rejected.inc();
    }
}
