//! The options of connecting subresources (PodLogOptions, PodExecOptions, …), parsed from the query of a request.

use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::time;

use super::url;

/// The streams of a log, all of them first.
const STREAMS: [&str; 3] = [ALL_STREAMS, "Stderr", "Stdout"];
const ALL_STREAMS: &str = "All";

/// PodLogOptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// The container; empty for the only one.
    pub container: String,
    /// Whether to stream new lines as they are written.
    pub follow: bool,
    /// Whether to read the log of the previous instance of the container.
    pub previous: bool,
    /// Whether each line begins with its time.
    pub timestamps: bool,
    /// Only lines of this many last seconds.
    pub since_seconds: Option<i64>,
    /// Only lines since this time, in Unix seconds.
    pub since_time: Option<i64>,
    /// Only this many last lines.
    pub tail_lines: Option<i64>,
    /// At most this many bytes.
    pub limit_bytes: Option<i64>,
    /// Whether to accept a kubelet whose certificate cannot be verified.
    pub skip_verification: bool,
    /// The stream; only with feature gate PodLogsQuerySplitStreams.
    pub stream: Option<String>,
}

impl LogOptions {
    /// Parses the query. `splits`: whether the feature gate PodLogsQuerySplitStreams is enabled.
    pub fn parse(query: &Query<'_>, splits: bool) -> Result<LogOptions> {
        let flag = |key| query.flag(key).unwrap_or_default();
        Ok(LogOptions {
            container: query.text("container"),
            follow: flag("follow"),
            previous: flag("previous"),
            timestamps: flag("timestamps"),
            since_seconds: query.integer("sinceSeconds")?,
            since_time: query.get("sinceTime").map(parse_time).transpose()?,
            tail_lines: query.integer("tailLines")?,
            limit_bytes: query.integer("limitBytes")?,
            skip_verification: flag("insecureSkipTLSVerifyBackend"),
            stream: query.get("stream").or(splits.then_some(ALL_STREAMS)).map(str::to_owned),
        })
    }

    /// Validates the options; `name` is that of the pod.
    pub fn validate(&self, name: &str, splits: bool) -> Result<()> {
        let mut errors = Vec::new();
        let mut invalid = |field: &str, value: i64, message: &str| {
            errors.push(FieldError::invalid(&FieldPath::new(field), &value.to_string(), message));
        };
        if let Some(lines) = self.tail_lines.filter(|lines| *lines < 0) {
            invalid("tailLines", lines, "must be greater than or equal to 0");
        }
        if let Some(bytes) = self.limit_bytes.filter(|bytes| *bytes < 1) {
            invalid("limitBytes", bytes, "must be greater than 0");
        }
        match (self.since_seconds, self.since_time) {
            (Some(_), Some(_)) => errors.push(FieldError::forbidden(
                &FieldPath::nameless(),
                "at most one of `sinceTime` or `sinceSeconds` may be specified",
            )),
            (Some(seconds), None) if seconds < 1 => {
                invalid("sinceSeconds", seconds, "must be greater than 0");
            }
            _ => {}
        }
        match self.stream.as_deref() {
            Some(stream) if splits => self.check_stream(stream, &mut errors),
            Some(_) => errors.push(FieldError::forbidden(&FieldPath::new("stream"), "may not be specified")),
            None => {}
        }
        if errors.is_empty() { Ok(()) } else { Err(Status::invalid("", "PodLogOptions", name, &errors)) }
    }

    fn check_stream(&self, stream: &str, errors: &mut Vec<FieldError>) {
        if !STREAMS.contains(&stream) {
            errors.push(FieldError::not_supported(&FieldPath::new("stream"), &quoted(stream), &STREAMS));
        }
        if stream != ALL_STREAMS && self.tail_lines.is_some() {
            let message = "`tailLines` and specific `stream` are mutually exclusive for now";
            errors.push(FieldError::forbidden(&FieldPath::nameless(), message));
        }
    }

    /// The query for the kubelet.
    pub fn to_query(&self) -> String {
        let mut pairs = Vec::new();
        let flags = [("follow", self.follow), ("previous", self.previous), ("timestamps", self.timestamps)];
        pairs.extend(flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| (name, "true".to_owned())));
        let numbers = [
            ("sinceSeconds", self.since_seconds),
            ("tailLines", self.tail_lines),
            ("limitBytes", self.limit_bytes),
        ];
        pairs.extend(numbers.into_iter().filter_map(|(name, set)| Some((name, set?.to_string()))));
        pairs.extend(self.since_time.map(|since| ("sinceTime", time::format_seconds(since))));
        pairs.extend(self.stream.clone().map(|stream| ("stream", stream)));
        url::encode_query(pairs)
    }
}

/// Parses a time in Unix seconds. The empty text and `null`, which old clients send, are the zero time.
fn parse_time(text: &str) -> Result<i64> {
    match text {
        "" | "null" => Ok(time::ZERO_SECONDS),
        text => time::parse_seconds(text).map_err(Status::bad_request),
    }
}

/// PodExecOptions, or PodAttachOptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// The container; empty for the only one.
    pub container: String,
    /// Whether to redirect standard input.
    pub stdin: bool,
    /// Whether to redirect standard output.
    pub stdout: bool,
    /// Whether to redirect standard error.
    pub stderr: bool,
    /// Whether to allocate a terminal.
    pub tty: bool,
    /// The command with its arguments; empty for attach.
    pub command: Vec<String>,
}

impl StreamOptions {
    /// Parses the query of exec.
    pub fn exec(query: &Query<'_>) -> StreamOptions {
        let command = query.all("command").map(str::to_owned).collect();
        StreamOptions { command, ..StreamOptions::attach(query) }
    }

