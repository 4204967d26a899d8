//! EndpointSlices.

use std::collections::BTreeSet;
use std::net::IpAddr;

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, items_mut, same};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::address;
use super::core::endpoints::validate_endpoint_ip;
use super::{
    Generation, KindRules, MetaRevalidation, MetadataRules, PreparationRules, ValidationRules, WarningRules,
    WriteContext, gated, messages,
};
use crate::allowed::discovery_v1;

/// The rules of an EndpointSlice.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules {
        // A request that repeats a field that is never stored counts as a change.
        generation: Generation {
            increased_by: &[&["addressType"], &["endpoints"], &["ports"], &["metadata", "labels"]],
            counts_dropped_fields: true,
            ..Generation::FIRST
        },
        revalidation: MetaRevalidation::Whole,
        ..MetadataRules::DEFAULT
    },
    gated: gated::rows::ENDPOINT_SLICE,
    preparation: PreparationRules { prepare_create, prepare_update },
    validation: ValidationRules { validate, validate_update, ..ValidationRules::DEFAULT },
    warnings: WarningRules { warn, ..WarningRules::DEFAULT },
    ..KindRules::DEFAULT
};

const MAX_ENDPOINTS: usize = 1_000;
const MAX_PORTS: usize = 20_000;
const MAX_ADDRESSES: usize = 100;
const MAX_HINTS: usize = 8;
const MAX_TOPOLOGY_LABELS: usize = 16;

/// deprecatedTopology is dropped.
fn prepare_create(slice: &mut Value, _: &WriteContext<'_>) {
    drop_topology(slice);
}

/// The same in an update, but only if the endpoints change.
fn prepare_update(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    if !same(old.get("endpoints"), new.get("endpoints")) {
        drop_topology(new);
    }
}

fn drop_topology(slice: &mut Value) {
    for endpoint in items_mut(slice, "endpoints") {
        endpoint.remove("deprecatedTopology");
    }
}

/// Warnings about an EndpointSlice.
fn warn(slice: &Value, old: Option<&Value>, warnings: &mut WarningList) {
    if old.is_none() && slice.str("addressType") == "FQDN" {
        warnings.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
    }
    let manager = meta::metadata(slice).get_path(&["labels", "endpointslice.kubernetes.io/managed-by"]);
    let controllers = ["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"];
    if manager.and_then(Value::as_str).is_some_and(|manager| controllers.contains(&manager)) {
        return;
    }
    for endpoint in FieldValue::top_level(slice, "endpoints").items() {
        for address in endpoint.child("addresses").items() {
            address::warn_ip(&address.path, address.text(), warnings);
        }
    }
}

/// Validates an EndpointSlice.
fn validate(slice: &Value, errors: &mut ErrorList) {
    validate_ports(slice, errors);
    validate_endpoints(slice, errors);
}

fn validate_ports(slice: &Value, errors: &mut ErrorList) {
    FieldValue::top_level(slice, "addressType")
        .need_one_of(errors, discovery_v1::EndpointSlice::ADDRESS_TYPE);
    let ports = FieldValue::top_level(slice, "ports");
    if ports.len() > MAX_PORTS {
        errors.push(FieldError::too_many(&ports.path, ports.len(), MAX_PORTS));
        return;
    }
    let mut seen = BTreeSet::new();
    for port in ports.items() {
        let name = port.child("name");
        name.syntax_if_set(errors, names::dns_label);
        if !seen.insert(name.text()) {
            errors.push(FieldError::duplicate(&name.path, &quoted(name.text())));
        }
        let protocol = port.child("protocol");
        if protocol.is_set() {
            protocol.one_of(errors, discovery_v1::EndpointPort::PROTOCOL);
        } else {
            protocol.required(errors, "");
        }
        if port.child("appProtocol").is_set() {
            port.child("appProtocol").syntax(errors, names::qualified_name);
        }
    }
}

fn validate_endpoints(slice: &Value, errors: &mut ErrorList) {
    let endpoints = FieldValue::top_level(slice, "endpoints");
    if endpoints.len() > MAX_ENDPOINTS {
        errors.push(FieldError::too_many(&endpoints.path, endpoints.len(), MAX_ENDPOINTS));
        return;
    }
    for endpoint in endpoints.items() {
        let addresses = endpoint.child("addresses");
        if addresses.is_empty() {
            addresses.required(errors, "must contain at least 1 address");
        } else if addresses.len() > MAX_ADDRESSES {
            errors.push(FieldError::too_many(&addresses.path, addresses.len(), MAX_ADDRESSES));
        }
        for address in addresses.items() {
            validate_address(slice.str("addressType"), &addresses, &address, errors);
        }
        if endpoint.child("nodeName").is_set() {
            endpoint.child("nodeName").syntax(errors, names::dns_subdomain);
        }
        let topology = endpoint.child("deprecatedTopology");
        if topology.len() > MAX_TOPOLOGY_LABELS {
            errors.push(FieldError::too_many(&topology.path, topology.len(), MAX_TOPOLOGY_LABELS));
        }
        meta::validate_labels(Some(topology.value), &topology.path, errors);
        if endpoint.child("hostname").is_set() {
            endpoint.child("hostname").syntax(errors, names::dns_label);
        }
        let hints = endpoint.child("hints");
        if validate_hints(&hints.child("forZones"), names::label_value, errors) {
            validate_hints(&hints.child("forNodes"), names::dns_subdomain, errors);
        }
    }
}

