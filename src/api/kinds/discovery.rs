//! EndpointSlices.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Errors;
use super::check::{Node, fill, items_mut, same};
use super::core::endpoints::endpoint_ip;
use crate::api::field::{FieldError, quoted};
use crate::api::names;
use crate::api::value::Value;

const MOST_ENDPOINTS: usize = 1_000;
const MOST_PORTS: usize = 20_000;
const MOST_ADDRESSES: usize = 100;

/// The defaults of a slice.
pub fn default(slice: &mut Value) {
    for port in items_mut(slice, "ports") {
        fill(port, "name", "");
        fill(port, "protocol", "TCP");
    }
}

/// Checks a slice.
pub fn validate(slice: &Value, errors: &mut Errors) {
    validate_frame(slice, errors);
    validate_endpoints(slice, errors);
}

fn validate_frame(slice: &Value, errors: &mut Errors) {
    Node::of(slice, "addressType").need_one_of(errors, &["FQDN", "IPv4", "IPv6"]);
    let ports = Node::of(slice, "ports");
    if ports.len() > MOST_PORTS {
        errors.push(FieldError::too_many(&ports.path, ports.len(), MOST_PORTS));
        return;
    }
    let mut seen = BTreeSet::new();
    for port in ports.items() {
        let name = port.child("name");
        name.syntax_if_set(errors, names::dns_label);
        if !seen.insert(name.text()) {
            errors.push(FieldError::duplicate(&name.path, &quoted(name.text())));
        }
        port.child("protocol").one_of_if_set(errors, &["SCTP", "TCP", "UDP"]);
        if port.child("appProtocol").is_set() {
            port.child("appProtocol").syntax(errors, names::qualified_name);
        }
    }
}

fn validate_endpoints(slice: &Value, errors: &mut Errors) {
    let endpoints = Node::of(slice, "endpoints");
    if endpoints.len() > MOST_ENDPOINTS {
        errors.push(FieldError::too_many(&endpoints.path, endpoints.len(), MOST_ENDPOINTS));
        return;
    }
    for endpoint in endpoints.items() {
        let addresses = endpoint.child("addresses");
        if addresses.is_empty() {
            addresses.required(errors, "must contain at least 1 address");
        } else if addresses.len() > MOST_ADDRESSES {
            errors.push(FieldError::too_many(&addresses.path, addresses.len(), MOST_ADDRESSES));
        }
        for address in addresses.items() {
            validate_address(slice.str("addressType"), &addresses, &address, errors);
        }
        if endpoint.child("nodeName").is_set() {
            endpoint.child("nodeName").syntax(errors, names::dns_subdomain);
        }
        if endpoint.child("hostname").is_set() {
            endpoint.child("hostname").syntax(errors, names::dns_label);
        }
    }
}

fn validate_address(kind: &str, list: &Node<'_>, address: &Node<'_>, errors: &mut Errors) {
    let wanted = match kind {
        "IPv4" | "IPv6" => kind,
        "FQDN" => {
            address.need_syntax(errors, |name| {
                let name = name.strip_suffix('.').unwrap_or(name);
                let wrong = names::dns_subdomain(name);
                if wrong.is_empty() && !name.contains('.') {
                    return vec![
                        "should be a domain with at least two segments separated by dots".to_owned(),
                    ];
                }
                wrong
            });
            return;
        }
        _ => return,
    };
    let Some(ip) = names::parse_ip(address.text()) else {
        address.syntax(errors, names::ip_address);
        return;
    };
    if matches!(ip, IpAddr::V4(_)) != (wanted == "IPv4") {
        let wrong = format!("must be an {wanted} address");
        errors.push(FieldError::invalid(&list.path, &address.shown(), &wrong));
    }
    endpoint_ip(address, errors);
}

/// Checks a changed slice. Endpoints that were there already are not complained about.
pub fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_frame(new, errors);
    if !same(new.get("endpoints"), old.get("endpoints")) {
        validate_endpoints(new, errors);
    }
    Node::of(new, "addressType").unchanged(&Node::of(old, "addressType"), errors);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{each_change_refused, each_refused, object};
    use super::*;

    #[test]
    fn each_rule_of_a_slice_refuses() {
        let mut base = object(
            r#"{"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"],"nodeName":"n"}],"ports":[{"port":80}]}"#,
        );
        default(&mut base);
        each_refused(
            &base,
            validate,
            &[
                (
                    "addressType",
                    r#""IPv9""#,
                    "addressType: Unsupported value: \"IPv9\": supported values: \"FQDN\", \"IPv4\", \"IPv6\"",
                ),
                ("addressType", "null", "addressType: Required value"),
                (
                    "addressType",
                    r#""IPv6""#,
                    "endpoints[0].addresses: Invalid value: \"10.0.0.1\": must be an IPv6 address",
                ),
                (
                    "endpoints.0.addresses",
                    "[]",
                    "endpoints[0].addresses: Required value: must contain at least 1 address",
                ),
                (
                    "endpoints.0.addresses",
                    r#"["x"]"#,
                    "endpoints[0].addresses[0]: Invalid value: \"x\": must be a valid IP address, (e.g.",
                ),
                ("endpoints.0.addresses", r#"["127.0.0.1"]"#, "may not be in the loopback range"),
                ("endpoints.0.nodeName", r#""A""#, "endpoints[0].nodeName: Invalid value"),
                ("endpoints.0.hostname", r#""A""#, "endpoints[0].hostname: Invalid value"),
                ("ports.0.name", r#""A""#, "ports[0].name: Invalid value: \"A\""),
                ("ports.0.protocol", r#""X""#, "ports[0].protocol: Unsupported value"),
                ("ports.0.appProtocol", r#""-""#, "ports[0].appProtocol: Invalid value"),
            ],
        );
        each_change_refused(
            &base,
            validate_update,
            &[("addressType", r#""IPv6""#, "addressType: Invalid value: \"IPv6\": field is immutable")],
        );
    }
}
