//! The metrics of the server. Names and labels are those of the reference, for its dashboards and alerts. Labels name resources,
//! webhooks and policies that exist or existed since the start, never text from a request. As in the reference, most series of
//! deleted objects stay until the next start.

pub mod admission;
pub mod admission_webhooks;
pub mod aggregation;
pub mod allocators;
pub mod audit;
pub mod authentication;
pub mod authorization;
pub mod authorization_webhooks;
pub mod backups;
mod bounded_label;
pub mod cel;
pub mod connections;
pub mod controllers;
pub mod conversion;
pub mod egress;
pub mod encryption;
pub mod etcd;
pub mod exposition;
pub mod external_signer;
pub mod features;
pub mod flowcontrol;
pub mod heavy_work;
pub mod lists;
mod log_lines;
pub mod match_conditions;
pub mod memory;
pub mod outgoing;
pub mod own_process;
pub mod peers;
pub mod pod_security;
pub mod policies;
mod registration;
pub mod requests;
pub mod service_account_tokens;
mod sharded;
pub mod slis;
mod stability;
pub mod storage;
pub mod traces;
pub mod watches;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use pilothouse_api::release::Release;
use pilothouse_types::clock::Timestamp;
use prometheus::core::{Collector as _, MetricVec, MetricVecBuilder};
use prometheus::{Encoder as _, IntCounter, IntGauge, IntGaugeVec, Registry, TextEncoder};

use self::admission::AdmissionMetrics;
use self::admission_webhooks::AdmissionWebhooks;
use self::aggregation::Aggregation;
use self::allocators::AllocatorMetrics;
use self::audit::Audit;
use self::authentication::Authentication;
use self::authorization::Authorization;
use self::cel::CelMetrics;
use self::connections::ConnectionMetrics;
use self::controllers::ControllerMetrics;
use self::conversion::Conversions;
use self::egress::EgressMetrics;
use self::encryption::EncryptionMetrics;
use self::etcd::EtcdMetrics;
use self::exposition::Exposition;
use self::external_signer::ExternalSignerMetrics;
use self::flowcontrol::FlowControlMetrics;
use self::heavy_work::HeavyWorkMetrics;
use self::lists::ListMetrics;
use self::log_lines::LogLines;
use self::memory::MemoryMetrics;
use self::outgoing::OutgoingCalls;
use self::own_process::Process;
use self::peers::Peers;
use self::pod_security::PodSecurity;
use self::policies::Policies;
use self::registration::{MetricRegistry, Result};
use self::requests::RequestMetrics;
use self::service_account_tokens::Tokens;
use self::slis::Slis;
use self::storage::CommitMetrics;
use self::traces::TraceMetrics;
use self::watches::WatchMetrics;

/// The buckets of durations, in seconds; the reference's.
const SECONDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
const COMPONENT: &str = "apiserver";

