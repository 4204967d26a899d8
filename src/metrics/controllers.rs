//! Metrics of controllers, by their name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_types::clock::Moment;
use pilothouse_types::lock::Lock;
use prometheus::{GaugeVec, HistogramVec, IntCounterVec, IntGaugeVec};

use super::registration::{MetricRegistry, Result};

/// The number of buckets of durations of work; the reference's.
const BUCKETS: usize = 10;

/// The work of controllers: when each key was begun, by the name of the controller.
type Work = BTreeMap<&'static str, BTreeMap<u64, Moment>>;

/// Work queues and restarts of controllers.
pub struct ControllerMetrics {
    depth: IntGaugeVec,
    adds: IntCounterVec,
    retries: IntCounterVec,
    durations: HistogramVec,
    waits: HistogramVec,
    unfinished: GaugeVec,
    longest: GaugeVec,
    restarts: IntCounterVec,
    work: Arc<Lock<Work>>,
}

/// A key that a controller works on, until it is dropped.
pub struct WorkInProgress {
    name: &'static str,
    number: u64,
    work: Arc<Lock<Work>>,
}

impl Drop for WorkInProgress {
    fn drop(&mut self) {
        if let Some(keys) = self.work.lock().get_mut(self.name) {
            keys.remove(&self.number);
        }
    }
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
                &prometheus::exponential_buckets(10e-9, 10.0, BUCKETS)?,
            )?,
            waits: registry.histograms(
                "workqueue_queue_duration_seconds",
                "How long keys were in the queue of a controller.",
                &["name"],
                &prometheus::exponential_buckets(10e-9, 10.0, BUCKETS)?,
            )?,
            unfinished: registry.float_gauges(
                "workqueue_unfinished_work_seconds",
                "How long a controller has worked on its present keys, all of them together.",
                &["name"],
            )?,
            longest: registry.float_gauges(
                "workqueue_longest_running_processor_seconds",
                "How long a controller has worked on the present key that it began first.",
                &["name"],
            )?,
            work: Arc::default(),
            restarts: registry.counters(
                "pilothouse_controller_restarts_total",
                "Controllers that panicked or lost their informer and were restarted.",
                &["name"],
            )?,
        })
    }

    /// Begins the series of a controller that would otherwise begin with its first work, or with a failure.
    pub fn begin(&self, name: &'static str) {
        self.restarts.with_label_values(&[name]);
        self.work.lock().entry(name).or_default();
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

    /// A controller begins to work on a key.
    pub fn begin_work(&self, name: &'static str, now: Moment) -> WorkInProgress {
        let mut work = self.work.lock();
        let keys = work.entry(name).or_default();
        let number = keys.last_key_value().map_or(0, |(last, _)| last + 1);
        keys.insert(number, now);
        WorkInProgress { name, number, work: Arc::clone(&self.work) }
    }

    /// Sets how long the present work has taken.
    pub fn update(&self, now: Moment) {
        for (name, keys) in self.work.lock().iter() {
            let times = keys.values().map(|began| now.since(*began));
            self.longest
                .with_label_values(&[name])
                .set(times.clone().max().unwrap_or_default().as_secs_f64());
            self.unfinished.with_label_values(&[name]).set(times.sum::<Duration>().as_secs_f64());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_in_progress_is_measured_until_it_ends() {
        let registry = prometheus::Registry::new();
        let controllers = ControllerMetrics::new(&MetricRegistry::new(&registry)).unwrap();
        let at = |seconds| Moment::default().plus(Duration::from_secs(seconds));
        let (first, second) = (controllers.begin_work("csr", at(10)), controllers.begin_work("csr", at(14)));
        let values = |now| {
            controllers.update(at(now));
            let gauges = [&controllers.unfinished, &controllers.longest];
            gauges.map(|gauge| gauge.with_label_values(&["csr"]).get())
        };
        let shown = |line: &str| {
            prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap().contains(line)
        };
        assert_eq!(values(15), [6.0, 5.0]);
        assert!(shown(r#"workqueue_unfinished_work_seconds{name="csr"} 6"#));
        assert!(shown(r#"workqueue_longest_running_processor_seconds{name="csr"} 5"#));
        drop(first);
        assert_eq!(values(16), [2.0, 2.0]);
        let third = controllers.begin_work("csr", at(16));
        drop(second);
        assert_eq!(values(19), [3.0, 3.0]);
        drop(third);
        assert_eq!(values(20), [0.0, 0.0]);
        controllers.count_queue("csr", 3, 5, 2);
        controllers.count_wait("csr", 0.5);
        controllers.count_work("csr", 0.5);
        controllers.count_restart("csr");
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            r#"workqueue_depth{name="csr"} 3"#,
            r#"workqueue_adds_total{name="csr"} 5"#,
            r#"workqueue_retries_total{name="csr"} 2"#,
            r#"workqueue_queue_duration_seconds_count{name="csr"} 1"#,
            r#"workqueue_work_duration_seconds_count{name="csr"} 1"#,
            r#"pilothouse_controller_restarts_total{name="csr"} 1"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
