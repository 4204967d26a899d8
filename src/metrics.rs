//! What the server counts, all in one place. The names and labels are those that dashboards and alerts of the reference
//! server use. Labels are bounded: they name resources that exist, never what a client wrote.

pub mod aggregation;
pub mod audit;
pub mod authentication;
pub mod conditions;
pub mod conversion;
pub mod hooks;
pub mod policies;
pub mod slis;
pub mod tokens;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use pilothouse_actors::clock::Timestamp;
use prometheus::{
    Encoder as _, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use self::aggregation::Aggregation;
use self::audit::Audit;
use self::authentication::Authentication;
use self::conditions::{Authorizer, Counts};
use self::conversion::Conversions;
use self::hooks::Hooks;
use self::policies::Policies;
use self::slis::Slis;
use self::tokens::Tokens;
use crate::api::catalog::resource::Resource;
use crate::api::connect::Way;
use crate::api::discovery::RELEASE;
use crate::api::path::{Request, ResourcePath, Target};
use crate::api::verb::Verb;

/// The bounds of the classes of duration, in seconds; the reference server's.
const SECONDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
/// The bounds of the classes of lag, in seconds: from what nobody notices to what a history lasts.
const LAG_SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0];
const COMPONENT: &str = "apiserver";
/// Paths that are no resources and are counted by name, with that name.
const PATHS: [(&str, &str); 9] = [
    ("/healthz", "/healthz"),
    ("/livez", "/livez"),
    ("/readyz", "/readyz"),
    ("/metrics", "/metrics"),
    ("/version", "/version"),
    ("/api", "api"),
    ("/apis", "apis"),
    ("/openapi/v2", "openapi/v2"),
    ("/openapi/v3", "openapi/v3"),
];
/// Sub-resources that are conversations.
const LASTING_PARTS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];
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
    /// How custom objects are converted.
    pub conversions: Conversions,
    /// Which versions that others serve can be reached.
    pub aggregation: Aggregation,
    /// How health checks went.
    pub slis: Slis,
    queue_depth: IntGaugeVec,
    queue_adds: IntCounterVec,
    queue_retries: IntCounterVec,
    work_durations: HistogramVec,
    loop_restarts: IntCounterVec,
}

impl Metrics {
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
            conversions: Conversions::new()?,
            aggregation: Aggregation::new()?,
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
        self.conversions.register(registry)?;
        self.aggregation.register(registry)?;
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
        let events = self.watching.events.with_label_values(&[group, version, &resource.kind]);
        OpenWatch { open, events, lag: self.watching.lag.clone() }
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
        Ok(text)
    }
}

/// What is counted of one authorization webhook. Operators choose the names.
#[derive(Clone)]
pub struct WebhookMeter {
    name: String,
    rounds: IntCounterVec,
    durations: HistogramVec,
    open: IntCounterVec,
    conditions: Counts,
}

/// How a question to a webhook ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// With an answer.
    Success,
    /// With none in time.
    Timeout,
    /// With anything else.
    Error,
}

impl Round {
    fn name(self) -> &'static str {
        match self {
            Round::Success => "success",
            Round::Timeout => "timeout",
            Round::Error => "error",
        }
    }
}

impl WebhookMeter {
    /// What operators call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counts how long its conditions took, whether they left a request to others, and whether some failed.
    pub fn matched(&self, seconds: f64, excluded: bool, failed: bool) {
        let of = Authorizer(&self.name);
        self.conditions.evaluated(&of, usize::from(failed), seconds);
        if excluded {
            self.conditions.excluded(&of);
        }
    }

    /// Counts one question and how long it took.
    pub fn asked(&self, round: Round, seconds: f64) {
        let labels = [self.name.as_str(), round.name()];
        self.rounds.with_label_values(&labels).inc();
        self.durations.with_label_values(&labels).observe(seconds);
    }

    /// Counts a question that others decide because of this end.
    pub fn left_open(&self, round: Round) {
        self.open.with_label_values(&[&self.name, round.name()]).inc();
    }
}

/// What is counted of watches beside their number.
pub struct Watched {
    events: IntCounterVec,
    lag: Histogram,
    /// Watches that have something to tell and whose clients do not read.
    pub stalled: IntGauge,
    /// Bytes that the lists in flight hold.
    pub list_bytes: IntGauge,
    /// Events that the windows hold in memory, by type.
    pub window_events: IntGaugeVec,
    /// Events that only the log holds, by type.
    pub shelved_events: IntGaugeVec,
    /// What the windows weigh, by type.
    pub window_bytes: IntGaugeVec,
    /// The age of the oldest event that can be read, by type.
    pub window_age: GaugeVec,
}

