//! Histograms with a shard for each thread: where every thread observes all the time, the counters of one histogram would be contended.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pilothouse_types::lock::Lock;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Counter, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use super::registration::Result;
use super::stability;

/// The observations of one thread.
struct Shard {
    bounds: &'static [f64],
    /// How many observations are in each bucket; the last one has those above all bounds.
    counts: Box<[AtomicU64]>,
    /// The bits of their sum.
    sum: AtomicU64,
}

/// The histogram of one series, as its thread observes. Cheap to clone.
#[derive(Clone)]
pub struct LocalHistogram {
    shard: Arc<Shard>,
    /// It stays on its thread: two that observe in one shard would lose observations.
    _thread: PhantomData<Rc<()>>,
}

impl LocalHistogram {
    /// Counts a value. Nobody else writes these counters, so they are loaded and stored, which costs less than adding to them.
    pub fn observe(&self, value: f64) {
        let Shard { bounds, counts, sum } = &*self.shard;
        let index = bounds.iter().position(|bound| value <= *bound).unwrap_or(bounds.len());
        if let Some(count) = counts.get(index) {
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        let total = f64::from_bits(sum.load(Ordering::Relaxed)) + value;
        sum.store(total.to_bits(), Ordering::Relaxed);
    }
}

/// Histograms by labels. Cheap to clone.
#[derive(Clone)]
pub(super) struct ShardedHistograms(Arc<Family>);

struct Family {
    description: Desc,
    /// A counter of the observations of each series, under a name of its own.
    counter: Option<Desc>,
    labels: &'static [&'static str],
    bounds: &'static [f64],
    shards: Lock<BTreeMap<Vec<String>, Vec<Arc<Shard>>>>,
}

fn description(name: &str, help: &str, labels: &[&str]) -> Result<Desc> {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    Desc::new(name.to_owned(), stability::help(name, help), labels, Default::default())
}

impl ShardedHistograms {
    pub(super) fn new(
        (name, help): (&str, &str),
        counter: Option<(&str, &str)>,
        labels: &'static [&'static str],
        bounds: &'static [f64],
    ) -> Result<ShardedHistograms> {
        let counter = counter.map(|(name, help)| description(name, help, labels)).transpose()?;
        let description = description(name, help, labels)?;
        Ok(ShardedHistograms(Arc::new(Family {
            description,
            counter,
            labels,
            bounds,
            shards: Lock::default(),
        })))
    }

    /// A new shard of a series, for the calling thread. It stays until the end, so each thread asks once.
    pub(super) fn local(&self, values: &[&str]) -> LocalHistogram {
        let counts = std::iter::repeat_with(AtomicU64::default).take(self.0.bounds.len() + 1).collect();
        let shard = Arc::new(Shard { bounds: self.0.bounds, counts, sum: AtomicU64::default() });
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        self.0.shards.lock().entry(values).or_default().push(Arc::clone(&shard));
        LocalHistogram { shard, _thread: PhantomData }
    }
}

impl Family {
    fn label_pairs(&self, values: &[String]) -> Vec<LabelPair> {
        let mut pairs: Vec<LabelPair> = self.labels.iter().zip(values).map(label_pair).collect();
        pairs.sort_by(|first, second| first.name().cmp(second.name()));
        pairs
    }

    /// The sum of the shards of a series.
    fn histogram(&self, shards: &[Arc<Shard>]) -> Histogram {
        let mut count = 0;
        let mut buckets = Vec::with_capacity(self.bounds.len());
        for index in 0..=self.bounds.len() {
            let counts = shards.iter().filter_map(|shard| shard.counts.get(index));
            count += counts.map(|count| count.load(Ordering::Relaxed)).sum::<u64>();
            if let Some(bound) = self.bounds.get(index) {
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(*bound);
                bucket.set_cumulative_count(count);
                buckets.push(bucket);
            }
        }
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets);
        histogram.set_sample_count(count);
        let sums = shards.iter().map(|shard| f64::from_bits(shard.sum.load(Ordering::Relaxed)));
        histogram.set_sample_sum(sums.sum());
        histogram
    }
}

fn label_pair((name, value): (&&str, &String)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name((*name).to_owned());
    pair.set_value(value.clone());
    pair
}

fn metric_family(description: &Desc, sort: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(description.fq_name.clone());
    family.set_help(description.help.clone());
    family.set_field_type(sort);
    family.set_metric(metrics);
    family
}

impl Collector for ShardedHistograms {
    fn desc(&self) -> Vec<&Desc> {
        std::iter::once(&self.0.description).chain(&self.0.counter).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let family = &*self.0;
        let (mut histograms, mut counters) = (Vec::new(), Vec::new());
        for (values, shards) in family.shards.lock().iter() {
            let histogram = family.histogram(shards);
            if family.counter.is_some() {
                let mut counter = Counter::default();
                counter.set_value(histogram.get_sample_count() as f64);
                let mut metric = Metric::from_label(family.label_pairs(values));
                metric.set_counter(counter);
                counters.push(metric);
            }
            let mut metric = Metric::from_label(family.label_pairs(values));
            metric.set_histogram(histogram);
            histograms.push(metric);
        }
        let mut families = vec![metric_family(&family.description, MetricType::HISTOGRAM, histograms)];
        families.extend(
            family
                .counter
                .iter()
                .map(|counter| metric_family(counter, MetricType::COUNTER, counters.clone())),
        );
        families
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder as _, Registry, TextEncoder};

    use super::*;

    #[test]
    fn shards_of_all_threads_are_one_series() {
        let registry = Registry::new();
        let counter = Some(("events_total", "Events."));
        let sizes =
            ShardedHistograms::new(("sizes", "Sizes."), counter, &["kind", "group"], &[10.0, 100.0]).unwrap();
        registry.register(Box::new(sizes.clone())).unwrap();
        let threads = (0..4).map(|_| {
            let sizes = sizes.clone();
            std::thread::spawn(move || {
                let pods = sizes.local(&["Pod", ""]);
                for _ in 0..1_000 {
                    [10.0, 10.5, 101.0].iter().for_each(|size| pods.observe(*size));
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        sizes.local(&["Node", ""]).observe(1.0);
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            "# TYPE sizes histogram",
            "# HELP sizes [ALPHA] Sizes.",
            r#"sizes_bucket{group="",kind="Pod",le="10"} 4000"#,
            r#"sizes_bucket{group="",kind="Pod",le="100"} 8000"#,
            r#"sizes_bucket{group="",kind="Pod",le="+Inf"} 12000"#,
            r#"sizes_sum{group="",kind="Pod"} 486000"#,
            r#"sizes_count{group="",kind="Pod"} 12000"#,
            r#"sizes_count{group="",kind="Node"} 1"#,
            "# TYPE events_total counter",
            r#"events_total{group="",kind="Pod"} 12000"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
