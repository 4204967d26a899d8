//! Creates metrics and registers them, so that none is counted but not exported.

use std::cell::RefCell;
use std::collections::BTreeSet;

use prometheus::core::Collector;
use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::stability::{self, Stability, stability};

/// The result of registering a metric.
pub(super) type Result<T> = std::result::Result<T, prometheus::Error>;

/// Creates metrics in a Prometheus registry.
pub(super) struct MetricRegistry<'a> {
    registry: &'a Registry,
    /// The names of all of them.
    names: RefCell<BTreeSet<String>>,
}

impl<'a> MetricRegistry<'a> {
    pub fn new(registry: &'a Registry) -> MetricRegistry<'a> {
        MetricRegistry { registry, names: RefCell::default() }
    }

    pub fn register<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C> {
        self.registry.register(Box::new(metric.clone()))?;
        for family in metric.desc() {
            self.names.borrow_mut().insert(family.fq_name.clone());
        }
        Ok(metric)
    }

    /// The names of all metrics so far.
    #[cfg(test)]
    pub fn names(&self) -> BTreeSet<String> {
        self.names.borrow().clone()
    }

    /// Makes a metric of how many there are, itself included, and with these, which somebody else writes.
    pub fn register_totals(&self, others: &[&str]) -> Result<()> {
        self.names.borrow_mut().extend(others.iter().map(|name| (*name).to_owned()));
        let labels = ["stability_level", "deprecated_version"];
        let totals = self.counters(
            "registered_metrics_total",
            "Metrics that are registered, by class and the version since which they are deprecated.",
            &labels,
        )?;
        for name in &*self.names.borrow() {
            // docs/upgrades.md promises as much of those without a class.
            let class = stability(name).unwrap_or(Stability::Beta).word();
            totals.with_label_values(&[class, ""]).inc();
        }
        Ok(())
    }

    pub fn counter(&self, name: impl Into<String>, help: impl Into<String>) -> Result<IntCounter> {
        let name = name.into();
        self.register(IntCounter::new(name.clone(), annotated(&name, help))?)
    }

    /// A counter of floating-point values.
    pub fn float_counter(&self, name: impl Into<String>, help: impl Into<String>) -> Result<Counter> {
        let name = name.into();
        self.register(Counter::new(name.clone(), annotated(&name, help))?)
    }

    pub fn counters(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        labels: &[&str],
    ) -> Result<IntCounterVec> {
        self.register(IntCounterVec::new(opts(name, help), labels)?)
    }

    pub fn gauge(&self, name: impl Into<String>, help: impl Into<String>) -> Result<IntGauge> {
        let name = name.into();
        self.register(IntGauge::new(name.clone(), annotated(&name, help))?)
    }

    pub fn gauges(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        labels: &[&str],
    ) -> Result<IntGaugeVec> {
        self.register(IntGaugeVec::new(opts(name, help), labels)?)
    }

    /// A gauge of floating-point values.
    pub fn float_gauge(&self, name: impl Into<String>, help: impl Into<String>) -> Result<Gauge> {
        let name = name.into();
        self.register(Gauge::new(name.clone(), annotated(&name, help))?)
    }

    /// Gauges of floating-point values.
    pub fn float_gauges(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        labels: &[&str],
    ) -> Result<GaugeVec> {
        self.register(GaugeVec::new(opts(name, help), labels)?)
    }

    /// `bounds`: the upper bounds of the buckets.
    pub fn histogram(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        bounds: &[f64],
    ) -> Result<Histogram> {
        self.register(Histogram::with_opts(HistogramOpts::from(opts(name, help)).buckets(bounds.to_vec()))?)
    }

    /// `bounds`: the upper bounds of the buckets.
    pub fn histograms(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        labels: &[&str],
        bounds: &[f64],
    ) -> Result<HistogramVec> {
        self.register(HistogramVec::new(
            HistogramOpts::from(opts(name, help)).buckets(bounds.to_vec()),
            labels,
        )?)
    }

    /// A gauge that is always 1 and carries information in its labels.
    pub fn info(&self, opts: Opts) -> Result<()> {
        let help = annotated(&opts.name, opts.help.as_str());
        self.register(IntGauge::with_opts(Opts { help, ..opts })?)?.set(1);
        Ok(())
    }
}

fn annotated(name: &str, help: impl Into<String>) -> String {
    stability::help(name, &help.into())
}

fn opts(name: impl Into<String>, help: impl Into<String>) -> Opts {
    let name = name.into();
    let help = annotated(&name, help);
    Opts::new(name, help)
}
