//! The flags about the log.

use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use pilothouse_api::gates::{LOGGING_ALPHA_OPTIONS, LOGGING_BETA_OPTIONS};
use pilothouse_apimachinery::quantity::Quantity;

use super::FeatureGates;
use super::values::go_duration;
use crate::limits;

/// Logging.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct Logging {
    /// Log verbosity: 0 info, 4 debug, 6 trace. The variable RUST_LOG takes precedence.
    #[arg(short = 'v', long = "v", default_value_t = 0, value_name = "LEVEL")]
    pub verbosity: u32,
    /// Serve profiles at /debug/pprof/, what actors do at /debug/actors, and /debug/flags/v, which changes the log verbosity at run
    /// time. All need authorization.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub profiling: bool,
    /// Measure how long threads wait for locks, for /debug/pprof/block and /debug/pprof/mutex.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub contention_profiling: bool,
    /// Serve profiles and /debug/flags/v on this Unix socket, also with --profiling=false, to everybody who may open it; empty for none.
    #[arg(long, default_value = "", value_name = "PATH")]
    pub debug_socket_path: String,
    /// Log verbosity of single modules: http=6,pki=4.
    #[arg(long, value_delimiter = ',', value_name = "MODULE=LEVEL,...")]
    pub vmodule: Vec<String>,
    /// Format of log lines.
    #[arg(long, default_value = "text", value_enum)]
    pub logging_format: LogFormat,
    /// How long buffered log lines wait at most until they are written; see --log-text-info-buffer-size.
    #[arg(long, default_value = "5s", value_parser = go_duration, value_name = "DURATION")]
    pub log_flush_frequency: Duration,
    /// With the format text, write errors and warnings to standard error, and other lines to standard output. By default all lines go to
    /// standard error. Needs the gate LoggingAlphaOptions.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub log_text_split_stream: bool,
    /// With the format text and split streams, how many bytes of lines for standard output are buffered; 0 writes each at once. Needs the
    /// gate LoggingAlphaOptions.
    #[arg(long, default_value = "0", value_parser = buffer_size, value_name = "QUANTITY")]
    pub log_text_info_buffer_size: i64,
    /// The same as --log-text-split-stream with the format json, where warnings go to standard output as well.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub log_json_split_stream: bool,
    /// The same as --log-text-info-buffer-size with the format json.
    #[arg(long, default_value = "0", value_parser = buffer_size, value_name = "QUANTITY")]
    pub log_json_info_buffer_size: i64,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text.
    Text,
    /// JSON.
    Json,
}

/// Standard output as the stream of lines that are no errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoStream {
    /// Bytes of lines that are buffered; zero for none.
    pub buffer_size: usize,
    /// Whether warnings belong to it, too.
    pub has_warnings: bool,
}

/// Parses a number of bytes. As in the reference, a negative one counts as zero.
fn buffer_size(text: &str) -> Result<i64, String> {
    let bytes = Quantity::parse(text).ok().and_then(|quantity| quantity.whole());
    bytes.ok_or_else(|| format!("\"{text}\" is not a number of bytes such as 64Ki"))
}

impl Logging {
    /// The stream of lines that are no errors; `None` if all lines go to standard error. As in the reference, the flags of the format that
    /// is not used do not count.
    pub fn info_stream(&self) -> Option<InfoStream> {
        let has_warnings = self.logging_format == LogFormat::Json;
        let (is_split, size) = match self.logging_format {
            LogFormat::Text => (self.log_text_split_stream, self.log_text_info_buffer_size),
            LogFormat::Json => (self.log_json_split_stream, self.log_json_info_buffer_size),
        };
        let buffer_size = usize::try_from(size).unwrap_or_default().min(limits::LOG_BUFFER_BYTES);
        is_split.then_some(InfoStream { buffer_size, has_warnings })
    }

