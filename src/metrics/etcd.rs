//! Traffic with etcd, and what it stores, under the reference's names.

use std::time::Duration;

use pilothouse_etcd_log::{Observer, Operation};
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec};

use super::SECONDS;
use super::registration::{MetricRegistry, Result};

/// The buckets of objects per lease; the reference's.
const LEASE_OBJECTS: [f64; 7] = [10.0, 50.0, 100.0, 500.0, 1000.0, 2500.0, 5000.0];
/// The reference's value for a size that a member does not tell.
const UNKNOWN: i64 = -1;
/// All types share one watch.
const EVERY_RESOURCE: &str = "";

/// The metrics. Cheap to clone.
#[derive(Clone)]
pub struct EtcdMetrics {
    durations: HistogramVec,
    requests: IntCounterVec,
    errors: IntCounterVec,
    events: IntCounterVec,
    progress: IntGaugeVec,
    decode_errors: IntCounterVec,
    lease_objects: HistogramVec,
    member_bytes: IntGaugeVec,
}

impl EtcdMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<EtcdMetrics> {
        let of_requests = ["operation", "type"];
        let counters = |name: &str, help: &str| registry.counters(name, help, &["resource"]);
        Ok(EtcdMetrics {
            durations: registry.histograms(
                "etcd_request_duration_seconds",
                "How long requests to etcd took, or writes to the file of this server, by operation and resource.",
                &of_requests,
                &SECONDS,
            )?,
            requests: registry.counters(
                "etcd_requests_total",
                "Requests to etcd, or writes to the file of this server, by operation and resource.",
                &of_requests,
            )?,
            errors: registry.counters(
                "etcd_request_errors_total",
                "Requests to etcd, or writes to the file of this server, that have failed, by operation and resource.",
                &of_requests,
            )?,
            events: counters(
                "apiserver_storage_events_received_total",
                "Changes of objects that arrived from etcd, by resource.",
            )?,
            progress: registry.gauges(
                "etcd_bookmark_counts",
                "Notices of etcd about its revision without a change.",
                &["resource"],
            )?,
            decode_errors: counters(
                "apiserver_storage_decode_errors_total",
                "Objects in etcd that cannot be decoded, by resource.",
            )?,
            lease_objects: registry.histograms(
                "etcd_lease_object_counts",
                "Objects under one lease of etcd.",
                &[],
                &LEASE_OBJECTS,
            )?,
            member_bytes: registry.gauges(
                "apiserver_storage_db_total_size_in_bytes",
                "Size of the database of a member of etcd, in bytes; -1 if the member does not tell.",
                &["endpoint"],
            )?,
        })
    }

    /// The series of an operation about a resource.
    pub(super) fn series(&self, operation: &str, resource: &str) -> StorageSeries {
        let labels = [operation, resource];
        StorageSeries {
            durations: self.durations.with_label_values(&labels),
            requests: self.requests.with_label_values(&labels),
            errors: self.errors.clone(),
        }
    }

    /// What the members say of the sizes of their databases.
    pub fn set_member_bytes(&self, members: &[(String, Option<i64>)]) {
        for (endpoint, bytes) in members {
            self.member_bytes.with_label_values(&[endpoint]).set(bytes.unwrap_or(UNKNOWN));
        }
    }
}

/// The counters of one operation about one resource.
pub(super) struct StorageSeries {
    pub(super) durations: Histogram,
    pub(super) requests: IntCounter,
    pub(super) errors: IntCounterVec,
}

impl Observer for EtcdMetrics {
    fn request(&self, operation: Operation, resource: &str, elapsed: Duration, is_answered: bool) {
        let labels = [operation.label(), resource];
        self.durations.with_label_values(&labels).observe(elapsed.as_secs_f64());
        self.requests.with_label_values(&labels).inc();
        if !is_answered {
            self.errors.with_label_values(&labels).inc();
        }
    }

    fn events(&self, resource: &str, count: u64) {
        self.events.with_label_values(&[resource]).inc_by(count);
    }

    fn progress(&self) {
        self.progress.with_label_values(&[EVERY_RESOURCE]).inc();
    }

    fn decode_error(&self, resource: &str) {
        self.decode_errors.with_label_values(&[resource]).inc();
    }

    fn lease_objects(&self, count: u32) {
        self.lease_objects.with_label_values(&[] as &[&str]).observe(f64::from(count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_operation_and_resource() {
        let registry = prometheus::Registry::new();
        let metrics = EtcdMetrics::new(&MetricRegistry::new(&registry)).unwrap();
        metrics.request(Operation::Update, "deployments.apps", Duration::from_millis(30), true);
        metrics.request(Operation::Update, "deployments.apps", Duration::from_secs(2), false);
        let labels = ["update", "deployments.apps"];
        assert_eq!(metrics.durations.with_label_values(&labels).get_sample_count(), 2);
        assert_eq!(metrics.requests.with_label_values(&labels).get(), 2);
        assert_eq!(metrics.errors.with_label_values(&labels).get(), 1);
        metrics.set_member_bytes(&[("http://a".to_owned(), Some(7)), ("http://b".to_owned(), None)]);
        assert_eq!(metrics.member_bytes.with_label_values(&["http://a"]).get(), 7);
        assert_eq!(metrics.member_bytes.with_label_values(&["http://b"]).get(), -1);
    }
}
