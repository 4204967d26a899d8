//! Metrics of requests: each belongs to a class, whose counters are looked up once.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::connect::ConnectSubresource;
use pilothouse_api::path::{Request, ResourcePath, Target};
use pilothouse_apimachinery::verb::Verb;
use pilothouse_types::clock::Moment;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec};

use super::registration::{MetricRegistry, Result};
use super::{COMPONENT, Metrics, SECONDS};

/// The buckets of durations without queues, in seconds; the reference's.
const SLI_SECONDS: [f64; 21] = [
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
/// The buckets of sizes of responses, in bytes; the reference's.
const SIZES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// The buckets of durations of filters, in seconds; the reference's.
const FILTER_SECONDS: [f64; 13] = [1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0, 10.0, 15.0, 30.0];

/// The buckets of sizes of bodies of requests, in bytes: the first, the step and their number; the reference's.
const BODY_BUCKETS: (f64, f64, usize) = (50_000.0, 100_000.0, 31);

/// A part of the way of a request to its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Who asks.
    Authentication,
    /// Whether it is audited.
    Audit,
    /// As whom.
    Impersonation,
    /// When it is its turn.
    Queue,
    /// Whether it may.
    Authorization,
}

impl Filter {
    const ALL: [Filter; 5] =
        [Filter::Authentication, Filter::Audit, Filter::Impersonation, Filter::Queue, Filter::Authorization];

    /// Its name in metrics and traces.
    pub fn label(self) -> &'static str {
        match self {
            Filter::Authentication => "authentication",
            Filter::Audit => "audit",
            Filter::Impersonation => "impersonation",
            Filter::Queue => "priorityandfairness",
            Filter::Authorization => "authorization",
        }
    }
}

/// Metrics of all requests.
pub struct RequestMetrics {
    total: IntCounterVec,
    durations: HistogramVec,
    sli_durations: HistogramVec,
    sizes: HistogramVec,
    bodies: HistogramVec,
    own: IntCounterVec,
    terminations: IntCounterVec,
    aborts: IntCounterVec,
    /// One for each filter, in their order.
    filters: [Histogram; 5],
    deprecated: IntGaugeVec,
    /// Requests in flight, by whether they write.
    pub inflight: IntGaugeVec,
    /// Open long-running requests.
    pub(super) longrunning: IntGaugeVec,
}

fn bodies(registry: &MetricRegistry<'_>) -> Result<HistogramVec> {
    let (first, step, count) = BODY_BUCKETS;
    registry.histograms(
        "apiserver_request_body_size_bytes",
        "Sizes of the bodies of requests, in bytes, by resource and verb.",
        &["resource", "verb"],
        &prometheus::linear_buckets(first, step, count)?,
    )
}

fn own(registry: &MetricRegistry<'_>) -> Result<IntCounterVec> {
    registry.counters(
        "apiserver_selfrequest_total",
        "Requests of the server to itself, by verb, resource and subresource.",
        &["verb", "resource", "subresource"],
    )
}

impl RequestMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<RequestMetrics> {
        let labels = ["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"];
        let without_dry_run = ["verb", "group", "version", "resource", "subresource", "scope", "component"];
        let filters = registry.histograms(
            "apiserver_request_filter_duration_seconds",
            "How long requests were in the filters before their handlers, by filter.",
            &["filter"],
            &FILTER_SECONDS,
        )?;
        Ok(RequestMetrics {
            sli_durations: registry.histograms(
                "apiserver_request_sli_duration_seconds",
                "How long requests took without their time in the queues of this server and in webhooks, \
                 by verb, group, version, resource, subresource, scope and component.",
                &without_dry_run,
                &SLI_SECONDS,
            )?,
            sizes: registry.histograms(
                "apiserver_response_sizes",
                "Sizes of responses to reads, in bytes, by verb, group, version, resource, subresource, scope and component.",
                &without_dry_run,
                &SIZES,
            )?,
            bodies: bodies(registry)?,
            own: own(registry)?,
            terminations: registry.counters(
                "apiserver_request_terminations_total",
                "Requests that the server ended in its own defence, by verb, group, version, resource, subresource, scope, component \
                 and code.",
                &[&without_dry_run[..], &["code"]].concat(),
            )?,
            aborts: registry.counters(
                "apiserver_request_aborts_total",
                "Requests whose clients were gone before the response, by verb, group, version, resource, subresource and scope.",
                &["verb", "group", "version", "resource", "subresource", "scope"],
            )?,
            filters: Filter::ALL.map(|filter| filters.with_label_values(&[filter.label()])),
            total: registry.counters(
                "apiserver_request_total",
                "Requests by verb, dry run value, group, version, resource, scope, component and HTTP response code.",
                &[&labels[..], &["code"]].concat(),
            )?,
            durations: registry.histograms(
                "apiserver_request_duration_seconds",
                "How long requests took, by verb, dry run value, group, version, resource, \
                 subresource, scope and component.",
                &labels,
                &SECONDS,
            )?,
            deprecated: registry.gauges(
                "apiserver_requested_deprecated_apis",
                "Deprecated APIs that were requested, by group, version, resource, subresource and the release that \
                 no longer has them.",
                &["group", "version", "resource", "subresource", "removed_release"],
            )?,
            inflight: registry.gauges(
                "apiserver_current_inflight_requests",
                "Requests in flight, by kind: read-only or mutating.",
                &["request_kind"],
            )?,
            longrunning: registry.gauges(
                "apiserver_longrunning_requests",
                "Open long-running requests, by verb, group, version, resource, subresource, scope and component.",
                &["verb", "group", "version", "resource", "subresource", "scope", "component"],
            )?,
        })
    }
}

