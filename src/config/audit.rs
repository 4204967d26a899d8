//! What is written down of requests, where, and how.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use pilothouse_api::audit::API_VERSION;
use pilothouse_api::audit::policy::Policy;
use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::value::Value;

use super::values::go_duration;
use crate::limits;

const MODES: &str = "batch,blocking,blocking-strict";
const FORMATS: [&str; 2] = ["legacy", "json"];

/// When a record is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Later, with others: no request waits for it.
    Batch,
    /// At once: the answer waits for it.
    Blocking,
    /// At once, and a request of which nothing can be written down is refused.
    BlockingStrict,
}

impl Mode {
    fn read(plugin: &str, text: &str) -> Result<Mode, String> {
        Mode::from_str(text, false)
            .map_err(|_| format!("invalid audit {plugin} mode {text}, allowed modes are {MODES:?}"))
    }
}

/// How records are gathered in batch mode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batching {
    /// How many may wait.
    pub waiting: usize,
    /// How many are sent at once.
    pub most: usize,
    /// How long the first of them waits for others.
    pub wait: Duration,
    /// How many batches are sent in a second, and how many at once after a pause.
    pub rate: Option<(f64, u32)>,
}

/// How large records may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Bytes of a record; a larger one loses its bodies.
    pub event: usize,
    /// Bytes of records that are sent at once.
    pub batch: usize,
}

/// How one place gets its records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delivery {
    /// When.
    pub mode: Mode,
    /// How many at once.
    pub batching: Batching,
    /// How large.
    pub truncation: Option<Truncation>,
}

/// What is written down of requests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Audit")]
pub struct Audit {
    /// Policy that says what is written down of which requests; without one nothing is.
    #[arg(long, value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,
    /// The log file.
    #[command(flatten)]
    pub log: AuditLog,
    /// The webhook.
    #[command(flatten)]
    pub webhook: AuditWebhook,
}

/// A file of records.
#[derive(Args, Clone, Debug)]
pub struct AuditLog {
    /// File that records are appended to; - is the standard output.
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub audit_log_path: Option<PathBuf>,
    /// Form of records: json has all of them, legacy is one line of words each.
    #[arg(long, default_value = "json", value_name = "json|legacy")]
    pub audit_log_format: String,
    /// Version of records in the log.
    #[arg(long, default_value = API_VERSION, value_name = "API_VERSION")]
    pub audit_log_version: String,
    /// Days that old log files stay, by the time in their names; 0 is for ever.
    #[arg(long, default_value_t = 0, value_name = "DAYS", allow_hyphen_values = true)]
    pub audit_log_maxage: i64,
    /// Old log files that stay; 0 is all of them.
    #[arg(long, default_value_t = 0, value_name = "N", allow_hyphen_values = true)]
    pub audit_log_maxbackup: i64,
    /// Megabytes of the log file before another is begun; 0 stands for 100.
    #[arg(long, default_value_t = 0, value_name = "MB", allow_hyphen_values = true)]
    pub audit_log_maxsize: i64,
    /// Compress old log files.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub audit_log_compress: bool,
    /// When records are written: batch (no answer waits), blocking (answers wait), blocking-strict (and without a record
    /// a request is refused).
    #[arg(long, default_value = "blocking", value_name = "MODE")]
    pub audit_log_mode: String,
    /// Records that may wait in batch mode; more are lost, and counted.
    #[arg(long, default_value_t = 10_000, value_name = "N", allow_hyphen_values = true)]
    pub audit_log_batch_buffer_size: i64,
    /// Records that are written at once in batch mode.
    #[arg(long, default_value_t = 1, value_name = "N", allow_hyphen_values = true)]
    pub audit_log_batch_max_size: i64,
    /// How long a record waits for others in batch mode.
    #[arg(long, default_value = "0s", value_parser = go_duration, value_name = "DURATION")]
    pub audit_log_batch_max_wait: Duration,
    /// Whether batches are few.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub audit_log_batch_throttle_enable: bool,
    /// Batches in a second.
    #[arg(long, default_value_t = 0.0, value_name = "N", allow_hyphen_values = true)]
    pub audit_log_batch_throttle_qps: f64,
    /// Batches at once after a pause.
    #[arg(long, default_value_t = 0, value_name = "N", allow_hyphen_values = true)]
    pub audit_log_batch_throttle_burst: i64,
    /// Whether records that are too large lose their bodies.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub audit_log_truncate_enabled: bool,
    /// Bytes of records that are written at once.
    #[arg(long, default_value_t = 10 << 20, value_name = "BYTES", allow_hyphen_values = true)]
    pub audit_log_truncate_max_batch_size: i64,
    /// Bytes of a record; a larger one loses its bodies, or is lost.
    #[arg(long, default_value_t = 100 << 10, value_name = "BYTES", allow_hyphen_values = true)]
    pub audit_log_truncate_max_event_size: i64,
}

