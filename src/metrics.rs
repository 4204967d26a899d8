//! What the server counts, all in one place. The names and labels are those that dashboards and alerts of the reference
//! server use. Labels name resources, webhooks and policies that exist or existed since the start, never what a client wrote into
//! a request. As in the reference server, most series of what was deleted stay until the next start.

pub mod admission_webhooks;
pub mod aggregation;
pub mod audit;
pub mod authentication;
pub mod authorization;
pub mod authorization_webhooks;
pub mod connections;
pub mod controllers;
pub mod conversion;
pub mod features;
pub mod flowcontrol;
pub mod heavy_work;
mod log_lines;
pub mod match_conditions;
pub mod memory;
mod own_process;
pub mod pod_security;
pub mod policies;
mod registration;
pub mod requests;
pub mod service_account_tokens;
pub mod slis;
pub mod watches;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::release::Release;
use pilothouse_types::clock::Timestamp;
use prometheus::{
    Encoder as _, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder,
};

use self::admission_webhooks::AdmissionWebhooks;
use self::aggregation::Aggregation;
use self::audit::Audit;
use self::authentication::Authentication;
use self::authorization::Authorization;
use self::connections::ConnectionMetrics;
use self::controllers::ControllerMetrics;
use self::conversion::Conversions;
use self::flowcontrol::FlowControlMetrics;
use self::heavy_work::HeavyWorkMetrics;
use self::log_lines::LogLines;
use self::memory::MemoryMetrics;
use self::own_process::Process;
use self::pod_security::PodSecurity;
use self::policies::Policies;
use self::registration::{MetricRegistry, Result};
use self::service_account_tokens::Tokens;
use self::slis::Slis;
use self::watches::{OpenWatch, WatchMetrics};

/// The bounds of the classes of duration, in seconds; the reference server's.
const SECONDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
const COMPONENT: &str = "apiserver";
/// The store, by the name that the reference server gives its first.
const STORE: &str = "etcd-0";

/// Everything that is counted. One per server, shared by all its threads.
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    durations: HistogramVec,
    deprecated: IntGaugeVec,
    /// Requests in flight, by whether they write.
    pub inflight: IntGaugeVec,
    /// Requests without an end of their own, by what they are about.
    longrunning: IntGaugeVec,
    /// What watches told, how late, and what they tell from.
    pub watching: WatchMetrics,
    /// Objects by type.
    pub objects: IntGaugeVec,
    /// Objects that something depends on and that cannot be read, by type.
    pub unreadable: IntGaugeVec,
    /// The connections of clients.
    pub connections: ConnectionMetrics,
    /// Connections to others that wait for the next question.
    pub kept_connections: IntGauge,
    /// Memory that is reserved, by budget.
    pub memory: MemoryMetrics,
    mismatches: [IntCounter; 2],
    process: Process,
    log_lines: LogLines,
    /// What is written down of requests.
    pub audit: Audit,
    /// Who is asking.
    pub authentication: Authentication,
    /// May they.
    pub authorization: Authorization,
    /// Which tokens of service accounts are shown.
    pub tokens: Tokens,
    /// What admission webhooks say.
    pub hooks: AdmissionWebhooks,
    /// What admission policies found.
    pub policies: Policies,
    /// How pods were judged.
    pub pod_security: PodSecurity,
    /// How custom objects are converted.
    pub conversions: Conversions,
    /// Which versions that others serve can be reached.
    pub aggregation: Aggregation,
    /// Who is let in, by schema and level.
    pub flows: FlowControlMetrics,
    /// How long heavy work waits for a thread.
    pub heavy: HeavyWorkMetrics,
    /// How health checks went.
    pub slis: Slis,
    /// What control loops do.
    pub loops: ControllerMetrics,
    features: Vec<features::Enabled>,
    stored_bytes: IntGaugeVec,
    /// The file of the store, if it has one.
    store_file: Option<PathBuf>,
    page_bytes: AtomicUsize,
}

impl Metrics {
    /// The same, which also tells which features are on.
    #[must_use]
    pub fn telling(self, features: Vec<features::Enabled>) -> Metrics {
        Metrics { features, ..self }
    }

    /// The same, which also tells the size of the store.
    #[must_use]
    pub fn of_store(self, store_file: Option<PathBuf>) -> Metrics {
        Metrics { store_file, ..self }
    }

    /// The same, which also tells what this server is.
    pub fn of(self, release: &Release) -> Result<Metrics> {
        own_process::tell_build(&MetricRegistry(&self.registry), release)?;
        Ok(self)
    }

