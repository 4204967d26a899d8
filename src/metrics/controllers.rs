//! Metrics of controllers, by their name.

use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};

use super::registration::{MetricRegistry, Result};

/// Work queues and restarts of controllers.
pub struct ControllerMetrics {
    depth: IntGaugeVec,
    adds: IntCounterVec,
    retries: IntCounterVec,
    durations: HistogramVec,
    waits: HistogramVec,
    restarts: IntCounterVec,
}

impl ControllerMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<ControllerMetrics> {
        Ok(ControllerMetrics {
            depth: registry.gauges("workqueue_depth", "Keys in the queue of a controller.", &["name"])?,
            adds: registry.counters(
                "workqueue_adds_total",
                "Keys that were added to the queue of a controller.",
                &["name"],
            )?,
            retries: registry.counters(
                "workqueue_retries_total",
                "Keys of a controller that were retried.",
                &["name"],
            )?,
            durations: registry.histograms(
                "workqueue_work_duration_seconds",
                "How long a controller worked on a key.",
                &["name"],
                &prometheus::exponential_buckets(10e-9, 10.0, 12)?,
            )?,
            waits: registry.histograms(
                "workqueue_queue_duration_seconds",
                "How long keys were in the queue of a controller.",
                &["name"],
                &prometheus::exponential_buckets(10e-9, 10.0, 12)?,
            )?,
            restarts: registry.counters(
                "pilothouse_controller_restarts_total",
                "Controllers that panicked or lost their informer and were restarted.",
                &["name"],
            )?,
        })
    }

    /// Sets the queue length of a controller, and counts the keys that were added and retried since the last call.
    pub fn count_queue(&self, name: &str, depth: usize, added: u64, retried: u64) {
        self.depth.with_label_values(&[name]).set(i64::try_from(depth).unwrap_or(i64::MAX));
        self.adds.with_label_values(&[name]).inc_by(added);
        self.retries.with_label_values(&[name]).inc_by(retried);
    }

    /// Counts how long a key was in the queue of a controller.
    pub fn count_wait(&self, name: &str, seconds: f64) {
        self.waits.with_label_values(&[name]).observe(seconds);
    }

    /// Counts the work of a controller on a key.
    pub fn count_work(&self, name: &str, seconds: f64) {
        self.durations.with_label_values(&[name]).observe(seconds);
    }

    /// Counts the restart of a controller.
    pub fn count_restart(&self, name: &str) {
        self.restarts.with_label_values(&[name]).inc();
    }
}