impl RequestMetrics {
    /// Counts a request of the server to itself.
    pub fn count_own(&self, request: &Request<'_>) {
        let (resource, part) = match &request.target {
            Target::Resource(path_info) => (path_info.resource, path_info.subresource),
            Target::NonResource(_) => ("", ""),
        };
        let verb = verb_word(request.verb, false);
        self.own.with_label_values(&[verb.as_str(), resource, part]).inc();
    }

    /// Counts how long a request was in a filter.
    pub fn note_filter(&self, filter: Filter, time: Duration) {
        if let Some(histogram) = self.filters.get(filter as usize) {
            histogram.observe(time.as_secs_f64());
        }
    }
}

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

/// The labels by which a request is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RequestClass {
    /// The resource's number; none for a path.
    resource: Option<u32>,
    verb: Verb,
    /// The index of the subresource in the resource, or of the path in [`PATHS`].
    part: Option<usize>,
    scope: &'static str,
    dry_run: bool,
    /// Whether it is an apply patch.
    is_apply: bool,
    code: u16,
}

/// The counters of one class of requests.
struct Series {
    /// A weak reference: each change of a definition makes new resources, and the memory of the old ones must be freed.
    resource: Option<Weak<Resource>>,
    count: IntCounter,
    /// Watches have none: they last as long as the client wants.
    durations: Option<Durations>,
    /// Only reads have one.
    size: Option<Histogram>,
    /// Only requests for resources have one that may have a body.
    body: Option<Histogram>,
}

/// The durations of one class of requests.
struct Durations {
    whole: Histogram,
    sli: Histogram,
}

/// Counts the requests of one worker. It caches the counters, because a lookup by labels costs more than counting.
pub struct Meter {
    metrics: Arc<Metrics>,
    series: RefCell<HashMap<RequestClass, Series>>,
}

/// The options of a request that metrics distinguish.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestOptions {
    /// Whether it is a dry run.
    pub dry_run: bool,
    /// Whether it is an apply patch.
    pub is_apply: bool,
}

/// One request in progress.
pub struct Sample {
    began: Moment,
    class_and_resource: RefCell<Option<(RequestClass, Option<Arc<Resource>>)>>,
    is_long: Cell<bool>,
    /// Whether the server has ended it in its own defence.
    is_terminated: Cell<bool>,
    /// The time that does not count for the SLI: in queues and webhooks.
    excluded: Cell<Duration>,
    /// The size of its body, if it was read.
    body_bytes: Cell<Option<usize>>,
}

impl Sample {
    /// A request that begins now.
    pub fn begin(now: Moment) -> Sample {
        Sample {
            began: now,
            class_and_resource: RefCell::new(None),
            is_long: Cell::new(false),
            is_terminated: Cell::new(false),
            excluded: Cell::new(Duration::ZERO),
            body_bytes: Cell::new(None),
        }
    }

    /// The body of the request was read.
    pub fn note_body(&self, bytes: usize) {
        self.body_bytes.set(Some(bytes));
    }

    /// The server ends the request in its own defence.
    pub fn terminate(&self) {
        self.is_terminated.set(true);
    }