/// All metrics. One per server, shared by all its threads.
pub struct Metrics {
    registry: Registry,
    /// Requests by resource and verb.
    pub requests: RequestMetrics,
    /// Events of watches, their lag, and the watch cache.
    pub watching: WatchMetrics,
    /// Objects by type.
    pub objects: IntGaugeVec,
    /// Objects that something depends on and that cannot be read, by type.
    pub unreadable: IntGaugeVec,
    /// The connections of clients.
    pub connections: ConnectionMetrics,
    /// Idle connections to other servers.
    pub kept_connections: IntGauge,
    /// Memory that is reserved, by budget.
    pub memory: MemoryMetrics,
    mismatches: [IntCounter; 2],
    process: Process,
    log_lines: LogLines,
    /// Audit events.
    pub audit: Audit,
    /// Authentication of requests.
    pub authentication: Authentication,
    /// Authorization of requests.
    pub authorization: Authorization,
    /// Uses of service account tokens.
    pub tokens: Tokens,
    /// Durations of admission.
    pub admission: AdmissionMetrics,
    /// Calls to an external signer of such tokens.
    pub external_signer: ExternalSignerMetrics,
    /// Connections through proxies.
    pub egress: EgressMetrics,
    /// Calls to admission webhooks.
    pub hooks: AdmissionWebhooks,
    /// Results of admission policies.
    pub policies: Policies,
    /// Evaluations of Pod Security Standards.
    pub pod_security: PodSecurity,
    /// Calls to conversion webhooks.
    pub conversions: Conversions,
    /// Availability of aggregated APIs.
    pub aggregation: Aggregation,
    /// Requests that other servers serve.
    pub peers: Peers,
    /// API Priority and Fairness, by flow schema and priority level.
    pub flows: FlowControlMetrics,
    /// Waiting and running heavy work.
    pub heavy: HeavyWorkMetrics,
    /// Results of health checks.
    pub slis: Slis,
    /// Work queues of controllers.
    pub controllers: ControllerMetrics,
    /// How much space the store has left.
    pub space_level: IntGauge,
    /// Encryption at rest.
    pub encryption: EncryptionMetrics,
    /// Traffic with etcd.
    pub etcd: EtcdMetrics,
    /// Spans of traces.
    pub traces: TraceMetrics,
    /// Batches of writes that became durable.
    pub commits: CommitMetrics,
    /// Lists.
    pub lists: ListMetrics,
    /// The allocators of cluster IPs and node ports.
    pub allocators: AllocatorMetrics,
    /// Calls of webhooks.
    pub outgoing: OutgoingCalls,
    /// Rules of custom resources.
    pub cel: CelMetrics,
    /// Scheduled backups.
    pub backups: backups::BackupMetrics,
    features: Vec<features::Enabled>,
    exposition: Exposition,
    stored_bytes: IntGaugeVec,
    /// The file of the store, if it has one.
    store_file: Option<PathBuf>,
    /// Whether objects are in etcd, whose sizes and counts others set.
    is_in_etcd: bool,
    page_bytes: AtomicUsize,
}

impl Metrics {
    /// The same, with metrics of feature gates.
    #[must_use]
    pub fn with_features(self, features: Vec<features::Enabled>) -> Metrics {
        Metrics { features, ..self }
    }

    /// The same, of which only a part is shown.
    pub fn with_exposition(self, exposition: Exposition) -> Result<Metrics> {
        exposition.register(&MetricRegistry::new(&self.registry))?;
        Ok(Metrics { exposition, ..self })
    }

    /// The same, with the size of the store's file.
    #[must_use]
    pub fn with_store_file(self, store_file: Option<PathBuf>) -> Metrics {
        Metrics { store_file, ..self }
    }

    /// The same, for objects in etcd or not.
    #[must_use]
    pub fn with_etcd(self, is_in_etcd: bool) -> Metrics {
        Metrics { is_in_etcd, ..self }
    }

    /// The same, with the build information.
    pub fn with_release(self, release: &Release) -> Result<Metrics> {
        own_process::register_build_info(&MetricRegistry::new(&self.registry), release)?;
        Ok(self)
    }

    /// Registers all metrics.
    pub fn new(started: Timestamp) -> Result<Metrics> {
        let prometheus_registry = Registry::new();
        Metrics::register(&MetricRegistry::new(&prometheus_registry), prometheus_registry.clone(), started)
    }

