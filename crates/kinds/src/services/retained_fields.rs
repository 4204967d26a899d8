//! The allocated fields that an updated service keeps although the client omitted them.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::field_value::{items_mut, same};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::{needs_address, needs_health_port, needs_node_ports, node_ports};

fn is_empty_list(spec: &Value, field: &str) -> bool {
    spec.get(field).is_none_or(|list| list.items().is_empty())
}

/// Copies clusterIP to clusterIPs, for clients that know only the first address.
pub fn mirror_address(spec: &mut Value) {
    let address = spec.str("clusterIP").to_owned();
    if !address.is_empty() && is_empty_list(spec, "clusterIPs") {
        spec.set("clusterIPs", vec![address]);
    }
}

/// Restores allocated fields, so that the body of a create can be sent again as an update.
pub fn restore_allocated(service: &mut Value, old: &Value) {
    let old_spec = crate::services::spec(old);
    let spec = service.entry("spec");
    if needs_address(old_spec) && needs_address(spec) {
        if spec.str("clusterIP").is_empty() {
            meta::copy(spec, old_spec, "clusterIP");
        }
        if is_empty_list(spec, "clusterIPs") {
            meta::copy(spec, old_spec, "clusterIPs");
        }
    }
    if needs_node_ports(old_spec) && needs_node_ports(spec) {
        keep_node_ports(spec, old_spec);
    }
    if needs_health_port(old_spec) && needs_health_port(spec) && spec.get("healthCheckNodePort").is_none() {
        meta::copy(spec, old_spec, "healthCheckNodePort");
    }
    sync_cluster_ips(spec, old_spec);
}

/// Entries are identified by name; a port that the client gave to another entry is not used twice.
fn keep_node_ports(spec: &mut Value, old_spec: &Value) {
    let current: BTreeSet<i64> = node_ports(spec).collect();
    let reused: BTreeSet<i64> = node_ports(old_spec).filter(|port| current.contains(port)).collect();
    let ports = old_spec.get("ports").map(Value::items).unwrap_or_default();
    let old_node_ports: BTreeMap<&str, i64> = ports
        .iter()
        .map(|port| (port.str("name"), port.get("nodePort").and_then(Value::as_int).unwrap_or(0)))
        .collect();
    for port in items_mut(spec, "ports") {
        let old_port = old_node_ports.get(port.str("name")).copied().unwrap_or(0);
        let is_unset = port.get("nodePort").and_then(Value::as_int).unwrap_or(0) == 0;
        if is_unset && old_port != 0 && !reused.contains(&old_port) {
            port.set("nodePort", old_port);
        }
    }
}

/// If a client changes only clusterIP, clusterIPs follows.
fn sync_cluster_ips(spec: &mut Value, old_spec: &Value) {
    let (cluster_ip, old_cluster_ip) = (spec.str("clusterIP").to_owned(), old_spec.str("clusterIP"));
    if is_empty_list(spec, "clusterIPs") && cluster_ip == old_cluster_ip {
        meta::copy(spec, old_spec, "clusterIPs");
    }
    if cluster_ip == old_cluster_ip || !same(spec.get("clusterIPs"), old_spec.get("clusterIPs")) {
        return;
    }
    if cluster_ip.is_empty() {
        spec.remove("clusterIPs");
    } else {
        spec.set("clusterIPs", vec![cluster_ip]);
    }
}

