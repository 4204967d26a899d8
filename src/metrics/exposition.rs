//! What of the metrics is shown: not those that an operator has disabled, and of labels with a list of allowed values only these.

use std::collections::{BTreeMap, BTreeSet};

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily};

use super::registration::{MetricRegistry, Result};
use super::stability;

/// What a label is shown as whose value is not in its list; the reference's word.
const UNEXPECTED: &str = "unexpected";

/// A metric that the reference hides.
struct Hidden {
    name: &'static str,
    /// The metric that has taken its place, with the same values; none if it has values of its own.
    successor: Option<Successor>,
    deprecated_since: &'static str,
    help: &'static str,
}

/// What a hidden metric shows.
struct Successor {
    name: &'static str,
    /// Only series with this label, which they lose.
    part: Option<(&'static str, &'static str)>,
}

/// The successor with all its series.
const fn whole(name: &'static str) -> Option<Successor> {
    Some(Successor { name, part: None })
}

/// The reloads of the encryption configuration with this result.
const fn reloads(status: &'static str) -> Option<Successor> {
    let name = "apiserver_encryption_config_controller_automatic_reloads_total";
    Some(Successor { name, part: Some(("status", status)) })
}

const HIDDEN: [Hidden; 6] = [
    Hidden {
        name: "apiserver_request_slo_duration_seconds",
        successor: whole("apiserver_request_sli_duration_seconds"),
        deprecated_since: "1.27.0",
        help: "The same as apiserver_request_sli_duration_seconds.",
    },
    Hidden {
        name: "apiserver_flowcontrol_request_concurrency_limit",
        successor: whole("apiserver_flowcontrol_nominal_limit_seats"),
        deprecated_since: "1.30.0",
        help: "The same as apiserver_flowcontrol_nominal_limit_seats.",
    },
    Hidden {
        name: "apiserver_flowcontrol_request_concurrency_in_use",
        successor: whole("apiserver_flowcontrol_current_executing_seats"),
        deprecated_since: "1.31.0",
        help: "The same as apiserver_flowcontrol_current_executing_seats.",
    },
    Hidden {
        name: "apiserver_encryption_config_controller_automatic_reload_success_total",
        successor: reloads("success"),
        deprecated_since: "1.30.0",
        help: "Reloads of the encryption configuration that succeeded, by server.",
    },
    Hidden {
        name: "apiserver_encryption_config_controller_automatic_reload_failures_total",
        successor: reloads("failure"),
        deprecated_since: "1.30.0",
        help: "Reloads of the encryption configuration that failed, by server.",
    },
    Hidden {
        name: "apiserver_storage_db_total_size_in_bytes",
        successor: None,
        deprecated_since: "1.28.0",
        help: "",
    },
];

/// The choice of an operator.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    /// The names of metrics that are not shown.
    pub disabled: BTreeSet<String>,
    /// The values that are shown, by metric and label.
    pub allowed: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
    /// Whether metrics are shown that the reference hides.
    pub shows_hidden: bool,
}

impl Exposition {
    /// Whether a metric is shown.
    pub(super) fn shows(&self, name: &str) -> bool {
        !self.disabled.contains(name)
    }

    /// Makes metrics of how many are not shown.
    pub(super) fn register(&self, registry: &MetricRegistry<'_>) -> Result<()> {
        let disabled = registry.counter("disabled_metrics_total", "Metrics that are disabled.")?;
        disabled.inc_by(self.disabled.len() as u64);
        let hidden = registry.counter("hidden_metrics_total", "Metrics that are hidden.")?;
        hidden.inc_by(if self.shows_hidden { 0 } else { HIDDEN.len() as u64 });
        Ok(())
    }

