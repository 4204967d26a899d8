//! Words that the rules of many kinds share: findings without a value, how values are printed, common warnings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{ErrorType, FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

/// Says that something breaks a rule, without repeating the value.
pub fn omitted(path: &FieldPath, errors: &mut ErrorList, why: &str) {
    let message = format!("Invalid value: {why}");
    errors.push(FieldError::worded(path, ErrorType::Invalid, message));
}

/// Says that a structure breaks a rule; its content is not repeated, only its type.
pub fn structure(path: &FieldPath, kind: &str, errors: &mut ErrorList, why: &str) {
    errors.push(FieldError::invalid(path, &format!("{kind}{{}}"), why));
}

/// Checks that a structure is what it was.
pub fn same_structure(new: &FieldValue<'_>, old: &FieldValue<'_>, kind: &str, errors: &mut ErrorList) {
    if !pilothouse_apimachinery::field_value::same(Some(new.value), Some(old.value)) {
        let shown = if new.is_set() { format!("{kind}{{}}") } else { "\"null\"".to_owned() };
        errors.push(FieldError::invalid(&new.path, &shown, meta::IMMUTABLE));
    }
}

/// A list of numbers as messages print it.
pub fn shown_numbers(list: &FieldValue<'_>) -> String {
    if !list.is_set() {
        return "[]int32(nil)".to_owned();
    }
    let numbers: Vec<String> = list.items().map(|item| item.number().to_string()).collect();
    format!("[]int32{{{}}}", numbers.join(", "))
}

/// A list of texts as messages print it.
pub fn shown_texts(list: &FieldValue<'_>, kind: &str) -> String {
    if list.is_empty() {
        return format!("[]{kind}(nil)");
    }
    let texts: Vec<String> = list.items().map(|item| quoted(item.text())).collect();
    format!("[]{kind}{{{}}}", texts.join(", "))
}

/// A point in time as messages print it. Objects carry it as `2006-01-02T15:04:05Z`.
pub fn shown_time(node: &FieldValue<'_>) -> String {
    let text = node.text();
    match text.strip_suffix('Z').and_then(|text| text.split_once('T')) {
        Some((day, time)) => format!("{day} {time} +0000 UTC"),
        None => text.to_owned(),
    }
}

/// Says that a count is below zero in the words of a condition or counter that may not sink.
pub fn no_less(new: &FieldValue<'_>, old: &FieldValue<'_>, errors: &mut ErrorList, why: &str) {
    if new.number() < old.number() {
        errors.push(FieldError::invalid(&new.path, &new.number().to_string(), why));
    }
}

/// Says that one number is above another.
pub fn no_more(one: &FieldValue<'_>, most: i64, errors: &mut ErrorList, why: &str) {
    if one.number() > most {
        errors.add(|| FieldError::invalid(&one.path, &one.number().to_string(), why));
    }
}

/// Checks the conditions of a status in the common form.
pub fn conditions(list: &FieldValue<'_>, errors: &mut ErrorList) {
    const LONGEST_REASON: usize = 1_024;
    const LONGEST_MESSAGE: usize = 32 * 1_024;
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
            if reason.text().len() > LONGEST_REASON {
                errors.push(FieldError::too_long(&reason.path, LONGEST_REASON));
            }
        }
        if condition.child("message").text().len() > LONGEST_MESSAGE {
            errors.push(FieldError::too_long(&condition.child("message").path, LONGEST_MESSAGE));
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

/// Warns of a name that becomes part of the names of pods and is no label of the domain name system.
pub fn pod_names(object: &Value, warned: &mut WarningList) {
    let wrong = names::dns_label(meta::name(object));
    if !wrong.is_empty() {
        warned.push(format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; \
             a DNS label is recommended: [{}]",
            wrong.join(" ")
        ));
    }
}

/// Whether an address is version 4 written as version 6.
fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

/// The first address of a network.
fn network(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or_default();
            IpAddr::V4(Ipv4Addr::from(u32::from(address) & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or_default();
            IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask))
        }
    }
}

