//! The audit flags: policy, backends and delivery of events.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use pilothouse_api::audit::API_VERSION;
use pilothouse_api::audit::policy::Policy;
use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::document;
use pilothouse_apimachinery::value::Value;

use super::values::go_duration;
use crate::limits;

const MODES: &str = "batch,blocking,blocking-strict";
const FORMATS: [&str; 2] = ["legacy", "json"];

/// When events are delivered to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Later, in batches: no request waits.
    Batch,
    /// At once: the response waits until the event is written.
    Blocking,
    /// At once, and a request whose RequestReceived event cannot be written is refused.
    BlockingStrict,
}

impl Mode {
    fn read(plugin: &str, text: &str) -> Result<Mode, String> {
        Mode::from_str(text, false)
            .map_err(|_| format!("invalid audit {plugin} mode {text}, allowed modes are {MODES:?}"))
    }
}

/// How events are batched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batching {
    /// The capacity of the queue.
    pub waiting: usize,
    /// The maximum number of events in a batch.
    pub max_batch_size: usize,
    /// How long the first event of a batch waits for others.
    pub wait: Duration,
    /// The rate limit: batches per second, and the burst.
    pub rate: Option<(f64, u32)>,
}

/// Size limits of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// The maximum bytes of an event; a larger one is sent without its bodies.
    pub event: usize,
    /// The maximum bytes of a batch.
    pub batch: usize,
}

/// How a backend gets its events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delivery {
    /// When events are delivered.
    pub mode: Mode,
    /// The batches.
    pub batching: Batching,
    /// The size limits; `None` for no limits.
    pub truncation: Option<Truncation>,
}

/// The audit flags.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Audit")]
pub struct Audit {
    /// Audit policy: which requests are audited at which level; without a policy no events are recorded. A change of the file takes
    /// effect within seconds; a wrong one is refused, and the previous policy stays in force.
    #[arg(long, value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,
    /// The log file.
    #[command(flatten)]
    pub log: AuditLog,
    /// The webhook.
    #[command(flatten)]
    pub webhook: AuditWebhook,
}

/// The flags of the log backend.
#[derive(Args, Clone, Debug)]
pub struct AuditLog {
    /// File that audit events are appended to; - means standard output.
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub audit_log_path: Option<PathBuf>,
    /// Format of the events: json for structured events, legacy for one line of text per event.
    #[arg(long, default_value = "json", value_name = "json|legacy")]
    pub audit_log_format: String,
    /// API group and version of the events in the log.
    #[arg(long, default_value = API_VERSION, value_name = "API_VERSION")]
    pub audit_log_version: String,
    /// Maximum number of days to retain old log files, by the timestamp in their names; 0 means no limit.
    #[arg(long, default_value_t = 0, value_name = "DAYS", allow_hyphen_values = true)]
    pub audit_log_maxage: i64,
    /// Maximum number of old log files to retain; 0 means no limit.
    #[arg(long, default_value_t = 0, value_name = "N", allow_hyphen_values = true)]
    pub audit_log_maxbackup: i64,
    /// Maximum size in megabytes of the log file before it is rotated; 0 means 100.
    #[arg(long, default_value_t = 0, value_name = "MB", allow_hyphen_values = true)]
    pub audit_log_maxsize: i64,
    /// Compress rotated log files.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub audit_log_compress: bool,
    /// How events are written: batch (responses do not wait), blocking (responses wait), blocking-strict (and requests are refused
    /// if the event cannot be written).
    #[arg(long, default_value = "blocking", value_name = "MODE")]
    pub audit_log_mode: String,
    /// Number of events that are queued in batch mode; further ones are dropped, and counted.
    #[arg(long, default_value_t = 10_000, value_name = "N", allow_hyphen_values = true)]
    pub audit_log_batch_buffer_size: i64,
    /// Maximum number of events per batch in batch mode.
    #[arg(long, default_value_t = 1, value_name = "N", allow_hyphen_values = true)]
    pub audit_log_batch_max_size: i64,
    /// Maximum time that an event waits for others in batch mode.
    #[arg(long, default_value = "0s", value_parser = go_duration, value_name = "DURATION")]
    pub audit_log_batch_max_wait: Duration,
    /// Whether the rate of batches is limited.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub audit_log_batch_throttle_enable: bool,
    /// Maximum average number of batches per second.
    #[arg(long, default_value_t = 0.0, value_name = "N", allow_hyphen_values = true)]
    pub audit_log_batch_throttle_qps: f64,
    /// Maximum number of batches sent at once after an idle period.
    #[arg(long, default_value_t = 0, value_name = "N", allow_hyphen_values = true)]
    pub audit_log_batch_throttle_burst: i64,
    /// Whether events and batches that are too large are truncated.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub audit_log_truncate_enabled: bool,
    /// Maximum size in bytes of a batch.
    #[arg(long, default_value_t = 10 << 20, value_name = "BYTES", allow_hyphen_values = true)]
    pub audit_log_truncate_max_batch_size: i64,
    /// Maximum size in bytes of an event; a larger one loses its bodies, or is dropped.
    #[arg(long, default_value_t = 100 << 10, value_name = "BYTES", allow_hyphen_values = true)]
    pub audit_log_truncate_max_event_size: i64,
}

