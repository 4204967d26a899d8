//! The client configuration of webhooks: a URL, or a service of the cluster.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::names;

const DESIRED_FORMAT: &str = "; desired format: https://host[/path]";

/// The parts of a URL that are validated.
#[derive(Debug, Default, PartialEq, Eq)]
struct Url<'a> {
    scheme: String,
    user: Option<&'a str>,
    host: &'a str,
    query: &'a str,
    fragment: &'a str,
}

/// Parses a URL, with the errors of Go's `net/url`.
fn parse(text: &str) -> Result<Url<'_>, String> {
    let fail = |detail: &str| Err(format!("parse {}: {detail}", quoted(text)));
    if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return fail("net/url: invalid control character in URL");
    }
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let scheme_end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)));
    let (scheme, rest) = match scheme_end {
        Some(0) if rest.starts_with(':') => return fail("missing protocol scheme"),
        Some(end) if rest.get(end..).is_some_and(|rest| rest.starts_with(':')) => {
            let starts_with_letter = rest.as_bytes().first().is_some_and(u8::is_ascii_alphabetic);
            match (starts_with_letter, rest.split_at_checked(end)) {
                (true, Some((scheme, rest))) => (scheme.to_lowercase(), rest.get(1..).unwrap_or_default()),
                _ => return fail("first path segment in URL cannot contain colon"),
            }
        }
        _ => (String::new(), rest),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.strip_prefix("//").map(|rest| rest.split_once('/').map_or(rest, |(host, _)| host));
    let (user, host) = match authority.unwrap_or_default().rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority.unwrap_or_default()),
    };
    if host.contains(' ') {
        return fail("invalid character \" \" in host name");
    }
    let port = host.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map(|(_, port)| port);
    if let Some(port) = port.filter(|port| !port.bytes().all(|byte| byte.is_ascii_digit())) {
        return fail(&format!("invalid port {} after host", quoted(&format!(":{port}"))));
    }
    Ok(Url { scheme, user, host, query, fragment })
}

/// Checks the URL of a webhook.
pub fn validate_url(node: &FieldValue<'_>, errors: &mut ErrorList) {
    let url = match parse(node.text()) {
        Ok(url) => url,
        Err(detail) => {
            node.required(errors, &format!("url must be a valid URL: {detail}{DESIRED_FORMAT}"));
            return;
        }
    };
    let mut invalid = |value: &str, detail: &str| {
        errors.push(FieldError::invalid(&node.path, &quoted(value), detail));
    };
    if url.scheme != "https" {
        invalid(&url.scheme, &format!("'https' is the only allowed URL scheme{DESIRED_FORMAT}"));
    }
    if url.host.is_empty() {
        invalid("", &format!("host must be specified{DESIRED_FORMAT}"));
    }
    if let Some(user) = url.user {
        invalid(user, "user information is not permitted in the URL");
    }
    if !url.fragment.is_empty() {
        invalid(url.fragment, "fragments are not permitted in the URL");
    }
    if !url.query.is_empty() {
        invalid(url.query, "query parameters are not permitted in the URL");
    }
}

/// Validates the service of a webhook. `swapped`: like the reference's callers that confuse name and namespace, so that their
/// messages name the other field.
pub fn validate_service(node: &FieldValue<'_>, swapped: bool, errors: &mut ErrorList) {
    let (name, namespace) = if swapped { ("namespace", "name") } else { ("name", "namespace") };
    for (field, rendered) in [(name, "name"), (namespace, "namespace")] {
        if node.child(field).is_empty() {
            node.child(rendered).required(errors, &format!("service {rendered} is required"));
        }
    }
    let port = node.child("port");
    let details = names::in_range(port.number(), 1, 65_535);
    if !details.is_empty() {
        let detail = format!("port is not valid: {}", details.join(", "));
        errors.push(FieldError::invalid(&port.path, &port.number().to_string(), &detail));
    }
    validate_path(&node.child("path"), errors);
}

fn validate_path(node: &FieldValue<'_>, errors: &mut ErrorList) {
    let text = node.text();
    if matches!(text, "" | "/") {
        return;
    }
    if text == "//" {
        node.invalid(errors, "segment[0] may not be empty");
        return;
    }
    if !text.starts_with('/') {
        node.invalid(errors, "must start with a '/'");
    }
    let mut rest = text.chars();
    rest.next();
    let rest = rest.as_str();
    for (index, segment) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if segment.is_empty() {
            node.invalid(errors, &format!("segment[{index}] may not be empty"));
            continue;
        }
        for detail in names::dns_subdomain(segment) {
            node.invalid(errors, &format!("segment[{index}]: {detail}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn webhook_url_validation_refuses_each_violation() {
        each_refused(
            &object(r#"{"url":"https://a.b:8443/c"}"#),
            |object, errors| validate_url(&FieldValue::top_level(object, "url"), errors),
            &[
                (
                    "url",
                    r#""http://x""#,
                    "url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format",
                ),
                (
                    "url",
                    r#""https:///x""#,
                    "url: Invalid value: \"\": host must be specified; desired format",
                ),
                (
                    "url",
                    r#""https://u:p@x""#,
                    "url: Invalid value: \"u:p\": user information is not permitted in the URL",
                ),
                (
                    "url",
                    r##""https://x#f""##,
                    "url: Invalid value: \"f\": fragments are not permitted in the URL",
                ),
                (
                    "url",
                    r#""https://x?q=1""#,
                    "url: Invalid value: \"q=1\": query parameters are not permitted in the URL",
                ),
                (
                    "url",
                    r#""://x""#,
                    "url: Required value: url must be a valid URL: parse \"://x\": missing protocol scheme; desired",
                ),
                ("url", r#""https://x:y""#, "invalid port \":y\" after host"),
            ],
        );
    }

    #[test]
    fn webhook_service_validation_refuses_each_violation() {
        each_refused(
            &object(r#"{"service":{"name":"s","namespace":"n","port":443,"path":"/a/b/"}}"#),
            |object, errors| validate_service(&FieldValue::top_level(object, "service"), true, errors),
            &[
                ("service.name", "null", "service.namespace: Required value: service namespace is required"),
                ("service.namespace", "null", "service.name: Required value: service name is required"),
                (
                    "service.port",
                    "0",
                    "service.port: Invalid value: 0: port is not valid: must be between 1 and 65535",
                ),
                ("service.path", r#""//""#, "segment[0] may not be empty"),
                ("service.path", r#""/a//b""#, "segment[1] may not be empty"),
                ("service.path", r#""/A""#, "segment[0]: a lowercase RFC 1123 subdomain"),
                ("service.path", r#""xa""#, "must start with a '/'"),
            ],
        );
        each_refused(
            &object(r#"{"service":{"name":"s","namespace":"n","port":443}}"#),
            |object, errors| validate_service(&FieldValue::top_level(object, "service"), false, errors),
            &[("service.name", "null", "service.name: Required value: service name is required")],
        );
    }
}
