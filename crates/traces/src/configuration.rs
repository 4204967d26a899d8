//! The file of `--tracing-config-file`.

use std::path::PathBuf;

use pilothouse_apimachinery::document::{self, FieldReader, present};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::value::Value;
use pilothouse_plugins::Address;
use pilothouse_types::host_port::HostPort;

use crate::limits::CONFIGURATION_BYTES;

const KIND: &str = "TracingConfiguration";
const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];
const MILLION: i64 = 1_000_000;
/// Where collectors listen by default.
const DEFAULT_ENDPOINT: &str = "localhost:4317";
/// The port of an endpoint without one, as gRPC has it.
const DEFAULT_PORT: u16 = 443;

/// Where traces go, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingConfiguration {
    /// The collector.
    pub collector: Address,
    /// Of a million requests whose clients do not decide, so many are traced.
    pub rate_per_million: u32,
}

impl TracingConfiguration {
    /// Reads the file. Errors are in the reference's words.
    pub fn read(text: &[u8]) -> Result<TracingConfiguration, String> {
        let failed = |error: String| {
            format!("failed to read tracing config: unable to decode tracing configuration data: {error}")
        };
        if text.len() > CONFIGURATION_BYTES {
            return Err(failed(format!("more than {CONFIGURATION_BYTES} bytes")));
        }
        let file = document::parse(text).map_err(failed)?;
        document::check_kind(&file, KIND, &VERSIONS).map_err(failed)?;
        let (mut reader, root) = (FieldReader::default(), FieldPath::root());
        reader.check_fields(&file, &root, &["apiVersion", "kind", "endpoint", "samplingRatePerMillion"]);
        let endpoint = reader.optional_text(&file, "endpoint", &root);
        let rate = reader.integer(&file, "samplingRatePerMillion", &root);
        reader.result().map_err(|error| failed(format!("strict decoding error: {error}")))?;
        validate(&file, endpoint, rate)
            .map_err(|error| format!("failed to validate tracing configuration: {error}"))?;
        Ok(TracingConfiguration {
            collector: address(endpoint.unwrap_or(DEFAULT_ENDPOINT)),
            rate_per_million: u32::try_from(rate).unwrap_or_default(),
        })
    }
}

fn validate(file: &Value, endpoint: Option<&str>, rate: i64) -> Result<(), String> {
    let mut reader = FieldReader::default();
    let invalid =
        |path: &str, value: &str, reason: &str| FieldError::invalid(&FieldPath::new(path), value, reason);
    let mut refuse_rate =
        |reason: &str| reader.push_error(&invalid("samplingRatePerMillion", &rate.to_string(), reason));
    if rate < 0 {
        refuse_rate("sampling rate must be positive");
    }
    if rate > MILLION {
        refuse_rate("sampling rate per million must be less than or equal to one million");
    }
    if let Some(endpoint) = endpoint.filter(|_| present(file, "endpoint").is_some()) {
        // Without a scheme, it is a name.
        let url = if endpoint.contains("//") { endpoint.to_owned() } else { format!("dns://{endpoint}") };
        if let Err(reason) = check_url(&url) {
            reader.push_error(&invalid("endpoint", &quoted(&url), &reason));
        }
    }
    reader.result()
}

/// Checks what of a URL the reference checks.
fn check_url(url: &str) -> Result<(), String> {
    let fail = |reason: &str| Err(format!("parse {}: {reason}", quoted(url)));
    if url.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return fail("net/url: invalid control character in URL");
    }
    let is_scheme_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let scheme = match url.split_once(':') {
        Some(("", _)) => return fail("missing protocol scheme"),
        Some((scheme, _)) if scheme.bytes().all(is_scheme_byte) => {
            if !scheme.starts_with(|first: char| first.is_ascii_alphabetic()) {
                return fail("first path segment in URL cannot contain colon");
            }
            scheme.to_ascii_lowercase()
        }
        Some((segment, _)) if !segment.contains('/') => {
            return fail("first path segment in URL cannot contain colon");
        }
        _ => String::new(),
    };
    let authority = url.split_once("//").map_or("", |(_, rest)| rest);
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if let Some(byte) = host.chars().find(|c| " \"<>\\^`{}|".contains(*c)) {
        return fail(&format!("invalid character {} in host name", quoted(&byte.to_string())));
    }
    if host.starts_with('[') && !host.contains(']') {
        return fail("missing ']' in host");
    }
    let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.contains(']'));
    if let Some(port) = port.filter(|port| !port.bytes().all(|byte| byte.is_ascii_digit())) {
        return fail(&format!("invalid port {} after host", quoted(&format!(":{port}"))));
    }
    if ["dns", "unix", "unix-abstract"].contains(&scheme.as_str()) {
        return Ok(());
    }
    Err(format!(
        "unsupported scheme: {scheme}.  Options are none, dns, unix, or unix-abstract.  See \
         https://github.com/grpc/grpc/blob/master/doc/naming.md"
    ))
}