/// Validates the names of hints. Returns false if there are too many.
fn validate_hints(hints: &FieldValue<'_>, check: names::Check, errors: &mut ErrorList) -> bool {
    if hints.len() > MAX_HINTS {
        errors.push(FieldError::too_many(&hints.path, hints.len(), MAX_HINTS));
        return false;
    }
    let mut seen = BTreeSet::new();
    for hint in hints.items() {
        let name = hint.child("name");
        if !seen.insert(name.text()) {
            errors.push(FieldError::duplicate(&name.path, &quoted(name.text())));
        }
        name.syntax(errors, check);
    }
    true
}

fn validate_address(kind: &str, list: &FieldValue<'_>, address: &FieldValue<'_>, errors: &mut ErrorList) {
    let family = match kind {
        "IPv4" | "IPv6" => kind,
        "FQDN" => {
            address.need_syntax(errors, |name| {
                let name = name.strip_suffix('.').unwrap_or(name);
                let details = names::dns_subdomain(name);
                if details.is_empty() && !name.contains('.') {
                    return vec![
                        "should be a domain with at least two segments separated by dots".to_owned(),
                    ];
                }
                details
            });
            return;
        }
        _ => return,
    };
    let error_count = errors.len();
    if family == "IPv6" {
        messages::validate_canonical_ip(address, errors);
    } else {
        address::validate_ip(&address.path, address.text(), address::NOTHING_KNOWN, errors);
    }
    let Some(ip) = names::parse_ip(address.text()).filter(|_| errors.len() == error_count) else { return };
    if matches!(ip.to_canonical(), IpAddr::V4(_)) != (family == "IPv4") {
        let detail = format!("must be an {family} address");
        errors.push(FieldError::invalid(&list.path, &address.render(), &detail));
    }
    validate_endpoint_ip(address, errors);
}

/// Validates an updated EndpointSlice. Unchanged endpoints are accepted.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_ports(new, errors);
    if !same(new.get("endpoints"), old.get("endpoints")) {
        validate_endpoints(new, errors);
    }
    if new.str("addressType") != old.str("addressType") {
        FieldValue::top_level(new, "addressType").invalid_text(errors, meta::IMMUTABLE);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::super::testing::{context, filled};
    use super::super::{Kind, before_update, rules};
    use super::*;

    #[test]
    fn dropped_field_increases_the_generation() {
        let kind =
            Kind { rules: rules("discovery.k8s.io", "EndpointSlice"), namespaced: true, has_status: false };
        let stored = object(
            r#"{"metadata":{"name":"s","namespace":"n","uid":"u","resourceVersion":"1","generation":3},
                "addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"],"hints":{}}]}"#,
        );
        let mut new = stored.clone();
        before_update(kind, &mut new, &stored, &context("t")).unwrap();
        assert_eq!(meta::generation(&new), 3);
        for dropped in
            [r#""deprecatedTopology":{"a":"b"},"hints":{}"#, r#""hints":{"forNodes":[{"name":"n"}]}"#]
        {
            new.set("endpoints", object(&format!(r#"[{{"addresses":["10.0.0.1"],{dropped}}}]"#)));
            before_update(kind, &mut new, &stored, &context("t")).unwrap();
            assert_eq!((meta::generation(&new), new.get("endpoints")), (4, stored.get("endpoints")));
        }
    }

    #[test]
    fn endpoint_slice_warns_and_drops_topology() {
        let mut slice = object(
            r#"{"addressType":"FQDN","endpoints":[{"addresses":["010.0.0.1"],"deprecatedTopology":{"a":"b"},
                "hints":{"forZones":[{"name":"z"}]}}]}"#,
        );
        let mut warnings = WarningList::new();
        warn(&slice, None, &mut warnings);
        assert_eq!(warnings.len(), 2);
        assert_eq!(warnings[0], "spec.addressType: FQDN endpoints are deprecated");
        prepare_create(&mut slice, &context("t"));
        assert_eq!(
            slice.get("endpoints").unwrap(),
            &object(r#"[{"addresses":["010.0.0.1"],"hints":{"forZones":[{"name":"z"}]}}]"#)
        );
    }

    #[test]
    fn endpoint_slice_validation_refuses_each_violation() {
        let base = filled(
            ("discovery.k8s.io", "v1"),
            "EndpointSlice",
            r#"{"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"],"nodeName":"n"}],"ports":[{"port":80}]}"#,
        );
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
        let hints = |zones: &str| format!("{{\"forZones\":[{zones}]}}");
        let nine_zones =
            hints(&(0..9).map(|n| format!("{{\"name\":\"z{n}\"}}")).collect::<Vec<_>>().join(","));
        each_refused(
            &base,
            validate,
            &[
                (
                    "endpoints.0.hints",
                    &nine_zones,
                    "endpoints[0].hints.forZones: Too many: 9: must have at most 8 items",
                ),
                (
                    "endpoints.0.hints",
                    &hints(r#"{"name":"z"},{"name":"z"}"#),
                    "forZones[1].name: Duplicate value: \"z\"",
                ),
                (
                    "endpoints.0.hints",
                    r#"{"forNodes":[{"name":"A"}]}"#,
                    "forNodes[0].name: Invalid value: \"A\"",
                ),
                (
                    "endpoints.0.deprecatedTopology",
                    r#"{"a b":""}"#,
                    "deprecatedTopology: Invalid value: \"a b\"",
                ),
            ],
        );
        let ipv6_slice = object(r#"{"addressType":"IPv6","endpoints":[{"addresses":["2001:db8::1"]}]}"#);
        each_refused(
            &ipv6_slice,
            validate,
            &[("endpoints.0.addresses", r#"["2001:DB8::1"]"#, "must be in canonical form (\"2001:db8::1\")")],
        );
        each_change_refused(
            &base,
            validate_update,
            &[("addressType", r#""IPv6""#, "addressType: Invalid value: \"IPv6\": field is immutable")],
        );
    }
}
