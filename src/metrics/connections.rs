//! The connections of clients.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use super::registration::{MetricRegistry, Result};

/// Open, refused and closed connections. The table of connections counts; these are set when metrics are scraped.
pub struct ConnectionMetrics {
    open: IntGaugeVec,
    refused: IntCounterVec,
    evicted: IntCounterVec,
    failed_handshakes: IntCounter,
}

impl ConnectionMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<ConnectionMetrics> {
        Ok(ConnectionMetrics {
            open: registry.gauges(
                "pilothouse_connections_open",
                "Open connections of clients, by state; those from the loopback addresses have one of their own.",
                &["state"],
            )?,
            refused: registry.counters(
                "pilothouse_connections_refused_total",
                "Connections that were refused, by the bound that was reached.",
                &["reason"],
            )?,
            failed_handshakes: registry.counter(
                "apiserver_tls_handshake_errors_total",
                "Connections whose TLS handshake failed.",
            )?,
            evicted: registry.counters(
                "pilothouse_connections_evicted_total",
                "Connections without an authenticated request that were closed to make room, by reason.",
                &["reason"],
            )?,
        })
    }

    /// Takes over the counts of the table, each with its label.
    pub fn set(
        &self,
        open: &[(&str, usize)],
        refused: &[(&str, u64)],
        evicted: &[(&str, u64)],
        failed_handshakes: u64,
    ) {
        self.failed_handshakes.inc_by(failed_handshakes.saturating_sub(self.failed_handshakes.get()));
        for (state, count) in open {
            self.open.with_label_values(&[state]).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
        for (counters, counts) in [(&self.refused, refused), (&self.evicted, evicted)] {
            for (reason, count) in counts {
                let counter = counters.with_label_values(&[reason]);
                counter.inc_by(count.saturating_sub(counter.get()));
            }
        }
    }
}