    /// The request has waited so long in a queue, or for webhooks.
    pub fn exclude(&self, time: Duration) {
        self.excluded.set(self.excluded.get().saturating_add(time));
    }

    /// When the request arrived.
    pub fn began(&self) -> Moment {
        self.began
    }

    /// Excludes the request from the metrics, because it was not authorized.
    pub fn forget(&self) {
        self.class_and_resource.take();
        self.is_long.set(false);
    }

    /// Whether the request is long-running, as far as is known.
    pub fn is_long_running(&self) -> bool {
        self.is_long.get()
    }

    /// Notes the class of the request. An unknown resource counts as none.
    pub fn note(&self, request: &Request<'_>, resource: Option<&Arc<Resource>>, options: RequestOptions) {
        self.is_long.set(request.is_long_running());
        let (verb, RequestOptions { dry_run, is_apply }) = (request.verb, options);
        let mut class =
            RequestClass { resource: None, verb, part: None, scope: "", dry_run, is_apply, code: 0 };
        match (&request.target, resource) {
            (Target::Resource(path_info), Some(resource)) => {
                class.resource = Some(resource.ordinal);
                let mut parts = resource.subresources.iter();
                class.part = parts.position(|sub| *sub.name == *path_info.subresource);
                class.scope = scope(path_info, request.verb);
                // Whatever the method: it is meant for the backend.
                if ConnectSubresource::for_resource(resource, path_info.subresource).is_some() {
                    class.verb = Verb::Connect;
                }
            }
            (Target::Resource(_), None) => {}
            (Target::NonResource(path), _) => {
                let is_at_or_below = |prefix: &str| {
                    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                class.part = PATHS.iter().position(|(prefix, _)| is_at_or_below(prefix));
                class.dry_run = false;
            }
        }
        *self.class_and_resource.borrow_mut() = Some((class, resource.cloned()));
    }
}

/// The part of the cluster that a request is about.
pub fn scope(path_info: &ResourcePath<'_>, verb: Verb) -> &'static str {
    if !path_info.name.is_empty() || verb == Verb::Create {
        "resource"
    } else if !path_info.namespace.is_empty() {
        "namespace"
    } else {
        "cluster"
    }
}

/// The verb as the metrics name it.
fn verb_word(verb: Verb, is_apply: bool) -> String {
    match verb {
        Verb::Create => "POST".to_owned(),
        Verb::Patch if is_apply => "APPLY".to_owned(),
        Verb::DeleteCollection => "DELETE".to_owned(),
        Verb::Update => "PUT".to_owned(),
        Verb::Proxy => "CONNECT".to_owned(),
        Verb::Unknown => "other".to_owned(),
        verb => verb.as_str().to_ascii_uppercase(),
    }
}

impl Meter {
    /// A meter that counts into these metrics.
    pub fn new(metrics: Arc<Metrics>) -> Meter {
        Meter { metrics, series: RefCell::default() }
    }

    /// Counts a request whose client was gone before its response.
    pub fn abort(&self, sample: &Sample) {
        let Some((class, resource)) = sample.class_and_resource.take() else { return };
        let labels = Labels::new(&class, resource.as_deref());
        let Labels { verb, group, version, plural, part, scope, .. } = &labels;
        let labels = [verb.as_str(), group, version, plural, part, scope];
        self.metrics.requests.aborts.with_label_values(&labels).inc();
    }

    /// Counts a completed request, once. One without a class, such as an unauthenticated one, is not counted. `size`: the bytes of the
    /// body of the response, if it has an end.
    pub fn end(&self, sample: &Sample, now: Moment, code: u16, size: Option<u64>) {
        let Some((mut class, resource)) = sample.class_and_resource.take() else { return };
        class.code = code;
        if sample.is_terminated.get() {
            self.count_termination(&class, resource.as_deref());
        }
        let mut all = self.series.borrow_mut();
        // A custom resource may have the ordinal of a removed one.
        let is_same_resource = |series: &Series| match (&series.resource, &resource) {
            (Some(counted), Some(other)) => counted.as_ptr() == Arc::as_ptr(other),
            (None, None) => true,
            _ => false,
        };
        if !all.get(&class).is_some_and(is_same_resource) {
            all.retain(|_, series| {
                series.resource.as_ref().is_none_or(|resource| resource.strong_count() > 0)
            });
            all.insert(class, self.lookup_series(&class, resource.as_ref()));
        }
        let Some(series) = all.get(&class) else { return };
        series.count.inc();
        let time = now.since(sample.began);
        if let Some(Durations { whole, sli }) = &series.durations {
            whole.observe(time.as_secs_f64());
            sli.observe(time.saturating_sub(sample.excluded.get()).as_secs_f64());
        }
        if let (Some(sizes), Some(size)) = (&series.size, size) {
            sizes.observe(size as f64);
        }
        if let Some(bodies) = &series.body
            && let Some(bytes) = sample.body_bytes.get()
        {
            bodies.observe(bytes as f64);
        }
    }

    fn count_termination(&self, class: &RequestClass, resource: Option<&Resource>) {
        let labels = Labels::new(class, resource);
        let code = class.code.to_string();
        let labels = [&labels.without_dry_run()[..], &[code.as_str()]].concat();
        self.metrics.requests.terminations.with_label_values(&labels).inc();
    }

    fn lookup_series(&self, class: &RequestClass, resource: Option<&Arc<Resource>>) -> Series {
        let labels = Labels::new(class, resource.map(|resource| &**resource));
        let Labels { group, version, plural, part, .. } = labels;
        if let Some(removed) = resource.filter(|resource| resource.deprecated.is_some()) {
            let removed =
                removed.removed.map(|(major, minor)| format!("{major}.{minor}")).unwrap_or_default();
            self.metrics
                .requests
                .deprecated
                .with_label_values(&[group, version, plural, part, &removed])
                .set(1);
        }
        let (all, without_dry_run, code) = (labels.all(), labels.without_dry_run(), class.code.to_string());
        let with_code = [&all[..], &[code.as_str()]].concat();
        let requests = &self.metrics.requests;
        let count = requests.total.with_label_values(&with_code);
        let durations = (class.verb != Verb::Watch).then(|| Durations {
            whole: requests.durations.with_label_values(&all),
            sli: requests.sli_durations.with_label_values(&without_dry_run),
        });
        let is_read = matches!(class.verb, Verb::Get | Verb::List);
        let size = is_read.then(|| requests.sizes.with_label_values(&without_dry_run));
        let body = resource.zip(body_verb(class.verb)).map(|(resource, verb)| {
            requests.bodies.with_label_values(&[resource.name().to_string().as_str(), verb])
        });
        Series { resource: resource.map(Arc::downgrade), count, durations, size, body }
    }
}

/// The verb of a request with a body, as the metric of bodies names it.
fn body_verb(verb: Verb) -> Option<&'static str> {
    match verb {
        Verb::Create => Some("create"),
        Verb::Update => Some("update"),
        Verb::Patch => Some("patch"),
        Verb::Delete => Some("delete"),
        Verb::DeleteCollection => Some("delete_collection"),
        _ => None,
    }
}

/// The values of the labels of a class of requests.
struct Labels<'a> {
    verb: String,
    dry_run: &'static str,
    group: &'a str,
    version: &'a str,
    plural: &'a str,
    part: &'a str,
    scope: &'static str,
    component: &'static str,
}