/// The flags of the webhook backend.
#[derive(Args, Clone, Debug)]
pub struct AuditWebhook {
    /// Kubeconfig of the server that audit events are sent to.
    #[arg(long, value_name = "FILE")]
    pub audit_webhook_config_file: Option<PathBuf>,
    /// API group and version of the events that are sent.
    #[arg(long, default_value = API_VERSION, value_name = "API_VERSION")]
    pub audit_webhook_version: String,
    /// Pause before the first retry of a failed request; each later pause is half as long again.
    #[arg(long, alias = "audit-webhook-batch-initial-backoff", default_value = "10s", value_parser = go_duration,
        value_name = "DURATION")]
    pub audit_webhook_initial_backoff: Duration,
    /// How events are sent: batch (responses do not wait), blocking (responses wait), blocking-strict (and requests are refused if
    /// the event cannot be sent).
    #[arg(long, default_value = "batch", value_name = "MODE")]
    pub audit_webhook_mode: String,
    /// Number of events that are queued in batch mode; further ones are dropped, and counted.
    #[arg(long, default_value_t = 10_000, value_name = "N", allow_hyphen_values = true)]
    pub audit_webhook_batch_buffer_size: i64,
    /// Maximum number of events per batch in batch mode.
    #[arg(long, default_value_t = 400, value_name = "N", allow_hyphen_values = true)]
    pub audit_webhook_batch_max_size: i64,
    /// Maximum time that an event waits for others in batch mode.
    #[arg(long, default_value = "30s", value_parser = go_duration, value_name = "DURATION")]
    pub audit_webhook_batch_max_wait: Duration,
    /// Whether the rate of batches is limited.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub audit_webhook_batch_throttle_enable: bool,
    /// Maximum average number of batches per second.
    #[arg(long, default_value_t = 10.0, value_name = "N", allow_hyphen_values = true)]
    pub audit_webhook_batch_throttle_qps: f64,
    /// Maximum number of batches sent at once after an idle period.
    #[arg(long, default_value_t = 15, value_name = "N", allow_hyphen_values = true)]
    pub audit_webhook_batch_throttle_burst: i64,
    /// Whether events and batches that are too large are truncated.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub audit_webhook_truncate_enabled: bool,
    /// Maximum size in bytes of a batch.
    #[arg(long, default_value_t = 10 << 20, value_name = "BYTES", allow_hyphen_values = true)]
    pub audit_webhook_truncate_max_batch_size: i64,
    /// Maximum size in bytes of an event; a larger one loses its bodies, or is dropped.
    #[arg(long, default_value_t = 100 << 10, value_name = "BYTES", allow_hyphen_values = true)]
    pub audit_webhook_truncate_max_event_size: i64,
}

/// The flags that both backends have.
struct BackendFlags<'a> {
    plugin: &'a str,
    mode: &'a str,
    version: &'a str,
    buffer: i64,
    max_batch_size: i64,
    wait: Duration,
    throttles: bool,
    qps: f64,
    burst: i64,
    truncates: bool,
    batch_bytes: i64,
    event_bytes: i64,
}

fn positive(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default()
}

