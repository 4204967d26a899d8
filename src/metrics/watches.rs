//! What is counted of watches, and of the history that they tell from.

use pilothouse_api::catalog::resource::Resource;
use pilothouse_types::clock::Timestamp;
use prometheus::{GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::registration::{MetricRegistry, Result};

/// The bounds of the classes of lag, in seconds: from what nobody notices to what a history lasts.
const LAG_SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0];

/// What is counted of watches beside their number.
pub struct WatchMetrics {
    events: IntCounterVec,
    lag: Histogram,
    /// Watches that have something to tell and whose clients do not read.
    pub stalled: IntGauge,
    /// Bytes that the lists in flight hold.
    pub list_bytes: IntGauge,
    /// Events that the windows hold in memory, by type.
    pub window_events: IntGaugeVec,
    /// Events that only the log holds, by type.
    pub archived_events: IntGaugeVec,
    /// What the windows weigh, by type.
    pub window_bytes: IntGaugeVec,
    /// The age of the oldest event that can be read, by type.
    pub window_age: GaugeVec,
}

impl WatchMetrics {
    pub(super) fn new(page: &MetricRegistry<'_>) -> Result<WatchMetrics> {
        Ok(WatchMetrics {
            events: page.counters(
                "apiserver_watch_events_total",
                "Events that watches told, by group, version and kind.",
                &["group", "version", "kind"],
            )?,
            lag: page.histogram(
                "pilothouse_watch_lag_seconds",
                "How long ago the oldest event was accepted that a watch took in at once.",
                &LAG_SECONDS,
            )?,
            stalled: page.gauge(
                "pilothouse_watch_stalled_sessions",
                "Watches that have something to tell and whose clients do not read.",
            )?,
            list_bytes: page
                .gauge("pilothouse_list_bytes_inflight", "Bytes that the lists in flight hold.")?,
            window_events: page.gauges(
                "pilothouse_watch_window_events",
                "Events of the history in memory, by resource.",
                &["resource"],
            )?,
            archived_events: page.gauges(
                "pilothouse_watch_window_archived_events",
                "Events of the history that are read from the log, by resource.",
                &["resource"],
            )?,
            window_bytes: page.gauges(
                "pilothouse_watch_window_bytes",
                "What the history in memory weighs, by resource.",
                &["resource"],
            )?,
            window_age: page.measures(
                "pilothouse_watch_window_age_seconds",
                "How far back the history reaches that watches can begin in, by resource.",
                &["resource"],
            )?,
        })
    }

    /// The counters of a watch, which `open` counts until it ends.
    pub(super) fn open(&self, open: IntGauge, resource: &Resource) -> OpenWatch {
        let labels = [&*resource.gv.group, &*resource.gv.version, &*resource.kind];
        OpenWatch { open, events: self.events.with_label_values(&labels), lag: self.lag.clone() }
    }
}

/// One watch that is open, with the counters it was given at its start.
pub struct OpenWatch {
    open: IntGauge,
    events: IntCounter,
    lag: Histogram,
}

impl OpenWatch {
    /// Counts events that were told, the first of them accepted at `oldest`.
    pub fn delivered(&self, events: usize, oldest: Timestamp, now: Timestamp) {
        self.events.inc_by(events as u64);
        self.lag.observe(now.since(oldest).as_secs_f64());
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.open.dec();
    }
}
