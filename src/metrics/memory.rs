//! Metrics of the memory ledger, read when they are scraped.

use pilothouse_types::memory::MemoryLedger;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::registration::{MetricRegistry, Result};

/// The state of the memory ledger.
pub struct MemoryMetrics {
    limit: IntGauge,
    unreserved: IntGauge,
    reserved: IntGaugeVec,
    refused: IntCounterVec,
    cut: IntCounter,
}

impl MemoryMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<MemoryMetrics> {
        Ok(MemoryMetrics {
            limit: registry
                .gauge("pilothouse_memory_limit_bytes", "The memory limit of the server; 0 without one.")?,
            unreserved: registry.gauge(
                "pilothouse_memory_unreserved_bytes",
                "Memory of the process that no budget counts, as last observed. 0 without a memory limit.",
            )?,
            reserved: registry.gauges(
                "pilothouse_memory_reserved_bytes",
                "Memory that requests, watches and caches have reserved, by budget.",
                &["budget"],
            )?,
            refused: registry.counters(
                "pilothouse_memory_refusals_total",
                "Reservations that were refused, by budget.",
                &["budget"],
            )?,
            cut: registry.counter(
                "pilothouse_watches_cut_total",
                "Watches that were cut for lack of memory because their clients did not read.",
            )?,
        })
    }

    /// Takes over the state of the ledger, and the number of watches that were cut.
    pub fn update(&self, ledger: &MemoryLedger, watches_cut: u64) {
        let number = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.limit.set(number(ledger.limit().unwrap_or(0)));
        self.unreserved.set(number(ledger.unreserved()));
        for budget in ledger.budgets() {
            let labels = [budget.name];
            self.reserved.with_label_values(&labels).set(number(budget.bytes));
            let refused = self.refused.with_label_values(&labels);
            refused.inc_by(budget.refused.saturating_sub(refused.get()));
        }
        self.cut.inc_by(watches_cut.saturating_sub(self.cut.get()));
    }
}
