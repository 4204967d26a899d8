//! How services may change: what they were reached at stays, what their type no longer has goes.

use super::address;
use super::service::{is_external, is_headless};
use crate::api::field::{FieldError, Path};
use crate::api::kinds::check::{Node, items_mut, same};
use crate::api::kinds::{Errors, Occasion};
use crate::api::value::Value;
use crate::api::{meta, names};

const ONCE: &str = "may not change once set";

fn has_addresses(spec: &Value) -> bool {
    spec.str("type") != "ExternalName"
}

fn has_node_ports(spec: &Value) -> bool {
    matches!(spec.str("type"), "NodePort" | "LoadBalancer")
}

fn is_balancer(spec: &Value) -> bool {
    spec.str("type") == "LoadBalancer"
}

/// Whether a load balancer asks each node whether it serves.
pub fn needs_check(spec: &Value) -> bool {
    is_balancer(spec) && spec.str("externalTrafficPolicy") == "Local"
}

/// Carries over what an update leaves out, and takes out what the new type cannot have unless the client set it anew.
pub fn prepare_update(new: &mut Value, old: &Value, _: &Occasion<'_>) {
    let was = old.get("spec").unwrap_or(&Value::Null);
    let spec = new.entry("spec");
    if has_addresses(spec) && has_addresses(was) {
        keep_addresses(spec, was);
    }
    drop_by_type(spec, was);
    if !is_balancer(new.entry("spec")) && new.get("status").is_some() {
        new.entry("status").set("loadBalancer", Value::object());
    }
}

/// A client that changes or leaves out one of the two address fields means both.
fn keep_addresses(spec: &mut Value, was: &Value) {
    let none = |spec: &Value| spec.get("clusterIPs").is_none_or(|list| list.items().is_empty());
    if spec.str("clusterIP").is_empty() && none(spec) {
        for field in ["clusterIP", "clusterIPs"] {
            meta::copy(spec, was, field);
        }
    } else if spec.str("clusterIP") != was.str("clusterIP")
        && same(spec.get("clusterIPs"), was.get("clusterIPs"))
    {
        let address = spec.str("clusterIP").to_owned();
        if address.is_empty() {
            spec.remove("clusterIPs");
        } else {
            spec.set("clusterIPs", vec![address]);
        }
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        if spec.get(field).is_none() {
            meta::copy(spec, was, field);
        }
    }
}

