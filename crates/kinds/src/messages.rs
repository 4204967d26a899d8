//! Helpers that the rules of many kinds share: errors without a value, rendering of values as Go prints them, common checks and
//! warnings.

use std::net::IpAddr;

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{ErrorType, FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

/// Adds an Invalid error that does not repeat the value.
pub fn invalid_without_value(path: &FieldPath, errors: &mut ErrorList, detail: &str) {
    let message = format!("Invalid value: {detail}");
    errors.push(FieldError::with_message(path, ErrorType::Invalid, message));
}

/// Adds an Invalid error about a struct, of which only the Go type is printed.
pub fn invalid_struct(path: &FieldPath, kind: &str, errors: &mut ErrorList, detail: &str) {
    errors.push(FieldError::invalid(path, &format!("{kind}{{}}"), detail));
}

/// Checks that a struct is unchanged.
pub fn validate_struct_unchanged(
    new: &FieldValue<'_>,
    old: &FieldValue<'_>,
    kind: &str,
    errors: &mut ErrorList,
) {
    if !pilothouse_apimachinery::field_value::same(Some(new.value), Some(old.value)) {
        let rendered = if new.is_set() { format!("{kind}{{}}") } else { "\"null\"".to_owned() };
        errors.push(FieldError::invalid(&new.path, &rendered, meta::IMMUTABLE));
    }
}

/// A list of numbers, as Go prints it.
pub fn render_numbers(list: &FieldValue<'_>) -> String {
    if !list.is_set() {
        return "[]int32(nil)".to_owned();
    }
    let numbers: Vec<String> = list.items().map(|item| item.number().to_string()).collect();
    format!("[]int32{{{}}}", numbers.join(", "))
}

/// A list of strings, as Go prints it.
pub fn render_strings(list: &FieldValue<'_>, kind: &str) -> String {
    if list.is_empty() {
        return format!("[]{kind}(nil)");
    }
    let texts: Vec<String> = list.items().map(|item| quoted(item.text())).collect();
    format!("[]{kind}{{{}}}", texts.join(", "))
}

/// A time, as Go prints it. Objects contain it as `2006-01-02T15:04:05Z`.
pub fn render_time(node: &FieldValue<'_>) -> String {
    let text = node.text();
    match text.strip_suffix('Z').and_then(|text| text.split_once('T')) {
        Some((day, time)) => format!("{day} {time} +0000 UTC"),
        None => text.to_owned(),
    }
}

/// Checks that a counter does not decrease.
pub fn validate_not_decreased(
    new: &FieldValue<'_>,
    old: &FieldValue<'_>,
    errors: &mut ErrorList,
    detail: &str,
) {
    if new.number() < old.number() {
        errors.push(FieldError::invalid(&new.path, &new.number().to_string(), detail));
    }
}

/// Checks that a number is at most `max`.
pub fn validate_at_most(value: &FieldValue<'_>, max: i64, errors: &mut ErrorList, detail: &str) {
    if value.number() > max {
        errors.add(|| FieldError::invalid(&value.path, &value.number().to_string(), detail));
    }
}

/// Checks the counters of a status: those in `fields` are not negative, those in `bounded` not above the total.
pub fn validate_counters(status: &FieldValue<'_>, fields: &[&str], bounded: &[&str], errors: &mut ErrorList) {
    for field in fields {
        status.child(field).not_negative(errors);
    }
    let total = status.child("replicas").number();
    for field in bounded {
        validate_at_most(&status.child(field), total, errors, "cannot be greater than status.replicas");
    }
}

/// Checks the counters of a status as [`validate_counters`] does, and that no more replicas are available than are ready.
pub fn validate_replica_counters(
    status: &FieldValue<'_>,
    fields: &[&str],
    bounded: &[&str],
    errors: &mut ErrorList,
) {
    validate_counters(status, fields, bounded, errors);
    let (available, ready) = (status.child("availableReplicas"), status.child("readyReplicas").number());
    validate_at_most(&available, ready, errors, "cannot be greater than readyReplicas");
}

/// Checks conditions of the type `metav1.Condition`.
pub fn conditions(list: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_REASON_LENGTH: usize = 1_024;
    const MAX_MESSAGE_LENGTH: usize = 32 * 1_024;
    let mut seen = std::collections::BTreeSet::new();
    for condition in list.items() {
        let (kind, reason) = (condition.child("type"), condition.child("reason"));
        if !seen.insert(kind.text()) {
            errors.push(FieldError::duplicate(&kind.path, &quoted(kind.text())));
        }
        kind.syntax(errors, names::qualified_name);
        condition.child("status").one_of(errors, &["False", "True", "Unknown"]);
        if condition.child("observedGeneration").number() < 0 {
            condition.child("observedGeneration").invalid(errors, "must be greater than or equal to zero");
        }
        if condition.child("lastTransitionTime").is_empty() {
            condition.child("lastTransitionTime").required(errors, "must be set");
        }
        if reason.is_empty() {
            reason.required(errors, "must be set");
        } else {
            if !is_reason(reason.text()) {
                reason.invalid(errors, BAD_REASON);
            }
            if reason.text().len() > MAX_REASON_LENGTH {
                errors.push(FieldError::too_long(&reason.path, MAX_REASON_LENGTH));
            }
        }
        if condition.child("message").text().len() > MAX_MESSAGE_LENGTH {
            errors.push(FieldError::too_long(&condition.child("message").path, MAX_MESSAGE_LENGTH));
        }
    }
}

const BAD_REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a \
    string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. \
    'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for \
    validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

fn is_reason(text: &str) -> bool {
    let ends = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.as_bytes().first().is_some_and(u8::is_ascii_alphabetic)
        && text.as_bytes().last().is_some_and(|byte| ends(*byte))
        && text.bytes().all(|byte| ends(byte) || matches!(byte, b',' | b':'))
}

/// Warns about a name that becomes part of pod names and is no DNS label.
pub fn warn_pod_name(object: &Value, warnings: &mut WarningList) {
    let details = names::dns_label(meta::name(object));
    if !details.is_empty() {
        warnings.push(format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; \
             a DNS label is recommended: [{}]",
            details.join(" ")
        ));
    }
}

