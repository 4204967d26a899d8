//! Metrics of watches and of the watch cache.

use pilothouse_api::catalog::resource::Resource;
use pilothouse_types::clock::Timestamp;
use prometheus::{GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::registration::{MetricRegistry, Result};

/// The buckets of the watch lag, in seconds: up to the length of the history.
const LAG_SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0];

/// Metrics of watches.
pub struct WatchMetrics {
    events: IntCounterVec,
    lag: Histogram,
    /// Watches whose clients left 64 or more announced events unread.
    pub stalled: IntGauge,
    /// Bytes that the lists in flight hold.
    pub list_bytes: IntGauge,
    /// Events that the windows hold in memory, by type.
    pub window_events: IntGaugeVec,
    /// Events that only the log holds, by type.
    pub archived_events: IntGaugeVec,
    /// Bytes of the windows, by type.
    pub window_bytes: IntGaugeVec,
    /// The age of the oldest event that can be read, by type.
    pub window_age: GaugeVec,
    /// The version of the state that this server has, by type.
    pub revisions: IntGaugeVec,
}

impl WatchMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<WatchMetrics> {
        Ok(WatchMetrics {
            events: registry.counters(
                "apiserver_watch_events_total",
                "Events that watches sent, by group, version and kind.",
                &["group", "version", "kind"],
            )?,
            lag: registry.histogram(
                "pilothouse_watch_lag_seconds",
                "The age of the oldest event of each batch that a watch delivered.",
                &LAG_SECONDS,
            )?,
            stalled: registry.gauge(
                "pilothouse_watch_stalled_sessions",
                "Watches whose clients left 64 or more announced events unread.",
            )?,
            list_bytes: registry
                .gauge("pilothouse_list_bytes_inflight", "Bytes that the lists in flight hold.")?,
            window_events: registry.gauges(
                "pilothouse_watch_window_events",
                "Events of the history in memory, by resource.",
                &["resource"],
            )?,
            archived_events: registry.gauges(
                "pilothouse_watch_window_archived_events",
                "Events of the history that are read from the log, by resource.",
                &["resource"],
            )?,
            window_bytes: registry.gauges(
                "pilothouse_watch_window_bytes",
                "Bytes of the history in memory, by resource.",
                &["resource"],
            )?,
            window_age: registry.float_gauges(
                "pilothouse_watch_window_age_seconds",
                "The age of the oldest event at which a watch can begin, by resource.",
                &["resource"],
            )?,
            revisions: registry.gauges(
                "apiserver_watch_cache_resource_version",
                "The resourceVersion up to which this server has seen the changes of a resource.",
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

/// An open watch and its counters.
pub struct OpenWatch {
    open: IntGauge,
    events: IntCounter,
    lag: Histogram,
}

impl OpenWatch {
    /// Counts delivered events, the first of them accepted at `oldest`.
    pub fn count_delivered(&self, events: usize, oldest: Timestamp, now: Timestamp) {
        self.events.inc_by(events as u64);
        self.lag.observe(now.since(oldest).as_secs_f64());
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.open.dec();
    }
}
