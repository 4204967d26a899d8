//! Metrics of watches and of the watch cache.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_api::catalog::resource::Resource;
use pilothouse_types::clock::Timestamp;
use prometheus::{GaugeVec, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};

use super::registration::{MetricRegistry, Result};
use super::sharded::{LocalHistogram, ShardedHistograms};
use super::{COMPONENT, Metrics};

/// The buckets of the watch lag, in seconds: up to the length of the history.
const LAG_SECONDS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0];
/// The buckets of sizes of events, in bytes; the reference's.
const SIZES: &[f64] = &[1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131_072.0];
/// The buckets of durations of initial lists, in seconds; the reference's.
const LIST_SECONDS: [f64; 17] =
    [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];

/// Metrics of watches.
pub struct WatchMetrics {
    /// Sizes of events, and their number: tens of thousands of watches would meet at counters that all threads share.
    sizes: ShardedHistograms,
    lag: ShardedHistograms,
    initial_events: IntCounterVec,
    lists: HistogramVec,
    terminated: IntCounterVec,
    received: IntCounterVec,
    dispatched: IntCounterVec,
    initializations: IntCounterVec,
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

fn sizes(registry: &MetricRegistry<'_>) -> Result<ShardedHistograms> {
    registry.register(ShardedHistograms::new(
        (
            "apiserver_watch_events_sizes",
            "Sizes of the events that watches sent, in bytes, by group, version and kind.",
        ),
        Some(("apiserver_watch_events_total", "Events that watches sent, by group, version and kind.")),
        &["group", "version", "kind"],
        SIZES,
    )?)
}

fn lag(registry: &MetricRegistry<'_>) -> Result<ShardedHistograms> {
    registry.register(ShardedHistograms::new(
        ("pilothouse_watch_lag_seconds", "The age of the oldest event of each batch that a watch delivered."),
        None,
        &[],
        LAG_SECONDS,
    )?)
}

impl WatchMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<WatchMetrics> {
        Ok(WatchMetrics {
            sizes: sizes(registry)?,
            lag: lag(registry)?,
            initial_events: registry.counters(
                "apiserver_init_events_total",
                "Objects with which watches began, by resource.",
                &["resource"],
            )?,
            lists: registry.histograms(
                "apiserver_watch_list_duration_seconds",
                "How long it took until watches that begin with a list had sent it, by group, version, resource and scope.",
                &["group", "version", "resource", "scope"],
                &LIST_SECONDS,
            )?,
            terminated: registry.counters(
                "apiserver_terminated_watchers_total",
                "Watches that were ended because their clients did not read, by resource.",
                &["resource"],
            )?,
            received: registry.counters(
                "apiserver_watch_cache_events_received_total",
                "Changes of objects that the history in memory has got, by resource.",
                &["resource"],
            )?,
            dispatched: registry.counters(
                "apiserver_watch_cache_events_dispatched_total",
                "Changes of objects that were announced to watches, by resource.",
                &["resource"],
            )?,
            initializations: registry.counters(
                "apiserver_watch_cache_initializations_total",
                "How often the objects of a resource were read into memory.",
                &["resource"],
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

    /// Takes over how many events the history of a resource has got since the start.
    pub fn set_appended(&self, resource: &str, appended: u64) {
        for counters in [&self.received, &self.dispatched] {
            let counter = counters.with_label_values(&[resource]);
            counter.inc_by(appended.saturating_sub(counter.get()));
        }
        let initializations = self.initializations.with_label_values(&[resource]);
        // Its store reads it once.
        initializations.inc_by(1_u64.saturating_sub(initializations.get()));
    }
}

/// Counts the watches of one worker.
pub struct WatchMeter {
    metrics: Arc<Metrics>,
    lag: LocalHistogram,
    /// By group, version, kind and resource.
    series: RefCell<HashMap<[Box<str>; 4], Rc<WatchSeries>>>,
}

/// The counters of the watches of one resource, as one worker counts them.
struct WatchSeries {
    metrics: Arc<Metrics>,
    sizes: LocalHistogram,
    lag: LocalHistogram,
    group: Box<str>,
    version: Box<str>,
    plural: Box<str>,
    /// The resource with its group.
    name: String,
}

impl WatchMeter {
    /// A meter for the calling thread.
    pub fn new(metrics: Arc<Metrics>) -> WatchMeter {
        WatchMeter { lag: metrics.watching.lag.local(&[]), metrics, series: RefCell::default() }
    }

    /// Counts a watch until it is dropped.
    pub fn open(&self, resource: &Resource, scope: &'static str) -> OpenWatch {
        let (group, version) = (&*resource.gv.group, &*resource.gv.version);
        let labels = ["WATCH", group, version, &resource.plural, "", scope, COMPONENT];
        let open = self.metrics.requests.longrunning.with_label_values(&labels);
        open.inc();
        OpenWatch { open, series: self.series(resource), scope }
    }

    fn series(&self, resource: &Resource) -> Rc<WatchSeries> {
        let Resource { gv, kind, plural, .. } = resource;
        let key = [&*gv.group, &*gv.version, &**kind, &**plural].map(Box::from);
        let new = || {
            Rc::new(WatchSeries {
                metrics: Arc::clone(&self.metrics),
                sizes: self.metrics.watching.sizes.local(&[&gv.group, &gv.version, kind]),
                lag: self.lag.clone(),
                group: (&*gv.group).into(),
                version: (&*gv.version).into(),
                plural: (&**plural).into(),
                name: resource.name().to_string(),
            })
        };
        Rc::clone(self.series.borrow_mut().entry(key).or_insert_with(new))
    }
}

/// An open watch and its counters.
pub struct OpenWatch {
    open: IntGauge,
    series: Rc<WatchSeries>,
    scope: &'static str,
}

impl OpenWatch {
    /// Counts an event of so many bytes.
    pub fn count_event(&self, bytes: usize) {
        self.series.sizes.observe(bytes as f64);
    }

    /// Counts a batch of delivered events, the first of them accepted at `oldest`.
    pub fn count_delivered(&self, oldest: Timestamp, now: Timestamp) {
        self.series.lag.observe(now.since(oldest).as_secs_f64());
    }

    /// Counts the objects with which the watch has begun.
    pub fn count_initial(&self, objects: u64) {
        let WatchSeries { metrics, name, .. } = &*self.series;
        if objects > 0 {
            metrics.watching.initial_events.with_label_values(&[name]).inc_by(objects);
        }
    }

    /// Counts how long it took until the list was sent with which the watch begins.
    pub fn count_list(&self, elapsed: Duration) {
        let WatchSeries { metrics, group, version, plural, .. } = &*self.series;
        let labels = [&**group, &**version, &**plural, self.scope];
        metrics.watching.lists.with_label_values(&labels).observe(elapsed.as_secs_f64());
    }

    /// Counts that the watch ends because its client does not read.
    pub fn count_terminated(&self) {
        let WatchSeries { metrics, name, .. } = &*self.series;
        metrics.watching.terminated.with_label_values(&[name]).inc();
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.open.dec();
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_api::catalog::build::Builtin;
    use pilothouse_api::catalog::runtime_config::RuntimeConfig;

    use super::*;

    #[test]
    fn watches_count_their_events_initial_objects_and_ends() {
        let metrics = Arc::new(Metrics::new(Timestamp(0)).unwrap());
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let deployments = catalog.find("apps", "v1", "deployments").unwrap();
        let workers = [WatchMeter::new(metrics.clone()), WatchMeter::new(metrics.clone())];
        let watches = workers.each_ref().map(|worker| worker.open(deployments, "namespace"));
        for watch in &watches {
            watch.count_event(1_024);
            watch.count_event(3_000);
            watch.count_delivered(Timestamp(1_000_000), Timestamp(1_002_000));
            watch.count_initial(7);
            watch.count_list(Duration::from_millis(300));
            watch.count_terminated();
        }
        metrics.watching.set_appended("deployments.apps", 4);
        metrics.watching.set_appended("deployments.apps", 9);
        let text = || String::from_utf8(metrics.text().unwrap()).unwrap();
        let scraped = text();
        let class = r#"group="apps",kind="Deployment",version="v1""#;
        for line in [
            format!(r#"apiserver_watch_events_total{{{class}}} 4"#),
            format!(r#"apiserver_watch_events_sizes_bucket{{{class},le="1024"}} 2"#),
            format!(r#"apiserver_watch_events_sizes_bucket{{{class},le="4096"}} 4"#),
            format!(r#"apiserver_watch_events_sizes_sum{{{class}}} 8048"#),
            r#"pilothouse_watch_lag_seconds_bucket{le="0.001"} 0"#.to_owned(),
            r#"pilothouse_watch_lag_seconds_bucket{le="0.0025"} 2"#.to_owned(),
            r#"apiserver_init_events_total{resource="deployments.apps"} 14"#.to_owned(),
            r#"apiserver_watch_list_duration_seconds_count{group="apps",resource="deployments",scope="namespace",version="v1"} 2"#
                .to_owned(),
            r#"apiserver_terminated_watchers_total{resource="deployments.apps"} 2"#.to_owned(),
            r#"apiserver_watch_cache_events_received_total{resource="deployments.apps"} 9"#.to_owned(),
            r#"apiserver_watch_cache_events_dispatched_total{resource="deployments.apps"} 9"#.to_owned(),
            r#"apiserver_watch_cache_initializations_total{resource="deployments.apps"} 1"#.to_owned(),
        ] {
            assert!(scraped.contains(&line), "{line}\n{scraped}");
        }
        let open = r#"scope="namespace",subresource="",verb="WATCH",version="v1"}"#;
        assert!(scraped.contains(&format!("{open} 2")), "{scraped}");
        drop(watches);
        assert!(text().contains(&format!("{open} 0")));
    }
}