/// Whether an address is an IPv4-mapped IPv6 address.
fn is_ipv4_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

/// Whether a CIDR is written without leading zeros.
fn has_no_leading_zeros(text: &str) -> bool {
    text.split_once('/').is_some_and(|(address, length)| {
        address.parse::<IpAddr>().is_ok() && (length == "0" || !length.starts_with('0'))
    })
}

/// Checks a CIDR that must be in canonical form.
pub fn validate_canonical_cidr(node: &FieldValue<'_>, errors: &mut ErrorList) {
    let text = node.text();
    let Some(range) = names::parse_cidr(text) else {
        node.syntax(errors, names::cidr);
        return;
    };
    let canonical = range.trunc();
    if !has_no_leading_zeros(text) {
        node.invalid_text(errors, "must not have leading 0s in IP or prefix length");
    } else if is_ipv4_mapped(range.addr()) {
        node.invalid_text(errors, "must not have an IPv4-mapped IPv6 address");
    } else if canonical != range {
        node.invalid_text(errors, "must not have bits set beyond the prefix length");
    } else if text != canonical.to_string() {
        let canonical = quoted(&canonical.to_string());
        node.invalid_text(errors, &format!("must be in canonical form ({canonical})"));
    }
}

/// Checks an IP address that must be in canonical form.
pub fn validate_canonical_ip(node: &FieldValue<'_>, errors: &mut ErrorList) {
    let text = node.text();
    let Some(address) = names::parse_ip(text) else {
        node.syntax(errors, names::ip_address);
        return;
    };
    if text.parse::<IpAddr>().is_err() {
        node.invalid_text(errors, "must not have leading 0s");
    } else if is_ipv4_mapped(address) {
        node.invalid_text(errors, "must not be an IPv4-mapped IPv6 address");
    } else if text != address.to_string() {
        node.invalid_text(errors, &format!("must be in canonical form ({})", quoted(&address.to_string())));
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, error_messages, object};

    use super::*;

    #[test]
    fn canonical_cidr_refuses_other_spellings() {
        let table = [
            ("10.0.0.0/8", ""),
            ("10.1.0.0/8", "must not have bits set beyond the prefix length"),
            ("010.0.0.0/8", "must not have leading 0s in IP or prefix length"),
            ("2001:DB8::/32", "must be in canonical form (\"2001:db8::/32\")"),
            ("::ffff:0:0/96", "must not have an IPv4-mapped IPv6 address"),
            ("x", "must be a valid CIDR value"),
        ];
        for (text, expected) in table {
            let value = object(&format!("{{\"c\":\"{text}\"}}"));
            let mut errors = ErrorList::new();
            validate_canonical_cidr(&FieldValue::top_level(&value, "c"), &mut errors);
            let messages = error_messages(&errors).join("|");
            assert_eq!(messages.is_empty(), expected.is_empty(), "{text}: {messages}");
            assert!(messages.contains(expected), "{text}: {messages}");
        }
    }

    #[test]
    fn condition_validation_refuses_each_violation() {
        let base = object(
            r#"{"c":[{"type":"Ready","status":"True","reason":"Ok","lastTransitionTime":"2024-01-01T00:00:00Z"}]}"#,
        );
        each_refused(
            &base,
            |object, errors| conditions(&FieldValue::top_level(object, "c"), errors),
            &[
                ("c.0.type", r#""-""#, "c[0].type: Invalid value: \"-\": name part must consist of"),
                ("c.0.status", r#""X""#, "supported values: \"False\", \"True\", \"Unknown\""),
                ("c.0.observedGeneration", "-1", "must be greater than or equal to zero"),
                ("c.0.lastTransitionTime", "null", "c[0].lastTransitionTime: Required value: must be set"),
                ("c.0.reason", "null", "c[0].reason: Required value: must be set"),
                ("c.0.reason", r#""a b""#, "a condition reason must start with alphabetic character"),
            ],
        );
        let mut warnings = WarningList::new();
        warn_pod_name(&object(r#"{"metadata":{"name":"a.b"}}"#), &mut warnings);
        assert!(warnings[0].starts_with("metadata.name: this is used in Pod names and hostnames"));
        let time = object(r#"{"t":"2024-01-02T03:04:05Z"}"#);
        assert_eq!(render_time(&FieldValue::top_level(&time, "t")), "2024-01-02 03:04:05 +0000 UTC");
    }
}