/// The address of an endpoint, which gRPC calls a target.
fn address(endpoint: &str) -> Address {
    if let Some(name) = endpoint.strip_prefix("unix-abstract:") {
        return Address::Unix(PathBuf::from(format!("\0{}", name.strip_prefix("//").unwrap_or(name))));
    }
    if let Some(path) = endpoint.strip_prefix("unix:") {
        return Address::Unix(PathBuf::from(path.strip_prefix("//").unwrap_or(path)));
    }
    let name = endpoint.strip_prefix("dns:").unwrap_or(endpoint);
    // The authority of such a URL is a name server. Ours are those of the system.
    let name = match name.strip_prefix("//") {
        Some(rest) => {
            rest.split_once('/').map(|(_, name)| name).filter(|name| !name.is_empty()).unwrap_or(rest)
        }
        None => name,
    };
    let (host, port) = match name.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') && !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().unwrap_or(DEFAULT_PORT))
        }
        _ => (name, DEFAULT_PORT),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Address::Tcp(HostPort::new(if host.is_empty() { "localhost" } else { host }, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &str) -> Result<TracingConfiguration, String> {
        let text =
            format!("apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n{fields}");
        TracingConfiguration::read(text.as_bytes())
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(HostPort::new(host, port))
    }

    #[test]
    fn endpoint_and_rate_have_defaults() {
        let expected = TracingConfiguration { collector: tcp("localhost", 4317), rate_per_million: 0 };
        assert_eq!(read(""), Ok(expected.clone()));
        assert_eq!(read("endpoint: null\nsamplingRatePerMillion: null"), Ok(expected));
        let all = read("samplingRatePerMillion: 1000000\nendpoint: collector:1").unwrap();
        assert_eq!(all, TracingConfiguration { collector: tcp("collector", 1), rate_per_million: 1_000_000 });
        let alpha = b"{apiVersion: apiserver.config.k8s.io/v1alpha1, kind: TracingConfiguration}";
        assert!(TracingConfiguration::read(alpha).is_ok());
    }

    #[test]
    fn endpoints_are_targets_of_grpc() {
        for (endpoint, address) in [
            ("a.b:4317", tcp("a.b", 4317)),
            ("a.b", tcp("a.b", 443)),
            (":4317", tcp("localhost", 4317)),
            ("[::1]:4317", tcp("::1", 4317)),
            ("[::1]", tcp("::1", 443)),
            ("dns:a.b:1", tcp("a.b", 1)),
            ("dns:///a.b:1", tcp("a.b", 1)),
            ("dns://8.8.8.8/a.b:1", tcp("a.b", 1)),
            ("unix:///run/a.sock", Address::Unix("/run/a.sock".into())),
            ("unix:/run/a.sock", Address::Unix("/run/a.sock".into())),
            ("unix-abstract://name", Address::Unix("\0name".into())),
        ] {
            assert_eq!(
                read(&format!("endpoint: \"{endpoint}\"")).map(|read| read.collector),
                Ok(address),
                "{endpoint}"
            );
        }
    }

    #[test]
    fn invalid_values_are_refused_in_the_words_of_the_reference() {
        let schemes = "Options are none, dns, unix, or unix-abstract.  See \
                       https://github.com/grpc/grpc/blob/master/doc/naming.md";
        for (fields, error) in [
            ("samplingRatePerMillion: -1", "samplingRatePerMillion: Invalid value: -1: sampling rate must be positive".to_owned()),
            (
                "samplingRatePerMillion: 1000001",
                "samplingRatePerMillion: Invalid value: 1000001: sampling rate per million must be less than or equal to \
                 one million"
                    .to_owned(),
            ),
            (
                "endpoint: https://a:1",
                format!("endpoint: Invalid value: \"https://a:1\": unsupported scheme: https.  {schemes}"),
            ),
            ("endpoint: //a", format!("endpoint: Invalid value: \"//a\": unsupported scheme: .  {schemes}")),
            (
                "endpoint: a:b",
                "endpoint: Invalid value: \"dns://a:b\": parse \"dns://a:b\": invalid port \":b\" after host".to_owned(),
            ),
            (
                "endpoint: '://a'",
                "endpoint: Invalid value: \"://a\": parse \"://a\": missing protocol scheme".to_owned(),
            ),
            (
                "endpoint: 'a b'",
                "endpoint: Invalid value: \"dns://a b\": parse \"dns://a b\": invalid character \" \" in host name".to_owned(),
            ),
            (
                "samplingRatePerMillion: -1\nendpoint: http://a",
                format!(
                    "[samplingRatePerMillion: Invalid value: -1: sampling rate must be positive, endpoint: Invalid value: \
                     \"http://a\": unsupported scheme: http.  {schemes}]"
                ),
            ),
        ] {
            let expected = format!("failed to validate tracing configuration: {error}");
            assert_eq!(read(fields), Err(expected), "{fields}");
        }
    }

    #[test]
    fn other_documents_are_refused() {
        for (text, error) in [
            (
                "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\nsampling: 1",
                "strict decoding error: unknown field \"sampling\"",
            ),
            (
                "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration",
                "no kind \"TracingConfiguration\" is known in version \"apiserver.config.k8s.io/v1\"",
            ),
            ("apiVersion: apiserver.config.k8s.io/v1beta1\nkind: Other", "no kind \"Other\" is known"),
            (
                "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\nkind: Other",
                "already set",
            ),
            (
                "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\nsamplingRatePerMillion: often",
                "must be a number",
            ),
            (
                "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\nendpoint: 1",
                "must be a text",
            ),
            ("[]", "it must be an object"),
            (&" ".repeat(CONFIGURATION_BYTES + 1), "more than 1048576 bytes"),
        ] {
            let refusal = TracingConfiguration::read(text.as_bytes()).unwrap_err();
            assert!(refusal.starts_with("failed to read tracing config: unable to decode"), "{refusal}");
            assert!(refusal.contains(error), "{refusal}");
        }
    }
}
