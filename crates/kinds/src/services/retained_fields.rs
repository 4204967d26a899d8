//! The allocated fields that an updated service keeps although the client omitted them.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::field_value::{items_mut, same};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::{needs_address, needs_health_port, needs_node_ports, node_ports};

fn is_blank(spec: &Value, field: &str) -> bool {
    spec.get(field).is_none_or(|list| list.items().is_empty())
}

/// Copies clusterIP to clusterIPs, for clients that know only the first address.
pub fn mirror_address(spec: &mut Value) {
    let address = spec.str("clusterIP").to_owned();
    if !address.is_empty() && is_blank(spec, "clusterIPs") {
        spec.set("clusterIPs", vec![address]);
    }
}

/// Restores allocated fields, so that the body of a create can be sent again as an update.
pub fn keep_given(service: &mut Value, old: &Value) {
    let was = crate::services::spec(old);
    let spec = service.entry("spec");
    if needs_address(was) && needs_address(spec) {
        if spec.str("clusterIP").is_empty() {
            meta::copy(spec, was, "clusterIP");
        }
        if is_blank(spec, "clusterIPs") {
            meta::copy(spec, was, "clusterIPs");
        }
    }
    if needs_node_ports(was) && needs_node_ports(spec) {
        keep_node_ports(spec, was);
    }
    if needs_health_port(was) && needs_health_port(spec) && spec.get("healthCheckNodePort").is_none() {
        meta::copy(spec, was, "healthCheckNodePort");
    }
    agree_on_addresses(spec, was);
}

/// Entries are identified by name; a port that the client gave to another entry is not used twice.
fn keep_node_ports(spec: &mut Value, was: &Value) {
    let now: BTreeSet<i64> = node_ports(spec).collect();
    let kept: BTreeSet<i64> = node_ports(was).filter(|port| now.contains(port)).collect();
    let ports = was.get("ports").map(Value::items).unwrap_or_default();
    let had: BTreeMap<&str, i64> = ports
        .iter()
        .map(|port| (port.str("name"), port.get("nodePort").and_then(Value::as_int).unwrap_or(0)))
        .collect();
    for port in items_mut(spec, "ports") {
        let before = had.get(port.str("name")).copied().unwrap_or(0);
        let unset = port.get("nodePort").and_then(Value::as_int).unwrap_or(0) == 0;
        if unset && before != 0 && !kept.contains(&before) {
            port.set("nodePort", before);
        }
    }
}

/// A client that changes one of the two address fields means both.
fn agree_on_addresses(spec: &mut Value, was: &Value) {
    let (now, had) = (spec.str("clusterIP").to_owned(), was.str("clusterIP"));
    if is_blank(spec, "clusterIPs") && now == had {
        meta::copy(spec, was, "clusterIPs");
    }
    if now == had || !same(spec.get("clusterIPs"), was.get("clusterIPs")) {
        return;
    }
    if now.is_empty() {
        spec.remove("clusterIPs");
    } else {
        spec.set("clusterIPs", vec![now]);
    }
}

/// Drops fields that the new type does not use, unless the client changed them: that is refused later.
pub fn drop_useless(service: &mut Value, old: &Value) {
    let was = crate::services::spec(old).clone();
    let spec = service.entry("spec");
    let kind = spec.str("type").to_owned();
    if needs_address(&was) && !needs_address(spec) {
        let unchanged = |field: &str, spec: &Value| same(spec.get(field), was.get(field));
        if unchanged("clusterIP", spec) && unchanged("clusterIPs", spec) {
            spec.remove("clusterIP");
            spec.remove("clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if unchanged(field, spec) {
                spec.remove(field);
            }
        }
    }
    let has_ports = |spec: &Value| matches!(spec.str("type"), "NodePort" | "LoadBalancer");
    if has_ports(&was) && !has_ports(spec) {
        let before: BTreeSet<i64> = node_ports(&was).collect();
        if node_ports(spec).all(|port| before.contains(&port)) {
            for port in items_mut(spec, "ports") {
                port.remove("nodePort");
            }
        }
    }
    let useless = [
        ("healthCheckNodePort", needs_health_port(&was) && !needs_health_port(spec)),
        ("allocateLoadBalancerNodePorts", was.str("type") == "LoadBalancer" && kind != "LoadBalancer"),
        ("loadBalancerClass", was.str("type") == "LoadBalancer" && kind != "LoadBalancer"),
        ("externalTrafficPolicy", is_reached_from_outside(&was) && !is_reached_from_outside(spec)),
    ];
    for (field, useless) in useless {
        if useless && same(spec.get(field), was.get(field)) {
            spec.remove(field);
        }
    }
    if kind != "LoadBalancer" && service.at(&["status", "loadBalancer"]).is_some() {
        service.entry("status").set("loadBalancer", Value::object());
    }
}

