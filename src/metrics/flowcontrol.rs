//! Metrics of API Priority and Fairness. The labels name flow schemas and priority levels that exist; the series of a removed one
//! are removed.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use pilothouse_actors::fair_queuing::levels::LevelSnapshot;
use pilothouse_actors::fair_queuing::queues::RejectReason;
use pilothouse_actors::fair_queuing::utilization::{BOUNDS, UtilizationHistogram};
use pilothouse_types::lock::Lock;
use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};

use super::registration::{MetricRegistry, Result};

const LEVEL: &str = "priority_level";
const FLOW: [&str; 2] = [LEVEL, "flow_schema"];
/// The buckets of durations, in seconds; the reference's.
const SECONDS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const NANOS_PER_MICRO: u64 = 1_000;
/// The labels for why a request was refused.
const REASONS: [&str; 3] = ["concurrency-limit", "queue-full", "time-out"];
/// The labels for whether a request was executed after it has waited.
const EXECUTED: [&str; 2] = ["true", "false"];
/// The labels for what is executed.
const TYPES: [&str; 2] = ["regular", "watch"];

fn reason(refusal: RejectReason) -> &'static str {
    match refusal {
        RejectReason::NoSeat => REASONS[0],
        RejectReason::QueueFull => REASONS[1],
        RejectReason::TimedOut => REASONS[2],
    }
}

/// A gauge of priority levels: its name, help and value.
type LevelGauge = (&'static str, &'static str, fn(&LevelSnapshot) -> f64);

const LEVEL_GAUGES: [LevelGauge; 9] = [
    ("nominal_limit_seats", "The nominal seats of each level.", |level| f64::from(level.bounds.nominal)),
    ("lower_limit_seats", "Seats of each level that cannot be borrowed.", |level| {
        f64::from(level.bounds.lower)
    }),
    ("upper_limit_seats", "The maximum seats of each level.", |level| f64::from(level.bounds.upper)),
    ("current_limit_seats", "Seats that each level has now.", |level| f64::from(level.seats)),
    ("demand_seats_high_watermark", "The highest demand for seats.", |level| level.observed.high),
    ("demand_seats_average", "The average demand for seats.", |level| level.observed.average),
    ("demand_seats_stdev", "The standard deviation of the demand for seats.", |level| {
        level.observed.deviation
    }),
    ("demand_seats_smoothed", "The smoothed demand for seats.", |level| level.observed.smoothed),
    ("target_seats", "The target of each level, in seats.", |level| level.target),
];

/// Counters of all flows.
pub struct FlowControlMetrics {
    dispatched: IntCounterVec,
    rejected: IntCounterVec,
    executing: IntGaugeVec,
    seats: IntGaugeVec,
    waiting: IntGaugeVec,
    seats_wanted: IntGaugeVec,
    waited: HistogramVec,
    took: HistogramVec,
    lengths: HistogramVec,
    widths: HistogramVec,
    levels: Vec<GaugeVec>,
    fair: Gauge,
    known: Lock<KnownLabels>,
    utilization: Lock<Vec<(String, UtilizationHistogram)>>,
}

/// The labels that have series.
#[derive(Default)]
struct KnownLabels {
    /// Pairs of level and flow schema.
    flows: BTreeSet<(String, String)>,
    levels: BTreeSet<String>,
}

/// The counters of one flow schema, looked up once.
pub struct FlowSeries {
    labels: [String; 2],
    rejected: IntCounterVec,
    /// Requests that were dispatched.
    pub dispatched: IntCounter,
    /// Requests that execute.
    pub executing: IntGauge,
    seats: IntGauge,
    /// Requests that wait.
    pub waiting: IntGauge,
    /// Seats that waiting requests need.
    pub seats_wanted: IntGauge,
    /// Waiting times of requests that were executed, and of those that were not.
    waited: [LazyHistogram; 2],
    /// Execution times of requests, and of the start of watches.
    took: [LazyHistogram; 2],
    /// Queue lengths after a request was added.
    pub lengths: Histogram,
    /// Estimated seats of requests.
    pub widths: Histogram,
}

/// The name of the histogram that is written here, because its counts are nanoseconds.
pub(super) fn utilization_name() -> String {
    name("priority_level_seat_utilization")
}

fn name(suffix: &str) -> String {
    format!("apiserver_flowcontrol_{suffix}")
}

