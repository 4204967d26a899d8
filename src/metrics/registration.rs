//! Creates metrics and registers them, so that none is counted but not exported.

use prometheus::core::Collector;
use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

/// The result of registering a metric.
pub(super) type Result<T> = std::result::Result<T, prometheus::Error>;

/// Creates metrics in a Prometheus registry.
pub(super) struct MetricRegistry<'a>(pub &'a Registry);

impl MetricRegistry<'_> {
    fn register<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    pub fn counter(&self, name: impl Into<String>, help: impl Into<String>) -> Result<IntCounter> {
        self.register(IntCounter::new(name, help)?)
    }

    /// A counter of floating-point values.
    pub fn float_counter(&self, name: impl Into<String>, help: impl Into<String>) -> Result<Counter> {
        self.register(Counter::new(name, help)?)
    }

    pub fn counters(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        labels: &[&str],
    ) -> Result<IntCounterVec> {
        self.register(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub fn gauge(&self, name: impl Into<String>, help: impl Into<String>) -> Result<IntGauge> {
        self.register(IntGauge::new(name, help)?)
    }

    pub fn gauges(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        labels: &[&str],
    ) -> Result<IntGaugeVec> {
        self.register(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// A gauge of floating-point values.
    pub fn float_gauge(&self, name: impl Into<String>, help: impl Into<String>) -> Result<Gauge> {
        self.register(Gauge::new(name, help)?)
    }

    /// Gauges of floating-point values.
    pub fn float_gauges(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        labels: &[&str],
    ) -> Result<GaugeVec> {
        self.register(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// `bounds`: the upper bounds of the buckets.
    pub fn histogram(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        bounds: &[f64],
    ) -> Result<Histogram> {
        self.register(Histogram::with_opts(HistogramOpts::new(name, help).buckets(bounds.to_vec()))?)
    }

    /// `bounds`: the upper bounds of the buckets.
    pub fn histograms(
        &self,
        name: impl Into<String>,
        help: impl Into<String>,
        labels: &[&str],
        bounds: &[f64],
    ) -> Result<HistogramVec> {
        self.register(HistogramVec::new(HistogramOpts::new(name, help).buckets(bounds.to_vec()), labels)?)
    }

    /// A gauge that is always 1 and carries information in its labels.
    pub fn info(&self, opts: Opts) -> Result<()> {
        self.register(IntGauge::with_opts(opts)?)?.set(1);
        Ok(())
    }
}
