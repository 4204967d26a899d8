//! Metrics of requests that other API servers on the same etcd serve.

use prometheus::IntCounterVec;

use super::registration::{MetricRegistry, Result};

/// Requests that were passed on.
pub struct Peers {
    rerouted_total: IntCounterVec,
}

impl Peers {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<Peers> {
        let rerouted_total = registry.counters(
            "apiserver_rerouted_request_total",
            "Requests that were passed on to another API server, because this one does not serve their resource, by status code.",
            &["code"],
        )?;
        Ok(Peers { rerouted_total })
    }

    /// Counts a request that was passed on, by the status code of its response.
    pub fn count_rerouted(&self, code: u16) {
        self.rerouted_total.with_label_values(&[&code.to_string()]).inc();
    }
}
