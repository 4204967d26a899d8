//! Calls of webhooks, under the names that the reference has for those of its clients.

use pilothouse_client::upstream::call_observer::{CallObserver, FinishedCall};
use prometheus::{HistogramVec, IntCounterVec};

use super::bounded_label::BoundedLabel;
use super::registration::{MetricRegistry, Result};
use crate::limits::HOST_LABELS;

/// The buckets of durations, in seconds; the reference's.
const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// The buckets of sizes, in bytes; the reference's.
const SIZES: [f64; 11] = [
    64.0,
    256.0,
    512.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];
/// The code of a call without a response.
const NO_RESPONSE: &str = "<error>";

/// Calls of the servers that operators and objects configure. Their addresses are labels. Cheap to clone.
#[derive(Clone)]
pub struct OutgoingCalls {
    total: IntCounterVec,
    durations: HistogramVec,
    request_sizes: HistogramVec,
    response_sizes: HistogramVec,
    hosts: BoundedLabel,
}

impl OutgoingCalls {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<OutgoingCalls> {
        let labels = ["verb", "host"];
        let sizes = |name: &str, help: &str| registry.histograms(name, help, &labels, &SIZES);
        Ok(OutgoingCalls {
            total: registry.counters(
                "rest_client_requests_total",
                "Calls of webhooks, by status code, method and host.",
                &["code", "method", "host"],
            )?,
            durations: registry.histograms(
                "rest_client_request_duration_seconds",
                "How long calls of webhooks took, by method and host.",
                &labels,
                &SECONDS,
            )?,
            request_sizes: sizes(
                "rest_client_request_size_bytes",
                "Sizes of the bodies of calls of webhooks, in bytes, by method and host.",
            )?,
            response_sizes: sizes(
                "rest_client_response_size_bytes",
                "Sizes of the responses of webhooks, in bytes, by method and host.",
            )?,
            hosts: BoundedLabel::new(HOST_LABELS),
        })
    }
}

impl CallObserver for OutgoingCalls {
    fn on_call(&self, call: &FinishedCall<'_>) {
        let FinishedCall { method, host, code, elapsed, request_bytes, response_bytes } = *call;
        let host = self.hosts.value(host);
        let code = code.map_or_else(|| NO_RESPONSE.to_owned(), |code| code.to_string());
        self.total.with_label_values(&[code.as_str(), method, host]).inc();
        let labels = [method, host];
        self.durations.with_label_values(&labels).observe(elapsed.as_secs_f64());
        self.request_sizes.with_label_values(&labels).observe(request_bytes as f64);
        if let Some(bytes) = response_bytes {
            self.response_sizes.with_label_values(&labels).observe(bytes as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn call(host: &str) -> FinishedCall<'_> {
        FinishedCall {
            method: "POST",
            host,
            code: Some(200),
            elapsed: Duration::from_millis(30),
            request_bytes: 300,
            response_bytes: Some(60),
        }
    }

    #[test]
    fn hosts_beyond_the_bound_share_a_label() {
        let calls = OutgoingCalls::new(&MetricRegistry::new(&prometheus::Registry::new())).unwrap();
        let copy = calls.clone();
        for number in 0..HOST_LABELS + 10 {
            let calls = if number % 2 == 0 { &calls } else { &copy };
            calls.on_call(&call(&format!("hook-{number}.n.svc:443")));
        }
        calls.on_call(&call("hook-0.n.svc:443"));
        let count = |host: &str| calls.total.with_label_values(&["200", "POST", host]).get();
        assert_eq!((count("hook-0.n.svc:443"), count("others")), (2, 10));
        let series = prometheus::core::Collector::collect(&calls.durations)[0].get_metric().len();
        assert_eq!(series, HOST_LABELS + 1);
    }

    #[test]
    fn calls_are_counted_by_host_and_code() {
        let registry = prometheus::Registry::new();
        let calls = OutgoingCalls::new(&MetricRegistry::new(&registry)).unwrap();
        let call = call("hook.n.svc:443");
        calls.on_call(&call);
        calls.on_call(&FinishedCall { code: None, response_bytes: None, ..call });
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let labels = r#"host="hook.n.svc:443",verb="POST""#;
        for line in [
            r#"rest_client_requests_total{code="200",host="hook.n.svc:443",method="POST"} 1"#.to_owned(),
            r#"rest_client_requests_total{code="<error>",host="hook.n.svc:443",method="POST"} 1"#.to_owned(),
            format!(r#"rest_client_request_duration_seconds_bucket{{{labels},le="0.1"}} 2"#),
            format!(r#"rest_client_request_size_bytes_sum{{{labels}}} 600"#),
            format!(r#"rest_client_response_size_bytes_count{{{labels}}} 1"#),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }
}