/// Another server that gets records.
#[derive(Args, Clone, Debug)]
pub struct AuditWebhook {
    /// Kubeconfig of the server that records are sent to.
    #[arg(long, value_name = "FILE")]
    pub audit_webhook_config_file: Option<PathBuf>,
    /// Version of records that are sent.
    #[arg(long, default_value = API_VERSION, value_name = "API_VERSION")]
    pub audit_webhook_version: String,
    /// Pause before records are sent for the second time; each later one is half as long again.
    #[arg(long, alias = "audit-webhook-batch-initial-backoff", default_value = "10s", value_parser = go_duration,
        value_name = "DURATION")]
    pub audit_webhook_initial_backoff: Duration,
    /// When records are sent: batch (no answer waits), blocking (answers wait), blocking-strict (and without a record a
    /// request is refused).
    #[arg(long, default_value = "batch", value_name = "MODE")]
    pub audit_webhook_mode: String,
    /// Records that may wait in batch mode; more are lost, and counted.
    #[arg(long, default_value_t = 10_000, value_name = "N", allow_hyphen_values = true)]
    pub audit_webhook_batch_buffer_size: i64,
    /// Records that are sent at once in batch mode.
    #[arg(long, default_value_t = 400, value_name = "N", allow_hyphen_values = true)]
    pub audit_webhook_batch_max_size: i64,
    /// How long a record waits for others in batch mode.
    #[arg(long, default_value = "30s", value_parser = go_duration, value_name = "DURATION")]
    pub audit_webhook_batch_max_wait: Duration,
    /// Whether batches are few.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub audit_webhook_batch_throttle_enable: bool,
    /// Batches in a second.
    #[arg(long, default_value_t = 10.0, value_name = "N", allow_hyphen_values = true)]
    pub audit_webhook_batch_throttle_qps: f64,
    /// Batches at once after a pause.
    #[arg(long, default_value_t = 15, value_name = "N", allow_hyphen_values = true)]
    pub audit_webhook_batch_throttle_burst: i64,
    /// Whether records that are too large lose their bodies.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub audit_webhook_truncate_enabled: bool,
    /// Bytes of records that are sent at once.
    #[arg(long, default_value_t = 10 << 20, value_name = "BYTES", allow_hyphen_values = true)]
    pub audit_webhook_truncate_max_batch_size: i64,
    /// Bytes of a record; a larger one loses its bodies, or is lost.
    #[arg(long, default_value_t = 100 << 10, value_name = "BYTES", allow_hyphen_values = true)]
    pub audit_webhook_truncate_max_event_size: i64,
}

/// What the flags of both places say alike.
struct Said<'a> {
    plugin: &'a str,
    mode: &'a str,
    version: &'a str,
    buffer: i64,
    most: i64,
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

impl Said<'_> {
    /// All that is wrong, in the reference's words and order; or what is meant.
    fn delivery(&self) -> Result<Delivery, Vec<String>> {
        let mut wrong = Vec::new();
        let mode = Mode::read(self.plugin, self.mode);
        wrong.extend(mode.clone().and_then(|mode| self.batching(mode)).err());
        let plugin = self.plugin;
        if self.event_bytes <= 0 {
            let bytes = self.event_bytes;
            wrong.push(format!(
                "invalid audit truncate {plugin} max event size {bytes}, must be a positive number"
            ));
        } else if self.batch_bytes < self.event_bytes {
            wrong.push(format!(
                "invalid audit truncate {plugin} max batch size {}, must be greater than max event size ({})",
                self.batch_bytes, self.event_bytes
            ));
        }
        if self.version != API_VERSION {
            wrong.push(format!("invalid group version, allowed versions are [{API_VERSION:?}]"));
        }
        let Ok(mode) = mode.and_then(|mode| if wrong.is_empty() { Ok(mode) } else { Err(String::new()) })
        else {
            return Err(wrong);
        };
        let truncation = Truncation { event: positive(self.event_bytes), batch: positive(self.batch_bytes) };
        let burst = u32::try_from(self.burst).unwrap_or_default();
        Ok(Delivery {
            mode,
            batching: Batching {
                waiting: positive(self.buffer).clamp(1, limits::AUDIT_EVENTS_WAITING),
                most: positive(self.most).max(1),
                wait: self.wait,
                rate: self.throttles.then_some((self.qps, burst)),
            },
            truncation: self.truncates.then_some(truncation),
        })
    }

    fn batching(&self, mode: Mode) -> Result<(), String> {
        if mode != Mode::Batch {
            return Ok(());
        }
        let counts = [("buffer size", self.buffer), ("max batch size", self.most)];
        let rate = (self.throttles && self.qps <= 0.0).then(|| ("throttle QPS", self.qps.to_string()));
        let burst = (self.throttles && self.burst <= 0).then(|| ("throttle burst", self.burst.to_string()));
        let counts = counts.into_iter().filter(|(_, number)| *number <= 0);
        let mut wrong = counts.map(|(what, number)| (what, number.to_string())).chain(rate).chain(burst);
        match wrong.next() {
            None => Ok(()),
            Some((what, number)) => {
                let plugin = self.plugin;
                Err(format!("invalid audit batch {plugin} {what} {number}, must be a positive number"))
            }
        }
    }
}

