//! Metrics of the threads for heavy work.

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::registration::{MetricRegistry, Result};

/// The buckets of waiting times, in seconds.
const WAIT_SECONDS: [f64; 12] = [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Counts of all lanes.
pub struct HeavyWorkMetrics {
    waiting: IntGaugeVec,
    running: IntGaugeVec,
    refused: IntCounterVec,
    waits: HistogramVec,
}

impl HeavyWorkMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<HeavyWorkMetrics> {
        Ok(HeavyWorkMetrics {
            waiting: registry.gauges(
                "pilothouse_heavy_work_waiting",
                "Heavy requests that wait for a thread, by lane.",
                &["lane"],
            )?,
            running: registry.gauges(
                "pilothouse_heavy_work_running",
                "Heavy requests that a thread has begun, by lane.",
                &["lane"],
            )?,
            refused: registry.counters(
                "pilothouse_heavy_work_refused_total",
                "Heavy requests that were refused because too many wait, by lane.",
                &["lane"],
            )?,
            waits: registry.histograms(
                "pilothouse_heavy_work_wait_seconds",
                "How long heavy requests waited for a thread, by lane.",
                &["lane"],
                &WAIT_SECONDS,
            )?,
        })
    }

    /// The counts of a lane.
    pub fn lane(&self, name: &str) -> LaneMetrics {
        let lane = [name];
        LaneMetrics {
            waiting: self.waiting.with_label_values(&lane),
            running: self.running.with_label_values(&lane),
            refused: self.refused.with_label_values(&lane),
            waits: self.waits.with_label_values(&lane),
        }
    }
}

/// The counts of one lane.
pub struct LaneMetrics {
    waiting: IntGauge,
    running: IntGauge,
    refused: IntCounter,
    waits: Histogram,
}

impl LaneMetrics {
    /// Sets the length of the queue.
    pub fn waiting(&self, length: usize) {
        self.waiting.set(i64::try_from(length).unwrap_or(i64::MAX));
    }

    /// Counts work that begins after waiting for `waited` seconds.
    pub fn begin(&self, waited: f64) {
        self.running.inc();
        self.waits.observe(waited);
    }

    /// Counts work that has ended.
    pub fn end(&self) {
        self.running.dec();
    }

    /// Counts work that was refused.
    pub fn refuse(&self) {
        self.refused.inc();
    }
}
