//! Services. Cluster IPs and node ports are allocated elsewhere: this validates what the client sent.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, fill, fill_text, items_mut, present_mut};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::endpoints::validate_endpoint_ip;
use super::service_change;
use crate::address;
use crate::allowed::core_v1::{ServicePort, ServiceSpec};
use crate::services::{HEADLESS, families, is_headless, needs_health_port, retained_fields};
use crate::{
    DefaultingRules, DeletionRules, KindRules, MetadataRules, PreparationRules, StatusRules, UpdateRules,
    ValidationRules, WarningRules, WriteContext,
};

/// The rules of a Service.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules { name: names::dns_1035_name, ..MetadataRules::DEFAULT },
    update: UpdateRules::CREATE_ON_UPDATE,
    defaulting: DefaultingRules {
        default,
        default_stored: Some(drop_internal_policy),
        ..DefaultingRules::DEFAULT
    },
    preparation: PreparationRules { prepare_update, ..PreparationRules::DEFAULT },
    validation: ValidationRules { validate, validate_update, ..ValidationRules::DEFAULT },
    warnings: WarningRules { warn: service_change::warn, ..WarningRules::DEFAULT },
    status: StatusRules {
        validate: service_change::validate_status,
        warn: address::warn_load_balancer,
        ..StatusRules::DEFAULT
    },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

const AFFINITY_SECONDS: i64 = 10_800;
const MAX_AFFINITY: i64 = 86_400;
const NOT_A_LOAD_BALANCER: &str = "may only be used when `type` is 'LoadBalancer'";
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// The defaults of a service.
fn default(service: &mut Value) {
    let spec = service.entry("spec");
    fill_text(spec, "type", "ClusterIP");
    fill_text(spec, "sessionAffinity", "None");
    match spec.str("sessionAffinity") {
        "None" => {
            spec.remove("sessionAffinityConfig");
        }
        "ClientIP" if spec.get_path(&["sessionAffinityConfig", "clientIP", "timeoutSeconds"]).is_none() => {
            spec.entry("sessionAffinityConfig").entry("clientIP").set("timeoutSeconds", AFFINITY_SECONDS);
        }
        _ => {}
    }
    for port in items_mut(spec, "ports") {
        let is_unset = matches!(port.get("targetPort"), None | Some(Value::Int(0)))
            || port.get("targetPort").and_then(Value::as_str) == Some("");
        if is_unset {
            let number = port.get("port").cloned().unwrap_or(Value::Int(0));
            port.set("targetPort", number);
        }
    }
    if retained_fields::is_reached_from_outside(spec) {
        fill_text(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(spec.str("type"), "NodePort" | "LoadBalancer" | "ClusterIP") {
        fill(spec, "internalTrafficPolicy", "Cluster");
    }
    if spec.str("type") == "LoadBalancer" {
        fill(spec, "allocateLoadBalancerNodePorts", true);
    }
    let is_load_balancer = spec.str("type") == "LoadBalancer";
    let Some(status) = present_mut(service, "status").filter(|_| is_load_balancer) else { return };
    if let Some(balancer) = present_mut(status, "loadBalancer") {
        for ingress in
            items_mut(balancer, "ingress").iter_mut().filter(|ingress| !ingress.str("ip").is_empty())
        {
            fill(ingress, "ipMode", "VIP");
        }
    }
}

/// Drops the fields that the new type does not have.
fn prepare_update(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    retained_fields::drop_unused(new, old);
}

/// ExternalName services have no internalTrafficPolicy. It is validated before it is dropped.
fn drop_internal_policy(service: &mut Value) {
    let spec = service.entry("spec");
    if spec.str("type") == "ExternalName" {
        spec.remove("internalTrafficPolicy");
    }
}

/// Checks a new service.
fn validate(service: &Value, errors: &mut ErrorList) {
    validate_any(service, &Value::Null, errors);
}

/// Checks an updated service: cluster IPs are immutable.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    service_change::validate(
        &FieldValue::top_level(new, "spec"),
        &FieldValue::top_level(old, "spec"),
        errors,
    );
    validate_any(new, old, errors);
}

