//! Making metrics: whatever is made here is also shown, so none can be counted and forgotten.

use prometheus::core::Collector;
use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

/// What declaring comes to.
pub(super) type Result<T> = std::result::Result<T, prometheus::Error>;

/// Makes metrics that one page shows.
pub(super) struct MetricRegistry<'a>(pub &'a Registry);

impl MetricRegistry<'_> {
    fn show<C: Collector + Clone + 'static>(&self, made: C) -> Result<C> {
        self.0.register(Box::new(made.clone()))?;
        Ok(made)
    }

    pub fn counter(&self, name: impl Into<String>, help: impl Into<String>) -> Result<IntCounter> {
        self.show(IntCounter::new(name, help)?)
    }

    /// A counter of what is not counted in whole numbers.
    pub fn amount(&self, name: impl Into<String>, help: impl Into<String>) -> Result<Counter> {
        self.show(Counter::new(name, help)?)
    }

    pub fn counters(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        labels: &[&str],
    ) -> Result<IntCounterVec> {
        self.show(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub fn gauge(&self, name: impl Into<String>, help: impl Into<String>) -> Result<IntGauge> {
        self.show(IntGauge::new(name, help)?)
    }

    pub fn gauges(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        labels: &[&str],
    ) -> Result<IntGaugeVec> {
        self.show(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// A gauge of what is not counted in whole numbers.
    pub fn measure(&self, name: impl Into<String>, help: impl Into<String>) -> Result<Gauge> {
        self.show(Gauge::new(name, help)?)
    }

    /// Gauges of what is not counted in whole numbers.
    pub fn measures(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        labels: &[&str],
    ) -> Result<GaugeVec> {
        self.show(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// `bounds` are those of the classes.
    pub fn histogram(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        bounds: &[f64],
    ) -> Result<Histogram> {
        self.show(Histogram::with_opts(HistogramOpts::new(name, help).buckets(bounds.to_vec()))?)
    }

    /// `bounds` are those of the classes.
    pub fn histograms(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        labels: &[&str],
        bounds: &[f64],
    ) -> Result<HistogramVec> {
        self.show(HistogramVec::new(HistogramOpts::new(name, help).buckets(bounds.to_vec()), labels)?)
    }

    /// A gauge that says something in its labels and is 1.
    pub fn fact(&self, said: Opts) -> Result<()> {
        self.show(IntGauge::with_opts(said)?)?.set(1);
        Ok(())
    }
}