    /// Parses the query of attach.
    pub fn attach(query: &Query<'_>) -> StreamOptions {
        let flag = |key| query.flag(key).unwrap_or_default();
        StreamOptions {
            container: query.text("container"),
            stdin: flag("stdin"),
            stdout: flag("stdout"),
            stderr: flag("stderr"),
            tty: flag("tty"),
            command: Vec::new(),
        }
    }

    /// The query for the kubelet.
    pub fn to_query(&self) -> String {
        let flags =
            [("input", self.stdin), ("output", self.stdout), ("error", self.stderr), ("tty", self.tty)];
        let set = flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| (name, "1".to_owned()));
        let command = self.command.iter().map(|word| ("command", word.clone()));
        url::encode_query(set.chain(command).collect())
    }
}

/// PodPortForwardOptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortForwardOptions {
    /// The ports of the pod.
    pub ports: Vec<u16>,
}

impl PortForwardOptions {
    /// Parses the query.
    pub fn parse(query: &Query<'_>) -> Result<PortForwardOptions> {
        let all = query.all("ports").flat_map(|list| list.split(','));
        Ok(PortForwardOptions { ports: all.map(parse_port).collect::<Result<_>>()? })
    }

    /// The query for the kubelet.
    pub fn to_query(&self) -> String {
        if self.ports.is_empty() {
            return String::new();
        }
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        url::encode_query(vec![("port", ports.join(","))])
    }
}

fn parse_port(text: &str) -> Result<u16> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let reason = if is_number { "value out of range" } else { "invalid syntax" };
    text.parse().ok().filter(|_| is_number).ok_or_else(|| {
        let text = quoted(text);
        Status::bad_request(format!("cannot convert to []int32: strconv.ParseUint: parsing {text}: {reason}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_log(query: &str, splits: bool) -> Result<LogOptions> {
        let options = LogOptions::parse(&Query::parse(query), splits)?;
        options.validate("p", splits).map(|()| options)
    }

    fn parse_unsplit_log(query: &str) -> Result<LogOptions> {
        parse_log(query, false)
    }

    #[test]
    fn log_stream_is_passed_to_kubelet_with_split_streams() {
        for (query, expected) in [
            ("", "stream=All"),
            ("stream=Stdout", "stream=Stdout"),
            ("stream=All&tailLines=2", "stream=All&tailLines=2"),
        ] {
            assert_eq!(parse_log(query, true).unwrap().to_query(), expected, "{query}");
        }
        for (query, expected) in [
            (
                "stream=x",
                "stream: Unsupported value: \"x\": supported values: \"All\", \"Stderr\", \"Stdout\"",
            ),
            (
                "stream=Stderr&tailLines=2",
                "[]: Forbidden: `tailLines` and specific `stream` are mutually exclusive for now",
            ),
        ] {
            let status = parse_log(query, true).unwrap_err();
            let expected = format!("PodLogOptions \"p\" is invalid: {expected}");
            assert_eq!((status.code, status.message), (422, expected));
        }
    }

    #[test]
    fn log_options_are_passed_to_kubelet() {
        let table = [
            ("", ""),
            ("container=c&follow=1&previous=true&timestamps", "follow=true&previous=true&timestamps=true"),
            (
                "follow=false&tailLines=0&limitBytes=7&sinceSeconds=5",
                "limitBytes=7&sinceSeconds=5&tailLines=0",
            ),
            ("sinceTime=2020-01-02T03:04:05%2B01:00", "sinceTime=2020-01-02T02%3A04%3A05Z"),
            ("insecureSkipTLSVerifyBackend=true", ""),
        ];
        for (query, expected) in table {
            assert_eq!(parse_unsplit_log(query).unwrap().to_query(), expected, "{query}");
        }
    }

    #[test]
    fn invalid_log_options_are_refused() {
        let table = [
            ("tailLines=x", 400, r#"strconv.ParseInt: parsing "x": invalid syntax"#),
            (
                "sinceTime=x",
                400,
                r#"parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006""#,
            ),
            (
                "tailLines=-1",
                422,
                "PodLogOptions \"p\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "limitBytes=0",
                422,
                "PodLogOptions \"p\" is invalid: limitBytes: Invalid value: 0: must be greater than 0",
            ),
            (
                "sinceSeconds=0",
                422,
                "PodLogOptions \"p\" is invalid: sinceSeconds: Invalid value: 0: must be greater than 0",
            ),
            (
                "sinceSeconds=1&sinceTime=2020-01-02T03:04:05Z",
                422,
                "PodLogOptions \"p\" is invalid: []: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
            ),
            ("stream=All", 422, "PodLogOptions \"p\" is invalid: stream: Forbidden: may not be specified"),
        ];
        for (query, code, message) in table {
            let status = parse_unsplit_log(query).unwrap_err();
            assert_eq!((status.code, status.message.as_str()), (code, message), "{query}");
        }
    }

    #[test]
    fn exec_attach_and_port_forward_options_are_passed_to_kubelet() {
        let query = Query::parse("command=sh&command=-c&stdin=true&stdout=1&stderr=0&tty=false&container=c");
        let exec = StreamOptions::exec(&query);
        assert_eq!(exec.to_query(), "command=sh&command=-c&input=1&output=1");
        assert_eq!(StreamOptions::attach(&query).to_query(), "input=1&output=1");
        let ports = |query| PortForwardOptions::parse(&Query::parse(query));
        assert_eq!(ports("ports=80,81&ports=82").unwrap().to_query(), "port=80%2C81%2C82");
        assert_eq!(ports("").unwrap().to_query(), "");
        for (query, reason) in [("ports=x", "invalid syntax"), ("ports=65536", "value out of range")] {
            assert!(ports(query).unwrap_err().message.ends_with(reason), "{query}");
        }
    }
}