/// Drops fields that the new type does not use, unless the client changed them: that is refused later.
pub fn drop_unused(service: &mut Value, old: &Value) {
    let old_spec = crate::services::spec(old).clone();
    let spec = service.entry("spec");
    let kind = spec.str("type").to_owned();
    if needs_address(&old_spec) && !needs_address(spec) {
        let is_unchanged = |field: &str, spec: &Value| same(spec.get(field), old_spec.get(field));
        if is_unchanged("clusterIP", spec) && is_unchanged("clusterIPs", spec) {
            spec.remove("clusterIP");
            spec.remove("clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if is_unchanged(field, spec) {
                spec.remove(field);
            }
        }
    }
    let has_node_ports = |spec: &Value| matches!(spec.str("type"), "NodePort" | "LoadBalancer");
    if has_node_ports(&old_spec) && !has_node_ports(spec) {
        let old_ports: BTreeSet<i64> = node_ports(&old_spec).collect();
        if node_ports(spec).all(|port| old_ports.contains(&port)) {
            for port in items_mut(spec, "ports") {
                port.remove("nodePort");
            }
        }
    }
    let unused = [
        ("healthCheckNodePort", needs_health_port(&old_spec) && !needs_health_port(spec)),
        ("allocateLoadBalancerNodePorts", old_spec.str("type") == "LoadBalancer" && kind != "LoadBalancer"),
        ("loadBalancerClass", old_spec.str("type") == "LoadBalancer" && kind != "LoadBalancer"),
        ("externalTrafficPolicy", is_reached_from_outside(&old_spec) && !is_reached_from_outside(spec)),
    ];
    for (field, unused) in unused {
        if unused && same(spec.get(field), old_spec.get(field)) {
            spec.remove(field);
        }
    }
    if kind != "LoadBalancer" && service.get_path(&["status", "loadBalancer"]).is_some() {
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

    fn with_kept_fields(new: &str, old: &str) -> Value {
        let mut new = object(new);
        restore_allocated(&mut new, &object(old));
        new
    }

    #[test]
    fn update_with_the_create_body_changes_nothing() {
        let old = r#"{"spec":{"type":"LoadBalancer","clusterIP":"10.0.0.9","clusterIPs":["10.0.0.9"],
            "externalTrafficPolicy":"Local","healthCheckNodePort":30009,
            "ports":[{"name":"a","port":1,"nodePort":30001},{"name":"b","port":2,"nodePort":30002}]}}"#;
        let new = r#"{"spec":{"type":"LoadBalancer","externalTrafficPolicy":"Local",
            "ports":[{"name":"a","port":1},{"name":"b","port":2}]}}"#;
        assert_eq!(with_kept_fields(new, old), object(old));
        // The port of b was given to a: b gets another one.
        let moved = r#"{"spec":{"type":"NodePort","ports":[{"name":"a","port":1,"nodePort":30002},{"name":"b","port":2}]}}"#;
        let updated = with_kept_fields(moved, old);
        assert_eq!(node_ports(updated.get("spec").unwrap()).collect::<Vec<_>>(), [30_002]);
    }

    #[test]
    fn changed_cluster_ip_replaces_cluster_ips() {
        let old = r#"{"spec":{"type":"ClusterIP","clusterIP":"10.0.0.9","clusterIPs":["10.0.0.9"]}}"#;
        let updated = with_kept_fields(
            r#"{"spec":{"type":"ClusterIP","clusterIP":"None","clusterIPs":["10.0.0.9"]}}"#,
            old,
        );
        assert_eq!(updated.get_path(&["spec", "clusterIPs"]), Some(&object(r#"["None"]"#)));
        let name = r#"{"spec":{"type":"ExternalName","externalName":"a.b"}}"#;
        assert_eq!(with_kept_fields(name, old), object(name));
    }

    #[test]
    fn type_change_drops_unused_fields() {
        let old = r#"{"spec":{"type":"LoadBalancer","clusterIP":"10.0.0.9","clusterIPs":["10.0.0.9"],"ipFamilies":["IPv4"],
            "ipFamilyPolicy":"SingleStack","allocateLoadBalancerNodePorts":true,"externalTrafficPolicy":"Local",
            "healthCheckNodePort":30009,"loadBalancerClass":"a/b","ports":[{"port":1,"nodePort":30001}]},
            "status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"}]}}}"#;
        let mut new = object(old);
        new.entry("spec").set("type", "ClusterIP");
        drop_unused(&mut new, &object(old));
        let expected = r#"{"spec":{"type":"ClusterIP","clusterIP":"10.0.0.9","clusterIPs":["10.0.0.9"],
            "ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","ports":[{"port":1}]},"status":{"loadBalancer":{}}}"#;
        assert_eq!(new, object(expected));
        new.entry("spec").set("type", "ExternalName");
        drop_unused(&mut new, &object(expected));
        let expected =
            r#"{"spec":{"type":"ExternalName","ports":[{"port":1}]},"status":{"loadBalancer":{}}}"#;
        assert_eq!(new, object(expected));
    }
}