/// Checks a service. Addresses of the old service are accepted.
fn validate_any(service: &Value, old: &Value, errors: &mut ErrorList) {
    let old_spec = FieldValue::top_level(old, "spec");
    let annotations = FieldPath::new("metadata").child("annotations");
    let annotations = FieldValue {
        value: meta::metadata(service).get("annotations").unwrap_or(&Value::Null),
        path: annotations,
    };
    validate_topology_annotations(&annotations, errors);
    let spec = FieldValue::top_level(service, "spec");
    let kind = spec.child("type");
    let ports = spec.child("ports");
    if ports.is_empty() && !is_headless(spec.value) && kind.text() != "ExternalName" {
        ports.required(errors, "");
    }
    validate_by_type(&spec, errors);
    let mut port_names = BTreeSet::new();
    for port in ports.items() {
        validate_port(&port, ports.len() > 1, &mut port_names, errors);
    }
    if let Some(selector) = spec.opt("selector") {
        meta::validate_labels(Some(selector.value), &selector.path, errors);
    }
    validate_session_affinity(&spec, errors);
    if kind.text() != "ExternalName" {
        let old_cluster_ips = address::collect_strings(old_spec.read("clusterIPs"), "");
        families::validate(&spec, &old_cluster_ips, errors);
    }
    let old_addresses = address::collect_strings(old_spec.read("externalIPs"), "");
    for external_ip in spec.child("externalIPs").items() {
        let error_count = errors.len();
        address::validate_ip(&external_ip.path, external_ip.text(), &old_addresses, errors);
        if errors.len() == error_count {
            validate_endpoint_ip(&external_ip, errors);
        }
    }
    kind.need_one_of(errors, ServiceSpec::TYPE);
    validate_unique_ports(&spec, errors);
    validate_source_ranges(
        &spec,
        &old_spec,
        &annotations,
        meta::metadata(old).get_path(&["annotations", SOURCE_RANGES]),
        errors,
    );
    let allocate = spec.child("allocateLoadBalancerNodePorts");
    if allocate.is_set() && kind.text() != "LoadBalancer" {
        allocate.forbidden(errors, NOT_A_LOAD_BALANCER);
    }
    service_change::validate_load_balancer_class(&spec, errors);
    validate_traffic_policies(&spec, errors);
}

fn validate_topology_annotations(annotations: &FieldValue<'_>, errors: &mut ErrorList) {
    let (hints, mode) = ("service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode");
    if let (Some(hints_value), Some(mode_value)) = (annotations.value.get(hints), annotations.value.get(mode))
        && hints_value != mode_value
    {
        let detail = format!("must match annotations[{hints}] when both are specified");
        FieldValue { value: mode_value, path: annotations.path.key(mode) }.invalid(errors, &detail);
    }
}

fn validate_by_type(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let first = spec.path.child("clusterIPs").index(0);
    match spec.child("type").text() {
        kind @ ("LoadBalancer" | "NodePort") if is_headless(spec.value) => {
            let detail = format!("may not be set to 'None' for {kind} services");
            errors.push(FieldError::invalid(&first, &quoted(HEADLESS), &detail));
        }
        "ExternalName" => {
            for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                let value = spec.child(field);
                // An empty string counts as set here.
                if value.value.as_str().is_some() || !value.is_empty() {
                    spec.child(field).forbidden(errors, "may not be set for ExternalName services");
                }
            }
            let name = spec.child("externalName");
            // A trailing dot marks a fully qualified name.
            let cname = name.text().strip_suffix('.').unwrap_or(name.text());
            if cname.is_empty() {
                name.required(errors, "");
            } else {
                meta::add_invalid(errors, &name.path, cname, names::dns_subdomain(cname));
            }
        }
        _ => {}
    }
}

