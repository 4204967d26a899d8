//! Metrics of aggregated APIs.

use prometheus::{IntCounterVec, IntGaugeVec};

use super::bounded_label::BoundedLabel;
use super::registration::{MetricRegistry, Result};
use crate::limits::EXTENSION_LABELS;

/// Availability of APIServices.
pub struct Aggregation {
    unavailable: IntGaugeVec,
    became_unavailable_total: IntCounterVec,
    names: BoundedLabel,
}

impl Aggregation {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<Aggregation> {
        Ok(Aggregation {
            unavailable: registry.gauges(
                "aggregator_unavailable_apiservice",
                "Whether an APIService is unavailable, by name.",
                &["name"],
            )?,
            became_unavailable_total: registry.counters(
                "aggregator_unavailable_apiservice_total",
                "How often APIServices became unavailable, by name and reason.",
                &["name", "reason"],
            )?,
            names: BoundedLabel::new(EXTENSION_LABELS),
        })
    }

    /// Sets whether an APIService is available.
    pub fn set_available(&self, name: &str, available: bool) {
        self.unavailable.with_label_values(&[self.names.value(name)]).set(i64::from(!available));
    }

    /// Counts an APIService that has become unavailable.
    pub fn count_unavailable(&self, name: &str, reason: &str) {
        self.became_unavailable_total.with_label_values(&[self.names.value(name), reason]).inc();
    }

    /// Removes the gauge of a deleted APIService.
    pub fn forget(&self, name: &str) {
        let _unknown = self.unavailable.remove_label_values(&[name]);
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::super::bounded_label::OTHERS;
    use super::*;

    #[test]
    fn aggregation_labels_are_bounded() {
        let metrics = Aggregation::new(&MetricRegistry::new(&Registry::new())).unwrap();
        for number in 0..EXTENSION_LABELS {
            metrics.set_available(&format!("v1.{number}"), number % 2 == 0);
        }
        metrics.count_unavailable("v1.1", "ServiceNotFound");
        metrics.count_unavailable("v1.late", "ServiceNotFound");
        let count =
            |name: &str| metrics.became_unavailable_total.with_label_values(&[name, "ServiceNotFound"]).get();
        assert_eq!((count("v1.1"), count(OTHERS)), (1, 1));
        assert_eq!(metrics.unavailable.with_label_values(&["v1.1"]).get(), 1);
        metrics.forget("v1.1");
        metrics.forget("v1.never");
    }
}