impl BackendFlags<'_> {
    /// Checks the flags. The errors have kube-apiserver's texts and order.
    fn delivery(&self) -> Result<Delivery, Vec<String>> {
        let mut errors = Vec::new();
        let mode = Mode::read(self.plugin, self.mode);
        errors.extend(mode.clone().and_then(|mode| self.check_batching(mode)).err());
        let plugin = self.plugin;
        if self.event_bytes <= 0 {
            let bytes = self.event_bytes;
            errors.push(format!(
                "invalid audit truncate {plugin} max event size {bytes}, must be a positive number"
            ));
        } else if self.batch_bytes < self.event_bytes {
            errors.push(format!(
                "invalid audit truncate {plugin} max batch size {}, must be greater than max event size ({})",
                self.batch_bytes, self.event_bytes
            ));
        }
        if self.version != API_VERSION {
            errors.push(format!("invalid group version, allowed versions are [{API_VERSION:?}]"));
        }
        let Ok(mode) = mode.and_then(|mode| if errors.is_empty() { Ok(mode) } else { Err(String::new()) })
        else {
            return Err(errors);
        };
        let truncation = Truncation { event: positive(self.event_bytes), batch: positive(self.batch_bytes) };
        let burst = u32::try_from(self.burst).unwrap_or_default();
        Ok(Delivery {
            mode,
            batching: Batching {
                waiting: positive(self.buffer).clamp(1, limits::AUDIT_EVENTS_WAITING),
                max_batch_size: positive(self.max_batch_size).max(1),
                wait: self.wait,
                rate: self.throttles.then_some((self.qps, burst)),
            },
            truncation: self.truncates.then_some(truncation),
        })
    }

    fn check_batching(&self, mode: Mode) -> Result<(), String> {
        if mode != Mode::Batch {
            return Ok(());
        }
        let counts = [("buffer size", self.buffer), ("max batch size", self.max_batch_size)];
        let rate = (self.throttles && self.qps <= 0.0).then(|| ("throttle QPS", self.qps.to_string()));
        let burst = (self.throttles && self.burst <= 0).then(|| ("throttle burst", self.burst.to_string()));
        let counts = counts.into_iter().filter(|(_, number)| *number <= 0);
        let mut invalid = counts.map(|(field, number)| (field, number.to_string())).chain(rate).chain(burst);
        match invalid.next() {
            None => Ok(()),
            Some((field, number)) => {
                let plugin = self.plugin;
                Err(format!("invalid audit batch {plugin} {field} {number}, must be a positive number"))
            }
        }
    }
}

impl AuditLog {
    /// The delivery to the log, or all errors.
    pub fn delivery(&self) -> Result<Delivery, Vec<String>> {
        let delivery = BackendFlags {
            plugin: "log",
            mode: &self.audit_log_mode,
            version: &self.audit_log_version,
            buffer: self.audit_log_batch_buffer_size,
            max_batch_size: self.audit_log_batch_max_size,
            wait: self.audit_log_batch_max_wait,
            throttles: self.audit_log_batch_throttle_enable,
            qps: self.audit_log_batch_throttle_qps,
            burst: self.audit_log_batch_throttle_burst,
            truncates: self.audit_log_truncate_enabled,
            batch_bytes: self.audit_log_truncate_max_batch_size,
            event_bytes: self.audit_log_truncate_max_event_size,
        }
        .delivery();
        let mut errors = Vec::new();
        let format = &self.audit_log_format;
        if !FORMATS.contains(&format.as_str()) {
            errors.push(format!(
                "invalid audit log format {format}, allowed formats are {:?}",
                FORMATS.join(",")
            ));
        }
        for (flag, number) in [
            ("maxage", self.audit_log_maxage),
            ("maxbackup", self.audit_log_maxbackup),
            ("maxsize", self.audit_log_maxsize),
        ] {
            if number < 0 {
                errors.push(format!("--audit-log-{flag} {number} can't be a negative number"));
            }
        }
        match delivery {
            Ok(delivery) if errors.is_empty() => Ok(delivery),
            Ok(_) => Err(errors),
            Err(delivery_errors) => Err([delivery_errors, errors].concat()),
        }
    }
}

impl AuditWebhook {
    /// The delivery to the webhook, or all errors.
    pub fn delivery(&self) -> Result<Delivery, Vec<String>> {
        BackendFlags {
            plugin: "webhook",
            mode: &self.audit_webhook_mode,
            version: &self.audit_webhook_version,
            buffer: self.audit_webhook_batch_buffer_size,
            max_batch_size: self.audit_webhook_batch_max_size,
            wait: self.audit_webhook_batch_max_wait,
            throttles: self.audit_webhook_batch_throttle_enable,
            qps: self.audit_webhook_batch_throttle_qps,
            burst: self.audit_webhook_batch_throttle_burst,
            truncates: self.audit_webhook_truncate_enabled,
            batch_bytes: self.audit_webhook_truncate_max_batch_size,
            event_bytes: self.audit_webhook_truncate_max_event_size,
        }
        .delivery()
    }
}

impl Audit {
    /// Reports all errors of the flags. Backends that are not enabled are not checked.
    pub(super) fn validate(&self) -> Result<(), String> {
        let log = self.log.audit_log_path.as_ref().and_then(|_| self.log.delivery().err());
        let webhook =
            self.webhook.audit_webhook_config_file.as_ref().and_then(|_| self.webhook.delivery().err());
        let errors: Vec<String> = log.into_iter().chain(webhook).flatten().collect();
        document::check_no_errors(&errors)
    }

