//! Log lines that were not written.

use prometheus::IntCounterVec;

use super::registration::{MetricRegistry, Result};
use crate::telemetry::{LostLines, lost_lines};

/// Counts them by reason. The log belongs to the process, so this is read when metrics are scraped.
pub(super) struct LogLines {
    lost: IntCounterVec,
}

impl LogLines {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<LogLines> {
        Ok(LogLines {
            lost: registry.counters(
                "pilothouse_log_lines_lost_total",
                "Log lines that were not written, by reason: the queue was full, or a call site wrote too many.",
                &["reason"],
            )?,
        })
    }

    /// Updates the counters.
    pub(super) fn update(&self) {
        let LostLines { dropped, limited } = lost_lines();
        for (reason, lines) in [("queue_full", dropped), ("rate_limited", limited)] {
            let counter = self.lost.with_label_values(&[reason]);
            counter.inc_by(lines.saturating_sub(counter.get()));
        }
    }
}
