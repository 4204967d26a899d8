//! What is counted of health checks. It has a page of its own, /metrics/slis, which is scraped more often than the rest.

use pilothouse_types::clock::Timestamp;
use prometheus::{Encoder as _, IntCounterVec, IntGaugeVec, Registry, TextEncoder};

use super::own_process::tell_start;
use super::registration::{MetricRegistry, Result};

/// How health checks went.
pub struct Slis {
    registry: Registry,
    last: IntGaugeVec,
    all: IntCounterVec,
}

impl Slis {
    pub(super) fn new(started: Timestamp) -> Result<Slis> {
        let registry = Registry::new();
        let page = MetricRegistry(&registry);
        let last = page.gauges(
            "kubernetes_healthcheck",
            "1 where a health check succeeded when it was last asked for.",
            &["name", "type"],
        )?;
        let all = page.counters(
            "kubernetes_healthchecks_total",
            "Health checks by name, path and outcome.",
            &["name", "status", "type"],
        )?;
        tell_start(&page, started)?;
        Ok(Slis { registry, last, all })
    }

    /// Counts a check of this name, asked for as part of an endpoint. Checks that are asked for by themselves do not count.
    pub fn checked(&self, name: &str, endpoint: &str, succeeded: bool) {
        self.last.with_label_values(&[name, endpoint]).set(i64::from(succeeded));
        let status = if succeeded { "success" } else { "error" };
        self.all.with_label_values(&[name, status, endpoint]).inc();
    }

    /// All of it in the text form of scrapers.
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
    fn the_last_outcome_is_told_and_all_are_counted() {
        let slis = Slis::new(Timestamp(1_500_000)).unwrap();
        slis.checked("ping", "livez", true);
        slis.checked("ping", "livez", true);
        slis.checked("ping", "livez", false);
        let text = String::from_utf8(slis.text().unwrap()).unwrap();
        for wanted in [
            r#"kubernetes_healthcheck{name="ping",type="livez"} 0"#,
            r#"kubernetes_healthchecks_total{name="ping",status="error",type="livez"} 1"#,
            r#"kubernetes_healthchecks_total{name="ping",status="success",type="livez"} 2"#,
            "process_start_time_seconds 1.5",
        ] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
    }
}
