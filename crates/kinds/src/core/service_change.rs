//! Updates of services: immutable fields, and fields that a change of the type drops.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use crate::address;
use crate::services::{families, needs_health_port};

const IMMUTABLE_ONCE_SET: &str = "may not change once set";

fn is_load_balancer(spec: &Value) -> bool {
    spec.str("type") == "LoadBalancer"
}

/// Checks the immutable fields of a service, before the new one is validated.
pub fn validate(spec: &FieldValue<'_>, old_spec: &FieldValue<'_>, errors: &mut ErrorList) {
    families::validate_change(spec, old_spec, errors);
    let both_load_balancers = is_load_balancer(spec.value) && is_load_balancer(old_spec.value);
    let class = spec.child("loadBalancerClass");
    if both_load_balancers && !same(Some(class.value), old_spec.value.get("loadBalancerClass")) {
        class.invalid(errors, IMMUTABLE_ONCE_SET);
    }
    validate_load_balancer_class(spec, errors);
    let health_port = spec.child("healthCheckNodePort");
    let both = needs_health_port(spec.value) && needs_health_port(old_spec.value);
    if both && health_port.number() != old_spec.read("healthCheckNodePort").as_int().unwrap_or_default() {
        health_port.forbidden(errors, "field is immutable");
    }
}

/// Checks loadBalancerClass.
pub fn validate_load_balancer_class(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(class) = spec.opt("loadBalancerClass") else { return };
    if is_load_balancer(spec.value) {
        class.syntax(errors, names::qualified_name);
    } else {
        class.forbidden(errors, "may only be used when `type` is 'LoadBalancer'");
    }
}

/// Checks status.loadBalancer.
pub fn validate_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let ingress = FieldValue::top_level(new, "status").child("loadBalancer").child("ingress");
    if !new.get("spec").is_some_and(is_load_balancer) {
        if !ingress.is_empty() {
            ingress.forbidden(errors, "may only be used when `spec.type` is 'LoadBalancer'");
        }
        return;
    }
    let old_addresses = address::collect_strings(
        old.get_path(&["status", "loadBalancer", "ingress"]).unwrap_or(&Value::Null),
        "ip",
    );
    for point in ingress.items() {
        let (ip, mode) = (point.child("ip"), point.child("ipMode"));
        if !ip.is_empty() {
            address::validate_ip(&ip.path, ip.text(), &old_addresses, errors);
        }
        match (ip.is_empty(), mode.is_set()) {
            (false, false) => mode.required(errors, "must be specified when `ip` is set"),
            (true, true) => mode.forbidden(errors, "may not be specified when `ip` is not set"),
            (false, true) => mode.one_of(errors, &["Proxy", "VIP"]),
            (true, false) => {}
        }
        let host = point.child("hostname");
        host.syntax_if_set(errors, names::dns_subdomain);
        if names::parse_ip(host.text()).is_some() {
            host.invalid(errors, "must be a DNS name, not an IP address");
        }
    }
}