fn drop_by_type(spec: &mut Value, was: &Value) {
    if has_addresses(was) && !has_addresses(spec) {
        if ["clusterIP", "clusterIPs"].iter().all(|field| same(spec.get(field), was.get(field))) {
            spec.remove("clusterIP");
            spec.remove("clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            drop_same(spec, was, field);
        }
    }
    if has_node_ports(was) && !has_node_ports(spec) && keeps_node_ports(spec, was) {
        for port in items_mut(spec, "ports") {
            port.remove("nodePort");
        }
    }
    if needs_check(was) && !needs_check(spec) {
        drop_same(spec, was, "healthCheckNodePort");
    }
    if is_balancer(was) && !is_balancer(spec) {
        drop_same(spec, was, "allocateLoadBalancerNodePorts");
        drop_same(spec, was, "loadBalancerClass");
    }
    if is_external(was) && !is_external(spec) {
        drop_same(spec, was, "externalTrafficPolicy");
    }
}

fn drop_same(spec: &mut Value, was: &Value, field: &str) {
    if same(spec.get(field), was.get(field)) {
        spec.remove(field);
    }
}

/// Whether all node ports of the new ports are among the old ones.
fn keeps_node_ports(spec: &Value, was: &Value) -> bool {
    let ports = |spec: &Value| -> Vec<i64> {
        let ports = spec.get("ports").map(Value::items).unwrap_or_default();
        ports.iter().filter_map(|port| port.get("nodePort").and_then(Value::as_int)).collect()
    };
    let old = ports(was);
    ports(spec).iter().all(|port| *port == 0 || old.contains(port))
}

/// Checks how a service changed, before the new one is looked at by itself.
pub fn validate(spec: &Node<'_>, was: &Node<'_>, errors: &mut Errors) {
    if has_addresses(spec.value) && has_addresses(was.value) {
        addresses(spec, was, errors);
        families(spec, was, errors);
    }
    let balancers = is_balancer(spec.value) && is_balancer(was.value);
    let class = spec.child("loadBalancerClass");
    if balancers && !same(Some(class.value), was.value.get("loadBalancerClass")) {
        class.invalid(errors, ONCE);
    }
    load_balancer_class(spec, errors);
    let check = spec.child("healthCheckNodePort");
    let both = needs_check(spec.value) && needs_check(was.value);
    if both && check.number() != was.read("healthCheckNodePort").as_int().unwrap_or_default() {
        check.forbidden(errors, "field is immutable");
    }
}

/// Checks which implementation of load balancers is asked for.
pub fn load_balancer_class(spec: &Node<'_>, errors: &mut Errors) {
    let Some(class) = spec.opt("loadBalancerClass") else { return };
    if is_balancer(spec.value) {
        class.syntax(errors, names::qualified_name);
    } else {
        class.forbidden(errors, "may only be used when `type` is 'LoadBalancer'");
    }
}

/// A list of texts as messages print it.
fn shown(list: &Node<'_>) -> String {
    if list.is_set() { list.shown() } else { "[]string(nil)".to_owned() }
}

fn addresses(spec: &Node<'_>, was: &Node<'_>, errors: &mut Errors) {
    if is_headless(spec.value) && is_headless(was.value) {
        return;
    }
    let (new, old) = (spec.child("clusterIPs"), was.read("clusterIPs").items());
    let path = |index: usize| Path::new("spec").child("clusterIPs").index(index);
    let first_differs = match (new.value.items().first(), old.first()) {
        (Some(new), Some(old)) => new != old,
        _ => false,
    };
    if new.len() == old.len() {
        for (index, _) in new.value.items().iter().zip(old).enumerate().filter(|(_, (new, old))| new != old) {
            errors.push(FieldError::invalid(&path(index), &shown(&new), ONCE));
        }
        return;
    }
    if new.len() < old.len() && new.is_empty() {
        errors.push(FieldError::invalid(&path(0), &shown(&new), "primary clusterIP can not be unset"));
    }
    if first_differs {
        errors.push(FieldError::invalid(&path(0), &shown(&new), ONCE));
    }
    if new.len() < old.len() && new.len() == 1 {
        released(spec, "clusterIP", errors);
    }
}

/// The second address or family is given up only on purpose.
fn released(spec: &Node<'_>, what: &str, errors: &mut Errors) {
    if spec.str("ipFamilyPolicy") != "SingleStack" {
        let wrong = format!("must be set to 'SingleStack' when releasing the secondary {what}");
        spec.child("ipFamilyPolicy").invalid(errors, &wrong);
    }
}

fn families(spec: &Node<'_>, was: &Node<'_>, errors: &mut Errors) {
    if is_headless(spec.value) || is_headless(was.value) {
        return;
    }
    let (new, old) = (spec.child("ipFamilies"), was.read("ipFamilies").items());
    let first = Path::new("spec").child("ipFamilies").index(0);
    let first_differs = match (new.value.items().first(), old.first()) {
        (Some(new), Some(old)) => new != old,
        _ => false,
    };
    if new.len() == old.len() {
        for _ in new.value.items().iter().zip(old).filter(|(new, old)| new != old) {
            errors.push(FieldError::invalid(&first, &shown(&new), ONCE));
        }
        return;
    }
    let addresses = spec.child("clusterIPs");
    if new.len() < old.len() && addresses.is_empty() {
        errors.push(FieldError::invalid(&first, &shown(&new), "primary ipFamily can not be unset"));
    }
    if first_differs {
        errors.push(FieldError::invalid(&first, &shown(&addresses), ONCE));
    }
    if new.len() < old.len() && new.len() == 1 {
        released(spec, "ipFamily", errors);
    }
}

/// Checks where a load balancer says that it listens.
pub fn validate_status(new: &Value, old: &Value, errors: &mut Errors) {
    let ingress = Node::of(new, "status").child("loadBalancer").child("ingress");
    if !new.get("spec").is_some_and(is_balancer) {
        if !ingress.is_empty() {
            ingress.forbidden(errors, "may only be used when `spec.type` is 'LoadBalancer'");
        }
        return;
    }
    let known = old.at(&["status", "loadBalancer", "ingress"]).unwrap_or(&Value::Null);
    for one in ingress.items() {
        let (ip, mode) = (one.child("ip"), one.child("ipMode"));
        if !ip.is_empty() && !known.items().iter().any(|old| old.str("ip") == ip.text()) {
            ip.syntax(errors, names::ip_address);
        }
        match (ip.is_empty(), mode.is_set()) {
            (false, false) => mode.required(errors, "must be specified when `ip` is set"),
            (true, true) => mode.forbidden(errors, "may not be specified when `ip` is not set"),
            (false, true) => mode.one_of(errors, &["Proxy", "VIP"]),
            (true, false) => {}
        }
        let host = one.child("hostname");
        host.syntax_if_set(errors, names::dns_subdomain);
        if names::parse_ip(host.text()).is_some() {
            host.invalid(errors, "must be a DNS name, not an IP address");
        }
    }
}

/// Warns about a service.
pub fn warn(service: &Value, _old: Option<&Value>, warned: &mut crate::api::kinds::Warned) {
    const OLD_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    let Some(spec) = service.get("spec") else { return };
    let at = Path::new("spec");
    if meta::of(service).at(&["annotations", OLD_HINTS]).is_some() {
        let better = "service.kubernetes.io/topology-mode";
        warned.push(format!("annotation {OLD_HINTS} is deprecated, please use {better} instead"));
    }
    let list = |field: &str| spec.get(field).map(Value::items).unwrap_or_default();
    let has_address = !matches!(spec.str("clusterIP"), "" | "None");
    for (field, _) in [("clusterIPs", has_address), ("externalIPs", true)].iter().filter(|(_, look)| *look) {
        for (index, ip) in list(field).iter().enumerate() {
            address::warn_ip(&at.child(field).index(index), ip.as_str().unwrap_or_default(), warned);
        }
    }
    if !spec.str("loadBalancerIP").is_empty() {
        address::warn_ip(&at.child("loadBalancerIP"), spec.str("loadBalancerIP"), warned);
    }
    for (index, range) in list("loadBalancerSourceRanges").iter().enumerate() {
        let place = at.child("loadBalancerSourceRanges").index(index);
        address::warn_cidr(&place, range.as_str().unwrap_or_default(), warned);
    }
    let is_name = spec.str("type") == "ExternalName";
    if is_name && !list("externalIPs").is_empty() {
        warned.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if !is_name && !spec.str("externalName").is_empty() {
        warned.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{NOBODY, object, said, with};
    use super::*;

    fn changes(old: &Value, path: &str, json: &str) -> Vec<String> {
        let new = with(old, path, json);
        let mut errors = Errors::new();
        validate(&Node::of(&new, "spec"), &Node::of(old, "spec"), &mut errors);
        said(&errors)
    }

    #[test]
    fn each_forbidden_change_is_refused() {
        let dual = object(
            r#"{"spec":{"type":"LoadBalancer","clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1","fd00::1"],"ipFamilies":["IPv4","IPv6"],
                "ipFamilyPolicy":"RequireDualStack","externalTrafficPolicy":"Local","healthCheckNodePort":30000,"loadBalancerClass":"a/b"}}"#,
        );
        let table = [
            (
                "spec.clusterIPs",
                r#"["10.0.0.2","fd00::1"]"#,
                "spec.clusterIPs[0]: Invalid value: []string{\"10.0.0.2\", \"fd00::1\"}: may not change once set",
            ),
            (
                "spec.clusterIPs",
                "[]",
                "spec.clusterIPs[0]: Invalid value: []string{}: primary clusterIP can not be unset",
            ),
            (
                "spec.clusterIPs",
                r#"["10.0.0.1"]"#,
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be set to 'SingleStack' when releasing the secondary clusterIP",
            ),
            (
                "spec.ipFamilies",
                r#"["IPv6","IPv6"]"#,
                "spec.ipFamilies[0]: Invalid value: []string{\"IPv6\", \"IPv6\"}: may not change once set",
            ),
            (
                "spec.ipFamilies",
                r#"["IPv4"]"#,
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be set to 'SingleStack' when releasing the secondary ipFamily",
            ),
            (
                "spec.loadBalancerClass",
                r#""c/d""#,
                "spec.loadBalancerClass: Invalid value: \"c/d\": may not change once set",
            ),
            ("spec.healthCheckNodePort", "30001", "spec.healthCheckNodePort: Forbidden: field is immutable"),
        ];
        for (path, json, wanted) in table {
            assert_eq!(changes(&dual, path, json), [wanted], "{path}={json}");
        }
    }

    #[test]
    fn what_the_new_type_cannot_have_goes() {
        let old = object(
            r#"{"spec":{"type":"LoadBalancer","clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack",
                "externalTrafficPolicy":"Local","healthCheckNodePort":30000,"allocateLoadBalancerNodePorts":true,
                "loadBalancerClass":"a/b","ports":[{"port":80,"nodePort":30001}]},"status":{"loadBalancer":{"ingress":[{"ip":"1.1.1.1"}]}}}"#,
        );
        let mut new = with(&old, "spec.type", r#""ExternalName""#);
        prepare_update(&mut new, &old, &Occasion { now: "", user: &NOBODY });
        let wanted =
            object(r#"{"spec":{"type":"ExternalName","ports":[{"port":80}]},"status":{"loadBalancer":{}}}"#);
        assert_eq!(new, wanted);
    }

    #[test]
    fn each_rule_of_a_status_refuses() {
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
        for (path, json, wanted) in table {
            let mut errors = Errors::new();
            validate_status(&with(&balancer, &path, json), &object("{}"), &mut errors);
            assert_eq!(said(&errors), [wanted], "{path}={json}");
        }
    }

    #[test]
    fn each_dubious_field_is_named() {
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
        for (path, json, wanted) in table {
            let mut warned = Vec::new();
            warn(&with(&base, path, json), None, &mut warned);
            assert_eq!(warned, [wanted], "{path}={json}");
        }
    }
}