    /// What is shown of these metrics.
    pub(super) fn apply(&self, mut families: Vec<MetricFamily>) -> Vec<MetricFamily> {
        if self.shows_hidden {
            let shown: Vec<MetricFamily> =
                HIDDEN.iter().filter_map(|hidden| hidden_family(hidden, &families)).collect();
            families.extend(shown);
        } else {
            let is_hidden = |family: &MetricFamily| HIDDEN.iter().any(|hidden| hidden.name == family.name());
            families.retain(|family| !is_hidden(family));
        }
        if !self.disabled.is_empty() {
            families.retain(|family| self.shows(family.name()));
        }
        if !self.allowed.is_empty() {
            for family in &mut families {
                if let Some(allowed) = self.allowed.get(family.name()) {
                    let metrics = family.take_metric();
                    family.set_metric(relabeled(metrics, allowed));
                }
            }
        }
        families
    }
}

/// A hidden metric, made of the one that has taken its place.
fn hidden_family(hidden: &Hidden, families: &[MetricFamily]) -> Option<MetricFamily> {
    let Hidden { name, successor, deprecated_since, help } = hidden;
    let successor = successor.as_ref()?;
    let mut family = families.iter().find(|family| family.name() == successor.name)?.clone();
    family.set_name((*name).to_owned());
    let help = format!("(Deprecated since {deprecated_since}) {help}");
    family.set_help(stability::help(name, &help));
    if let Some((label, value)) = successor.part {
        let mut metrics = family.take_metric();
        let is_part = |pair: &LabelPair| pair.name() == label && pair.value() == value;
        metrics.retain(|metric| metric.get_label().iter().any(is_part));
        let without = |mut metric: Metric| {
            let mut labels = metric.take_label();
            labels.retain(|pair| pair.name() != label);
            with_labels(metric, labels)
        };
        family.set_metric(metrics.into_iter().map(without).collect());
    }
    Some(family).filter(|family| !family.get_metric().is_empty())
}

/// The series with their allowed labels. Those that have become the same are one.
fn relabeled(metrics: Vec<Metric>, allowed: &BTreeMap<String, BTreeSet<String>>) -> Vec<Metric> {
    let mut merged: BTreeMap<Vec<(String, String)>, Metric> = BTreeMap::new();
    for mut metric in metrics {
        let mut labels = metric.take_label();
        for label in &mut labels {
            if allowed.get(label.name()).is_some_and(|values| !values.contains(label.value())) {
                label.set_value(UNEXPECTED.to_owned());
            }
        }
        let key = labels.iter().map(|label| (label.name().to_owned(), label.value().to_owned())).collect();
        match merged.get_mut(&key) {
            Some(sum) => add(sum, &metric),
            None => drop(merged.insert(key, with_labels(metric, labels))),
        }
    }
    merged.into_values().collect()
}

fn with_labels(mut metric: Metric, labels: Vec<LabelPair>) -> Metric {
    metric.set_label(labels);
    metric
}

