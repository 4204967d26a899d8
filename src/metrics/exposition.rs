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
    /// The metric that has taken its place, with the same values.
    successor: &'static str,
    deprecated_since: &'static str,
    help: &'static str,
}

const HIDDEN: [Hidden; 1] = [Hidden {
    name: "apiserver_request_slo_duration_seconds",
    successor: "apiserver_request_sli_duration_seconds",
    deprecated_since: "1.27.0",
    help: "The same as apiserver_request_sli_duration_seconds.",
}];

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
            for Hidden { name, successor, deprecated_since, help } in HIDDEN {
                let known = families.iter().find(|family| family.name() == successor).cloned();
                families.extend(known.map(|mut family| {
                    family.set_name(name.to_owned());
                    let help = format!("(Deprecated since {deprecated_since}) {help}");
                    family.set_help(stability::help(name, &help));
                    family
                }));
            }
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
