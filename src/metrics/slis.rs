//! What is counted of health checks. It has a page of its own, /metrics/slis, which is scraped more often than the rest.

use pilothouse_actors::clock::Timestamp;
use prometheus::{Encoder as _, Gauge, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};

/// How health checks went.
pub struct Slis {
    registry: Registry,
    last: IntGaugeVec,
    all: IntCounterVec,
}

impl Slis {
    pub(super) fn new(started: Timestamp) -> Result<Slis, prometheus::Error> {
        let registry = Registry::new();
        let last = Opts::new(
            "kubernetes_healthcheck",
            "1 where a health check succeeded when it was last asked for.",
        );
        let all = Opts::new("kubernetes_healthchecks_total", "Health checks by name, path and outcome.");
        let start =
            Opts::new("process_start_time_seconds", "When the server started, in seconds of Unix time.");
        let start = Gauge::with_opts(start)?;
        start.set(started.fractional_seconds());
        let slis = Slis {
            last: IntGaugeVec::new(last, &["name", "type"])?,
            all: IntCounterVec::new(all, &["name", "status", "type"])?,
            registry,
        };
        slis.registry.register(Box::new(slis.last.clone()))?;
        slis.registry.register(Box::new(slis.all.clone()))?;
        slis.registry.register(Box::new(start))?;
        Ok(slis)
    }

    /// Counts a check of this name, asked for as part of an endpoint. Checks that are asked for by themselves do not count.
    pub fn checked(&self, name: &str, endpoint: &str, succeeded: bool) {
        self.last.with_label_values(&[name, endpoint]).set(i64::from(succeeded));
        let status = if succeeded { "success" } else { "error" };
        self.all.with_label_values(&[name, status, endpoint]).inc();
    }

    /// All of it in the text form of scrapers.
    pub fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
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
