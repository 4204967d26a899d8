//! Calls to an external signer of service account tokens.

use std::time::Duration;

use pilothouse_types::clock::Timestamp;
use prometheus::{GaugeVec, HistogramVec, IntCounterVec};

use super::registration::{MetricRegistry, Result};

/// The code of a success.
pub const OK: &str = "OK";
/// The code of a failure that the signer did not report.
pub const NO_GRPC_STATUS: &str = "unknown-non-grpc";

/// The buckets of calls, in seconds; the reference's.
const SECONDS: [f64; 14] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Calls to an external signer. Cheap to clone. None has a series without such a signer.
#[derive(Clone)]
pub struct ExternalSignerMetrics {
    fetches: IntCounterVec,
    signatures: IntCounterVec,
    fetched_at: GaugeVec,
    data_time: GaugeVec,
    calls: HistogramVec,
}

impl ExternalSignerMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<ExternalSignerMetrics> {
        let name = |name: &str| format!("apiserver_externaljwt_{name}");
        Ok(ExternalSignerMetrics {
            fetches: registry.counters(
                name("fetch_keys_request_total"),
                "Fetches of the keys of the external token signer, by status.",
                &["code"],
            )?,
            signatures: registry.counters(
                name("sign_request_total"),
                "Tokens that the external signer was asked to sign, by status.",
                &["code"],
            )?,
            fetched_at: registry.float_gauges(
                name("fetch_keys_success_timestamp"),
                "When the keys of the external token signer were last fetched.",
                &[],
            )?,
            data_time: registry.float_gauges(
                name("fetch_keys_data_timestamp"),
                "When the external token signer itself got the keys that were last fetched.",
                &[],
            )?,
            calls: registry.histograms(
                name("request_duration_seconds"),
                "How long calls to the external token signer took, by method and status.",
                &["method", "code"],
                &SECONDS,
            )?,
        })
    }

    /// Counts a call.
    pub fn count_call(&self, method: &str, code: &str, elapsed: Duration) {
        self.calls.with_label_values(&[method, code]).observe(elapsed.as_secs_f64());
    }

    /// Counts a token that was to be signed.
    pub fn count_sign(&self, code: &str) {
        self.signatures.with_label_values(&[code]).inc();
    }

    /// Counts a fetch of the keys.
    pub fn count_fetch(&self, code: &str) {
        self.fetches.with_label_values(&[code]).inc();
    }

    /// Sets when keys were fetched, and the seconds of the time that the signer states.
    pub fn set_fetched(&self, now: Timestamp, data_seconds: f64) {
        let no_labels: [&str; 0] = [];
        self.fetched_at.with_label_values(&no_labels).set(now.fractional_seconds());
        self.data_time.with_label_values(&no_labels).set(data_seconds);
    }
}