    fn register(registry: &MetricRegistry<'_>, all: Registry, started: Timestamp) -> Result<Metrics> {
        Ok(Metrics {
            requests: RequestMetrics::new(registry)?,
            traces: TraceMetrics::new(registry)?,
            objects: registry.gauges(
                "apiserver_storage_objects",
                "Stored objects, by resource.",
                &["resource"],
            )?,
            unreadable: registry.gauges(
                "pilothouse_unreadable_objects",
                "Stored objects that the server depends on and cannot read, by resource.",
                &["resource"],
            )?,
            stored_bytes: registry.gauges(
                "apiserver_storage_size_bytes",
                "Size of the file of the store, or of the database of etcd, in bytes; 0 if there is none.",
                &["storage_cluster_id"],
            )?,
            store_file: None,
            is_in_etcd: false,
            space_level: registry.gauge(
                "pilothouse_storage_space_level",
                "Space that the store has left: 0 enough, 1 little, 2 none, so that writes that let it grow are refused.",
            )?,
            encryption: EncryptionMetrics::new(registry)?,
            etcd: EtcdMetrics::new(registry)?,
            commits: CommitMetrics::new(registry)?,
            lists: ListMetrics::new(registry)?,
            allocators: AllocatorMetrics::new(registry)?,
            outgoing: OutgoingCalls::new(registry)?,
            cel: CelMetrics::new(registry)?,
            backups: backups::BackupMetrics::new(registry)?,
            memory: MemoryMetrics::new(registry)?,
            page_bytes: AtomicUsize::new(0),
            kept_connections: registry.gauge(
                "pilothouse_connections_kept",
                "Idle connections to other servers that are kept for reuse.",
            )?,
            connections: ConnectionMetrics::new(registry)?,
            mismatches: mismatches(registry)?,
            process: Process::new(registry, started)?,
            log_lines: LogLines::new(registry)?,
            watching: WatchMetrics::new(registry)?,
            audit: Audit::new(registry)?,
            authentication: Authentication::new(registry)?,
            authorization: Authorization::new(registry)?,
            tokens: Tokens::new(registry)?,
            admission: AdmissionMetrics::new(registry)?,
            external_signer: ExternalSignerMetrics::new(registry)?,
            egress: EgressMetrics::new(registry)?,
            hooks: AdmissionWebhooks::new(registry)?,
            policies: Policies::new(registry)?,
            pod_security: PodSecurity::new(registry)?,
            conversions: Conversions::new(registry)?,
            aggregation: Aggregation::new(registry)?,
            peers: Peers::new(registry)?,
            flows: FlowControlMetrics::new(registry)?,
            heavy: HeavyWorkMetrics::new(registry)?,
            controllers: ControllerMetrics::new(registry)?,
            slis: Slis::new(started)?,
            features: Vec::new(),
            exposition: Exposition::default(),
            registry: {
                registry.register_totals(&[features::NAME, &flowcontrol::utilization_name()])?;
                all
            },
        })
    }

    /// Counts disagreements of declarative and handwritten validation.
    pub fn count_mismatches(&self, mismatches: u64) {
        self.mismatches.iter().for_each(|counter| counter.inc_by(mismatches));
    }

    /// Whether the objects of this server are in etcd.
    pub fn is_in_etcd(&self) -> bool {
        self.is_in_etcd
    }

    /// The size of a store: `None` if it does not tell, and then it has no series, as in the reference.
    pub fn set_stored_bytes(&self, store: usize, bytes: Option<i64>) {
        // The reference's name of a store.
        let label = format!("etcd-{store}");
        match bytes {
            Some(bytes) => self.stored_bytes.with_label_values(&[&label]).set(bytes),
            // It may not be there.
            None => drop(self.stored_bytes.remove_label_values(&[&label])),
        }
    }

    /// All metrics in the Prometheus text format.
    pub fn text(&self) -> Result<Vec<u8>> {
        self.process.update();
        self.log_lines.update();
        if !self.is_in_etcd {
            let file = self.store_file.as_ref().and_then(|file| std::fs::metadata(file).ok());
            let size = file.map_or(0, |file| i64::try_from(file.len()).unwrap_or(i64::MAX));
            self.set_stored_bytes(0, Some(size));
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.exposition.apply(self.registry.gather()), &mut text)?;
        if self.exposition.shows(features::NAME) {
            features::write(&self.features, &mut text);
        }
        if self.exposition.shows(&flowcontrol::utilization_name()) {
            self.flows.write(&mut text);
        }
        self.page_bytes.store(text.len(), Ordering::Relaxed);
        Ok(text)
    }

    /// The size of the page when it was last written.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes.load(Ordering::Relaxed)
    }
}

/// Counters of disagreements of declarative and handwritten validation: by the short name, and by the one with the reference's prefix.
fn mismatches(registry: &MetricRegistry<'_>) -> Result<[IntCounter; 2]> {
    let counter =
        |name: &str| registry.counter(name, "How often declarative and handwritten validation disagreed.");
    Ok([
        counter("declarative_validation_mismatch_total")?,
        counter("apiserver_validation_declarative_validation_mismatch_total")?,
    ])
}

/// Removes the series of resources that no longer exist.
pub fn remove_stale<T: MetricVecBuilder>(metric: &MetricVec<T>, existing: &BTreeSet<&str>) {
    let labels = metric.collect();
    let labels = labels.iter().flat_map(|family| family.get_metric()).flat_map(|sample| sample.get_label());
    for label in labels.filter(|label| !existing.contains(label.value())) {
        // A concurrent request may have removed it already.
        let _gone = metric.remove_label_values(&[label.value()]);
    }
}

#[cfg(test)]
mod declared_tests;
#[cfg(test)]
mod tests;
