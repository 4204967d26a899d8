//! Encryption at rest.

use std::collections::VecDeque;
use std::time::Duration;

use pilothouse_encryption::{Direction, Observer, Transformation};
use pilothouse_types::clock::Clock;
use pilothouse_types::lock::Lock;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, exponential_buckets,
};

use super::registration::{MetricRegistry, Result};

/// The servers of the reference have an id each, whose hash is a label. There is only one here.
const NO_SERVER_ID: &str = "";
/// The labels of keys that are kept; the reference's number. Each start and each key rotation of a plugin makes new ones.
const KEY_LABELS: usize = 100;
const TRANSFORMATION_BUCKETS: usize = 25;
const DATA_KEY_BUCKETS: usize = 14;
const CALL_BUCKETS: usize = 20;
const ARRIVAL_BUCKETS: usize = 10;

/// Encryption at rest. Cheap to clone.
#[derive(Clone)]
pub struct EncryptionMetrics {
    operations: IntCounterVec,
    durations: HistogramVec,
    kms: KmsMetrics,
    reloads: IntCounterVec,
    reloaded_at: GaugeVec,
}

/// KMS plugins and their keys.
#[derive(Clone)]
struct KmsMetrics {
    cache_misses: IntCounter,
    data_keys: Histogram,
    data_key_failures: IntCounter,
    cache_fill: Gauge,
    arrivals: HistogramVec,
    cached_seeds: IntGaugeVec,
    calls: HistogramVec,
    keys: IntCounterVec,
    keys_used_at: GaugeVec,
    status_keys_at: GaugeVec,
    invalid_key_ids: IntCounterVec,
}

impl EncryptionMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<EncryptionMetrics> {
        let storage = |name: &str| format!("apiserver_storage_{name}");
        let reload = |name: &str| format!("apiserver_encryption_config_controller_automatic_reload{name}");
        Ok(EncryptionMetrics {
            operations: registry.counters(
                storage("transformation_operations_total"),
                "Encryptions and decryptions of stored objects, by resource, provider and status.",
                &["resource", "transformation_type", "transformer_prefix", "status"],
            )?,
            durations: registry.histograms(
                storage("transformation_duration_seconds"),
                "How long successful encryptions and decryptions of stored objects took, by provider.",
                &["transformation_type", "transformer_prefix"],
                &exponential_buckets(5e-6, 2.0, TRANSFORMATION_BUCKETS)?,
            )?,
            kms: KmsMetrics::new(registry)?,
            reloads: registry.counters(
                reload("s_total"),
                "Reloads of the encryption configuration, by status and server.",
                &["status", "apiserver_id_hash"],
            )?,
            reloaded_at: registry.float_gauges(
                reload("_last_timestamp_seconds"),
                "When the encryption configuration was last reloaded, by status and server.",
                &["status", "apiserver_id_hash"],
            )?,
        })
    }

    /// What counts in these metrics.
    pub fn observer(&self, clock: Clock) -> EncryptionObserver {
        EncryptionObserver {
            metrics: self.clone(),
            clock,
            used_keys: Lock::default(),
            status_keys: Lock::default(),
        }
    }
}

impl KmsMetrics {
    fn new(registry: &MetricRegistry<'_>) -> Result<KmsMetrics> {
        let storage = |name: &str| format!("apiserver_storage_{name}");
        let envelope = |name: &str| format!("apiserver_envelope_encryption_{name}");
        let key_labels = ["transformation_type", "provider_name", "key_id_hash", "apiserver_id_hash"];
        Ok(KmsMetrics {
            cache_misses: registry.counter(
                storage("envelope_transformation_cache_misses_total"),
                "Data keys that a KMS plugin had to decrypt.",
            )?,
            data_keys: registry.histogram(
                storage("data_key_generation_duration_seconds"),
                "How long the generation of data keys took.",
                &exponential_buckets(5e-6, 2.0, DATA_KEY_BUCKETS)?,
            )?,
            data_key_failures: registry.counter(
                storage("data_key_generation_failures_total"),
                "Data keys that could not be generated.",
            )?,
            cache_fill: registry.float_gauge(
                envelope("dek_cache_fill_percent"),
                "Share of the cache of a KMS v1 provider that is in use.",
            )?,
            arrivals: registry.histograms(
                envelope("dek_cache_inter_arrival_time_seconds"),
                "Time between two uses of a KMS v1 provider.",
                &["transformation_type"],
                &exponential_buckets(60.0, 2.0, ARRIVAL_BUCKETS)?,
            )?,
            cached_seeds: registry.gauges(
                envelope("dek_source_cache_size"),
                "Data keys that a KMS v2 provider remembers.",
                &["provider_name"],
            )?,
            calls: registry.histograms(
                envelope("kms_operations_latency_seconds"),
                "How long calls to KMS v2 plugins took, by provider, method and status.",
                &["provider_name", "method_name", "grpc_status_code"],
                &exponential_buckets(0.0001, 2.0, CALL_BUCKETS)?,
            )?,
            keys: registry.counters(
                envelope("key_id_hash_total"),
                "Uses of the keys of KMS v2 plugins.",
                &key_labels,
            )?,
            keys_used_at: registry.float_gauges(
                envelope("key_id_hash_last_timestamp_seconds"),
                "When a key of a KMS v2 plugin was last used.",
                &key_labels,
            )?,
            status_keys_at: registry.float_gauges(
                envelope("key_id_hash_status_last_timestamp_seconds"),
                "When the status of a KMS v2 plugin last named a key.",
                &["provider_name", "key_id_hash", "apiserver_id_hash"],
            )?,
            invalid_key_ids: registry.counters(
                envelope("invalid_key_id_from_status_total"),
                "Statuses of KMS v2 plugins that named a key by an id that is not allowed.",
                &["provider_name", "error"],
            )?,
        })
    }
}