/// Adds the value of a series to another one of the same metric. Of the three kinds, two are empty in both.
fn add(sum: &mut Metric, metric: &Metric) {
    let mut counter = Counter::default();
    counter.set_value(sum.get_counter().get_value() + metric.get_counter().get_value());
    sum.set_counter(counter);
    let mut gauge = Gauge::default();
    gauge.set_value(sum.get_gauge().get_value() + metric.get_gauge().get_value());
    sum.set_gauge(gauge);
    let (first, second) = (sum.get_histogram(), metric.get_histogram());
    let buckets = first.get_bucket().iter().zip(second.get_bucket()).map(|(first, second)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(first.upper_bound());
        bucket.set_cumulative_count(first.cumulative_count() + second.cumulative_count());
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(first.get_sample_count() + second.get_sample_count());
    histogram.set_sample_sum(first.get_sample_sum() + second.get_sample_sum());
    sum.set_histogram(histogram);
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder as _, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder};

    use super::*;

    fn text(exposition: &Exposition) -> String {
        let registry = Registry::new();
        let counters = IntCounterVec::new(Opts::new("calls_total", "Calls."), &["code", "verb"]).unwrap();
        let bounds = HistogramOpts::new("seconds", "Seconds.").buckets(vec![1.0, 2.0]);
        let histograms = HistogramVec::new(bounds, &["verb"]).unwrap();
        registry.register(Box::new(counters.clone())).unwrap();
        registry.register(Box::new(histograms.clone())).unwrap();
        for (code, verb) in [("200", "GET"), ("200", "PUT"), ("404", "GET"), ("418", "GET")] {
            counters.with_label_values(&[code, verb]).inc();
        }
        for (verb, seconds) in [("GET", 0.5), ("PUT", 1.5), ("PATCH", 1.5), ("PATCH", 9.0)] {
            histograms.with_label_values(&[verb]).observe(seconds);
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&exposition.apply(registry.gather()), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn allowed(metric: &str, label: &str, values: &[&str]) -> Exposition {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let labels = BTreeMap::from([(label.to_owned(), values)]);
        Exposition { allowed: BTreeMap::from([(metric.to_owned(), labels)]), ..Exposition::default() }
    }

    #[test]
    fn disabled_metrics_are_not_shown() {
        assert!(text(&Exposition::default()).contains("calls_total{"));
        let disabled = BTreeSet::from(["calls_total".to_owned()]);
        let text = text(&Exposition { disabled, ..Exposition::default() });
        assert!(!text.contains("calls_total") && text.contains("seconds_count"), "{text}");
    }

    #[test]
    fn hidden_metrics_show_their_successors() {
        let reloads = "apiserver_encryption_config_controller_automatic_reloads_total";
        let registry = Registry::new();
        let counters = IntCounterVec::new(Opts::new(reloads, "Reloads."), &["status", "server"]).unwrap();
        registry.register(Box::new(counters.clone())).unwrap();
        counters.with_label_values(&["success", "a"]).inc_by(3);
        counters.with_label_values(&["failure", "a"]).inc_by(2);
        let text = |shows_hidden| {
            let exposition = Exposition { shows_hidden, ..Exposition::default() };
            let mut text = Vec::new();
            TextEncoder::new().encode(&exposition.apply(registry.gather()), &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let prefix = "apiserver_encryption_config_controller_automatic_reload";
        assert!(!text(false).contains(&format!("{prefix}_success_total")));
        let shown = text(true);
        for line in [
            format!(r#"{prefix}_success_total{{server="a"}} 3"#),
            format!(r#"{prefix}_failures_total{{server="a"}} 2"#),
            format!(r#"{reloads}{{server="a",status="success"}} 3"#),
        ] {
            assert!(shown.contains(&line), "{line} in {shown}");
        }
        assert!(
            shown.contains(&format!("{prefix}_success_total [ALPHA] (Deprecated since 1.30.0) ")),
            "{shown}"
        );
    }

    #[test]
    fn other_values_of_a_label_are_one_series() {
        let counted = text(&allowed("calls_total", "code", &["200"]));
        for line in [
            r#"calls_total{code="200",verb="GET"} 1"#,
            r#"calls_total{code="200",verb="PUT"} 1"#,
            r#"calls_total{code="unexpected",verb="GET"} 2"#,
        ] {
            assert!(counted.contains(line), "{line} in {counted}");
        }
        assert_eq!(counted.matches("calls_total{").count(), 3, "{counted}");
        let observed = text(&allowed("seconds", "verb", &["GET"]));
        for line in [
            r#"seconds_bucket{verb="unexpected",le="1"} 0"#,
            r#"seconds_bucket{verb="unexpected",le="2"} 2"#,
            r#"seconds_bucket{verb="unexpected",le="+Inf"} 3"#,
            r#"seconds_sum{verb="unexpected"} 12"#,
            r#"seconds_count{verb="GET"} 1"#,
        ] {
            assert!(observed.contains(line), "{line} in {observed}");
        }
    }
}