    /// Declares all of it.
    pub fn new(started: Timestamp) -> Result<Metrics> {
        let registry = Registry::new();
        let page = MetricRegistry(&registry);
        let mismatches = |name: &str| {
            page.counter(name, "How often the rules of the table and hand-written validation disagreed.")
        };
        let request =
            ["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"];
        Ok(Metrics {
            requests: page.counters(
                "apiserver_request_total",
                "Requests by verb, dry run value, group, version, resource, scope, component and HTTP response code.",
                &[&request[..], &["code"]].concat(),
            )?,
            durations: page.histograms(
                "apiserver_request_duration_seconds",
                "How long requests took until the answer began, by verb, dry run value, group, version, resource, \
                 subresource, scope and component.",
                &request,
                &SECONDS,
            )?,
            deprecated: page.gauges(
                "apiserver_requested_deprecated_apis",
                "Deprecated APIs that were requested, by group, version, resource, subresource and the release that \
                 no longer has them.",
                &["group", "version", "resource", "subresource", "removed_release"],
            )?,
            inflight: page.gauges(
                "apiserver_current_inflight_requests",
                "Requests in flight, by kind: they read or they write.",
                &["request_kind"],
            )?,
            longrunning: page.gauges(
                "apiserver_longrunning_requests",
                "Requests without an end of their own that are open, by verb, group, version, resource, subresource, scope \
                 and component.",
                &["verb", "group", "version", "resource", "subresource", "scope", "component"],
            )?,
            objects: page.gauges(
                "apiserver_storage_objects",
                "Stored objects, by resource.",
                &["resource"],
            )?,
            unreadable: page.gauges(
                "pilothouse_unreadable_objects",
                "Stored objects that the server depends on and cannot read, by resource.",
                &["resource"],
            )?,
            stored_bytes: page.gauges(
                "apiserver_storage_size_bytes",
                "Size of the file of the store, in bytes; 0 if it has none.",
                &["storage_cluster_id"],
            )?,
            store_file: None,
            memory: MemoryMetrics::new(&page)?,
            page_bytes: AtomicUsize::new(0),
            kept_connections: page.gauge(
                "pilothouse_connections_kept",
                "Connections to other servers that wait for the next question.",
            )?,
            connections: ConnectionMetrics::new(&page)?,
            // The short name, and the one with the reference's prefix.
            mismatches: [
                mismatches("declarative_validation_mismatch_total")?,
                mismatches("apiserver_validation_declarative_validation_mismatch_total")?,
            ],
            process: Process::new(&page, started)?,
            log_lines: LogLines::new(&page)?,
            watching: WatchMetrics::new(&page)?,
            audit: Audit::new(&page)?,
            authentication: Authentication::new(&page)?,
            authorization: Authorization::new(&page)?,
            tokens: Tokens::new(&page)?,
            hooks: AdmissionWebhooks::new(&page)?,
            policies: Policies::new(&page)?,
            pod_security: PodSecurity::new(&page)?,
            conversions: Conversions::new(&page)?,
            aggregation: Aggregation::new(&page)?,
            flows: FlowControlMetrics::new(&page)?,
            heavy: HeavyWorkMetrics::new(&page)?,
            loops: ControllerMetrics::new(&page)?,
            slis: Slis::new(started)?,
            features: Vec::new(),
            registry,
        })
    }

    /// Counts a watch until the guard is dropped, and finds the counters of what it tells.
    pub fn watch(&self, resource: &Resource, scope: &str) -> OpenWatch {
        let (group, version) = (&*resource.gv.group, &*resource.gv.version);
        let labels = ["WATCH", group, version, &resource.plural, "", scope, COMPONENT];
        let open = self.longrunning.with_label_values(&labels);
        open.inc();
        self.watching.open(open, resource)
    }

    /// Counts disagreements of the two engines of validation.
    pub fn count_mismatches(&self, mismatches: u64) {
        self.mismatches.iter().for_each(|counter| counter.inc_by(mismatches));
    }

    /// Everything in the text form of scrapers.
    pub fn text(&self) -> Result<Vec<u8>> {
        self.process.look();
        self.log_lines.look();
        let size =
            self.store_file.as_ref().and_then(|file| std::fs::metadata(file).ok()).map(|file| file.len());
        let size = i64::try_from(size.unwrap_or(0)).unwrap_or(i64::MAX);
        self.stored_bytes.with_label_values(&[STORE]).set(size);
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        features::write(&self.features, &mut text);
        self.flows.write(&mut text);
        self.page_bytes.store(text.len(), Ordering::Relaxed);
        Ok(text)
    }

    /// The size of the page when it was last written.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes.load(Ordering::Relaxed)
    }
}