impl FlowControlMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<FlowControlMetrics> {
        let flow_gauge = |suffix: &str, help: &str| registry.gauges(name(suffix), help, &FLOW);
        let levels =
            LEVEL_GAUGES.iter().map(|(suffix, help, _)| registry.float_gauges(name(suffix), *help, &[LEVEL]));
        Ok(FlowControlMetrics {
            dispatched: registry.counters(
                name("dispatched_requests_total"),
                "Requests that were dispatched, by level and schema.",
                &FLOW,
            )?,
            rejected: registry.counters(
                name("rejected_requests_total"),
                "Requests that were refused, by level, schema and reason.",
                &[FLOW[0], FLOW[1], "reason"],
            )?,
            executing: flow_gauge(
                "current_executing_requests",
                "Requests that execute, by level and schema.",
            )?,
            seats: flow_gauge("current_executing_seats", "Seats in use, by level and schema.")?,
            waiting: flow_gauge("current_inqueue_requests", "Requests that wait, by level and schema.")?,
            seats_wanted: flow_gauge(
                "current_inqueue_seats",
                "Seats that waiting requests need, by level and schema.",
            )?,
            waited: registry.histograms(
                name("request_wait_duration_seconds"),
                "How long requests waited, by level, schema and whether they were executed.",
                &[FLOW[0], FLOW[1], "execute"],
                &SECONDS,
            )?,
            took: registry.histograms(
                name("request_execution_seconds"),
                "How long requests took, or watches to begin, by level, schema and type.",
                &[FLOW[0], FLOW[1], "type"],
                &SECONDS,
            )?,
            lengths: registry.histograms(
                name("request_queue_length_after_enqueue"),
                "Length of a queue after a request was added, by level and schema.",
                &FLOW,
                &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0],
            )?,
            widths: registry.histograms(
                name("work_estimated_seats"),
                "Estimated seats of requests, by level and schema.",
                &FLOW,
                &[1.0, 2.0, 4.0, 10.0],
            )?,
            levels: levels.collect::<Result<_>>()?,
            fair: registry
                .float_gauge(name("seat_fair_frac"), "The fraction of its target that every level gets.")?,
            known: Lock::default(),
            utilization: Lock::default(),
        })
    }

    /// The counters of a flow schema.
    pub fn series(&self, level: &str, schema: &str) -> FlowSeries {
        // Also for one that was just removed: the next `retain` removes its series.
        self.known.lock().flows.insert((level.to_owned(), schema.to_owned()));
        let flow = [level, schema];
        let lazy = |vec: &HistogramVec, labels: [&'static str; 2]| {
            labels.map(|label| LazyHistogram { family: vec.clone(), label, histogram: OnceLock::new() })
        };
        FlowSeries {
            labels: flow.map(str::to_owned),
            rejected: self.rejected.clone(),
            dispatched: self.dispatched.with_label_values(&flow),
            executing: self.executing.with_label_values(&flow),
            seats: self.seats.with_label_values(&flow),
            waiting: self.waiting.with_label_values(&flow),
            seats_wanted: self.seats_wanted.with_label_values(&flow),
            waited: lazy(&self.waited, EXECUTED),
            took: lazy(&self.took, TYPES),
            lengths: self.lengths.with_label_values(&flow),
            widths: self.widths.with_label_values(&flow),
        }
    }

    /// Removes the series of all flow schemas but these.
    pub fn retain(&self, flows: BTreeSet<(String, String)>) {
        let mut known = self.known.lock();
        for (level, schema) in known.flows.difference(&flows) {
            let flow = [level.as_str(), schema.as_str()];
            forget(&self.dispatched, &flow);
            for gauges in [&self.executing, &self.seats, &self.waiting, &self.seats_wanted] {
                forget(gauges, &flow);
            }
            for histograms in [&self.lengths, &self.widths] {
                forget(histograms, &flow);
            }
            REASONS.iter().for_each(|word| forget(&self.rejected, &[flow[0], flow[1], word]));
            EXECUTED.iter().for_each(|word| forget(&self.waited, &[flow[0], flow[1], word]));
            TYPES.iter().for_each(|word| forget(&self.took, &[flow[0], flow[1], word]));
        }
        known.flows = flows;
    }

    /// Sets the gauges of these levels, and removes those of others.
    pub fn update(&self, levels: &[LevelSnapshot], fair: f64) {
        self.fair.set(fair);
        let mut known = self.known.lock();
        let names: BTreeSet<String> = levels.iter().map(|level| level.name.clone()).collect();
        for (gauges, (_, _, value)) in self.levels.iter().zip(&LEVEL_GAUGES) {
            known.levels.difference(&names).for_each(|level_name| forget(gauges, &[level_name.as_str()]));
            for level in levels {
                gauges.with_label_values(&[level.name.as_str()]).set(value(level));
            }
        }
        known.levels = names;
        *self.utilization.lock() =
            levels.iter().map(|level| (level.name.clone(), level.utilization)).collect();
    }

    /// Writes how long which part of the seats was in use: a histogram with one observation per nanosecond.
    pub(super) fn write(&self, text: &mut Vec<u8>) {
        let name = utilization_name();
        let levels = self.utilization.lock();
        if levels.is_empty() {
            return;
        }
        let help = "The fraction of the level's seats that is in use, in each nanosecond.";
        text.extend(format!("# HELP {name} [ALPHA] {help}\n# TYPE {name} histogram\n").bytes());
        for (level, UtilizationHistogram { micros, sum }) in &*levels {
            let labels = format!("phase=\"executing\",{LEVEL}=\"{level}\"");
            let bounds = BOUNDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
            let mut count = 0_u64;
            for (bound, micros) in bounds.zip(micros) {
                count += micros * NANOS_PER_MICRO;
                text.extend(format!("{name}_bucket{{{labels},le=\"{bound}\"}} {count}\n").bytes());
            }
            let sum = sum * NANOS_PER_MICRO as f64;
            text.extend(format!("{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}\n").bytes());
        }
    }
}

