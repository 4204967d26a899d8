//! Metrics of auditing.

use pilothouse_api::audit::Level;
use prometheus::{IntCounter, IntCounterVec};

use super::registration::{MetricRegistry, Result};

/// Audit events, by result.
#[derive(Clone)]
pub struct Audit {
    events: IntCounter,
    errors: IntCounterVec,
    levels: IntCounterVec,
    rejected: IntCounter,
    policy_reloads: IntCounterVec,
}

impl Audit {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<Audit> {
        Ok(Audit {
            events: registry.counter(
                "apiserver_audit_event_total",
                "Audit events that were generated and sent to the audit backends.",
            )?,
            errors: registry.counters(
                "apiserver_audit_error_total",
                "Audit events that were lost, by plugin: buffered (the queue was full), truncate, log or webhook.",
                &["plugin"],
            )?,
            levels: registry.counters(
                "apiserver_audit_level_total",
                "Requests, by audit level.",
                &["level"],
            )?,
            rejected: registry.counter(
                "apiserver_audit_requests_rejected_total",
                "Requests that were rejected because their audit event could not be written.",
            )?,
            policy_reloads: registry.counters(
                "pilothouse_audit_policy_reloads_total",
                "Changes of the audit policy file, by status: success (the new policy is in force) or failure (the previous one is).",
                &["status"],
            )?,
        })
    }

    /// Counts a request by its audit level.
    pub fn count_level(&self, level: Level) {
        self.levels.with_label_values(&[level.word()]).inc();
    }

    /// Counts an audit event.
    pub fn count_event(&self) {
        self.events.inc();
    }

    /// Counts lost audit events. The first is logged, and then whenever their number has doubled, so that many losses do not
    /// fill the disk.
    pub fn count_lost(&self, plugin: &str, records: usize, error: &str) {
        let counter = self.errors.with_label_values(&[plugin]);
        let previous = counter.get();
        counter.inc_by(records as u64);
        let total = previous + records as u64;
        if previous.checked_ilog2() != total.checked_ilog2() {
            tracing::warn!(plugin, lost = total, error, "audit events were lost");
        }
    }

    /// Counts a change of the policy file, which was used or refused.
    pub fn count_policy_reload(&self, is_used: bool) {
        self.policy_reloads.with_label_values(&[if is_used { "success" } else { "failure" }]).inc();
    }

    /// Counts a request that was rejected because its audit event could not be written.
    pub fn count_rejected(&self) {
        self.rejected.inc();
    }
}