/// Counts what [`pilothouse_encryption`] does.
pub struct EncryptionObserver {
    metrics: EncryptionMetrics,
    clock: Clock,
    used_keys: Lock<RecentLabels<4>>,
    status_keys: Lock<RecentLabels<3>>,
}

/// The last labels, so that the series of keys that are no longer used can be removed.
struct RecentLabels<const N: usize>(VecDeque<[String; N]>);

impl<const N: usize> Default for RecentLabels<N> {
    fn default() -> Self {
        RecentLabels(VecDeque::new())
    }
}

impl<const N: usize> RecentLabels<N> {
    /// Remembers labels, and returns those that have to be removed for them.
    fn insert(&mut self, labels: [&str; N]) -> Option<[String; N]> {
        if self.0.iter().any(|known| *known == labels) {
            return None;
        }
        self.0.push_back(labels.map(str::to_owned));
        if self.0.len() > KEY_LABELS { self.0.pop_front() } else { None }
    }
}

impl EncryptionObserver {
    fn now(&self) -> f64 {
        self.clock.now().fractional_seconds()
    }
}

impl Observer for EncryptionObserver {
    fn transformation(&self, transformation: &Transformation<'_>) {
        let Transformation { resource, direction, prefix, key, status, elapsed } = *transformation;
        let (direction, metrics) = (direction.label(), &self.metrics);
        // The reference counts a provider with several keys by its prefix, and the key by its own.
        for prefix in [Some(prefix), key].into_iter().flatten() {
            metrics.operations.with_label_values(&[resource, direction, prefix, status]).inc();
            if status == pilothouse_encryption::OK {
                metrics.durations.with_label_values(&[direction, prefix]).observe(elapsed.as_secs_f64());
            }
        }
    }

    fn cache_miss(&self) {
        self.metrics.kms.cache_misses.inc();
    }

    fn data_key_generation(&self, elapsed: Option<Duration>) {
        match elapsed {
            Some(elapsed) => self.metrics.kms.data_keys.observe(elapsed.as_secs_f64()),
            None => self.metrics.kms.data_key_failures.inc(),
        }
    }

    fn dek_cache_fill(&self, share: f64) {
        self.metrics.kms.cache_fill.set(share);
    }

    fn dek_cache_arrival(&self, direction: Direction, since_last: Duration) {
        self.metrics.kms.arrivals.with_label_values(&[direction.label()]).observe(since_last.as_secs_f64());
    }

    fn dek_source_cache_size(&self, provider: &str, size: usize) {
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        self.metrics.kms.cached_seeds.with_label_values(&[provider]).set(size);
    }

    fn kms_call(&self, provider: &str, method: &str, status: &str, elapsed: Duration) {
        let calls = self.metrics.kms.calls.with_label_values(&[provider, method, status]);
        calls.observe(elapsed.as_secs_f64());
    }

    fn key_id_used(&self, direction: Direction, provider: &str, key_id_hash: &str) {
        let labels = [direction.label(), provider, key_id_hash, NO_SERVER_ID];
        let KmsMetrics { keys, keys_used_at, .. } = &self.metrics.kms;
        if let Some(old) = self.used_keys.lock().insert(labels) {
            let old = old.each_ref().map(String::as_str);
            // It is there, because it was inserted.
            let _removed = (keys.remove_label_values(&old), keys_used_at.remove_label_values(&old));
        }
        keys.with_label_values(&labels).inc();
        keys_used_at.with_label_values(&labels).set(self.now());
    }

    fn key_id_from_status(&self, provider: &str, key_id_hash: &str) {
        let labels = [provider, key_id_hash, NO_SERVER_ID];
        let status_keys_at = &self.metrics.kms.status_keys_at;
        if let Some(old) = self.status_keys.lock().insert(labels) {
            let _removed = status_keys_at.remove_label_values(&old.each_ref().map(String::as_str));
        }
        status_keys_at.with_label_values(&labels).set(self.now());
    }

    fn invalid_key_id_from_status(&self, provider: &str, error: &str) {
        self.metrics.kms.invalid_key_ids.with_label_values(&[provider, error]).inc();
    }

    fn reload(&self, succeeded: bool) {
        let labels = [if succeeded { "success" } else { "failure" }, NO_SERVER_ID];
        self.metrics.reloads.with_label_values(&labels).inc();
        self.metrics.reloaded_at.with_label_values(&labels).set(self.now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_the_oldest_keys_are_removed() {
        let mut recent = RecentLabels::<1>::default();
        for index in 0..KEY_LABELS {
            assert_eq!(recent.insert([&index.to_string()]), None);
        }
        assert_eq!(recent.insert(["0"]), None, "it is known");
        assert_eq!(recent.insert(["new"]), Some(["0".to_owned()]));
    }

    #[test]
    fn transformation_is_counted_by_provider_and_by_key() {
        let registry = prometheus::Registry::new();
        let metrics = EncryptionMetrics::new(&MetricRegistry::new(&registry)).unwrap();
        metrics.observer(Clock::system()).transformation(&Transformation {
            resource: "secrets",
            direction: Direction::ToStorage,
            prefix: "k8s:enc:aescbc:v1:",
            key: Some("key1:"),
            status: "OK",
            elapsed: Duration::from_micros(7),
        });
        for prefix in ["k8s:enc:aescbc:v1:", "key1:"] {
            let labels = ["secrets", "to_storage", prefix, "OK"];
            assert_eq!(metrics.operations.with_label_values(&labels).get(), 1);
        }
    }
}