impl Watched {
    fn new() -> Result<Watched, prometheus::Error> {
        let of = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["resource"]);
        let events = Opts::new(
            "apiserver_watch_events_total",
            "Events that watches told, by group, version and kind.",
        );
        let lag = HistogramOpts::new(
            "pilothouse_watch_lag_seconds",
            "How long ago the oldest event was accepted that a watch took in at once.",
        );
        let age = Opts::new(
            "pilothouse_watch_window_age_seconds",
            "How far back the history reaches that watches can begin in, by resource.",
        );
        Ok(Watched {
            events: IntCounterVec::new(events, &["group", "version", "kind"])?,
            lag: Histogram::with_opts(lag.buckets(LAG_SECONDS.to_vec()))?,
            stalled: IntGauge::new(
                "pilothouse_watch_stalled_sessions",
                "Watches that have something to tell and whose clients do not read.",
            )?,
            list_bytes: IntGauge::new(
                "pilothouse_list_bytes_inflight",
                "Bytes that the lists in flight hold.",
            )?,
            window_events: of(
                "pilothouse_watch_window_events",
                "Events of the history in memory, by resource.",
            )?,
            shelved_events: of(
                "pilothouse_watch_window_shelved_events",
                "Events of the history that are read from the log, by resource.",
            )?,
            window_bytes: of(
                "pilothouse_watch_window_bytes",
                "What the history in memory weighs, by resource.",
            )?,
            window_age: GaugeVec::new(age, &["resource"])?,
        })
    }

    fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.events.clone()))?;
        registry.register(Box::new(self.lag.clone()))?;
        for gauge in [&self.stalled, &self.list_bytes] {
            registry.register(Box::new(gauge.clone()))?;
        }
        for gauges in [&self.window_events, &self.shelved_events, &self.window_bytes] {
            registry.register(Box::new(gauges.clone()))?;
        }
        registry.register(Box::new(self.window_age.clone()))
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
    pub fn told(&self, events: usize, oldest: Timestamp, now: Timestamp) {
        self.events.inc_by(events as u64);
        self.lag.observe(now.0.saturating_sub(oldest.0) as f64 / 1e6);
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// What came of judging a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// It may pass.
    Allowed,
    /// A policy is against it.
    Denied,
    /// No policy is for it.
    NoOpinion,
    /// Nobody knows.
    Failed,
}

impl Judged {
    fn name(self) -> &'static str {
        match self {
            Judged::Allowed => "allowed",
            Judged::Denied => "denied",
            Judged::NoOpinion => "no-opinion",
            Judged::Failed => "error",
        }
    }
}

/// What the kernel says that this process holds in memory.
fn resident_bytes() -> Option<i64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    text.split_whitespace().nth(1)?.parse::<i64>().ok().map(|pages| pages * PAGE_BYTES)
}

/// How a request is counted, but for its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Class {
    /// The resource's number; none for a path.
    resource: Option<u32>,
    verb: Verb,
    /// The position of the sub-resource or of the path among those that are known.
    part: Option<usize>,
    scope: &'static str,
    dry_run: bool,
    /// Whether it is a patch that applies.
    applies: bool,
    code: u16,
}

/// The counters of one class of requests, found once.
struct Series {
    resource: Option<Arc<Resource>>,
    count: IntCounter,
    /// Watches have none: they last as long as the client wants.
    duration: Option<Histogram>,
}

/// What one worker counts with. It remembers the counters it has used, because finding one by its labels costs more than
/// counting.
pub struct Meter {
    metrics: Arc<Metrics>,
    series: RefCell<HashMap<Class, Series>>,
}

/// One request on its way.
pub struct Sample {
    began: Timestamp,
    noted: RefCell<Option<(Class, Option<Arc<Resource>>)>>,
}

impl Sample {
    /// A request that begins now.
    pub fn begin(now: Timestamp) -> Sample {
        Sample { began: now, noted: RefCell::new(None) }
    }

    /// Lets go of what is known of it, so that it does not count: whoever may not ask has asked for nothing.
    pub fn forget(&self) {
        self.noted.take();
    }