/// Whether a service is reachable from outside of the cluster.
pub fn is_reached_from_outside(spec: &Value) -> bool {
    matches!(spec.str("type"), "LoadBalancer" | "NodePort")
        || spec.get("externalIPs").is_some_and(|addresses| !addresses.items().is_empty())
            && matches!(spec.str("type"), "" | "ClusterIP")
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    fn kept(new: &str, old: &str) -> Value {
        let mut new = object(new);
        keep_given(&mut new, &object(old));
        new
    }

    #[test]
    fn a_body_written_again_changes_nothing() {
        let old = r#"{"spec":{"type":"LoadBalancer","clusterIP":"10.0.0.9","clusterIPs":["10.0.0.9"],
            "externalTrafficPolicy":"Local","healthCheckNodePort":30009,
            "ports":[{"name":"a","port":1,"nodePort":30001},{"name":"b","port":2,"nodePort":30002}]}}"#;
        let new = r#"{"spec":{"type":"LoadBalancer","externalTrafficPolicy":"Local",
            "ports":[{"name":"a","port":1},{"name":"b","port":2}]}}"#;
        assert_eq!(kept(new, old), object(old));
        // The port of b was given to a: b gets another one.
        let moved = r#"{"spec":{"type":"NodePort","ports":[{"name":"a","port":1,"nodePort":30002},{"name":"b","port":2}]}}"#;
        let found = kept(moved, old);
        assert_eq!(node_ports(found.get("spec").unwrap()).collect::<Vec<_>>(), [30_002]);
    }

    #[test]
    fn one_address_field_speaks_for_both() {
        let old = r#"{"spec":{"type":"ClusterIP","clusterIP":"10.0.0.9","clusterIPs":["10.0.0.9"]}}"#;
        let found =
            kept(r#"{"spec":{"type":"ClusterIP","clusterIP":"None","clusterIPs":["10.0.0.9"]}}"#, old);
        assert_eq!(found.at(&["spec", "clusterIPs"]), Some(&object(r#"["None"]"#)));
        let name = r#"{"spec":{"type":"ExternalName","externalName":"a.b"}}"#;
        assert_eq!(kept(name, old), object(name));
    }

    #[test]
    fn a_new_type_drops_what_it_has_no_use_for() {
        let old = r#"{"spec":{"type":"LoadBalancer","clusterIP":"10.0.0.9","clusterIPs":["10.0.0.9"],"ipFamilies":["IPv4"],
            "ipFamilyPolicy":"SingleStack","allocateLoadBalancerNodePorts":true,"externalTrafficPolicy":"Local",
            "healthCheckNodePort":30009,"loadBalancerClass":"a/b","ports":[{"port":1,"nodePort":30001}]},
            "status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"}]}}}"#;
        let mut new = object(old);
        new.entry("spec").set("type", "ClusterIP");
        drop_useless(&mut new, &object(old));
        let wanted = r#"{"spec":{"type":"ClusterIP","clusterIP":"10.0.0.9","clusterIPs":["10.0.0.9"],
            "ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","ports":[{"port":1}]},"status":{"loadBalancer":{}}}"#;
        assert_eq!(new, object(wanted));
        new.entry("spec").set("type", "ExternalName");
        drop_useless(&mut new, &object(wanted));
        let wanted = r#"{"spec":{"type":"ExternalName","ports":[{"port":1}]},"status":{"loadBalancer":{}}}"#;
        assert_eq!(new, object(wanted));
    }
}
