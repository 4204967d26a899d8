//! Spans of traces on their way to the collector.

use pilothouse_traces::{ExportObserver, Loss};
use prometheus::IntCounter;

use super::registration::{MetricRegistry, Result};

/// What becomes of spans. Cheap to clone.
#[derive(Clone)]
pub struct TraceMetrics {
    exported: IntCounter,
    /// By the reason why they are lost, in the order of [`LOSSES`].
    lost: [IntCounter; 3],
}

const LOSSES: [Loss; 3] = [Loss::Trace, Loss::Queue, Loss::Collector];

fn label(loss: Loss) -> &'static str {
    match loss {
        Loss::Trace => "trace",
        Loss::Queue => "queue",
        Loss::Collector => "collector",
    }
}

impl TraceMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<TraceMetrics> {
        let lost = registry.counters(
            "pilothouse_lost_spans_total",
            "Spans of traces that did not reach the collector, by reason: the trace has too many, too many wait in the queue, or the \
             collector does not take them.",
            &["reason"],
        )?;
        Ok(TraceMetrics {
            exported: registry.counter(
                "pilothouse_exported_spans_total",
                "Spans of traces that the collector has taken.",
            )?,
            lost: LOSSES.map(|loss| lost.with_label_values(&[label(loss)])),
        })
    }
}

impl ExportObserver for TraceMetrics {
    fn exported(&self, spans: usize) {
        self.exported.inc_by(spans as u64);
    }

    fn lost(&self, spans: usize, loss: Loss) {
        let counters = LOSSES.iter().zip(&self.lost);
        counters.filter(|(other, _)| **other == loss).for_each(|(_, counter)| counter.inc_by(spans as u64));
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder as _, Registry, TextEncoder};

    use super::*;

    #[test]
    fn lost_spans_are_counted_by_reason() {
        let registry = Registry::new();
        let metrics = TraceMetrics::new(&MetricRegistry::new(&registry)).unwrap();
        metrics.exported(3);
        metrics.lost(2, Loss::Queue);
        let mut page = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        for line in [
            "pilothouse_exported_spans_total 3",
            r#"pilothouse_lost_spans_total{reason="queue"} 2"#,
            r#"pilothouse_lost_spans_total{reason="collector"} 0"#,
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }
}