impl<'a> Labels<'a> {
    fn new(class: &RequestClass, resource: Option<&'a Resource>) -> Labels<'a> {
        let (group, version, plural, part) = match resource {
            Some(resource) => {
                let part =
                    class.part.and_then(|index| resource.subresources.get(index)).map(|sub| &*sub.name);
                (&*resource.gv.group, &*resource.gv.version, &*resource.plural, part.unwrap_or_default())
            }
            None => ("", "", "", class.part.and_then(|index| PATHS.get(index)).map_or("", |(_, name)| *name)),
        };
        // The reference sets no component label for health checks.
        let component = if ["/healthz", "/livez", "/readyz"].contains(&part) { "" } else { COMPONENT };
        let dry_run = if class.dry_run { "All" } else { "" };
        let (verb, scope) = (verb_word(class.verb, class.is_apply), class.scope);
        Labels { verb, dry_run, group, version, plural, part, scope, component }
    }

    fn all(&self) -> [&str; 8] {
        let Labels { verb, dry_run, group, version, plural, part, scope, component } = self;
        [verb, dry_run, group, version, plural, part, scope, component]
    }

    fn without_dry_run(&self) -> [&str; 7] {
        let Labels { verb, group, version, plural, part, scope, component, .. } = self;
        [verb, group, version, plural, part, scope, component]
    }
}

#[cfg(test)]
mod tests;
