//! The syntax of names, keys and small texts. Each check returns the error messages of the reference; an empty list means that the
//! text is valid.

use std::net::IpAddr;

use ipnet::IpNet;

/// A check of a name. `prefix`: the text is a `generateName`, to which a suffix will be appended.
pub type NameRule = fn(name: &str, prefix: bool) -> Vec<String>;

/// A check of a text that is not the name of an object.
pub type Check = fn(text: &str) -> Vec<String>;

const LABEL_LENGTH: usize = 63;
const SUBDOMAIN_LENGTH: usize = 253;
const PORT_NAME_LENGTH: usize = 15;

const QUALIFIED_FORMAT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_FORMAT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_FORMAT: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";

/// The message for a text that violates a pattern.
fn pattern_message(rule: &str, format: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{rule} (regex used for validation is '{format}')");
    }
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{format}')", examples.join(" or "))
}

/// The message for a text that is too long.
pub fn too_long(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

/// The message for a number outside of a range.
pub fn outside(lowest: i64, highest: i64) -> String {
    format!("must be between {lowest} and {highest}, inclusive")
}

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Whether the first and last byte satisfy `edge` and those between satisfy `inner`.
fn has_shape(text: &str, edge: fn(u8) -> bool, inner: fn(u8) -> bool) -> bool {
    match text.as_bytes() {
        [] => false,
        [only] => edge(*only),
        [first, middle @ .., last] => edge(*first) && edge(*last) && middle.iter().all(|byte| inner(*byte)),
    }
}

fn is_label(text: &str) -> bool {
    has_shape(text, is_lower, |byte| is_lower(byte) || byte == b'-')
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_qualified(text: &str) -> bool {
    has_shape(
        text,
        |byte| byte.is_ascii_alphanumeric(),
        |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'),
    )
}

/// A DNS label of RFC 1123.
pub fn dns_label(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > LABEL_LENGTH {
        messages.push(too_long(LABEL_LENGTH));
    }
    if !is_label(text) {
        messages.push(if is_subdomain(text) {
            "must not contain dots".to_owned()
        } else {
            pattern_message(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
                 start and end with an alphanumeric character",
                LABEL_FORMAT,
                &["my-name", "123-abc"],
            )
        });
    }
    messages
}

/// A DNS subdomain of RFC 1123: labels separated by dots.
pub fn dns_subdomain(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > SUBDOMAIN_LENGTH {
        messages.push(too_long(SUBDOMAIN_LENGTH));
    }
    if !is_subdomain(text) {
        messages.push(pattern_message(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character",
            SUBDOMAIN_FORMAT,
            &["example.com"],
        ));
    }
    messages
}

/// A DNS subdomain whose labels may contain underscores, like those of SRV records.
pub fn underscored_subdomain(text: &str) -> Vec<String> {
    let is_valid = |label: &str| {
        let label = label.strip_prefix('_').unwrap_or(label);
        has_shape(label, is_lower, |byte| is_lower(byte) || matches!(byte, b'-' | b'_'))
    };
    let mut messages = Vec::new();
    if text.len() > SUBDOMAIN_LENGTH {
        messages.push(too_long(SUBDOMAIN_LENGTH));
    }
    if !text.split('.').all(is_valid) {
        messages.push(pattern_message(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and \
             must start and end with an alphanumeric character",
            SUBDOMAIN_FORMAT,
            &["example.com"],
        ));
    }
    messages
}

/// A DNS label of RFC 1035, which begins with a letter.
pub fn dns_1035_label(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > LABEL_LENGTH {
        messages.push(too_long(LABEL_LENGTH));
    }
    if !is_label(text) || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        messages.push(pattern_message(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    messages
}

/// A subdomain with a wildcard as its first label.
pub fn wildcard_subdomain(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > SUBDOMAIN_LENGTH {
        messages.push(too_long(SUBDOMAIN_LENGTH));
    }
    if !text.strip_prefix("*.").is_some_and(is_subdomain) {
        messages.push(pattern_message(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
             consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            &format!(r"\*\.{SUBDOMAIN_FORMAT}"),
            &["*.example.com"],
        ));
    }
    messages
}

/// A segment of a URL path: the rule for names of kinds such as Role.
pub fn path_segment(text: &str, prefix: bool) -> Vec<String> {
    if !prefix && matches!(text, "." | "..") {
        return vec![format!("may not be '{text}'")];
    }
    ["/", "%"]
        .into_iter()
        .filter(|part| text.contains(part))
        .map(|part| format!("may not contain '{part}'"))
        .collect()
}

/// The part of a `generateName` that must be valid by itself. A suffix follows, so a final dash is allowed.
fn mask_trailing_dash(text: &str, prefix: bool) -> String {
    match text.strip_suffix('-') {
        Some(rest) if prefix && !rest.is_empty() => {
            let head: String = rest.chars().take(rest.chars().count() - 1).collect();
            head + "a"
        }
        _ => text.to_owned(),
    }
}

/// Names that are DNS subdomains: most kinds.
pub fn subdomain_name(name: &str, prefix: bool) -> Vec<String> {
    dns_subdomain(&mask_trailing_dash(name, prefix))
}

/// Names that are DNS labels.
pub fn label_name(name: &str, prefix: bool) -> Vec<String> {
    dns_label(&mask_trailing_dash(name, prefix))
}

/// Names that are DNS labels and begin with a letter.
pub fn dns_1035_name(name: &str, prefix: bool) -> Vec<String> {
    dns_1035_label(&mask_trailing_dash(name, prefix))
}

/// Names that are IP addresses. Only the canonical form is valid, or two objects could stand for one address.
pub fn ip_name(name: &str, _prefix: bool) -> Vec<String> {
    let Some(address) = parse_ip(name) else { return ip_address(name) };
    let mut messages = Vec::new();
    if name.parse::<IpAddr>().is_err() {
        messages.push("must not have leading 0s".to_owned());
    }
    if matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
        messages.push("must not be an IPv4-mapped IPv6 address".to_owned());
    }
    if messages.is_empty() && address.to_string() != name {
        messages.push(format!("must be in canonical form ({})", super::field::quoted(&address.to_string())));
    }
    messages
}

/// Names of the form `<group>.<resource>`.
pub fn group_resource_name(name: &str, _prefix: bool) -> Vec<String> {
    let Some((group, resource)) = name.rsplit_once('.') else {
        return vec!["name must be in the form of <group>.<resource>".to_owned()];
    };
    let group = dns_subdomain(group).into_iter().map(|message| format!("the group segment {message}"));
    let resource =
        dns_1035_label(resource).into_iter().map(|message| format!("the resource segment {message}"));
    group.chain(resource).collect()
}

/// The key of a label: a name with an optional DNS subdomain before it.
pub fn qualified_name(text: &str) -> Vec<String> {
    let rule = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                alphanumeric character";
    let examples = ["MyName", "my.name", "123-abc"];
    let mut messages = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                messages.push("prefix part must be non-empty".to_owned());
            } else {
                messages.extend(
                    dns_subdomain(prefix).into_iter().map(|message| format!("prefix part {message}")),
                );
            }
            *name
        }
        _ => {
            return vec![format!(
                "a qualified name {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                pattern_message(rule, QUALIFIED_FORMAT, &examples)
            )];
        }
    };
    if name.is_empty() {
        messages.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_LENGTH {
        messages.push(format!("name part {}", too_long(LABEL_LENGTH)));
    }
    if !is_qualified(name) {
        messages.push(format!("name part {}", pattern_message(rule, QUALIFIED_FORMAT, &examples)));
    }
    messages
}

/// The value of a label.
pub fn label_value(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > LABEL_LENGTH {
        messages.push(too_long(LABEL_LENGTH));
    }
    if !text.is_empty() && !is_qualified(text) {
        messages.push(pattern_message(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character",
            &format!("({QUALIFIED_FORMAT})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    messages
}

/// Parses an IP address. Leading zeros are accepted in IPv4, as the API always has.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || part.len() > 3 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| IpAddr::from(octets))
}

/// An IP address in the lenient syntax.
pub fn ip_address(text: &str) -> Vec<String> {
    if parse_ip(text).is_none() {
        return vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()];
    }
    Vec::new()
}

/// Parses a CIDR: an address and a prefix length. The address need not be the first of its network.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let address = parse_ip(address)?;
    if length.is_empty() || length.len() > 3 || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    IpNet::new(address, length.parse().ok()?).ok()
}

/// A CIDR in the lenient syntax of [`parse_cidr`].
pub fn cidr(text: &str) -> Vec<String> {
    if parse_cidr(text).is_none() {
        return vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()];
    }
    Vec::new()
}

/// A number with inclusive bounds.
pub fn in_range(number: i64, lowest: i64, highest: i64) -> Vec<String> {
    if (lowest..=highest).contains(&number) { Vec::new() } else { vec![outside(lowest, highest)] }
}

/// The name of a port: an IANA service name.
pub fn port_name(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > PORT_NAME_LENGTH {
        messages.push(too_long(PORT_NAME_LENGTH));
    }
    if text.is_empty() || !text.bytes().all(|byte| is_lower(byte) || byte == b'-') {
        messages.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        messages.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        messages.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        messages.push("must not begin or end with a hyphen".to_owned());
    }
    messages
}

/// A percentage such as `50%`.
pub fn percent(text: &str) -> Vec<String> {
    let digits = text.strip_suffix('%').unwrap_or_default();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return vec![pattern_message(
            "a valid percent string must be a numeric string followed by an ending '%'",
            "[0-9]+%",
            &["1%", "93%"],
        )];
    }
    Vec::new()
}

