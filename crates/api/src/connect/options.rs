//! What a client says about a way: the option kinds, read from the parameters of the request.

use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::time;

use super::url;

/// The streams of a log, all of them first.
const STREAMS: [&str; 3] = [ALL_STREAMS, "Stderr", "Stdout"];
const ALL_STREAMS: &str = "All";

/// What of a log is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Whose log; empty for the only container.
    pub container: String,
    /// Whether to go on with what is written from now on.
    pub follow: bool,
    /// Whether to read the log of the container before this one.
    pub previous: bool,
    /// Whether each line begins with its time.
    pub timestamps: bool,
    /// How many seconds back.
    pub since_seconds: Option<i64>,
    /// Since when, in seconds since 1970.
    pub since_time: Option<i64>,
    /// How many of the last lines.
    pub tail_lines: Option<i64>,
    /// How many bytes at most.
    pub limit_bytes: Option<i64>,
    /// Whether to talk to a kubelet that cannot prove who it is.
    pub skip_verification: bool,
    /// One of the streams, or all, where they can be told apart.
    pub stream: Option<String>,
}

impl LogOptions {
    /// Reads the parameters. What cannot be read is a 400. `splits`: whether streams can be told apart.
    pub fn parse(query: &Query<'_>, splits: bool) -> Result<LogOptions> {
        let flag = |key| query.flag(key).unwrap_or_default();
        Ok(LogOptions {
            container: query.text("container"),
            follow: flag("follow"),
            previous: flag("previous"),
            timestamps: flag("timestamps"),
            since_seconds: query.integer("sinceSeconds")?,
            since_time: query.get("sinceTime").map(instant).transpose()?,
            tail_lines: query.integer("tailLines")?,
            limit_bytes: query.integer("limitBytes")?,
            skip_verification: flag("insecureSkipTLSVerifyBackend"),
            stream: query.get("stream").or(splits.then_some(ALL_STREAMS)).map(str::to_owned),
        })
    }

    /// Whether they make sense together; `name` is the pod's.
    pub fn validate(&self, name: &str, splits: bool) -> Result<()> {
        let mut errors = Vec::new();
        let mut invalid = |field: &str, value: i64, why: &str| {
            errors.push(FieldError::invalid(&FieldPath::new(field), &value.to_string(), why));
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
            let why = "`tailLines` and specific `stream` are mutually exclusive for now";
            errors.push(FieldError::forbidden(&FieldPath::nameless(), why));
        }
    }

    /// The parameters as a kubelet reads them.
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

/// An instant; the empty text and `null`, which old clients send, are the zero time.
fn instant(text: &str) -> Result<i64> {
    match text {
        "" | "null" => Ok(time::ZERO_SECONDS),
        text => time::parse_seconds(text).map_err(Status::bad_request),
    }
}

/// Which streams of a command or process are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Whose; empty for the only container.
    pub container: String,
    /// Whether input is sent.
    pub stdin: bool,
    /// Whether output is read.
    pub stdout: bool,
    /// Whether errors are read.
    pub stderr: bool,
    /// Whether there is a terminal.
    pub tty: bool,
    /// What to run, with its arguments; of no use to a process that runs already.
    pub command: Vec<String>,
}

impl StreamOptions {
    /// Reads the parameters for a command.
    pub fn exec(query: &Query<'_>) -> StreamOptions {
        let command = query.all("command").map(str::to_owned).collect();
        StreamOptions { command, ..StreamOptions::attach(query) }
    }

    /// Reads the parameters for a process that runs already.
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

    /// The parameters as a kubelet reads them.
    pub fn to_query(&self) -> String {
        let flags =
            [("input", self.stdin), ("output", self.stdout), ("error", self.stderr), ("tty", self.tty)];
        let set = flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| (name, "1".to_owned()));
        let command = self.command.iter().map(|word| ("command", word.clone()));
        url::encode_query(set.chain(command).collect())
    }
}

/// Which ports of a pod are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortForwardOptions {
    /// Their numbers.
    pub ports: Vec<u16>,
}

impl PortForwardOptions {
    /// Reads the parameters.
    pub fn parse(query: &Query<'_>) -> Result<PortForwardOptions> {
        let all = query.all("ports").flat_map(|some| some.split(','));
        Ok(PortForwardOptions { ports: all.map(port).collect::<Result<_>>()? })
    }

    /// The parameters as a kubelet reads them.
    pub fn to_query(&self) -> String {
        if self.ports.is_empty() {
            return String::new();
        }
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        url::encode_query(vec![("port", ports.join(","))])
    }
}

fn port(text: &str) -> Result<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let why = if digits { "value out of range" } else { "invalid syntax" };
    text.parse().ok().filter(|_| digits).ok_or_else(|| {
        let text = quoted(text);
        Status::bad_request(format!("cannot convert to []int32: strconv.ParseUint: parsing {text}: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_of(query: &str, splits: bool) -> Result<LogOptions> {
        let options = LogOptions::parse(&Query::parse(query), splits)?;
        options.validate("p", splits).map(|()| options)
    }

    fn log(query: &str) -> Result<LogOptions> {
        log_of(query, false)
    }

    #[test]
    fn streams_are_told_apart_where_they_can_be() {
        for (query, wanted) in [
            ("", "stream=All"),
            ("stream=Stdout", "stream=Stdout"),
            ("stream=All&tailLines=2", "stream=All&tailLines=2"),
        ] {
            assert_eq!(log_of(query, true).unwrap().to_query(), wanted, "{query}");
        }
        for (query, wanted) in [
            (
                "stream=x",
                "stream: Unsupported value: \"x\": supported values: \"All\", \"Stderr\", \"Stdout\"",
            ),
            (
                "stream=Stderr&tailLines=2",
                "[]: Forbidden: `tailLines` and specific `stream` are mutually exclusive for now",
            ),
        ] {
            let status = log_of(query, true).unwrap_err();
            let wanted = format!("PodLogOptions \"p\" is invalid: {wanted}");
            assert_eq!((status.code, status.message), (422, wanted));
        }
    }

    #[test]
    fn a_kubelet_is_told_what_the_client_said() {
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
        for (query, wanted) in table {
            assert_eq!(log(query).unwrap().to_query(), wanted, "{query}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_the_words_that_clients_know() {
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
            let status = log(query).unwrap_err();
            assert_eq!((status.code, status.message.as_str()), (code, message), "{query}");
        }
    }

    #[test]
    fn streams_and_ports_are_passed_on() {
        let query = Query::parse("command=sh&command=-c&stdin=true&stdout=1&stderr=0&tty=false&container=c");
        let exec = StreamOptions::exec(&query);
        assert_eq!(exec.to_query(), "command=sh&command=-c&input=1&output=1");
        assert_eq!(StreamOptions::attach(&query).to_query(), "input=1&output=1");
        let ports = |query| PortForwardOptions::parse(&Query::parse(query));
        assert_eq!(ports("ports=80,81&ports=82").unwrap().to_query(), "port=80%2C81%2C82");
        assert_eq!(ports("").unwrap().to_query(), "");
        for (query, why) in [("ports=x", "invalid syntax"), ("ports=65536", "value out of range")] {
            assert!(ports(query).unwrap_err().message.ends_with(why), "{query}");
        }
    }
}
