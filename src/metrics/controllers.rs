//! What is counted of control loops, by their name.

use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};

use super::registration::{MetricRegistry, Result};

/// What control loops have to do, and do.
pub struct ControllerMetrics {
    depth: IntGaugeVec,
    adds: IntCounterVec,
    retries: IntCounterVec,
    durations: HistogramVec,
    restarts: IntCounterVec,
}

impl ControllerMetrics {
    pub(super) fn new(page: &MetricRegistry<'_>) -> Result<ControllerMetrics> {
        Ok(ControllerMetrics {
            depth: page.gauges(
                "workqueue_depth",
                "Keys that a control loop could work on now.",
                &["name"],
            )?,
            adds: page.counters(
                "workqueue_adds_total",
                "Keys that were added to the queue of a control loop.",
                &["name"],
            )?,
            retries: page.counters(
                "workqueue_retries_total",
                "Keys of a control loop that were tried again.",
                &["name"],
            )?,
            durations: page.histograms(
                "workqueue_work_duration_seconds",
                "How long a control loop worked on a key.",
                &["name"],
                &prometheus::exponential_buckets(10e-9, 10.0, 12)?,
            )?,
            restarts: page.counters(
                "pilothouse_controller_restarts_total",
                "Control loops that ended and were started again.",
                &["name"],
            )?,
        })
    }

    /// Says how many keys of a control loop wait, and counts those that were added and tried again since it was last said.
    pub fn count_queue(&self, name: &str, depth: usize, added: u64, retried: u64) {
        self.depth.with_label_values(&[name]).set(i64::try_from(depth).unwrap_or(i64::MAX));
        self.adds.with_label_values(&[name]).inc_by(added);
        self.retries.with_label_values(&[name]).inc_by(retried);
    }

    /// Counts the work of a control loop on a key.
    pub fn count_work(&self, name: &str, seconds: f64) {
        self.durations.with_label_values(&[name]).observe(seconds);
    }

    /// Counts a control loop that ended and is started again.
    pub fn count_restart(&self, name: &str) {
        self.restarts.with_label_values(&[name]).inc();
    }
}