    /// Whether it has no end of its own, as far as is known.
    pub fn is_long_running(&self) -> bool {
        let noted = self.noted.borrow();
        let Some((class, resource)) = noted.as_ref() else { return false };
        let part = class.part.and_then(|at| resource.as_ref()?.subresources.get(at));
        let converses = part.is_some_and(|part| LASTING_PARTS.contains(&&*part.name));
        matches!(class.verb, Verb::Watch | Verb::Proxy) || converses
    }

    /// Notes what it is about: a dry run, a patch that applies. A resource that nobody knows is none.
    pub fn note(
        &self,
        request: &Request<'_>,
        resource: Option<&Arc<Resource>>,
        (dry_run, applies): (bool, bool),
    ) {
        let verb = request.verb;
        let mut class = Class { resource: None, verb, part: None, scope: "", dry_run, applies, code: 0 };
        match (&request.target, resource) {
            (Target::Resource(found), Some(resource)) => {
                class.resource = Some(resource.ordinal);
                let mut parts = resource.subresources.iter();
                class.part = parts.position(|sub| *sub.name == *found.subresource);
                class.scope = scope(found, request.verb);
                // Whatever the method: it is between the client and whoever it is led to.
                if Way::of(resource, found.subresource).is_some() {
                    class.verb = Verb::Connect;
                }
            }
            (Target::Resource(_), None) => {}
            (Target::NonResource(path), _) => {
                let below = |known: &str| {
                    path.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                class.part = PATHS.iter().position(|(known, _)| below(known));
                class.dry_run = false;
            }
        }
        *self.noted.borrow_mut() = Some((class, resource.cloned()));
    }
}

fn scope(found: &ResourcePath<'_>, verb: Verb) -> &'static str {
    if !found.name.is_empty() || verb == Verb::Create {
        "resource"
    } else if !found.namespace.is_empty() {
        "namespace"
    } else {
        "cluster"
    }
}

/// The verb as the metrics name it.
fn verb_label(class: &Class) -> String {
    match (class.verb, class.resource) {
        (Verb::Create, _) => "POST".to_owned(),
        (Verb::Patch, _) if class.applies => "APPLY".to_owned(),
        (Verb::DeleteCollection, _) => "DELETE".to_owned(),
        (Verb::Update, _) => "PUT".to_owned(),
        (Verb::Proxy, _) => "CONNECT".to_owned(),
        (Verb::Unknown, _) => "other".to_owned(),
        (verb, _) => verb.as_str().to_ascii_uppercase(),
    }
}

impl Meter {
    /// A meter that counts into these.
    pub fn new(metrics: Arc<Metrics>) -> Meter {
        Meter { metrics, series: RefCell::default() }
    }

    /// Counts a request that was answered. One that was refused before anybody looked at it does not count.
    pub fn end(&self, sample: Sample, now: Timestamp, code: u16) {
        let Some((mut class, resource)) = sample.noted.into_inner() else { return };
        class.code = code;
        let mut known = self.series.borrow_mut();
        let series = known.entry(class).or_insert_with(|| self.find(&class, resource.clone()));
        // A custom resource may come again with the number of one that went.
        let same = match (&series.resource, &resource) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        if !same {
            *series = self.find(&class, resource);
        }
        series.count.inc();
        if let Some(duration) = &series.duration {
            duration.observe(now.0.saturating_sub(sample.began.0) as f64 / 1e6);
        }
    }

    fn find(&self, class: &Class, resource: Option<Arc<Resource>>) -> Series {
        let verb = verb_label(class);
        let dry_run = if class.dry_run { "All" } else { "" };
        let (group, version, plural, part) = match &resource {
            Some(resource) => {
                let part = class.part.and_then(|at| resource.subresources.get(at)).map(|sub| &*sub.name);
                (&*resource.gv.group, &*resource.gv.version, &*resource.plural, part.unwrap_or_default())
            }
            None => ("", "", "", class.part.and_then(|at| PATHS.get(at)).map_or("", |(_, name)| name)),
        };
        if let Some(removed) = resource.as_ref().filter(|resource| resource.deprecated.is_some()) {
            let removed =
                removed.removed.map(|(major, minor)| format!("{major}.{minor}")).unwrap_or_default();
            self.metrics.deprecated.with_label_values(&[group, version, plural, part, &removed]).set(1);
        }
        // Of those who ask for its health the reference does not say which of its parts they asked.
        let component = if ["/healthz", "/livez", "/readyz"].contains(&part) { "" } else { COMPONENT };
        let labels = [verb.as_str(), dry_run, group, version, plural, part, class.scope, component];
        let code = class.code.to_string();
        let with_code = [&labels[..], &[code.as_str()]].concat();
        let count = self.metrics.requests.with_label_values(&with_code);
        let lasts = class.verb == Verb::Watch;
        let duration = (!lasts).then(|| self.metrics.durations.with_label_values(&labels));
        Series { resource, count, duration }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::catalog::build::Builtin;
    use crate::api::catalog::runtime_config::RuntimeConfig;
    use crate::api::query::Query;

    fn scraped(paths: &[(&str, &str, u16)]) -> String {
        let metrics = Arc::new(Metrics::new(Timestamp(1_500_000)).unwrap());
        let meter = Meter::new(metrics.clone());
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        for (method, path, code) in paths {
            let sample = Sample::begin(Timestamp(0));
            let query = Query::parse("");
            let request = Request::parse(method, path, &query).unwrap();
            let resource = match &request.target {
                Target::Resource(found) => catalog.at(found),
                Target::NonResource(_) => None,
            };
            sample.note(&request, resource, (false, *method == "PATCH"));
            meter.end(sample, Timestamp(30_000), *code);
        }
        metrics.count_mismatches(2);
        String::from_utf8(metrics.text().unwrap()).unwrap()
    }

    #[test]
    fn requests_are_counted_by_what_they_are_about() {
        let text = scraped(&[
            ("GET", "/api/v1/namespaces/n/pods/p", 200),
            ("GET", "/api/v1/namespaces/n/pods/q", 200),
            ("GET", "/api/v1/namespaces/n/pods", 410),
            ("POST", "/api/v1/namespaces/n/pods", 201),
            ("PUT", "/apis/apps/v1/namespaces/n/deployments/d/status", 200),
            ("GET", "/api/v1/namespaces/n/endpoints/e", 200),
            ("GET", "/livez/ping", 200),
            ("GET", "/apis", 200),
            ("GET", "/openapi/v3/api/v1", 200),
            ("PATCH", "/api/v1/namespaces/n/pods/p", 200),
            ("DELETE", "/api/v1/namespaces/n/pods", 200),
        ]);
        let wanted = [
            r#"subresource="apis",verb="GET""#,
            r#"subresource="openapi/v3",verb="GET""#,
            r#"scope="resource",subresource="",verb="APPLY""#,
            r#"scope="namespace",subresource="",verb="DELETE""#,
            r#"apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 2"#,
            r#"apiserver_request_total{code="410",component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1"#,
            r#"apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 1"#,
            r#"group="apps",resource="deployments",scope="resource",subresource="status",verb="PUT",version="v1"} 1"#,
            r#"resource="",scope="",subresource="/livez",verb="GET",version=""} 1"#,
            r#"apiserver_requested_deprecated_apis{group="",removed_release="",resource="endpoints",subresource="",version="v1"} 1"#,
            r#"verb="GET",version="v1",le="0.05"} 2"#,
            "declarative_validation_mismatch_total 2",
            "process_start_time_seconds 1.5",
            r#"kubernetes_build_info{"#,
        ];
        for wanted in wanted {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
    }

    #[test]
    fn whoever_may_not_ask_is_not_counted() {
        let metrics = Arc::new(Metrics::new(Timestamp(0)).unwrap());
        let meter = Meter::new(metrics.clone());
        meter.end(Sample::begin(Timestamp(0)), Timestamp(1), 401);
        let sample = Sample::begin(Timestamp(0));
        sample.note(&Request::parse("GET", "/version", &Query::parse("")).unwrap(), None, (false, false));
        sample.forget();
        meter.end(sample, Timestamp(1), 403);
        let text = String::from_utf8(metrics.text().unwrap()).unwrap();
        assert!(!text.contains("apiserver_request_total{"), "{text}");
    }

    #[test]
    fn what_nobody_knows_makes_no_series() {
        let text = scraped(&[
            ("GET", "/apis/made.up/v1/namespaces/n/things/t", 404),
            ("GET", "/apis/made.up/v1/namespaces/n/others/t", 404),
            ("GET", "/api/v1/namespaces/n/pods/p/nothing", 404),
            ("GET", "/some/page", 404),
        ]);
        assert!(!text.contains("made.up") && !text.contains("things") && !text.contains("nothing"), "{text}");
        let lines = text.lines().filter(|line| line.starts_with("apiserver_request_total{"));
        assert_eq!(lines.count(), 2, "{text}");
    }
}
