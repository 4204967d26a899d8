//! What the server counts, all in one place. The names and labels are those that dashboards and alerts of the reference
//! server use. Labels are bounded: they name resources that exist, never what a client wrote.

pub mod aggregation;
pub mod audit;
pub mod authentication;
pub mod conditions;
pub mod conversion;
pub mod features;
pub mod flows;
pub mod hooks;
pub mod pod_security;
pub mod policies;
pub mod requests;
pub mod slis;
pub mod tokens;
pub mod watches;
pub mod webhooks;

use std::fs;

use pilothouse_actors::clock::Timestamp;
use prometheus::{
    Encoder as _, Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

use self::aggregation::Aggregation;
use self::audit::Audit;
use self::authentication::Authentication;
use self::conditions::Counts;
use self::conversion::Conversions;
use self::flows::Flows;
use self::hooks::Hooks;
use self::pod_security::PodSecurity;
use self::policies::Policies;
use self::slis::Slis;
use self::tokens::Tokens;
use self::watches::{OpenWatch, Watched};
use self::webhooks::{Judged, WebhookMeter};
use crate::api::catalog::resource::Resource;
use crate::api::discovery::RELEASE;

/// The bounds of the classes of duration, in seconds; the reference server's.
const SECONDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
const COMPONENT: &str = "apiserver";
/// The size of a page of memory on the machines this runs on.
const PAGE_BYTES: i64 = 4_096;

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
    pub watching: Watched,
    /// Objects by type.
    pub objects: IntGaugeVec,
    memory: IntGauge,
    /// Connections to others that wait for the next question.
    pub kept_connections: IntGauge,
    mismatches: [IntCounter; 2],
    decisions: IntCounterVec,
    attempts: IntCounterVec,
    attempt_durations: HistogramVec,
    webhook_rounds: IntCounterVec,
    webhook_durations: HistogramVec,
    webhook_open: IntCounterVec,
    webhook_conditions: Counts,
    reloads: IntCounterVec,
    reloaded_at: GaugeVec,
    /// What is written down of requests.
    pub audit: Audit,
    /// Who is asking.
    pub authentication: Authentication,
    /// Which tokens of service accounts are shown.
    pub tokens: Tokens,
    /// What admission webhooks say.
    pub hooks: Hooks,
    /// What admission policies found.
    pub policies: Policies,
    /// How pods were judged.
    pub pod_security: PodSecurity,
    /// How custom objects are converted.
    pub conversions: Conversions,
    /// Which versions that others serve can be reached.
    pub aggregation: Aggregation,
    /// Who is let in, by schema and level.
    pub flows: Flows,
    /// How health checks went.
    pub slis: Slis,
    queue_depth: IntGaugeVec,
    queue_adds: IntCounterVec,
    queue_retries: IntCounterVec,
    work_durations: HistogramVec,
    loop_restarts: IntCounterVec,
    features: Vec<features::Enabled>,
}

impl Metrics {
    /// The same, which also tells which features are on.
    #[must_use]
    pub fn telling(self, features: Vec<features::Enabled>) -> Metrics {
        Metrics { features, ..self }
    }