fn validate_port<'a>(
    port: &FieldValue<'a>,
    needs_name: bool,
    used: &mut BTreeSet<&'a str>,
    errors: &mut ErrorList,
) {
    let name = port.child("name");
    if needs_name && name.is_empty() {
        name.required(errors, "");
    } else if !name.is_empty() {
        name.syntax(errors, names::dns_label);
        if !used.insert(name.text()) {
            name.duplicate(errors);
        }
    }
    port.child("port").port(errors);
    port.child("protocol").need_one_of(errors, ServicePort::PROTOCOL);
    port.child("targetPort").port_or_name(errors);
    if port.child("appProtocol").is_set() {
        port.child("appProtocol").syntax(errors, names::qualified_name);
    }
}

fn validate_session_affinity(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let (affinity, config) = (spec.child("sessionAffinity"), spec.child("sessionAffinityConfig"));
    affinity.need_one_of(errors, ServiceSpec::SESSION_AFFINITY);
    if affinity.text() == "None" && config.is_set() {
        config.forbidden(errors, "must not be set when session affinity is None");
    }
    let seconds = config.child("clientIP").child("timeoutSeconds");
    if affinity.text() == "ClientIP" && !(1..=MAX_AFFINITY).contains(&seconds.number()) {
        seconds.invalid(errors, &format!("must be greater than 0 and less than {MAX_AFFINITY}"));
    }
}

fn validate_unique_ports(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let ports = spec.child("ports");
    if spec.child("type").text() == "ClusterIP" {
        for port in ports.items().filter(|port| port.child("nodePort").number() != 0) {
            port.child("nodePort").forbidden(errors, "may not be used when `type` is 'ClusterIP'");
        }
    }
    let (mut node_ports, mut own_ports) = (BTreeSet::new(), BTreeSet::new());
    for port in ports.items() {
        let number = port.child("nodePort").number();
        if number != 0 && !node_ports.insert((port.child("protocol").text(), number)) {
            port.child("nodePort").duplicate(errors);
        }
    }
    for port in ports.items() {
        let (protocol, number) = (port.child("protocol").text(), port.child("port").number());
        if !own_ports.insert((protocol, number)) {
            let rendered = format!(
                "core.ServicePort{{Name:\"\", Protocol:{}, AppProtocol:(*string)(nil), Port:{number}, \
                 TargetPort:intstr.IntOrString{{Type:0, IntVal:0, StrVal:\"\"}}, NodePort:0}}",
                quoted(protocol)
            );
            errors.push(FieldError::duplicate(&port.path, &rendered));
        }
    }
}

/// Checks loadBalancerSourceRanges, or the former annotation.
fn validate_source_ranges(
    spec: &FieldValue<'_>,
    old_spec: &FieldValue<'_>,
    annotations: &FieldValue<'_>,
    old_annotation: Option<&Value>,
    errors: &mut ErrorList,
) {
    let is_load_balancer = spec.str("type") == "LoadBalancer";
    let ranges = spec.child("loadBalancerSourceRanges").named(spec.path.child("LoadBalancerSourceRanges"));
    if !ranges.is_empty() {
        if !is_load_balancer {
            ranges.forbidden(errors, NOT_A_LOAD_BALANCER);
        }
        let old_ranges: BTreeSet<&str> =
            address::collect_strings(old_spec.read("loadBalancerSourceRanges"), "")
                .into_iter()
                .map(str::trim)
                .collect();
        for range in ranges.items() {
            address::validate_cidr(&range.path, range.text().trim(), &old_ranges, errors);
        }
        return;
    }
    let Some(text) = annotations.value.get(SOURCE_RANGES) else { return };
    let path = annotations.path.key(SOURCE_RANGES);
    if !is_load_balancer {
        errors.push(FieldError::forbidden(&path, NOT_A_LOAD_BALANCER));
    }
    let ranges = text.as_str().unwrap_or_default().trim();
    if old_annotation == Some(text) || ranges.is_empty() {
        return;
    }
    for range in ranges.split(',').map(str::trim) {
        address::validate_cidr(&path, range, address::NOTHING_KNOWN, errors);
    }
}

