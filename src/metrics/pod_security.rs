//! Metrics of Pod Security admission.

use prometheus::IntCounterVec;

use super::registration::{MetricRegistry, Result};

/// The labels of the write, which every series has.
const WRITE: [&str; 3] = ["request_operation", "resource", "subresource"];

/// Evaluations of Pod Security Standards.
pub struct PodSecurity {
    evaluations: IntCounterVec,
    exemptions: IntCounterVec,
    errors: IntCounterVec,
}

/// An evaluated write: operation, resource and subresource. They become labels, so callers must take them from fixed lists.
pub type Judged<'a> = [&'a str; 3];

/// The policy that a write was evaluated against: level, version and mode.
pub type HeldTo<'a> = [&'a str; 3];

impl PodSecurity {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<PodSecurity> {
        let counter = |name: &str, help: &str, extra_labels: &[&str]| {
            registry.counters(format!("pod_security_{name}_total"), help, &[extra_labels, &WRITE].concat())
        };
        let metrics = PodSecurity {
            evaluations: counter(
                "evaluations",
                "Evaluations of pods and pod controllers, by decision and policy.",
                &["decision", "policy_level", "policy_version", "mode"],
            )?,
            exemptions: counter("exemptions", "Writes that are exempt from Pod Security.", &[])?,
            errors: counter("errors", "Writes whose policy could not be determined.", &["fatal"])?,
        };
        // The most common series exist from the start on, as in the reference.
        for operation in ["create", "update"] {
            for resource in ["pod", "controller"] {
                metrics.exemptions.with_label_values(&[operation, resource, ""]);
            }
            let labels = ["allow", "privileged", "latest", "enforce", operation, "pod", ""];
            metrics.evaluations.with_label_values(&labels);
        }
        Ok(metrics)
    }

    /// Counts an evaluation of a write.
    pub fn count_evaluation(&self, write: Judged<'_>, is_met: bool, held_to: HeldTo<'_>) {
        let decision = if is_met { "allow" } else { "deny" };
        let labels = [&[decision][..], &held_to, &write].concat();
        self.evaluations.with_label_values(&labels).inc();
    }

    /// Counts an exempt write.
    pub fn count_exemption(&self, write: Judged<'_>) {
        self.exemptions.with_label_values(&write).inc();
    }

    /// Counts a write whose policy could not be determined or parsed.
    pub fn count_error(&self, write: Judged<'_>, is_fatal: bool) {
        let fatal = if is_fatal { "true" } else { "false" };
        self.errors.with_label_values(&[&[fatal][..], &write].concat()).inc();
    }
}