/// The name of an HTTP header.
pub fn header_name(text: &str) -> Vec<String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return vec![pattern_message(
            "a valid HTTP header must consist of alphanumeric characters or '-'",
            "[-A-Za-z0-9]+",
            &["X-Header-Name"],
        )];
    }
    Vec::new()
}

/// The name of an environment variable: anything printable except the equals sign.
pub fn env_name(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.is_empty() {
        messages.push("environment variable name must be non-empty".to_owned());
    }
    if !text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=') {
        messages.push(
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned(),
        );
    }
    messages
}

/// The name of an environment variable in the stricter syntax that shells accept.
pub fn strict_env_name(text: &str) -> Vec<String> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let mut messages = Vec::new();
    if text.is_empty()
        || text.starts_with(|first: char| first.is_ascii_digit())
        || !text.bytes().all(is_valid)
    {
        messages.push(pattern_message(
            "a valid environment variable name must consist of alphabetic characters, digits, '_', '-', or '.', and must \
             not start with a digit",
            "[-._a-zA-Z][-._a-zA-Z0-9]*",
            &["my.env-name", "MY_ENV.NAME", "MyEnvName1"],
        ));
    }
    messages.extend(parent_reference_error(text));
    messages
}

/// The error for a name that would lead out of its directory.
fn parent_reference_error(text: &str) -> Option<String> {
    match text {
        "." | ".." => Some(format!("must not be '{text}'")),
        _ if text.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

/// A key of a ConfigMap or Secret: it becomes the name of a file.
pub fn config_key(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > SUBDOMAIN_LENGTH {
        messages.push(too_long(SUBDOMAIN_LENGTH));
    }
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if text.is_empty() || !text.bytes().all(is_valid) {
        messages.push(pattern_message(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    messages.extend(parent_reference_error(text));
    messages
}

/// A path behind a domain, as in names of handlers and conditions: `(message, the part it is about)`.
pub fn domain_prefixed_path(text: &str) -> Vec<(String, String)> {
    let Some((host, path)) = text.split_once('/').filter(|(host, path)| !host.is_empty() && !path.is_empty())
    else {
        let message = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        return vec![(message.to_owned(), text.to_owned())];
    };
    let mut messages: Vec<(String, String)> =
        dns_subdomain(host).into_iter().map(|message| (message, host.to_owned())).collect();
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    if !path.bytes().all(is_valid) {
        messages.push((
            pattern_message("Invalid path", r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+", &[]),
            path.to_owned(),
        ));
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_accepts_valid_texts() {
        let table: [(Check, &[&str]); 13] = [
            (dns_label, &["a", "a-b", "0a"]),
            (dns_subdomain, &["a", "a.b-c.d", "1.2"]),
            (dns_1035_label, &["a", "a1-b"]),
            (wildcard_subdomain, &["*.a", "*.a.b"]),
            (qualified_name, &["a", "A_b.c", "example.com/Name"]),
            (label_value, &["", "A", "a_b.c-d"]),
            (ip_address, &["10.0.0.1", "010.0.0.1", "::1", "2001:db8::ffff"]),
            (cidr, &["10.0.0.0/8", "2001:db8::/64"]),
            (port_name, &["http", "a-1"]),
            (config_key, &["tls.crt", "A_b-c", ".a"]),
            (env_name, &["A", "1 b", "a.b"]),
            (strict_env_name, &["A", "-1", "_.b"]),
            (percent, &["0%", "100%"]),
        ];
        for (check, texts) in table {
            for text in texts {
                assert_eq!(check(text), Vec::<String>::new(), "{text}");
            }
        }
    }

    #[test]
    fn each_check_refuses_invalid_texts_with_the_reference_message() {
        let long = "a".repeat(254);
        let table: [(Check, &str, &str); 20] = [
            (dns_label, "a.b", "must not contain dots"),
            (dns_label, "-a", "a lowercase RFC 1123 label must consist of"),
            (dns_subdomain, "a..b", "(e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*"),
            (dns_subdomain, &long, "must be no more than 253 characters"),
            (dns_1035_label, "1a", "start with an alphabetic character"),
            (wildcard_subdomain, "*a", "a wildcard DNS-1123 subdomain must start with '*.'"),
            (underscored_subdomain, "a_", "lower case alphanumeric characters, '_', '-' or '.'"),
            (qualified_name, "/a", "prefix part must be non-empty"),
            (qualified_name, "a/", "name part must be non-empty"),
            (qualified_name, "a/b/c", "with an optional DNS subdomain prefix and '/'"),
            (qualified_name, "A B", "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex"),
            (label_value, "-", "a valid label must be an empty string or"),
            (ip_address, "256.1.1.1", "must be a valid IP address"),
            (cidr, "10.0.0.0/33", "must be a valid CIDR value"),
            (port_name, "12", "must contain at least one letter (a-z)"),
            (config_key, "..a", "must not start with '..'"),
            (env_name, "a=b", "printable ASCII characters other than '='"),
            (strict_env_name, "1a", "must not start with a digit (e.g. 'my.env-name', "),
            (strict_env_name, "..a", "must not start with '..'"),
            (header_name, "a b", "a valid HTTP header must consist of"),
        ];
        for (check, text, expected) in table {
            let messages = check(text);
            assert!(messages.iter().any(|message| message.contains(expected)), "{text}: {messages:?}");
        }
    }

    #[test]
    fn generate_name_prefix_may_end_with_a_dash() {
        assert!(subdomain_name("web-", true).is_empty());
        assert!(!subdomain_name("web-", false).is_empty());
        assert!(!subdomain_name("-", true).is_empty());
    }

    #[test]
    fn path_segment_name_contains_no_path_syntax() {
        assert_eq!(path_segment("..", false), ["may not be '..'"]);
        assert!(path_segment("..", true).is_empty());
        assert_eq!(path_segment("a/%", false), ["may not contain '/'", "may not contain '%'"]);
    }

    #[test]
    fn group_resource_name_has_a_group() {
        assert_eq!(group_resource_name("pods", false), ["name must be in the form of <group>.<resource>"]);
        assert!(group_resource_name("apps.deployments", false).is_empty());
    }

    #[test]
    fn ip_name_is_a_canonical_address() {
        assert!(ip_name("2001:db8::1", false).is_empty());
        assert_eq!(ip_name("010.0.0.1", false), ["must not have leading 0s"]);
        assert_eq!(ip_name("::ffff:1.2.3.4", false), ["must not be an IPv4-mapped IPv6 address"]);
        assert_eq!(ip_name("2001:DB8::1", false), ["must be in canonical form (\"2001:db8::1\")"]);
    }
}
