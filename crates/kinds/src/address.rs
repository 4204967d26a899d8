//! IP addresses and CIDRs in objects, and warnings about notations that are accepted but not canonical.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::{FieldPath, quoted};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

/// Converts an IPv4-mapped IPv6 address to IPv4.
pub fn unmap(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(six) => six.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

fn is_ipv4_mapped(ip: IpAddr) -> bool {
    unmap(ip) != ip
}

/// Warns about a non-canonical IP address.
pub fn warn_ip(path: &FieldPath, text: &str, warnings: &mut WarningList) {
    let Some(ip) = names::parse_ip(text) else { return };
    let strict = text.parse::<IpAddr>().ok().filter(|ip| !is_ipv4_mapped(*ip));
    let rendered = quoted(text);
    if strict.is_none() {
        let canonical = quoted(&unmap(ip).to_string());
        warnings.push(format!(
            "{path}: non-standard IP address {rendered} will be considered invalid in a future Kubernetes release: use {canonical}"
        ));
    } else if ip.is_ipv6() && ip.to_string() != text {
        let canonical = quoted(&ip.to_string());
        warnings.push(format!(
            "{path}: IPv6 address {rendered} should be in RFC 5952 canonical format ({canonical})"
        ));
    }
}

/// Warns about non-canonical IP addresses of a load balancer.
pub fn warn_load_balancer(object: &Value, warnings: &mut WarningList) {
    let path = FieldPath::new("status").child("loadBalancer").child("ingress");
    let ingress =
        object.get_path(&["status", "loadBalancer", "ingress"]).map(Value::items).unwrap_or_default();
    for (index, endpoint) in ingress.iter().enumerate() {
        warn_ip(&path.index(index), endpoint.str("ip"), warnings);
    }
}

/// Warns about a non-canonical CIDR.
pub fn warn_cidr(path: &FieldPath, text: &str, warnings: &mut WarningList) {
    let Some(cidr) = names::parse_cidr(text) else { return };
    let (ip, length) = (cidr.addr(), cidr.prefix_len());
    let old_len = warnings.len();
    let (unmapped, unmapped_length) =
        if is_ipv4_mapped(ip) { (unmap(ip), length.saturating_sub(96)) } else { (ip, length) };
    let network = IpNet::new(unmapped, unmapped_length).map_or(unmapped, |range| range.network());
    let (rendered, range) = (quoted(text), quoted(&format!("{network}/{unmapped_length}")));
    if network != unmapped {
        let single = quoted(&format!("{unmapped}/{}", if ip.is_ipv6() { 128 } else { 32 }));
        warnings.push(format!(
            "{path}: CIDR value {rendered} is ambiguous in this context (should be {range} or {single}?)"
        ));
    }
    if is_ipv4_mapped(ip) || strict_cidr(text).is_none() {
        warnings.push(format!(
            "{path}: non-standard CIDR value {rendered} will be considered invalid in a future Kubernetes release: use {range}"
        ));
    }
    if warnings.len() == old_len && ip.is_ipv6() && cidr.to_string() != text {
        let canonical = quoted(&cidr.to_string());
        warnings.push(format!(
            "{path}: IPv6 CIDR value {rendered} should be in RFC 5952 canonical format ({canonical})"
        ));
    }
}

/// Whether valid addresses or CIDRs are of both IP families.
pub fn is_dual_stack<'a>(texts: impl Iterator<Item = &'a str>) -> bool {
    let (mut has_ipv4, mut has_ipv6) = (false, false);
    for text in texts {
        let ip = names::parse_ip(text).or_else(|| names::parse_cidr(text).map(|cidr| cidr.addr()));
        match ip.map(unmap) {
            Some(IpAddr::V4(_)) => has_ipv4 = true,
            Some(IpAddr::V6(_)) => has_ipv6 = true,
            None => {}
        }
    }
    has_ipv4 && has_ipv6
}

/// The strings of a list, or of a field of its items.
pub fn collect_strings<'a>(list: &'a Value, field: &str) -> BTreeSet<&'a str> {
    let text = |item: &'a Value| if field.is_empty() { item.as_str() } else { Some(item.str(field)) };
    list.items().iter().filter_map(text).collect()
}

/// Validates an address of a field that is older than the strict rules, unless the old object had it.
pub fn validate_ip(path: &FieldPath, text: &str, known: &BTreeSet<&str>, errors: &mut ErrorList) {
    if known.contains(text) {
        return;
    }
    let mut problems = names::ip_address(text);
    if problems.is_empty() && errors.features().has(Feature::StrictIPCIDRValidation) {
        let problem = match text.parse::<IpAddr>() {
            Err(_) => Some("must not have leading 0s"),
            Ok(ip) if is_ipv4_mapped(ip) => Some("must not be an IPv4-mapped IPv6 address"),
            Ok(_) => None,
        };
        problems.extend(problem.map(str::to_owned));
    }
    meta::add_invalid(errors, path, text, problems);
}