/// Whether a network is written without leading zeros.
fn is_strict_range(text: &str) -> bool {
    text.split_once('/').is_some_and(|(address, length)| {
        address.parse::<IpAddr>().is_ok() && (length == "0" || !length.starts_with('0'))
    })
}

/// Checks a network that must be written in its one canonical form.
pub fn strict_range(node: &FieldValue<'_>, errors: &mut ErrorList) {
    let text = node.text();
    let Some((address, length)) = names::parse_cidr(text) else {
        node.syntax(errors, names::cidr);
        return;
    };
    let first = network(address, length);
    if !is_strict_range(text) {
        node.invalid_text(errors, "must not have leading 0s in IP or prefix length");
    } else if is_mapped(address) {
        node.invalid_text(errors, "must not have an IPv4-mapped IPv6 address");
    } else if first != address {
        node.invalid_text(errors, "must not have bits set beyond the prefix length");
    } else if text != format!("{first}/{length}") {
        let canonical = quoted(&format!("{first}/{length}"));
        node.invalid_text(errors, &format!("must be in canonical form ({canonical})"));
    }
}

/// Checks an address that must be written in its one canonical form.
pub fn strict_address(node: &FieldValue<'_>, errors: &mut ErrorList) {
    let text = node.text();
    let Some(address) = names::parse_ip(text) else {
        node.syntax(errors, names::ip_address);
        return;
    };
    if text.parse::<IpAddr>().is_err() {
        node.invalid_text(errors, "must not have leading 0s");
    } else if is_mapped(address) {
        node.invalid_text(errors, "must not be an IPv4-mapped IPv6 address");
    } else if text != address.to_string() {
        node.invalid_text(errors, &format!("must be in canonical form ({})", quoted(&address.to_string())));
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object, said};

    use super::*;

    #[test]
    fn strict_forms_are_the_canonical_ones() {
        let table = [
            ("10.0.0.0/8", ""),
            ("10.1.0.0/8", "must not have bits set beyond the prefix length"),
            ("010.0.0.0/8", "must not have leading 0s in IP or prefix length"),
            ("2001:DB8::/32", "must be in canonical form (\"2001:db8::/32\")"),
            ("::ffff:0:0/96", "must not have an IPv4-mapped IPv6 address"),
            ("x", "must be a valid CIDR value"),
        ];
        for (text, wanted) in table {
            let value = object(&format!("{{\"c\":\"{text}\"}}"));
            let mut errors = ErrorList::new();
            strict_range(&FieldValue::of(&value, "c"), &mut errors);
            let said = said(&errors).join("|");
            assert_eq!(said.is_empty(), wanted.is_empty(), "{text}: {said}");
            assert!(said.contains(wanted), "{text}: {said}");
        }
    }

    #[test]
    fn each_rule_of_a_condition_refuses() {
        let base = object(
            r#"{"c":[{"type":"Ready","status":"True","reason":"Ok","lastTransitionTime":"2024-01-01T00:00:00Z"}]}"#,
        );
        each_refused(
            &base,
            |object, errors| conditions(&FieldValue::of(object, "c"), errors),
            &[
                ("c.0.type", r#""-""#, "c[0].type: Invalid value: \"-\": name part must consist of"),
                ("c.0.status", r#""X""#, "supported values: \"False\", \"True\", \"Unknown\""),
                ("c.0.observedGeneration", "-1", "must be greater than or equal to zero"),
                ("c.0.lastTransitionTime", "null", "c[0].lastTransitionTime: Required value: must be set"),
                ("c.0.reason", "null", "c[0].reason: Required value: must be set"),
                ("c.0.reason", r#""a b""#, "a condition reason must start with alphabetic character"),
            ],
        );
        let mut warned = WarningList::new();
        pod_names(&object(r#"{"metadata":{"name":"a.b"}}"#), &mut warned);
        assert!(warned[0].starts_with("metadata.name: this is used in Pod names and hostnames"));
        let time = object(r#"{"t":"2024-01-02T03:04:05Z"}"#);
        assert_eq!(shown_time(&FieldValue::of(&time, "t")), "2024-01-02 03:04:05 +0000 UTC");
    }
}