    /// Warnings about ineffective flags.
    pub(super) fn warnings(&self) -> Vec<String> {
        let backends = [
            ("--audit-log-path", self.log.audit_log_path.is_some()),
            ("--audit-webhook-config-file", self.webhook.audit_webhook_config_file.is_some()),
        ];
        let ineffective =
            backends.into_iter().filter(|(_, is_set)| *is_set && self.audit_policy_file.is_none());
        ineffective
            .map(|(flag, _)| format!("{flag}: without --audit-policy-file no requests are audited"))
            .collect()
    }

    /// Reads the policy, if there is one, with warnings about duplicate and unknown fields. Called once, at start.
    pub fn policy(&self) -> Result<Option<(Policy, Vec<String>)>, String> {
        let Some(path) = &self.audit_policy_file else { return Ok(None) };
        let text = std::fs::read(path).map_err(|error| policy_read_error(path, &error))?;
        parse_policy(path, &text).map(Some)
    }
}

/// The message about a policy that cannot be read.
pub fn policy_read_error(path: &Path, error: &io::Error) -> String {
    let reason = error.to_string();
    // Like Go's message: in lower case, and without the error number.
    let reason = reason.split(" (os error").next().unwrap_or_default().to_lowercase();
    let path = path.display();
    format!("loading audit policy file: failed to read file path \"{path}\": open {path}: {reason}")
}

/// Parses the text of the policy in this file, with warnings about duplicate and unknown fields.
pub fn parse_policy(path: &Path, text: &[u8]) -> Result<(Policy, Vec<String>), String> {
    let file_error =
        |error: String| format!("loading audit policy file: {error}: from file {}", path.display());
    if text.len() > limits::AUDIT_POLICY_BYTES {
        return Err(file_error(format!("more than {} bytes", limits::AUDIT_POLICY_BYTES)));
    }
    let (file, repeated) =
        yaml::read_strict(text).map_err(|error| file_error(format!("failed decoding: yaml: {error}")))?;
    if !matches!(file, Value::Object(_) | Value::Null) {
        return Err(file_error("failed decoding: it must be an object".to_owned()));
    }
    let parsed = Policy::read(&file).map_err(file_error)?;
    Ok((parsed.policy, repeated.into_iter().chain(parsed.unknown).collect()))
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn validation_error(flags: &str) -> String {
        let flags = ["pilothouse"].into_iter().chain(flags.split_whitespace());
        Config::parse(flags).unwrap().validate().map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn audit_flag_errors_match_kube_apiserver() {
        for (flags, expected) in [
            ("--audit-log-path=-", ""),
            ("--audit-log-mode=never --audit-log-maxage=-1", ""),
            (
                "--audit-log-path=- --audit-log-mode=never",
                "invalid audit log mode never, allowed modes are \"batch,blocking,blocking-strict\"",
            ),
            (
                "--audit-log-path=x --audit-log-format=xml --audit-log-maxsize=-1",
                "[invalid audit log format xml, allowed formats are \"legacy,json\", --audit-log-maxsize -1 can't be a \
                 negative number]",
            ),
            (
                "--audit-log-path=x --audit-log-mode=batch --audit-log-batch-buffer-size=0",
                "invalid audit batch log buffer size 0, must be a positive number",
            ),
            (
                "--audit-webhook-config-file=x --audit-webhook-batch-throttle-qps=0",
                "invalid audit batch webhook throttle QPS 0, must be a positive number",
            ),
            (
                "--audit-webhook-config-file=x --audit-webhook-truncate-max-batch-size=5",
                "invalid audit truncate webhook max batch size 5, must be greater than max event size (102400)",
            ),
            (
                "--audit-webhook-config-file=x --audit-webhook-version=audit.k8s.io/v1beta1",
                "invalid group version, allowed versions are [\"audit.k8s.io/v1\"]",
            ),
        ] {
            assert_eq!(validation_error(flags), expected, "{flags}");
        }
    }

    #[test]
    fn audit_flag_defaults_match_kube_apiserver() {
        let config = Config::default();
        let log = config.audit.log.delivery().unwrap();
        assert_eq!(
            (log.mode, log.batching.max_batch_size, log.batching.rate),
            (super::Mode::Blocking, 1, None)
        );
        let webhook = config.audit.webhook.delivery().unwrap();
        assert_eq!((webhook.mode, webhook.batching.max_batch_size), (super::Mode::Batch, 400));
        assert_eq!((webhook.batching.waiting, webhook.batching.rate), (10_000, Some((10.0, 15))));
        assert_eq!(webhook.truncation, None);
        let old = Config::parse(["pilothouse", "--audit-webhook-batch-initial-backoff=3s"]).unwrap();
        assert_eq!(old.audit.webhook.audit_webhook_initial_backoff.as_secs(), 3);
    }
}
