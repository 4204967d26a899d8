//! What is counted of priority and fairness. The labels name schemas and levels that exist; what is told of one that is gone
//! goes with it.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use pilothouse_actors::fair_queuing::levels::LevelSnapshot;
use pilothouse_actors::fair_queuing::queues::Refusal;
use pilothouse_actors::fair_queuing::utilization::{BOUNDS, TimeByPart};
use pilothouse_types::lock::Lock;
use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};

use super::registration::{MetricRegistry, Result};

const LEVEL: &str = "priority_level";
const FLOW: [&str; 2] = [LEVEL, "flow_schema"];
/// The bounds of the classes of duration, in seconds; the reference server's.
const SECONDS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const NANOS_PER_MICRO: u64 = 1_000;
/// The words for why a request was refused.
const REASONS: [&str; 3] = ["concurrency-limit", "queue-full", "time-out"];
/// The words for whether a request was let in after it has waited.
const LET_IN: [&str; 2] = ["true", "false"];
/// The words for what is executed.
const TYPES: [&str; 2] = ["regular", "watch"];

fn reason(why: Refusal) -> &'static str {
    match why {
        Refusal::NoSeat => REASONS[0],
        Refusal::QueueFull => REASONS[1],
        Refusal::TimedOut => REASONS[2],
    }
}

/// What is told of levels: a name, a help, and what of it.
type OfLevel = (&'static str, &'static str, fn(&LevelSnapshot) -> f64);

const OF_LEVELS: [OfLevel; 9] = [
    ("nominal_limit_seats", "Seats of the share of each level.", |told| f64::from(told.bounds.nominal)),
    ("lower_limit_seats", "Seats of each level that are not lent.", |told| f64::from(told.bounds.lower)),
    ("upper_limit_seats", "The most seats that each level may have.", |told| f64::from(told.bounds.upper)),
    ("current_limit_seats", "Seats that each level has now.", |told| f64::from(told.seats)),
    ("demand_seats_high_watermark", "The most seats that were wanted at once.", |told| told.observed.high),
    ("demand_seats_average", "Seats that were wanted on average.", |told| told.observed.average),
    ("demand_seats_stdev", "How far from that the wanted seats were.", |told| told.observed.deviation),
    ("demand_seats_smoothed", "Seats that are wanted, over a longer time.", |told| told.observed.smoothed),
    ("target_seats", "Seats that each level was aimed at.", |told| told.target),
];

/// What is counted of all flows.
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
    told: Lock<Named>,
    utilization: Lock<Vec<(String, TimeByPart)>>,
}

/// Of what something is told.
#[derive(Default)]
struct Named {
    /// Levels with a schema each.
    flows: BTreeSet<(String, String)>,
    levels: BTreeSet<String>,
}

/// What is counted of the requests of one schema, found once.
pub struct FlowSeries {
    labels: [String; 2],
    rejected: IntCounterVec,
    /// Requests that were let in.
    pub dispatched: IntCounter,
    /// Requests that are worked on.
    pub executing: IntGauge,
    seats: IntGauge,
    /// Requests that wait.
    pub waiting: IntGauge,
    /// Seats that those want.
    pub seats_wanted: IntGauge,
    /// How long those waited that were let in, and those that were not.
    waited: [LazyHistogram; 2],
    /// How long requests took, and the beginnings of watches.
    took: [LazyHistogram; 2],
    /// How many waited in a queue when one more came.
    pub lengths: Histogram,
    /// How many seats requests ask for.
    pub widths: Histogram,
}

fn name(what: &str) -> String {
    format!("apiserver_flowcontrol_{what}")
}