    /// Declares all of it.
    pub fn new(started: Timestamp) -> Result<Metrics, prometheus::Error> {
        let registry = Registry::new();
        let request =
            ["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"];
        let with_code = [&request[..], &["code"]].concat();
        let requests = Opts::new(
            "apiserver_request_total",
            "Requests by verb, dry run value, group, version, resource, scope, component and HTTP response code.",
        );
        let durations = HistogramOpts::new(
            "apiserver_request_duration_seconds",
            "How long requests took until the answer began, by verb, dry run value, group, version, resource, \
             subresource, scope and component.",
        );
        let deprecated = Opts::new(
            "apiserver_requested_deprecated_apis",
            "Deprecated APIs that were requested, by group, version, resource, subresource and the release that \
             no longer has them.",
        );
        let deprecated_labels = ["group", "version", "resource", "subresource", "removed_release"];
        let inflight = Opts::new(
            "apiserver_current_inflight_requests",
            "Requests in flight, by kind: they read or they write.",
        );
        let objects = Opts::new("apiserver_storage_objects", "Stored objects, by resource.");
        let longrunning = Opts::new(
            "apiserver_longrunning_requests",
            "Requests without an end of their own that are open, by verb, group, version, resource, subresource, scope \
             and component.",
        );
        let longrunning_labels =
            ["verb", "group", "version", "resource", "subresource", "scope", "component"];
        let memory = Opts::new("process_resident_memory_bytes", "Memory of the process, in bytes.");
        let mismatch = |name: &str| {
            IntCounter::new(name, "How often the rules of the table and hand-written validation disagreed.")
        };
        let decisions = Opts::new(
            "apiserver_authorization_decisions_total",
            "Terminal decisions of authorizers, by their type and name and the decision.",
        );
        let attempts = Opts::new(
            "authorization_attempts_total",
            "Requests that were judged, by result: allowed, denied, no-opinion or error.",
        );
        let attempt_durations = HistogramOpts::new(
            "authorization_duration_seconds",
            "How long judging requests took, by result.",
        );
        let webhook_durations = HistogramOpts::new(
            "apiserver_authorization_webhook_duration_seconds",
            "How long questions to authorization webhooks took, by webhook and result.",
        );
        let by_result =
            |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &["name", "result"]);
        let reloads = Opts::new(
            "apiserver_authorization_config_controller_automatic_reloads_total",
            "Changes of the authorization configuration that were taken or not, by status and server.",
        );
        let reloaded_at = Opts::new(
            "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds",
            "When the authorization configuration was last taken or not, by status and server.",
        );
        let depth = Opts::new("workqueue_depth", "Keys that a control loop could work on now.");
        let queue = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &["name"]);
        let work_durations =
            HistogramOpts::new("workqueue_work_duration_seconds", "How long a control loop worked on a key.");
        let restarts = Opts::new(
            "pilothouse_controller_restarts_total",
            "Control loops that ended and were started again.",
        );
        let metrics = Metrics {
            decisions: IntCounterVec::new(decisions, &["type", "name", "decision"])?,
            attempts: IntCounterVec::new(attempts, &["result"])?,
            attempt_durations: HistogramVec::new(
                attempt_durations.buckets(prometheus::exponential_buckets(0.001, 2.0, 15)?),
                &["result"],
            )?,
            webhook_rounds: by_result(
                "apiserver_authorization_webhook_evaluations_total",
                "Questions to authorization webhooks, by webhook and result.",
            )?,
            webhook_durations: HistogramVec::new(webhook_durations, &["name", "result"])?,
            webhook_open: by_result(
                "apiserver_authorization_webhook_evaluations_fail_open_total",
                "Questions that others had to decide because a webhook did not answer, by webhook and result.",
            )?,
            webhook_conditions: Counts::of_authorization()?,
            reloads: IntCounterVec::new(reloads, &["status", "apiserver_id_hash"])?,
            reloaded_at: GaugeVec::new(reloaded_at, &["status", "apiserver_id_hash"])?,
            audit: Audit::new()?,
            authentication: Authentication::new()?,
            tokens: Tokens::new()?,
            hooks: Hooks::new()?,
            policies: Policies::new()?,
            pod_security: PodSecurity::new()?,
            conversions: Conversions::new()?,
            aggregation: Aggregation::new()?,
            flows: Flows::new()?,
            features: Vec::new(),
            slis: Slis::new(started)?,
            queue_depth: IntGaugeVec::new(depth, &["name"])?,
            queue_adds: queue(
                "workqueue_adds_total",
                "Keys that were added to the queue of a control loop.",
            )?,
            queue_retries: queue("workqueue_retries_total", "Keys of a control loop that were tried again.")?,
            work_durations: HistogramVec::new(
                work_durations.buckets(prometheus::exponential_buckets(10e-9, 10.0, 12)?),
                &["name"],
            )?,
            loop_restarts: IntCounterVec::new(restarts, &["name"])?,
            requests: IntCounterVec::new(requests, &with_code)?,
            durations: HistogramVec::new(durations.buckets(SECONDS.to_vec()), &request)?,
            deprecated: IntGaugeVec::new(deprecated, &deprecated_labels)?,
            inflight: IntGaugeVec::new(inflight, &["request_kind"])?,
            longrunning: IntGaugeVec::new(longrunning, &longrunning_labels)?,
            watching: Watched::new()?,
            objects: IntGaugeVec::new(objects, &["resource"])?,
            memory: IntGauge::with_opts(memory)?,
            kept_connections: IntGauge::new(
                "pilothouse_connections_kept",
                "Connections to other servers that wait for the next question.",
            )?,
            // The short name, and the one with the reference's prefix.
            mismatches: [
                mismatch("declarative_validation_mismatch_total")?,
                mismatch("apiserver_validation_declarative_validation_mismatch_total")?,
            ],
            registry,
        };
        metrics.register()?;
        metrics.constants(started)?;
        Ok(metrics)
    }

    fn register(&self) -> Result<(), prometheus::Error> {
        let registry = &self.registry;
        registry.register(Box::new(self.requests.clone()))?;
        registry.register(Box::new(self.durations.clone()))?;
        registry.register(Box::new(self.deprecated.clone()))?;
        registry.register(Box::new(self.inflight.clone()))?;
        registry.register(Box::new(self.longrunning.clone()))?;
        self.watching.register(registry)?;
        registry.register(Box::new(self.objects.clone()))?;
        registry.register(Box::new(self.memory.clone()))?;
        registry.register(Box::new(self.kept_connections.clone()))?;
        registry.register(Box::new(self.decisions.clone()))?;
        registry.register(Box::new(self.attempts.clone()))?;
        registry.register(Box::new(self.attempt_durations.clone()))?;
        registry.register(Box::new(self.webhook_rounds.clone()))?;
        registry.register(Box::new(self.webhook_durations.clone()))?;
        registry.register(Box::new(self.webhook_open.clone()))?;
        self.webhook_conditions.register(registry)?;
        registry.register(Box::new(self.reloads.clone()))?;
        registry.register(Box::new(self.reloaded_at.clone()))?;
        self.audit.register(registry)?;
        self.authentication.register(registry)?;
        self.tokens.register(registry)?;
        self.hooks.register(registry)?;
        self.policies.register(registry)?;
        self.pod_security.register(registry)?;
        self.conversions.register(registry)?;
        self.aggregation.register(registry)?;
        self.flows.register(registry)?;
        registry.register(Box::new(self.queue_depth.clone()))?;
        for queue in [&self.queue_adds, &self.queue_retries] {
            registry.register(Box::new(queue.clone()))?;
        }
        registry.register(Box::new(self.work_durations.clone()))?;
        registry.register(Box::new(self.loop_restarts.clone()))?;
        for counter in &self.mismatches {
            registry.register(Box::new(counter.clone()))?;
        }
        Ok(())
    }

    /// What never changes: who this is, and since when.
    fn constants(&self, started: Timestamp) -> Result<(), prometheus::Error> {
        let release = format!("{}+pilothouse-{}", RELEASE, env!("CARGO_PKG_VERSION"));
        let build = Opts::new("kubernetes_build_info", "1, with the version of this server as labels.")
            .const_label("major", "1")
            .const_label("minor", "33")
            .const_label("git_version", release)
            .const_label("git_commit", "")
            .const_label("git_tree_state", "clean")
            .const_label("build_date", "1970-01-01T00:00:00Z")
            .const_label("go_version", "none")
            .const_label("compiler", "rustc")
            .const_label("platform", format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH));
        let build = IntGauge::with_opts(build)?;
        build.set(1);
        self.registry.register(Box::new(build))?;
        let start =
            Opts::new("process_start_time_seconds", "When the server started, in seconds of Unix time.");
        let start = Gauge::with_opts(start)?;
        start.set(started.0 as f64 / 1e6);
        self.registry.register(Box::new(start))
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

    /// What counts the allowing and the denying decisions of a policy.
    pub fn decisions(&self, sort: &str, name: &str) -> [IntCounter; 2] {
        ["allowed", "denied"].map(|decision| self.decisions.with_label_values(&[sort, name, decision]))
    }

    /// What counts the questions to an authorization webhook.
    pub fn webhook(&self, name: &str) -> WebhookMeter {
        WebhookMeter {
            name: name.to_owned(),
            rounds: self.webhook_rounds.clone(),
            durations: self.webhook_durations.clone(),
            open: self.webhook_open.clone(),
            conditions: self.webhook_conditions.clone(),
        }
    }

    /// Counts a change of the authorization configuration, taken or not.
    pub fn count_reload(&self, taken: bool, now: Timestamp) {
        let labels = [if taken { "success" } else { "failure" }, ""];
        self.reloads.with_label_values(&labels).inc();
        self.reloaded_at.with_label_values(&labels).set(now.0 as f64 / 1e6);
    }

    /// Counts a request that was judged.
    pub fn count_judged(&self, result: Judged, seconds: f64) {
        let result = result.name();
        self.attempts.with_label_values(&[result]).inc();
        self.attempt_durations.with_label_values(&[result]).observe(seconds);
    }

    /// Says how many keys of a control loop wait, and counts those that were added and tried again since it was last said.
    pub fn count_queue(&self, name: &str, depth: usize, added: u64, retried: u64) {
        self.queue_depth.with_label_values(&[name]).set(i64::try_from(depth).unwrap_or(i64::MAX));
        self.queue_adds.with_label_values(&[name]).inc_by(added);
        self.queue_retries.with_label_values(&[name]).inc_by(retried);
    }

    /// Counts the work of a control loop on a key.
    pub fn count_work(&self, name: &str, seconds: f64) {
        self.work_durations.with_label_values(&[name]).observe(seconds);
    }

    /// Counts a control loop that ended and is started again.
    pub fn count_restart(&self, name: &str) {
        self.loop_restarts.with_label_values(&[name]).inc();
    }

    /// Everything in the text form of scrapers.
    pub fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        self.memory.set(resident_bytes().unwrap_or(0));
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        features::write(&self.features, &mut text);
        Ok(text)
    }
}

/// What the kernel says that this process holds in memory.
fn resident_bytes() -> Option<i64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    text.split_whitespace().nth(1)?.parse::<i64>().ok().map(|pages| pages * PAGE_BYTES)
}
