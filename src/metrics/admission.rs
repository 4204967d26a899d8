//! How long admission took: its two steps, and each plug-in.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, HistogramVec};

use super::Metrics;
use super::registration::{MetricRegistry, Result};

/// The buckets of durations, in seconds; the reference's.
const SECONDS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];

/// A step of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Objects are changed.
    Admit,
    /// Objects are checked.
    Validate,
}

impl Step {
    /// Its name in metrics and traces.
    pub fn label(self) -> &'static str {
        match self {
            Step::Admit => "admit",
            Step::Validate => "validate",
        }
    }
}

/// Durations of admission.
pub struct AdmissionMetrics {
    /// By step, operation and whether the request was rejected.
    steps: HistogramVec,
    /// The same, by plug-in.
    plugins: HistogramVec,
}

impl AdmissionMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<AdmissionMetrics> {
        Ok(AdmissionMetrics {
            steps: registry.histograms(
                "apiserver_admission_step_admission_duration_seconds",
                "How long the steps of admission took, by step (admit or validate), operation and whether the request was rejected.",
                &["type", "operation", "rejected"],
                &SECONDS,
            )?,
            plugins: registry.histograms(
                "apiserver_admission_controller_admission_duration_seconds",
                "How long admission plug-ins took, by plug-in, step (admit or validate), operation and whether the request was \
                 rejected.",
                &["name", "type", "operation", "rejected"],
                &SECONDS,
            )?,
        })
    }
}

/// What is measured: a plug-in, or a whole step; the operation; and whether it was rejected.
type Timed = (Option<&'static str>, Step, &'static str, bool);

/// The durations as one worker counts them. It looks each histogram up once, because that costs more than most plug-ins.
pub struct Times {
    metrics: Arc<Metrics>,
    histograms: RefCell<HashMap<Timed, Histogram>>,
}

impl Times {
    /// Counts into these metrics.
    pub fn new(metrics: Arc<Metrics>) -> Times {
        Times { metrics, histograms: RefCell::default() }
    }

    /// Counts a plug-in, or without one a whole step.
    pub fn note(
        &self,
        plugin: Option<&'static str>,
        step: Step,
        operation: &'static str,
        is_rejected: bool,
        time: Duration,
    ) {
        let timed = (plugin, step, operation, is_rejected);
        let mut histograms = self.histograms.borrow_mut();
        histograms.entry(timed).or_insert_with(|| self.find(timed)).observe(time.as_secs_f64());
    }

    fn find(&self, (plugin, step, operation, is_rejected): Timed) -> Histogram {
        let AdmissionMetrics { steps, plugins } = &self.metrics.admission;
        let (step, is_rejected) = (step.label(), if is_rejected { "true" } else { "false" });
        match plugin {
            Some(plugin) => plugins.with_label_values(&[plugin, step, operation, is_rejected]),
            None => steps.with_label_values(&[step, operation, is_rejected]),
        }
    }
}