/// A histogram that has a series only after its first observation: a reader might take an empty one for the only one.
struct LazyHistogram {
    family: HistogramVec,
    /// Its last label.
    label: &'static str,
    histogram: OnceLock<Histogram>,
}

impl LazyHistogram {
    fn observe(&self, [level, schema]: &[String; 2], seconds: f64) {
        let find = || self.family.with_label_values(&[level.as_str(), schema.as_str(), self.label]);
        self.histogram.get_or_init(find).observe(seconds);
    }
}

/// Removes a series, if it exists.
fn forget<T: MetricVecBuilder>(metric: &MetricVec<T>, labels: &[&str]) {
    let _unknown = metric.remove_label_values(labels);
}

impl FlowSeries {
    /// Counts a refusal.
    pub fn refuse(&self, refusal: RejectReason) {
        let [level, schema] = &self.labels;
        self.rejected.with_label_values(&[level.as_str(), schema.as_str(), reason(refusal)]).inc();
    }

    /// Counts how long a request waited, and whether it was executed.
    pub fn wait(&self, let_in: bool, seconds: f64) {
        self.waited[usize::from(!let_in)].observe(&self.labels, seconds);
    }

    /// Counts a request that is dispatched with this many seats.
    pub fn begin(&self, seats: u32) {
        self.dispatched.inc();
        self.executing.inc();
        self.seats.add(i64::from(seats));
    }

    /// Counts its end.
    pub fn end(&self, seats: u32, is_watch: bool, seconds: f64) {
        self.executing.dec();
        self.seats.sub(i64::from(seats));
        self.took[usize::from(is_watch)].observe(&self.labels, seconds);
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    #[test]
    fn flow_histogram_without_observation_has_no_series() {
        let registry = Registry::new();
        let flows = FlowControlMetrics::new(&MetricRegistry::new(&registry)).unwrap();
        let flow = flows.series("l", "a");
        let series = || {
            let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            let counts = text.lines().filter(|line| line.contains("_seconds_count{"));
            counts.map(ToOwned::to_owned).collect::<Vec<_>>()
        };
        assert!(series().is_empty(), "{:?}", series());
        flow.begin(1);
        flow.end(1, false, 0.1);
        let expected =
            "request_execution_seconds_count{flow_schema=\"a\",priority_level=\"l\",type=\"regular\"} 1";
        assert_eq!(series(), [format!("apiserver_flowcontrol_{expected}")]);
    }

    #[test]
    fn series_of_removed_flow_schemas_are_removed() {
        let registry = Registry::new();
        let flows = FlowControlMetrics::new(&MetricRegistry::new(&registry)).unwrap();
        let names = |names: &[&str]| names.iter().map(|name| ("l".to_owned(), (*name).to_owned())).collect();
        let series = |schema: &str| {
            let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            text.lines().filter(|line| line.contains(&format!("flow_schema=\"{schema}\""))).count()
        };
        flows.retain(names(&["a", "b"]));
        for schema in ["a", "b"] {
            let flow = flows.series("l", schema);
            flow.begin(2);
            flow.wait(true, 0.1);
            flow.end(2, false, 0.1);
            flow.refuse(RejectReason::QueueFull);
        }
        assert!(series("a") > 20 && series("a") == series("b"));
        flows.retain(names(&["b"]));
        assert_eq!(series("a"), 0);
        assert!(series("b") > 20);
    }
}
