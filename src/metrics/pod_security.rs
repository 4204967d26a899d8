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

/// An evaluated write. Callers must take the values from fixed lists, because they become labels.
#[derive(Clone, Copy, Debug)]
pub struct WriteLabels<'a> {
    /// `create` or `update`.
    pub operation: &'a str,
    /// `pod` or `controller`.
    pub resource: &'a str,
    /// The subresource, empty for the object itself.
    pub subresource: &'a str,
}

impl<'a> WriteLabels<'a> {
    fn values(self) -> [&'a str; 3] {
        [self.operation, self.resource, self.subresource]
    }
}

/// The policy that a write was evaluated against.
#[derive(Clone, Copy, Debug)]
pub struct PolicyLabels<'a> {
    /// The level.
    pub level: &'a str,
    /// The version.
    pub version: &'a str,
    /// The mode.
    pub mode: &'a str,
}

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
    pub fn count_evaluation(&self, write: WriteLabels<'_>, is_met: bool, policy: PolicyLabels<'_>) {
        let decision = if is_met { "allow" } else { "deny" };
        let PolicyLabels { level, version, mode } = policy;
        let labels = [&[decision, level, version, mode][..], &write.values()].concat();
        self.evaluations.with_label_values(&labels).inc();
    }

    /// Counts an exempt write.
    pub fn count_exemption(&self, write: WriteLabels<'_>) {
        self.exemptions.with_label_values(&write.values()).inc();
    }

    /// Counts a write whose policy could not be determined or parsed.
    pub fn count_error(&self, write: WriteLabels<'_>, is_fatal: bool) {
        let fatal = if is_fatal { "true" } else { "false" };
        self.errors.with_label_values(&[&[fatal][..], &write.values()].concat()).inc();
    }
}
