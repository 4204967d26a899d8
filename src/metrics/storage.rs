//! The durations of writes: of each, under the reference's name for requests to etcd, and of the batches in which they become durable.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_actors::committer::CommitObserver;
use pilothouse_api::custom::definition::resource_of_store;
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::TypeName;
use prometheus::Histogram;

use super::Metrics;
use super::etcd::StorageSeries;
use super::registration::{MetricRegistry, Result};

/// The buckets of durations of commits, in seconds: from memory to a disk that is ill.
const COMMIT_SECONDS: [f64; 12] =
    [0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];
/// The buckets of writes per batch.
const BATCH_WRITES: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// The batches that became durable. Cheap to clone.
#[derive(Clone)]
pub struct CommitMetrics {
    durations: Histogram,
    writes: Histogram,
}

impl CommitMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<CommitMetrics> {
        Ok(CommitMetrics {
            durations: registry.histogram(
                "pilothouse_commit_duration_seconds",
                "How long it took until a batch of writes was durable in the file of this server.",
                &COMMIT_SECONDS,
            )?,
            writes: registry.histogram(
                "pilothouse_commit_batch_writes",
                "How many writes became durable together.",
                &BATCH_WRITES,
            )?,
        })
    }
}

impl fmt::Debug for CommitMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitMetrics").finish_non_exhaustive()
    }
}

impl CommitObserver for CommitMetrics {
    fn committed(&self, writes: usize, elapsed: Duration) {
        self.durations.observe(elapsed.as_secs_f64());
        self.writes.observe(writes as f64);
    }
}

/// A write, as metrics distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteOperation {
    /// A new object.
    Create,
    /// Another state of one.
    Update,
    /// The end of one.
    Delete,
}

impl WriteOperation {
    fn label(self) -> &'static str {
        match self {
            WriteOperation::Create => "create",
            WriteOperation::Update => "update",
            WriteOperation::Delete => "delete",
        }
    }
}

/// Counts the writes of one worker to the file of this server. The client of etcd counts its requests itself.
pub struct WriteMeter {
    metrics: Arc<Metrics>,
    clock: Clock,
    /// Looked up once. A type that is removed leaves an entry behind, as it does in the metrics.
    series: RefCell<HashMap<(WriteOperation, TypeName), StorageSeries>>,
}

impl WriteMeter {
    /// A meter, unless objects are in etcd.
    pub fn new(metrics: &Arc<Metrics>, clock: &Clock) -> Option<WriteMeter> {
        let (metrics, clock) = (Arc::clone(metrics), clock.clone());
        (!metrics.is_in_etcd()).then(|| WriteMeter { metrics, clock, series: RefCell::default() })
    }

    /// The present.
    pub fn now(&self) -> Moment {
        self.clock.moment()
    }

    /// Counts a write that began at this moment. A condition that does not hold is no error.
    pub fn count<T>(
        &self,
        operation: WriteOperation,
        type_name: &TypeName,
        began: Moment,
        result: &std::result::Result<T, StoreError>,
    ) {
        let elapsed = self.clock.elapsed(began);
        let resource = resource_of_store(type_name);
        let mut all = self.series.borrow_mut();
        let series = all
            .entry((operation, type_name.clone()))
            .or_insert_with(|| self.metrics.etcd.series(operation.label(), resource));
        series.durations.observe(elapsed.as_secs_f64());
        series.requests.inc();
        if result.as_ref().is_err_and(is_failure) {
            series.errors.with_label_values(&[operation.label(), resource]).inc();
        }
    }
}

/// Whether the store has failed, and not only said what it has.
fn is_failure(error: &StoreError) -> bool {
    match error {
        StoreError::NotFound | StoreError::Exists | StoreError::Conflict(_) | StoreError::TooLarge => false,
        StoreError::Unreadable(_)
        | StoreError::NoSpace
        | StoreError::NotEncrypted(_)
        | StoreError::Unreachable
        | StoreError::UnknownOutcome
        | StoreError::Busy
        | StoreError::Unavailable => true,
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_types::clock::Timestamp;

    use super::*;

    #[test]
    fn writes_are_counted_as_requests_to_storage() {
        let metrics = Arc::new(Metrics::new(Timestamp(0)).unwrap());
        let clock = Clock::manual(Timestamp(1));
        let meter = WriteMeter::new(&metrics, &clock).unwrap();
        let (maps, began) = (TypeName::new("configmaps"), meter.now());
        clock.advance(Duration::from_millis(30));
        meter.count(WriteOperation::Create, &maps, began, &Ok(()));
        meter.count::<()>(WriteOperation::Create, &maps, began, &Err(StoreError::Exists));
        meter.count::<()>(WriteOperation::Delete, &maps, began, &Err(StoreError::NoSpace));
        metrics.commits.committed(3, Duration::from_millis(2));
        let text = String::from_utf8(metrics.text().unwrap()).unwrap();
        for line in [
            r#"etcd_request_duration_seconds_bucket{operation="create",type="configmaps",le="0.025"} 0"#,
            r#"etcd_request_duration_seconds_bucket{operation="create",type="configmaps",le="0.05"} 2"#,
            r#"etcd_requests_total{operation="create",type="configmaps"} 2"#,
            r#"etcd_request_errors_total{operation="delete",type="configmaps"} 1"#,
            r#"pilothouse_commit_duration_seconds_bucket{le="0.0025"} 1"#,
            "pilothouse_commit_batch_writes_sum 3",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains(r#"etcd_request_errors_total{operation="create""#), "{text}");
        let in_etcd = Arc::new(Metrics::new(Timestamp(0)).unwrap().with_etcd(true));
        assert!(WriteMeter::new(&in_etcd, &clock).is_none());
    }
}
