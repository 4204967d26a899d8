//! Endpoints.

use std::net::IpAddr;

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use crate::address;
use crate::allowed::core_v1;
use crate::{KindRules, UpdateRules, ValidationRules, WarningRules};

/// The rules of Endpoints.
pub const RULES: KindRules = KindRules {
    update: UpdateRules::CREATE_ON_UPDATE,
    validation: ValidationRules { validate, validate_update, ..ValidationRules::DEFAULT },
    warnings: WarningRules { warn, ..WarningRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// Checks that an address is no loopback, link-local, multicast or unspecified address.
pub fn validate_endpoint_ip(node: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(ip) = names::parse_ip(node.text()).map(address::unmap) else {
        node.invalid_text(errors, "must be a valid IP address");
        return;
    };
    let (link_local, link_local_multicast) = match ip {
        IpAddr::V4(ip) => (ip.is_link_local(), ip.octets().starts_with(&[224, 0, 0])),
        IpAddr::V6(ip) => {
            (ip.is_unicast_link_local(), matches!(ip.segments(), [first, ..] if first & 0xff0f == 0xff02))
        }
    };
    if ip.is_unspecified() {
        node.invalid(errors, &format!("may not be unspecified ({})", node.text()));
    }
    if ip.is_loopback() {
        node.invalid(errors, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    if link_local {
        node.invalid(errors, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if link_local_multicast {
        node.invalid(errors, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

/// Checks endpoints.
fn validate(endpoints: &Value, errors: &mut ErrorList) {
    for subset in FieldValue::top_level(endpoints, "subsets").items() {
        let lists = [subset.child("addresses"), subset.child("notReadyAddresses")];
        if lists.iter().all(FieldValue::is_empty) {
            subset.required(errors, "must specify `addresses` or `notReadyAddresses`");
        }
        for address in lists.iter().flat_map(FieldValue::items) {
            let ip = address.child("ip");
            address::validate_ip(&ip.path, ip.text(), address::NOTHING_KNOWN, errors);
            address.child("hostname").syntax_if_set(errors, names::dns_label);
            if address.child("nodeName").is_set() {
                address.child("nodeName").syntax(errors, names::dns_subdomain);
            }
            validate_endpoint_ip(&address.child("ip"), errors);
        }
        let ports = subset.child("ports");
        for port in ports.items() {
            let name = port.child("name");
            if ports.len() > 1 && name.is_empty() {
                name.required(errors, "");
            }
            name.syntax_if_set(errors, names::dns_label);
            port.child("port").port(errors);
            port.child("protocol").need_one_of(errors, core_v1::EndpointPort::PROTOCOL);
            if port.child("appProtocol").is_set() {
                port.child("appProtocol").syntax(errors, names::qualified_name);
            }
        }
    }
}

/// Checks updated Endpoints. Addresses that the old object had are accepted.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    if !same(new.get("subsets"), old.get("subsets")) {
        validate(new, errors);
    }
}

/// Warns about non-canonical addresses, except for Endpoints of the endpoints controller, which copies them from pods.
fn warn(endpoints: &Value, _old: Option<&Value>, warnings: &mut WarningList) {
    let manager = meta::metadata(endpoints).get_path(&["labels", "endpoints.kubernetes.io/managed-by"]);
    if manager.and_then(Value::as_str) == Some("endpoint-controller") {
        return;
    }
    for (index, subset) in endpoints.get("subsets").map(Value::items).unwrap_or_default().iter().enumerate() {
        for list in ["addresses", "notReadyAddresses"] {
            let addresses = subset.get(list).map(Value::items).unwrap_or_default();
            for (position, address) in addresses.iter().enumerate() {
                let path = FieldPath::new("subsets").index(index).child(list).index(position).child("ip");
                address::warn_ip(&path, address.str("ip"), warnings);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, error_messages, object};

    use super::*;

    #[test]
    fn endpoints_validation_refuses_each_violation() {
        let base = object(
            r#"{"subsets":[{"addresses":[{"ip":"10.0.0.1","hostname":"h"}],"ports":[{"port":80,"protocol":"TCP"}]}]}"#,
        );
        each_refused(
            &base,
            validate,
            &[
                ("subsets.0.addresses", "[]", "subsets[0]: Required value: must specify `addresses` or"),
                ("subsets.0.addresses.0.ip", r#""127.0.0.1""#, "may not be in the loopback range"),
                ("subsets.0.addresses.0.ip", r#""169.254.1.1""#, "may not be in the link-local range"),
                (
                    "subsets.0.addresses.0.ip",
                    r#""224.0.0.1""#,
                    "may not be in the link-local multicast range",
                ),
                ("subsets.0.addresses.0.ip", r#""0.0.0.0""#, "may not be unspecified (0.0.0.0)"),
                ("subsets.0.addresses.0.hostname", r#""a.b""#, "must not contain dots"),
                ("subsets.0.ports.0.port", "0", "subsets[0].ports[0].port: Invalid value: 0"),
                ("subsets.0.ports.0.protocol", r#""X""#, "subsets[0].ports[0].protocol: Unsupported value"),
                (
                    "subsets.0.ports",
                    r#"[{"name":"a","port":1,"protocol":"TCP"},{"port":2,"protocol":"TCP"}]"#,
                    "ports[1].name: Required value",
                ),
            ],
        );
        let mut errors = ErrorList::new();
        let invalid = object(r#"{"subsets":[{"addresses":[{"ip":"nope"}]}]}"#);
        validate(&invalid, &mut errors);
        assert_eq!(
            error_messages(&errors),
            [
                "subsets[0].addresses[0].ip: Invalid value: \"nope\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                "subsets[0].addresses[0].ip: Invalid value: \"nope\": must be a valid IP address",
            ]
        );
        let mut warnings = WarningList::new();
        let noncanonical = object(r#"{"subsets":[{"notReadyAddresses":[{"ip":"010.0.0.1"}]}]}"#);
        warn(&noncanonical, None, &mut warnings);
        assert!(warnings[0].starts_with("subsets[0].notReadyAddresses[0].ip: non-standard IP address"));
        errors.clear();
        validate_update(&invalid, &invalid, &mut errors);
        assert_eq!(errors, []);
    }
}
