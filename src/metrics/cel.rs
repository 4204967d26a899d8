//! The validation rules of custom resources: how long it takes to compile and to evaluate them.

use std::time::Duration;

use prometheus::{DEFAULT_BUCKETS, Histogram};

use super::registration::{MetricRegistry, Result};

/// Durations of expressions.
pub struct CelMetrics {
    compilations: Histogram,
    evaluations: Histogram,
}

impl CelMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<CelMetrics> {
        Ok(CelMetrics {
            compilations: registry.histogram(
                "apiserver_cel_compilation_duration_seconds",
                "How long it took to compile the schemas and rules of a definition that has rules.",
                DEFAULT_BUCKETS,
            )?,
            evaluations: registry.histogram(
                "apiserver_cel_evaluation_duration_seconds",
                "How long it took to evaluate the rules of a custom resource for an object.",
                DEFAULT_BUCKETS,
            )?,
        })
    }

    /// Counts the compilation of a definition.
    pub fn count_compilation(&self, elapsed: Duration) {
        self.compilations.observe(elapsed.as_secs_f64());
    }

    /// Counts the evaluation of all rules for an object.
    pub fn count_evaluation(&self, elapsed: Duration) {
        self.evaluations.observe(elapsed.as_secs_f64());
    }
}