impl FlowControlMetrics {
    pub(super) fn new(page: &MetricRegistry<'_>) -> Result<FlowControlMetrics> {
        let gauge = |what: &str, help: &str| page.gauges(name(what), help, &FLOW);
        let levels = OF_LEVELS.iter().map(|(what, help, _)| page.measures(name(what), *help, &[LEVEL]));
        Ok(FlowControlMetrics {
            dispatched: page.counters(
                name("dispatched_requests_total"),
                "Requests that were let in, by level and schema.",
                &FLOW,
            )?,
            rejected: page.counters(
                name("rejected_requests_total"),
                "Requests that were refused, by level, schema and reason.",
                &[FLOW[0], FLOW[1], "reason"],
            )?,
            executing: gauge(
                "current_executing_requests",
                "Requests that are worked on, by level and schema.",
            )?,
            seats: gauge("current_executing_seats", "Seats that are taken, by level and schema.")?,
            waiting: gauge("current_inqueue_requests", "Requests that wait, by level and schema.")?,
            seats_wanted: gauge("current_inqueue_seats", "Seats that are waited for, by level and schema.")?,
            waited: page.histograms(
                name("request_wait_duration_seconds"),
                "How long requests waited, by level, schema and whether they were let in.",
                &[FLOW[0], FLOW[1], "execute"],
                &SECONDS,
            )?,
            took: page.histograms(
                name("request_execution_seconds"),
                "How long requests took, or watches to begin, by level, schema and type.",
                &[FLOW[0], FLOW[1], "type"],
                &SECONDS,
            )?,
            lengths: page.histograms(
                name("request_queue_length_after_enqueue"),
                "Length of a queue when one more waits in it, by level and schema.",
                &FLOW,
                &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0],
            )?,
            widths: page.histograms(
                name("work_estimated_seats"),
                "Seats that requests ask for, by level and schema.",
                &FLOW,
                &[1.0, 2.0, 4.0, 10.0],
            )?,
            levels: levels.collect::<Result<_>>()?,
            fair: page.measure(name("seat_fair_frac"), "How much of its target every level has.")?,
            told: Lock::default(),
            utilization: Lock::default(),
        })
    }

    /// What is counted of the requests of a schema.
    pub fn of(&self, level: &str, schema: &str) -> FlowSeries {
        // Also of one that is gone this moment: the next look finds it.
        self.told.lock().flows.insert((level.to_owned(), schema.to_owned()));
        let flow = [level, schema];
        let with = |vec: &HistogramVec, words: [&'static str; 2]| {
            words.map(|word| LazyHistogram { of: vec.clone(), word, found: OnceLock::new() })
        };
        FlowSeries {
            labels: flow.map(str::to_owned),
            rejected: self.rejected.clone(),
            dispatched: self.dispatched.with_label_values(&flow),
            executing: self.executing.with_label_values(&flow),
            seats: self.seats.with_label_values(&flow),
            waiting: self.waiting.with_label_values(&flow),
            seats_wanted: self.seats_wanted.with_label_values(&flow),
            waited: with(&self.waited, LET_IN),
            took: with(&self.took, TYPES),
            lengths: self.lengths.with_label_values(&flow),
            widths: self.widths.with_label_values(&flow),
        }
    }

    /// Says nothing more of other schemas than these, each with its level.
    pub fn keep(&self, flows: BTreeSet<(String, String)>) {
        let mut told = self.told.lock();
        for (level, schema) in told.flows.difference(&flows) {
            let flow = [level.as_str(), schema.as_str()];
            forget(&self.dispatched, &flow);
            for gauges in [&self.executing, &self.seats, &self.waiting, &self.seats_wanted] {
                forget(gauges, &flow);
            }
            for histograms in [&self.lengths, &self.widths] {
                forget(histograms, &flow);
            }
            REASONS.iter().for_each(|word| forget(&self.rejected, &[flow[0], flow[1], word]));
            LET_IN.iter().for_each(|word| forget(&self.waited, &[flow[0], flow[1], word]));
            TYPES.iter().for_each(|word| forget(&self.took, &[flow[0], flow[1], word]));
        }
        told.flows = flows;
    }

    /// Tells what the levels have, and nothing more of others.
    pub fn tell(&self, levels: &[LevelSnapshot], fair: f64) {
        self.fair.set(fair);
        let mut told = self.told.lock();
        let names: BTreeSet<String> = levels.iter().map(|level| level.name.clone()).collect();
        for (gauges, (_, _, value)) in self.levels.iter().zip(&OF_LEVELS) {
            told.levels.difference(&names).for_each(|gone| forget(gauges, &[gone.as_str()]));
            for level in levels {
                gauges.with_label_values(&[level.name.as_str()]).set(value(level));
            }
        }
        told.levels = names;
        *self.utilization.lock() =
            levels.iter().map(|level| (level.name.clone(), level.utilization)).collect();
    }

    /// Writes for how long which part of the seats was taken: a histogram with an observation in each nanosecond.
    pub(super) fn write(&self, text: &mut Vec<u8>) {
        let name = name("priority_level_seat_utilization");
        let levels = self.utilization.lock();
        if levels.is_empty() {
            return;
        }
        let help = "Seats that are taken, as a part of those that the level has, in each nanosecond.";
        text.extend(format!("# HELP {name} {help}\n# TYPE {name} histogram\n").bytes());
        for (level, TimeByPart { micros, sum }) in &*levels {
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

/// A histogram that is shown once something was observed: who reads the page may take one that is empty for the only one.
struct LazyHistogram {
    of: HistogramVec,
    /// Its last label.
    word: &'static str,
    found: OnceLock<Histogram>,
}

impl LazyHistogram {
    fn observe(&self, [level, schema]: &[String; 2], seconds: f64) {
        let find = || self.of.with_label_values(&[level.as_str(), schema.as_str(), self.word]);
        self.found.get_or_init(find).observe(seconds);
    }
}

/// Some were never told.
fn forget<T: MetricVecBuilder>(of: &MetricVec<T>, labels: &[&str]) {
    let _never_told = of.remove_label_values(labels);
}

impl FlowSeries {
    /// Counts a refusal.
    pub fn refuse(&self, why: Refusal) {
        let [level, schema] = &self.labels;
        self.rejected.with_label_values(&[level.as_str(), schema.as_str(), reason(why)]).inc();
    }

    /// Counts how long a request waited, and whether it was let in.
    pub fn wait(&self, let_in: bool, seconds: f64) {
        self.waited[usize::from(!let_in)].observe(&self.labels, seconds);
    }

    /// Counts a request that is let in with so many seats.
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
    fn what_was_never_observed_is_not_told() {
        let registry = Registry::new();
        let flows = FlowControlMetrics::new(&MetricRegistry(&registry)).unwrap();
        let of = flows.of("l", "a");
        let series = || {
            let told = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            let counts = told.lines().filter(|line| line.contains("_seconds_count{"));
            counts.map(ToOwned::to_owned).collect::<Vec<_>>()
        };
        assert!(series().is_empty(), "{:?}", series());
        of.begin(1);
        of.end(1, false, 0.1);
        let wanted =
            "request_execution_seconds_count{flow_schema=\"a\",priority_level=\"l\",type=\"regular\"} 1";
        assert_eq!(series(), [format!("apiserver_flowcontrol_{wanted}")]);
    }

    #[test]
    fn what_is_gone_is_told_no_more() {
        let registry = Registry::new();
        let flows = FlowControlMetrics::new(&MetricRegistry(&registry)).unwrap();
        let names = |names: &[&str]| names.iter().map(|name| ("l".to_owned(), (*name).to_owned())).collect();
        let series = |schema: &str| {
            let told = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            told.lines().filter(|line| line.contains(&format!("flow_schema=\"{schema}\""))).count()
        };
        flows.keep(names(&["a", "b"]));
        for schema in ["a", "b"] {
            let of = flows.of("l", schema);
            of.begin(2);
            of.wait(true, 0.1);
            of.end(2, false, 0.1);
            of.refuse(Refusal::QueueFull);
        }
        assert!(series("a") > 20 && series("a") == series("b"));
        flows.keep(names(&["b"]));
        assert_eq!(series("a"), 0);
        assert!(series("b") > 20);
    }
}