/// Validates a CIDR of a field that is older than the strict rules, unless the old object had it.
pub fn validate_cidr(path: &FieldPath, text: &str, known: &BTreeSet<&str>, errors: &mut ErrorList) {
    if known.contains(text) {
        return;
    }
    let mut problems = names::cidr(text);
    if problems.is_empty() && errors.features().has(Feature::StrictIPCIDRValidation) {
        let problem = match strict_cidr(text) {
            None => Some("must not have leading 0s in IP or prefix length"),
            Some(cidr) if is_ipv4_mapped(cidr.addr()) => Some("must not have an IPv4-mapped IPv6 address"),
            Some(cidr) if cidr.addr() != cidr.network() => {
                Some("must not have bits set beyond the prefix length")
            }
            Some(_) => None,
        };
        problems.extend(problem.map(str::to_owned));
    }
    meta::add_invalid(errors, path, text, problems);
}

/// A CIDR without leading zeros.
fn strict_cidr(text: &str) -> Option<IpNet> {
    let (address, digits) = text.split_once('/')?;
    let length: u8 = digits.parse().ok().filter(|length: &u8| length.to_string() == digits)?;
    IpNet::new(address.parse().ok()?, length).ok()
}

/// What an object without a predecessor had: nothing.
pub const NOTHING_KNOWN: &BTreeSet<&str> = &BTreeSet::new();

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::features::EnabledFeatures;

    use super::*;

    #[test]
    fn warnings_name_the_canonical_spelling() {
        let table = [
            ("10.0.0.1", ""),
            ("2001:db8::1", ""),
            (
                "010.0.0.1",
                "a: non-standard IP address \"010.0.0.1\" will be considered invalid in a future Kubernetes release: use \"10.0.0.1\"",
            ),
            ("::ffff:1.2.3.4", "use \"1.2.3.4\""),
            (
                "2001:DB8::1",
                "a: IPv6 address \"2001:DB8::1\" should be in RFC 5952 canonical format (\"2001:db8::1\")",
            ),
            ("nope", ""),
        ];
        for (text, expected) in table {
            let mut warnings = WarningList::new();
            warn_ip(&FieldPath::new("a"), text, &mut warnings);
            assert_eq!(warnings.is_empty(), expected.is_empty(), "{text}: {warnings:?}");
            assert!(warnings.iter().all(|warning| warning.ends_with(expected)), "{text}: {warnings:?}");
        }
        let table = [
            ("10.0.0.0/8", ""),
            (
                "10.0.0.1/8",
                "a: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)",
            ),
            ("010.0.0.0/8", "use \"10.0.0.0/8\""),
            ("10.0.0.0/08", "use \"10.0.0.0/8\""),
            ("2001:DB8::/64", "canonical format (\"2001:db8::/64\")"),
        ];
        for (text, expected) in table {
            let mut warnings = WarningList::new();
            warn_cidr(&FieldPath::new("a"), text, &mut warnings);
            assert_eq!(warnings.is_empty(), expected.is_empty(), "{text}: {warnings:?}");
            assert!(warnings.iter().all(|warning| warning.ends_with(expected)), "{text}: {warnings:?}");
        }
        assert!(
            is_dual_stack(["10.0.0.1", "::1"].into_iter())
                && !is_dual_stack(["10.0.0.1", "10.0.0.2"].into_iter())
        );
    }

    #[test]
    fn strict_rules_refuse_ambiguous_notations() {
        type Check = fn(&FieldPath, &str, &BTreeSet<&str>, &mut ErrorList);
        let strict = EnabledFeatures::RELEASE.with(Feature::StrictIPCIDRValidation);
        let problem = |check: Check, features, text: &str, known: &BTreeSet<&str>| {
            let mut errors = ErrorList::with_features(features);
            check(&FieldPath::new("a"), text, known, &mut errors);
            errors.iter().map(ToString::to_string).collect::<String>()
        };
        let table: [(Check, &str, &str); 11] = [
            (validate_ip, "10.0.0.1", ""),
            (validate_ip, "FE80:0:0::1", ""),
            (validate_ip, "010.0.0.1", "must not have leading 0s"),
            (validate_ip, "::ffff:1.2.3.4", "must not be an IPv4-mapped IPv6 address"),
            (validate_cidr, "10.0.0.0/8", ""),
            (validate_cidr, "2001:DB8:0::/64", ""),
            (validate_cidr, "010.0.0.0/8", "must not have leading 0s in IP or prefix length"),
            (validate_cidr, "10.0.0.0/08", "must not have leading 0s in IP or prefix length"),
            (validate_cidr, "::ffff:10.0.0.0/104", "must not have an IPv4-mapped IPv6 address"),
            (validate_cidr, "10.0.0.1/8", "must not have bits set beyond the prefix length"),
            (validate_cidr, "10.0.0.1/32", ""),
        ];
        for (check, text, expected) in table {
            assert_eq!(problem(check, EnabledFeatures::RELEASE, text, NOTHING_KNOWN), "", "{text}");
            let refusal = problem(check, strict, text, NOTHING_KNOWN);
            assert_eq!(refusal.is_empty(), expected.is_empty(), "{text}: {refusal}");
            assert!(refusal.ends_with(expected), "{text}: {refusal}");
            assert_eq!(problem(check, strict, text, &BTreeSet::from([text])), "", "{text} was there before");
        }
        for check in [validate_ip as Check, validate_cidr] {
            assert!(problem(check, strict, "nope", NOTHING_KNOWN).contains("must be a valid"));
        }
    }
}
