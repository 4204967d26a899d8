//! IP addresses and CIDRs in objects, and warnings about notations that are accepted but not canonical.

use std::collections::BTreeSet;
use std::net::IpAddr;

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldPath, quoted};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

/// An address as the API prints it: an IPv4-mapped IPv6 address as IPv4.
pub fn plain(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(six) => six.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

fn is_mapped(ip: IpAddr) -> bool {
    plain(ip) != ip
}

/// Warns about a non-canonical IP address.
pub fn warn_ip(path: &FieldPath, text: &str, warned: &mut WarningList) {
    let Some(ip) = names::parse_ip(text) else { return };
    let strict = text.parse::<IpAddr>().ok().filter(|ip| !is_mapped(*ip));
    let shown = quoted(text);
    if strict.is_none() {
        let better = quoted(&plain(ip).to_string());
        warned.push(format!(
            "{path}: non-standard IP address {shown} will be considered invalid in a future Kubernetes release: use {better}"
        ));
    } else if ip.is_ipv6() && ip.to_string() != text {
        let better = quoted(&ip.to_string());
        warned
            .push(format!("{path}: IPv6 address {shown} should be in RFC 5952 canonical format ({better})"));
    }
}

/// Warns about non-canonical IP addresses of a load balancer.
pub fn warn_balanced(object: &Value, warned: &mut WarningList) {
    let path = FieldPath::new("status").child("loadBalancer").child("ingress");
    let ingress = object.at(&["status", "loadBalancer", "ingress"]).map(Value::items).unwrap_or_default();
    for (index, point) in ingress.iter().enumerate() {
        warn_ip(&path.index(index), point.str("ip"), warned);
    }
}

/// Warns about a non-canonical CIDR.
pub fn warn_cidr(path: &FieldPath, text: &str, warned: &mut WarningList) {
    let Some((ip, length)) = names::parse_cidr(text) else { return };
    let before = warned.len();
    let (own, own_length) = if is_mapped(ip) { (plain(ip), length.saturating_sub(96)) } else { (ip, length) };
    let network = masked(own, own_length);
    let (shown, range) = (quoted(text), quoted(&format!("{network}/{own_length}")));
    if network != own {
        let single = quoted(&format!("{own}/{}", if ip.is_ipv6() { 128 } else { 32 }));
        warned.push(format!(
            "{path}: CIDR value {shown} is ambiguous in this context (should be {range} or {single}?)"
        ));
    }
    let (address, digits) = text.split_once('/').unwrap_or((text, ""));
    let tidy_length = digits.parse::<u8>().is_ok_and(|length| length.to_string() == digits);
    if is_mapped(ip) || !tidy_length || address.parse::<IpAddr>().is_err() {
        warned.push(format!(
            "{path}: non-standard CIDR value {shown} will be considered invalid in a future Kubernetes release: use {range}"
        ));
    }
    if warned.len() == before && ip.is_ipv6() && format!("{ip}/{length}") != text {
        let better = quoted(&format!("{ip}/{length}"));
        warned.push(format!(
            "{path}: IPv6 CIDR value {shown} should be in RFC 5952 canonical format ({better})"
        ));
    }
}

/// The network address: all bits after the prefix are zero.
fn masked(ip: IpAddr, length: u8) -> IpAddr {
    match ip {
        IpAddr::V4(four) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
            IpAddr::V4((u32::from(four) & mask).into())
        }
        IpAddr::V6(six) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
            IpAddr::V6((u128::from(six) & mask).into())
        }
    }
}

/// Whether valid addresses or CIDRs are of both IP families.
pub fn dual_stack<'a>(texts: impl Iterator<Item = &'a str>) -> bool {
    let (mut four, mut six) = (false, false);
    for text in texts {
        let ip = names::parse_ip(text).or_else(|| names::parse_cidr(text).map(|(ip, _)| ip));
        match ip.map(plain) {
            Some(IpAddr::V4(_)) => four = true,
            Some(IpAddr::V6(_)) => six = true,
            None => {}
        }
    }
    four && six
}

/// The addresses of a list, or of a field of its items.
pub fn listed<'a>(list: &'a Value, field: &str) -> BTreeSet<&'a str> {
    let text = |one: &'a Value| if field.is_empty() { one.as_str() } else { Some(one.str(field)) };
    list.items().iter().filter_map(text).collect()
}

/// Checks an address strictly unless the old object had it.
pub fn unless_known(path: &FieldPath, text: &str, known: &BTreeSet<&str>, errors: &mut ErrorList) {
    if !known.contains(text) {
        pilothouse_apimachinery::meta::texts(errors, path, text, names::ip_address(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_spellings_are_named_with_the_better_one() {
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
        for (text, wanted) in table {
            let mut warned = WarningList::new();
            warn_ip(&FieldPath::new("a"), text, &mut warned);
            assert_eq!(warned.is_empty(), wanted.is_empty(), "{text}: {warned:?}");
            assert!(warned.iter().all(|warning| warning.ends_with(wanted)), "{text}: {warned:?}");
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
        for (text, wanted) in table {
            let mut warned = WarningList::new();
            warn_cidr(&FieldPath::new("a"), text, &mut warned);
            assert_eq!(warned.is_empty(), wanted.is_empty(), "{text}: {warned:?}");
            assert!(warned.iter().all(|warning| warning.ends_with(wanted)), "{text}: {warned:?}");
        }
        assert!(
            dual_stack(["10.0.0.1", "::1"].into_iter()) && !dual_stack(["10.0.0.1", "10.0.0.2"].into_iter())
        );
    }
}