/// Warns about a service.
pub fn warn(
    service: &Value,
    _old: Option<&Value>,
    warnings: &mut pilothouse_apimachinery::error_list::WarningList,
) {
    const OLD_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    let Some(spec) = service.get("spec") else { return };
    let spec_path = FieldPath::new("spec");
    if meta::metadata(service).get_path(&["annotations", OLD_HINTS]).is_some() {
        let replacement = "service.kubernetes.io/topology-mode";
        warnings.push(format!("annotation {OLD_HINTS} is deprecated, please use {replacement} instead"));
    }
    let list = |field: &str| spec.get(field).map(Value::items).unwrap_or_default();
    let has_address = !matches!(spec.str("clusterIP"), "" | "None");
    for (field, _) in
        [("clusterIPs", has_address), ("externalIPs", true)].iter().filter(|(_, is_checked)| *is_checked)
    {
        for (index, ip) in list(field).iter().enumerate() {
            address::warn_ip(&spec_path.child(field).index(index), ip.as_str().unwrap_or_default(), warnings);
        }
    }
    if !spec.str("loadBalancerIP").is_empty() {
        address::warn_ip(&spec_path.child("loadBalancerIP"), spec.str("loadBalancerIP"), warnings);
    }
    for (index, range) in list("loadBalancerSourceRanges").iter().enumerate() {
        let range_path = spec_path.child("loadBalancerSourceRanges").index(index);
        address::warn_cidr(&range_path, range.as_str().unwrap_or_default(), warnings);
    }
    let is_external_name = spec.str("type") == "ExternalName";
    if is_external_name && !list("externalIPs").is_empty() {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if !is_external_name && !spec.str("externalName").is_empty() {
        warnings.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{error_messages, object, with};

    use super::*;

    fn update_errors(old: &Value, path: &str, json: &str) -> Vec<String> {
        let new = with(old, path, json);
        let mut errors = ErrorList::new();
        validate(&FieldValue::top_level(&new, "spec"), &FieldValue::top_level(old, "spec"), &mut errors);
        error_messages(&errors)
    }

    #[test]
    fn service_update_refuses_immutable_fields() {
        let dual = object(
            r#"{"spec":{"type":"LoadBalancer","clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1","fd00::1"],"ipFamilies":["IPv4","IPv6"],
                "ipFamilyPolicy":"RequireDualStack","externalTrafficPolicy":"Local","healthCheckNodePort":30000,"loadBalancerClass":"a/b"}}"#,
        );
        let table = [
            (
                "spec.loadBalancerClass",
                r#""c/d""#,
                "spec.loadBalancerClass: Invalid value: \"c/d\": may not change once set",
            ),
            ("spec.healthCheckNodePort", "30001", "spec.healthCheckNodePort: Forbidden: field is immutable"),
        ];
        for (path, json, expected) in table {
            assert_eq!(update_errors(&dual, path, json), [expected], "{path}={json}");
        }
    }

    #[test]
    fn service_status_validation_refuses_each_violation() {
        let balancer = object(
            r#"{"spec":{"type":"LoadBalancer"},"status":{"loadBalancer":{"ingress":[{"ip":"1.1.1.1","ipMode":"VIP"}]}}}"#,
        );
        let first = "status.loadBalancer.ingress.0";
        let table = [
            (
                format!("{first}.ip"),
                r#""x""#,
                "status.loadBalancer.ingress[0].ip: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ),
            (
                first.to_owned(),
                r#"{"ip":"1.1.1.1"}"#,
                "status.loadBalancer.ingress[0].ipMode: Required value: must be specified when `ip` is set",
            ),
            (
                first.to_owned(),
                r#"{"ipMode":"VIP"}"#,
                "status.loadBalancer.ingress[0].ipMode: Forbidden: may not be specified when `ip` is not set",
            ),
            (
                format!("{first}.ipMode"),
                r#""X""#,
                "status.loadBalancer.ingress[0].ipMode: Unsupported value: \"X\": supported values: \"Proxy\", \"VIP\"",
            ),
            (
                first.to_owned(),
                r#"{"hostname":"1.1.1.1"}"#,
                "status.loadBalancer.ingress[0].hostname: Invalid value: \"1.1.1.1\": must be a DNS name, not an IP address",
            ),
            (
                "spec.type".to_owned(),
                r#""ClusterIP""#,
                "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'",
            ),
        ];
        for (path, json, expected) in table {
            let mut errors = ErrorList::new();
            validate_status(&with(&balancer, &path, json), &object("{}"), &mut errors);
            assert_eq!(error_messages(&errors), [expected], "{path}={json}");
        }
    }

    #[test]
    fn service_warnings_name_dubious_fields() {
        let base = object(
            r#"{"metadata":{},"spec":{"type":"ClusterIP","clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"]}}"#,
        );
        let table = [
            (
                "metadata.annotations",
                r#"{"service.kubernetes.io/topology-aware-hints":"auto"}"#,
                "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
            ),
            (
                "spec.clusterIPs",
                r#"["010.0.0.1"]"#,
                "spec.clusterIPs[0]: non-standard IP address \"010.0.0.1\" will be considered invalid in a future Kubernetes release: use \"10.0.0.1\"",
            ),
            (
                "spec.loadBalancerSourceRanges",
                r#"["10.0.0.1/8"]"#,
                "spec.loadBalancerSourceRanges[0]: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)",
            ),
            (
                "spec.externalName",
                r#""a""#,
                "spec.externalName is ignored when spec.type is not \"ExternalName\"",
            ),
            (
                "spec",
                r#"{"type":"ExternalName","externalIPs":["1.1.1.1"]}"#,
                "spec.externalIPs is ignored when spec.type is \"ExternalName\"",
            ),
        ];
        for (path, json, expected) in table {
            let mut warnings = pilothouse_apimachinery::error_list::WarningList::new();
            warn(&with(&base, path, json), None, &mut warnings);
            assert_eq!(warnings, [expected], "{path}={json}");
        }
    }
}