    /// Checks the flags, in the words of the reference.
    pub(super) fn validate(&self, gates: &FeatureGates) -> Result<(), String> {
        let mut errors = Vec::new();
        if self.logging_format == LogFormat::Json && !gates.enabled(LOGGING_BETA_OPTIONS) {
            errors.push(format!(
                "format: Forbidden: Log format json is disabled, see {LOGGING_BETA_OPTIONS} feature"
            ));
        }
        if i32::try_from(self.verbosity).is_err() {
            let (value, most) = (self.verbosity, i32::MAX);
            errors.push(format!("verbosity: Invalid value: {value}: Must be <= {most}"));
        }
        if !self.vmodule.is_empty() && self.logging_format != LogFormat::Text {
            errors.push("vmodule: Forbidden: Only supported for text log format".to_owned());
        }
        let alpha_options = [
            ("text.splitStream", self.log_text_split_stream),
            ("text.infoBufferSize", self.log_text_info_buffer_size != 0),
            ("json.splitStream", self.log_json_split_stream),
            ("json.infoBufferSize", self.log_json_info_buffer_size != 0),
        ];
        if !gates.enabled(LOGGING_ALPHA_OPTIONS) {
            let given = alpha_options.iter().filter(|(_, is_given)| *is_given);
            errors.extend(given.map(|(option, _)| {
                format!("options.{option}: Forbidden: Feature {LOGGING_ALPHA_OPTIONS} is disabled")
            }));
        }
        // The reference panics.
        if self.log_flush_frequency.is_zero() {
            errors.push("--log-flush-frequency must be greater than zero".to_owned());
        }
        match errors.as_slice() {
            [] => Ok(()),
            [error] => Err(error.clone()),
            errors => Err(format!("[{}]", errors.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    const GATE: &str = "--feature-gates=LoggingAlphaOptions=true";

    fn config(flags: &[&str]) -> Config {
        Config::parse(["pilothouse"].iter().chain(flags)).unwrap()
    }

    fn error(flags: &[&str]) -> Option<String> {
        config(flags).validate().err().map(|error| error.to_string())
    }

    #[test]
    fn alpha_options_of_the_log_need_their_gate() {
        let (split, size) = ("--log-text-split-stream", "--log-json-info-buffer-size=1Ki");
        assert_eq!(
            error(&[split]).as_deref(),
            Some("options.text.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled")
        );
        assert_eq!(
            error(&[split, size]).as_deref(),
            Some(
                "[options.text.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled, \
                 options.json.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled]"
            )
        );
        assert_eq!(error(&[split, size, GATE]), None);
        assert_eq!(error(&["--log-text-split-stream=false", "--log-text-info-buffer-size=0"]), None);
    }

    #[test]
    fn settings_of_the_log_that_make_no_sense_are_refused() {
        let json = "--logging-format=json";
        for (flags, words) in [
            (&["--log-flush-frequency=0s"][..], "--log-flush-frequency must be greater than zero"),
            (&["-v", "2147483648"], "verbosity: Invalid value: 2147483648: Must be <= 2147483647"),
            (&["--vmodule=http=4", json], "vmodule: Forbidden: Only supported for text log format"),
            (
                &[json, "--feature-gates=LoggingBetaOptions=false"],
                "format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature",
            ),
        ] {
            assert_eq!(error(flags).as_deref(), Some(words), "{flags:?}");
        }
        for flag in ["--log-text-info-buffer-size=much", "--log-flush-frequency=5"] {
            assert!(Config::parse(["pilothouse", flag]).is_err(), "{flag}");
        }
    }

    #[test]
    fn info_stream_follows_the_flags_of_the_format_in_use() {
        let stream = |flags: &[&str]| config(flags).logging.info_stream();
        let (split, size) = ("--log-text-split-stream", "--log-text-info-buffer-size=2Ki");
        assert_eq!(stream(&[size]), None);
        let text = InfoStream { buffer_size: 2_048, has_warnings: false };
        assert_eq!(stream(&[split, size]), Some(text));
        assert_eq!(stream(&[split, "--log-text-info-buffer-size=-1"]).unwrap().buffer_size, 0);
        assert_eq!(
            stream(&[split, "--log-text-info-buffer-size=4Gi"]).unwrap().buffer_size,
            limits::LOG_BUFFER_BYTES
        );
        assert_eq!(stream(&[split, size, "--logging-format=json"]), None);
        let json = ["--logging-format=json", "--log-json-split-stream"];
        assert_eq!(stream(&json), Some(InfoStream { buffer_size: 0, has_warnings: true }));
    }
}
