//! `pilothouse convert`: converts objects between encodings, without a server.

use std::io::{self, BufRead, Read, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Parser, ValueEnum};
use pilothouse_apimachinery::codec::transcode::{Encoding, transcode};
use pilothouse_apimachinery::schema::Registry;
use serde::{Deserialize, Serialize};

use super::lines::{Line, next_line};
use crate::limits;

/// Convert an object from stdin to stdout, by its type alone: nothing is defaulted, nothing is validated, and fields
/// that the type does not have are dropped. The object's kind and apiVersion select the type. Objects of
/// kinds that are not built in are converted field by field between JSON, YAML and CBOR; Protobuf supports only built-in kinds.
///
/// With --lines, each line of stdin is {"data":"<base64>"} and yields, in order, a line {"data":"<base64>"} or
/// {"error":"<message>"}. A line that cannot be converted does not end the stream.
///
/// Exit code 0 if the conversion was done, 1 if not.
#[derive(Debug, Parser)]
#[command(bin_name = "pilothouse convert", no_binary_name = true)]
pub(super) struct Options {
    /// The encoding of the input.
    #[arg(long, value_enum)]
    from: Wire,
    /// The encoding of the output.
    #[arg(long, value_enum)]
    to: Wire,
    /// Convert a stream of objects, one per line.
    #[arg(long)]
    lines: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Wire {
    Json,
    Yaml,
    Protobuf,
    Cbor,
}

impl From<Wire> for Encoding {
    fn from(wire: Wire) -> Encoding {
        match wire {
            Wire::Json => Encoding::Json,
            Wire::Yaml => Encoding::Yaml,
            Wire::Protobuf => Encoding::Protobuf,
            Wire::Cbor => Encoding::Cbor,
        }
    }
}

#[derive(Deserialize)]
struct InputLine {
    data: String,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum OutputLine {
    Data(String),
    Error(String),
}

/// Why the conversion failed, completely or in part.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("cannot read stdin: {0}")]
    Read(#[source] io::Error),
    #[error("cannot write stdout: {0}")]
    Write(#[source] io::Error),
    #[error("the input is longer than {} bytes", limits::CONVERT_BYTES)]
    TooLong,
    #[error("{0}")]
    Refused(String),
}

impl super::Command for Options {
    const NAME: &str = "convert";
    type Failure = Failure;

    fn run(&self) -> Result<(), Failure> {
        run(self, io::stdin().lock(), io::stdout().lock())
    }
}

fn run(options: &Options, input: impl BufRead, output: impl Write) -> Result<(), Failure> {
    let registry = Registry::complete().map_err(|error| Failure::Refused(error.to_string()))?;
    let convert = |bytes: &[u8]| transcode(&registry, options.from.into(), options.to.into(), bytes);
    if options.lines { stream(input, output, convert) } else { single(input, output, convert) }
}

fn single(
    input: impl BufRead,
    mut output: impl Write,
    convert: impl Fn(&[u8]) -> Result<Vec<u8>, String>,
) -> Result<(), Failure> {
    let max_bytes = limits::CONVERT_BYTES;
    let mut bytes = Vec::new();
    input.take(max_bytes as u64 + 1).read_to_end(&mut bytes).map_err(Failure::Read)?;
    if bytes.len() > max_bytes {
        return Err(Failure::TooLong);
    }
    let output_bytes = convert(&bytes).map_err(Failure::Refused)?;
    output.write_all(&output_bytes).and_then(|()| output.flush()).map_err(Failure::Write)
}

/// Writes the result of each line before it reads the next one, for interactive callers.
fn stream(
    mut input: impl BufRead,
    output: impl Write,
    convert: impl Fn(&[u8]) -> Result<Vec<u8>, String>,
) -> Result<(), Failure> {
    let mut output = io::BufWriter::with_capacity(limits::CONVERT_CHUNK_BYTES, output);
    loop {
        let result = match next_line(&mut input, limits::CONVERT_BYTES).map_err(Failure::Read)? {
            Line::End => return output.flush().map_err(Failure::Write),
            Line::TooLong => {
                OutputLine::Error(format!("the line is longer than {} bytes", limits::CONVERT_BYTES))
            }
            Line::Complete(line) => convert_line(&line, &convert),
        };
        serde_json::to_writer(&mut output, &result).map_err(io::Error::from).map_err(Failure::Write)?;
        output.write_all(b"\n").map_err(Failure::Write)?;
        output.flush().map_err(Failure::Write)?;
    }
}

fn convert_line(line: &[u8], convert: impl Fn(&[u8]) -> Result<Vec<u8>, String>) -> OutputLine {
    let input: InputLine = match serde_json::from_slice(line) {
        Ok(input) => input,
        Err(error) => {
            return OutputLine::Error(format!("the line is not {{\"data\":\"<base64>\"}}: {error}"));
        }
    };
    let bytes = match STANDARD.decode(input.data) {
        Ok(bytes) => bytes,
        Err(error) => return OutputLine::Error(format!("data is not base64: {error}")),
    };
    match convert(&bytes) {
        Ok(output) => OutputLine::Data(STANDARD.encode(output)),
        Err(error) => OutputLine::Error(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Options {
        Options::try_parse_from(line.split(' ')).unwrap()
    }

    fn convert_text(line: &str, input: &[u8]) -> Result<String, String> {
        let mut output = Vec::new();
        run(&options(line), input, &mut output).map_err(|failure| failure.to_string())?;
        Ok(String::from_utf8(output).unwrap())
    }

    #[test]
    fn convert_writes_yaml_and_reports_type_errors() {
        let yaml = convert_text(
            "--from json --to yaml",
            br#"{"kind":"ConfigMap","apiVersion":"v1","data":{"b":"1"}}"#,
        );
        assert_eq!(
            yaml.unwrap(),
            "apiVersion: v1\ndata:\n  b: \"1\"\nkind: ConfigMap\nmetadata:\n  creationTimestamp: null\n"
        );
        let error =
            convert_text("--from yaml --to json", b"kind: Pod\napiVersion: v1\nspec: 5\n").unwrap_err();
        assert!(
            error.contains("cannot unmarshal number into Go struct field Pod.spec of type v1.PodSpec"),
            "{error}"
        );
    }

    #[test]
    fn convert_lines_in_order_continues_after_errors() {
        let status = STANDARD.encode(br#"{"kind":"Status","apiVersion":"v1"}"#);
        let mut input =
            format!("{{\"data\":\"{status}\"}}\n\nnonsense\n{{\"data\":\"?\"}}\n{{\"data\":\"e30=\"}}\n");
        input.push_str(&"x".repeat(limits::CONVERT_BYTES + 1));
        input.push_str(&format!("\n{{\"data\":\"{status}\"}}"));
        let output = convert_text("--from json --to json --lines", input.as_bytes()).unwrap();
        let lines: Vec<&str> = output.lines().collect();
        let data = STANDARD.encode(b"{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{}}\n");
        let data = format!("{{\"data\":\"{data}\"}}");
        assert_eq!((lines.len(), lines[0], lines[6]), (7, data.as_str(), data.as_str()));
        for (line, error) in [
            (1, "the line is not"),
            (2, "the line is not"),
            (3, "data is not base64"),
            (4, "Object 'Kind' is missing"),
            (5, "the line is longer than"),
        ] {
            assert!(lines[line].starts_with(&format!("{{\"error\":\"{error}")), "{}", lines[line]);
        }
    }
}