fn validate_traffic_policies(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let external = spec.child("externalTrafficPolicy");
    if retained_fields::is_reached_from_outside(spec.value) {
        external.need_one_of(errors, ServiceSpec::EXTERNAL_TRAFFIC_POLICY);
    } else if !external.is_empty() {
        external.invalid(errors, "may only be set for externally-accessible services");
    }
    let needs_port = needs_health_port(spec.value);
    let port = spec.child("healthCheckNodePort");
    if !needs_port && port.number() != 0 {
        let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        port.invalid(errors, detail);
    } else if needs_port && port.need(errors) {
        port.port(errors);
    }
    spec.child("internalTrafficPolicy").one_of_if_set(errors, ServiceSpec::INTERNAL_TRAFFIC_POLICY);
    let distributions = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    let supported = if errors.features().has(Feature::PreferSameTrafficDistribution) {
        &distributions[..]
    } else {
        &distributions[..1]
    };
    spec.child("trafficDistribution").one_of_if_set(errors, supported);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::super::super::testing::filled;
    use super::*;

    fn base() -> Value {
        let json = r#"{"spec":{"clusterIP":"10.0.0.1","ports":[{"port":80}]}}"#;
        let mut service = filled(("", "v1"), "Service", json);
        // managedFields does not name clusterIPs as written by the client.
        assert_eq!(service.get_path(&["spec", "clusterIPs"]), None);
        retained_fields::mirror_address(service.entry("spec"));
        service
    }

    #[test]
    fn service_gets_defaults() {
        let expected = object(
            r#"{"spec":{"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"type":"ClusterIP","sessionAffinity":"None",
                "internalTrafficPolicy":"Cluster","ports":[{"port":80,"targetPort":80,"protocol":"TCP"}]}}"#,
        );
        assert_eq!(base(), expected);
        let mut balancer = object(r#"{"spec":{"type":"LoadBalancer","sessionAffinity":"ClientIP"}}"#);
        default(&mut balancer);
        let expected = object(
            r#"{"spec":{"type":"LoadBalancer","sessionAffinity":"ClientIP","externalTrafficPolicy":"Cluster",
                "internalTrafficPolicy":"Cluster","allocateLoadBalancerNodePorts":true,
                "sessionAffinityConfig":{"clientIP":{"timeoutSeconds":10800}}}}"#,
        );
        assert_eq!(balancer, expected);
    }

    #[test]
    fn external_name_service_has_no_internal_traffic_policy() {
        let json = r#"{"spec":{"type":"ExternalName","externalName":"a.b"}}"#;
        let service = filled(("", "v1"), "Service", json);
        assert_eq!(service.get_path(&["spec", "internalTrafficPolicy"]), None);
    }

    #[test]
    fn service_validation_refuses_each_violation() {
        each_refused(
            &base(),
            validate,
            &[
                ("spec.ports", "[]", "spec.ports: Required value"),
                (
                    "spec.ports.0.port",
                    "0",
                    "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535",
                ),
                ("spec.ports.0.protocol", r#""X""#, "spec.ports[0].protocol: Unsupported value: \"X\""),
                ("spec.ports.0.targetPort", "0", "spec.ports[0].targetPort: Invalid value: 0"),
                ("spec.ports.0.name", r#""A""#, "spec.ports[0].name: Invalid value: \"A\""),
                ("spec.ports.0.nodePort", "30000", "may not be used when `type` is 'ClusterIP'"),
                ("spec.ports.0.appProtocol", r#""-""#, "appProtocol: Invalid value"),
                ("spec.selector", r#"{"a":"-"}"#, "spec.selector: Invalid value: \"-\""),
                ("spec.sessionAffinity", r#""X""#, "supported values: \"ClientIP\", \"None\""),
                (
                    "spec.sessionAffinityConfig",
                    r#"{"clientIP":{}}"#,
                    "must not be set when session affinity is None",
                ),
                ("spec.clusterIPs", r#"["10.0.0.2"]"#, "first value must match `clusterIP`"),
                ("spec.clusterIPs", r#"["10.0.0.1","x"]"#, "spec.clusterIPs[1]: Invalid value: \"x\""),
                (
                    "spec.clusterIPs",
                    r#"["10.0.0.1","10.0.0.2"]"#,
                    "may specify no more than one IP for each IP family",
                ),
                (
                    "spec.ipFamilies",
                    r#"["IPv6"]"#,
                    "spec.clusterIPs[0]: Invalid value: \"10.0.0.1\": expected an IPv6 value",
                ),
                (
                    "metadata.annotations",
                    r#"{"service.kubernetes.io/topology-aware-hints":"a","service.kubernetes.io/topology-mode":"b"}"#,
                    "must match annotations[service.kubernetes.io/topology-aware-hints] when both are specified",
                ),
                (
                    "metadata.annotations",
                    r#"{"service.beta.kubernetes.io/load-balancer-source-ranges":""}"#,
                    "may only be used when `type` is 'LoadBalancer'",
                ),
                ("spec.ipFamilies", r#"["X"]"#, "spec.ipFamilies[0]: Unsupported value: \"X\""),
                (
                    "spec.ipFamilyPolicy",
                    r#""X""#,
                    "\"PreferDualStack\", \"RequireDualStack\", \"SingleStack\"",
                ),
                (
                    "spec.loadBalancerSourceRanges",
                    r#"["10.0.0.0/8"]"#,
                    "spec.LoadBalancerSourceRanges: Forbidden",
                ),
                ("spec.loadBalancerClass", r#""a/b""#, "may only be used when `type` is 'LoadBalancer'"),
                (
                    "spec.allocateLoadBalancerNodePorts",
                    "true",
                    "spec.allocateLoadBalancerNodePorts: Forbidden",
                ),
                (
                    "spec.externalTrafficPolicy",
                    r#""Local""#,
                    "may only be set for externally-accessible services",
                ),
                ("spec.healthCheckNodePort", "30000", "may only be set when `type` is 'LoadBalancer' and"),
                ("spec.internalTrafficPolicy", r#""X""#, "supported values: \"Cluster\", \"Local\""),
                ("spec.trafficDistribution", r#""X""#, "spec.trafficDistribution: Unsupported value"),
            ],
        );
        let duplicate = object(
            r#"{"spec":{"type":"ClusterIP","sessionAffinity":"None","ports":[
                {"name":"a","port":80,"targetPort":80,"protocol":"TCP"},{"name":"b","port":80,"targetPort":80,"protocol":"TCP"}]}}"#,
        );
        let mut errors = ErrorList::new();
        validate(&duplicate, &mut errors);
        assert!(errors[0].to_string().starts_with("spec.ports[1]: Duplicate value: core.ServicePort{"));
        let external =
            object(r#"{"spec":{"type":"ExternalName","externalName":"a.b","sessionAffinity":"None"}}"#);
        each_refused(
            &external,
            validate,
            &[
                ("spec.externalName", "null", "spec.externalName: Required value"),
                ("spec.externalName", r#""A""#, "spec.externalName: Invalid value: \"A\""),
                ("spec.externalName", r#""A.b.""#, "spec.externalName: Invalid value: \"A.b\""),
                ("spec.externalName", r#""..""#, "spec.externalName: Invalid value: \".\""),
                ("spec.clusterIPs", r#"["10.0.0.1"]"#, "may not be set for ExternalName services"),
            ],
        );
    }

    #[test]
    fn service_update_keeps_cluster_ips() {
        each_change_refused(&base(), validate_update, &[]);
        let mut new = base();
        new.entry("spec").set("clusterIP", HEADLESS);
        retained_fields::restore_allocated(&mut new, &base());
        prepare_update(&mut new, &base(), &crate::testing::context(""));
        let mut errors = ErrorList::new();
        validate_update(&new, &base(), &mut errors);
        assert_eq!(errors.len(), 1);
        assert!(errors[0].to_string().ends_with("may not change once set"), "{}", errors[0]);
        let mut without_ips = base();
        without_ips.entry("spec").remove("clusterIP");
        without_ips.entry("spec").remove("clusterIPs");
        retained_fields::restore_allocated(&mut without_ips, &base());
        assert_eq!(without_ips, base());
    }
}
