//! What is counted of the standards that namespaces hold their pods to.

use prometheus::IntCounterVec;

use super::registration::{MetricRegistry, Result};

/// What every series says of the write.
const WRITE: [&str; 3] = ["request_operation", "resource", "subresource"];

/// How pods were judged.
pub struct PodSecurity {
    evaluations: IntCounterVec,
    exemptions: IntCounterVec,
    errors: IntCounterVec,
}

/// A write that was looked at: what it does, to what sort of object, and to which part of it. Labels are these words, so
/// whoever makes one takes them from lists of its own.
pub type Judged<'a> = [&'a str; 3];

/// What a write was held to, as words: the level, whose idea of it, and what happens to whom it is not met by.
pub type HeldTo<'a> = [&'a str; 3];

impl PodSecurity {
    pub(super) fn new(page: &MetricRegistry<'_>) -> Result<PodSecurity> {
        let counter = |name: &str, help: &str, more: &[&str]| {
            page.counters(format!("pod_security_{name}_total"), help, &[more, &WRITE].concat())
        };
        let made = PodSecurity {
            evaluations: counter(
                "evaluations",
                "Pods and what makes pods that were held to a standard, by decision and standard.",
                &["decision", "policy_level", "policy_version", "mode"],
            )?,
            exemptions: counter("exemptions", "Writes that are exempt from all standards.", &[])?,
            errors: counter("errors", "Writes of which a standard was not known.", &["fatal"])?,
        };
        // Dashboards find what happens most from the start on, as in the reference.
        for operation in ["create", "update"] {
            for resource in ["pod", "controller"] {
                made.exemptions.with_label_values(&[operation, resource, ""]);
            }
            let labels = ["allow", "privileged", "latest", "enforce", operation, "pod", ""];
            made.evaluations.with_label_values(&labels);
        }
        Ok(made)
    }

    /// Counts a write that met a standard, or did not.
    pub fn evaluated(&self, write: Judged<'_>, is_met: bool, held_to: HeldTo<'_>) {
        let decision = if is_met { "allow" } else { "deny" };
        let labels = [&[decision][..], &held_to, &write].concat();
        self.evaluations.with_label_values(&labels).inc();
    }

    /// Counts a write that no standard is about.
    pub fn exempted(&self, write: Judged<'_>) {
        self.exemptions.with_label_values(&write).inc();
    }

    /// Counts a write of which the standard could not be found out, or not be read.
    pub fn failed(&self, write: Judged<'_>, is_fatal: bool) {
        let fatal = if is_fatal { "true" } else { "false" };
        self.errors.with_label_values(&[&[fatal][..], &write].concat()).inc();
    }
}
