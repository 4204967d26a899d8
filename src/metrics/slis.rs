//! Metrics of health checks. They have an endpoint of their own, /metrics/slis, which is scraped more often than the rest.

use pilothouse_types::clock::Timestamp;
use prometheus::{Encoder as _, IntCounterVec, IntGaugeVec, Registry, TextEncoder};

use super::own_process::register_start_time;
use super::registration::{MetricRegistry, Result};

/// Results of health checks.
pub struct Slis {
    registry: Registry,
    last: IntGaugeVec,
    totals: IntCounterVec,
}

impl Slis {
    pub(super) fn new(started: Timestamp) -> Result<Slis> {
        let registry = Registry::new();
        let metrics = MetricRegistry::new(&registry);
        let last = metrics.gauges(
            "kubernetes_healthcheck",
            "1 if the last run of a health check succeeded.",
            &["name", "type"],
        )?;
        let totals = metrics.counters(
            "kubernetes_healthchecks_total",
            "Health checks by name, path and outcome.",
            &["name", "status", "type"],
        )?;
        register_start_time(&metrics, started)?;
        Ok(Slis { registry, last, totals })
    }

    /// Counts a check that ran as part of an endpoint. Checks that are requested alone do not count.
    pub fn count_check(&self, name: &str, endpoint: &str, succeeded: bool) {
        self.last.with_label_values(&[name, endpoint]).set(i64::from(succeeded));
        let status = if succeeded { "success" } else { "error" };
        self.totals.with_label_values(&[name, status, endpoint]).inc();
    }

    /// All metrics in the Prometheus text format.
    pub fn text(&self) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_check_metrics_have_last_result_and_totals() {
        let slis = Slis::new(Timestamp(1_500_000)).unwrap();
        slis.count_check("ping", "livez", true);
        slis.count_check("ping", "livez", true);
        slis.count_check("ping", "livez", false);
        let text = String::from_utf8(slis.text().unwrap()).unwrap();
        for expected in [
            r#"kubernetes_healthcheck{name="ping",type="livez"} 0"#,
            r#"kubernetes_healthchecks_total{name="ping",status="error",type="livez"} 1"#,
            r#"kubernetes_healthchecks_total{name="ping",status="success",type="livez"} 2"#,
            "process_start_time_seconds 1.5",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }
}