impl AuditLog {
    /// How the log gets its records, or all that is wrong.
    pub fn delivery(&self) -> Result<Delivery, Vec<String>> {
        let delivery = Said {
            plugin: "log",
            mode: &self.audit_log_mode,
            version: &self.audit_log_version,
            buffer: self.audit_log_batch_buffer_size,
            most: self.audit_log_batch_max_size,
            wait: self.audit_log_batch_max_wait,
            throttles: self.audit_log_batch_throttle_enable,
            qps: self.audit_log_batch_throttle_qps,
            burst: self.audit_log_batch_throttle_burst,
            truncates: self.audit_log_truncate_enabled,
            batch_bytes: self.audit_log_truncate_max_batch_size,
            event_bytes: self.audit_log_truncate_max_event_size,
        }
        .delivery();
        let mut wrong = Vec::new();
        let format = &self.audit_log_format;
        if !FORMATS.contains(&format.as_str()) {
            wrong.push(format!(
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
                wrong.push(format!("--audit-log-{flag} {number} can't be a negative number"));
            }
        }
        match delivery {
            Ok(delivery) if wrong.is_empty() => Ok(delivery),
            Ok(_) => Err(wrong),
            Err(before) => Err([before, wrong].concat()),
        }
    }
}

impl AuditWebhook {
    /// How the webhook gets its records, or all that is wrong.
    pub fn delivery(&self) -> Result<Delivery, Vec<String>> {
        Said {
            plugin: "webhook",
            mode: &self.audit_webhook_mode,
            version: &self.audit_webhook_version,
            buffer: self.audit_webhook_batch_buffer_size,
            most: self.audit_webhook_batch_max_size,
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
    /// All that is wrong with the settings. What is not used is not looked at.
    pub(super) fn validate(&self) -> Result<(), String> {
        let log = self.log.audit_log_path.as_ref().and_then(|_| self.log.delivery().err());
        let webhook =
            self.webhook.audit_webhook_config_file.as_ref().and_then(|_| self.webhook.delivery().err());
        let wrong: Vec<String> = log.into_iter().chain(webhook).flatten().collect();
        match wrong.as_slice() {
            [] => Ok(()),
            [one] => Err(one.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }

    /// What the operator should know.
    pub(super) fn remarks(&self) -> Vec<String> {
        let places = [
            ("--audit-log-path", self.log.audit_log_path.is_some()),
            ("--audit-webhook-config-file", self.webhook.audit_webhook_config_file.is_some()),
        ];
        let given = places.into_iter().filter(|(_, given)| *given && self.audit_policy_file.is_none());
        given
            .map(|(flag, _)| format!("{flag}: without --audit-policy-file no requests are written down"))
            .collect()
    }

    /// The policy, if there is one, and what a stricter reader would refuse of it. Reads a file: asked once, at start.
    pub fn policy(&self) -> Result<Option<(Policy, Vec<String>)>, String> {
        let Some(path) = &self.audit_policy_file else { return Ok(None) };
        let wrong = |why: String| format!("loading audit policy file: {why}");
        let shown = path.display();
        let text = std::fs::read(path).map_err(|error| {
            let why = error.to_string();
            // As the reference says it: in small letters, and without a number.
            let why = why.split(" (os error").next().unwrap_or_default().to_lowercase();
            wrong(format!("failed to read file path \"{shown}\": open {shown}: {why}"))
        })?;
        let from = |why: String| wrong(format!("{why}: from file {shown}"));
        if text.len() > limits::AUDIT_POLICY_BYTES {
            return Err(from(format!("more than {} bytes", limits::AUDIT_POLICY_BYTES)));
        }
        let (file, repeated) =
            yaml::read_strict(&text).map_err(|why| from(format!("failed decoding: yaml: {why}")))?;
        if !matches!(file, Value::Object(_) | Value::Null) {
            return Err(from("failed decoding: it must be an object".to_owned()));
        }
        let read = Policy::read(&file).map_err(from)?;
        Ok(Some((read.policy, repeated.into_iter().chain(read.unknown).collect())))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn wrong(flags: &str) -> String {
        let flags = ["pilothouse"].into_iter().chain(flags.split_whitespace());
        Config::parse(flags).unwrap().validate().map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn what_is_wrong_is_told_in_the_words_of_the_reference() {
        for (flags, why) in [
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
            assert_eq!(wrong(flags), why, "{flags}");
        }
    }

    #[test]
    fn defaults_are_those_of_the_reference() {
        let config = Config::default();
        let log = config.audit.log.delivery().unwrap();
        assert_eq!((log.mode, log.batching.most, log.batching.rate), (super::Mode::Blocking, 1, None));
        let webhook = config.audit.webhook.delivery().unwrap();
        assert_eq!((webhook.mode, webhook.batching.most), (super::Mode::Batch, 400));
        assert_eq!((webhook.batching.waiting, webhook.batching.rate), (10_000, Some((10.0, 15))));
        assert_eq!(webhook.truncation, None);
        let old = Config::parse(["pilothouse", "--audit-webhook-batch-initial-backoff=3s"]).unwrap();
        assert_eq!(old.audit.webhook.audit_webhook_initial_backoff.as_secs(), 3);
    }
}
