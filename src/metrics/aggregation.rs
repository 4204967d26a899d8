//! What is counted of versions that other servers serve.

use std::collections::BTreeSet;

use pilothouse_types::lock::Lock;
use prometheus::{IntCounterVec, IntGaugeVec};

use super::registration::{MetricRegistry, Result};
use crate::limits::EXTENSIONS_COUNTED;

/// The name under which all are counted that come after too many others.
const REST: &str = "others";

/// Which of them answer.
pub struct Aggregation {
    unavailable: IntGaugeVec,
    turned: IntCounterVec,
    /// The names that were counted. Whoever makes APIServices under ever new names shall not fill the memory.
    known: Lock<BTreeSet<String>>,
}

impl Aggregation {
    pub(super) fn new(page: &MetricRegistry<'_>) -> Result<Aggregation> {
        Ok(Aggregation {
            unavailable: page.gauges(
                "aggregator_unavailable_apiservice",
                "Whether an APIService is unavailable, by name.",
                &["name"],
            )?,
            turned: page.counters(
                "aggregator_unavailable_apiservice_total",
                "How often APIServices became unavailable, by name and reason.",
                &["name", "reason"],
            )?,
            known: Lock::default(),
        })
    }

    fn label<'a>(&self, name: &'a str) -> &'a str {
        let mut known = self.known.lock();
        if known.contains(name) {
            return name;
        }
        if known.len() >= EXTENSIONS_COUNTED {
            return REST;
        }
        known.insert(name.to_owned());
        name
    }

    /// Notes whether one is available.
    pub fn is(&self, name: &str, available: bool) {
        self.unavailable.with_label_values(&[self.label(name)]).set(i64::from(!available));
    }

    /// Counts one that has become unavailable.
    pub fn became_unavailable(&self, name: &str, reason: &str) {
        self.turned.with_label_values(&[self.label(name), reason]).inc();
    }

    /// Forgets whether one is: it is gone.
    pub fn forget(&self, name: &str) {
        let _was_never_looked_at = self.unavailable.remove_label_values(&[name]);
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    #[test]
    fn names_are_counted_up_to_a_bound() {
        let metrics = Aggregation::new(&MetricRegistry(&Registry::new())).unwrap();
        for number in 0..EXTENSIONS_COUNTED {
            metrics.is(&format!("v1.{number}"), number % 2 == 0);
        }
        metrics.became_unavailable("v1.1", "ServiceNotFound");
        metrics.became_unavailable("v1.late", "ServiceNotFound");
        let count = |name: &str| metrics.turned.with_label_values(&[name, "ServiceNotFound"]).get();
        assert_eq!((count("v1.1"), count(REST)), (1, 1));
        assert_eq!(metrics.unavailable.with_label_values(&["v1.1"]).get(), 1);
        metrics.forget("v1.1");
        metrics.forget("v1.never");
    }
}
