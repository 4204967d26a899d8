//! Connections through the proxies of the egress selector.

use std::time::Duration;

use pilothouse_client::egress::{DialObserver, ProxyKind, Stage};
use prometheus::{HistogramVec, IntCounterVec};

use super::registration::{MetricRegistry, Result};

/// The buckets of connecting, in seconds; the reference's.
const SECONDS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 2.5, 12.5];

/// Connections through proxies. Cheap to clone. None has a series without such a proxy.
#[derive(Clone)]
pub struct EgressMetrics {
    starts: IntCounterVec,
    failures: IntCounterVec,
    durations: HistogramVec,
}

impl EgressMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<EgressMetrics> {
        let name = |name: &str| format!("apiserver_egress_dialer_{name}");
        Ok(EgressMetrics {
            starts: registry.counters(
                name("dial_start_total"),
                "Connections begun through a proxy of the egress selector, by its protocol and transport.",
                &["protocol", "transport"],
            )?,
            failures: registry.counters(
                name("dial_failure_count"),
                "Failed connections through a proxy of the egress selector, by its protocol and transport and the stage: connect (to \
                 the proxy) or proxy (from there on).",
                &["protocol", "transport", "stage"],
            )?,
            durations: registry.histograms(
                name("dial_duration_seconds"),
                "How long it took to connect through a proxy of the egress selector, by its protocol and transport.",
                &["protocol", "transport"],
                &SECONDS,
            )?,
        })
    }
}

impl DialObserver for EgressMetrics {
    fn started(&self, ProxyKind { protocol, transport }: ProxyKind) {
        self.starts.with_label_values(&[protocol, transport]).inc();
    }

    fn connected(&self, ProxyKind { protocol, transport }: ProxyKind, elapsed: Duration) {
        self.durations.with_label_values(&[protocol, transport]).observe(elapsed.as_secs_f64());
    }

    fn failed(&self, ProxyKind { protocol, transport }: ProxyKind, stage: Stage) {
        let stage = match stage {
            Stage::Connect => "connect",
            Stage::Proxy => "proxy",
        };
        self.failures.with_label_values(&[protocol, transport, stage]).inc();
    }
}
