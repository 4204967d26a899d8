//! Cluster IPs and node ports of services. Which ones a service requests, keeps and releases is decided here, as pure
//! functions; `registry/services.rs` allocates them.

pub mod addresses;
pub mod families;
pub mod ports;
pub mod retained_fields;

use std::collections::BTreeSet;

use pilothouse_apimachinery::value::Value;

/// The clusterIP of a headless service.
pub const HEADLESS: &str = "None";

/// The spec of a service.
pub fn spec(service: &Value) -> &Value {
    service.get("spec").unwrap_or(&Value::Null)
}

/// Whether services of this type have a cluster IP.
pub fn needs_address(spec: &Value) -> bool {
    spec.str("type") != "ExternalName"
}

/// Whether services of this type have node ports. A load balancer may do without.
pub fn needs_node_ports(spec: &Value) -> bool {
    match spec.str("type") {
        "NodePort" => true,
        "LoadBalancer" => spec.get("allocateLoadBalancerNodePorts").and_then(Value::as_bool).unwrap_or(true),
        _ => false,
    }
}

/// Whether the service needs a health check node port.
pub fn needs_health_port(spec: &Value) -> bool {
    spec.str("type") == "LoadBalancer" && spec.str("externalTrafficPolicy") == "Local"
}

/// Whether the service is headless.
pub fn is_headless(spec: &Value) -> bool {
    matches!(list(spec, "clusterIPs").as_slice(), [HEADLESS])
}

/// The strings of a list.
pub fn list<'a>(spec: &'a Value, field: &str) -> Vec<&'a str> {
    let items = spec.get(field).map(Value::items).unwrap_or_default();
    items.iter().map(|item| item.as_str().unwrap_or_default()).collect()
}

/// The node ports in the spec, in order.
pub fn node_ports(spec: &Value) -> impl Iterator<Item = i64> {
    let ports = spec.get("ports").map(Value::items).unwrap_or_default();
    ports.iter().filter_map(|port| port.get("nodePort").and_then(Value::as_int)).filter(|port| *port != 0)
}

/// The allocated addresses and ports of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAllocations {
    /// Its cluster IPs in canonical form.
    pub addresses: BTreeSet<String>,
    /// Its node ports.
    pub ports: BTreeSet<u16>,
}

impl ServiceAllocations {
    /// The allocations of this service.
    pub fn from_service(service: &Value) -> ServiceAllocations {
        let spec = spec(service);
        let mut allocations = ServiceAllocations::default();
        if needs_address(spec) && !is_headless(spec) {
            let cluster_ips = list(spec, "clusterIPs");
            allocations.addresses = cluster_ips.into_iter().filter_map(addresses::canonical).collect();
        }
        if matches!(spec.str("type"), "NodePort" | "LoadBalancer") {
            allocations.ports.extend(node_ports(spec).filter_map(|port| u16::try_from(port).ok()));
        }
        if needs_health_port(spec) {
            let port = spec.get("healthCheckNodePort").and_then(Value::as_int).unwrap_or(0);
            allocations.ports.extend(u16::try_from(port).ok().filter(|port| *port > 0));
        }
        allocations
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.ports.is_empty()
    }

    /// The allocations that `other` lacks.
    pub fn without(&self, other: &ServiceAllocations) -> ServiceAllocations {
        ServiceAllocations {
            addresses: self.addresses.difference(&other.addresses).cloned().collect(),
            ports: self.ports.difference(&other.ports).copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    fn allocations_of(json: &str) -> (Vec<String>, Vec<u16>) {
        let allocations = ServiceAllocations::from_service(&object(json));
        (allocations.addresses.into_iter().collect(), allocations.ports.into_iter().collect())
    }

    #[test]
    fn allocations_depend_on_the_service_type() {
        let expected = |addresses: &[&str], ports: &[u16]| {
            (addresses.iter().map(|&address| address.to_owned()).collect::<Vec<_>>(), ports.to_vec())
        };
        assert_eq!(
            allocations_of(r#"{"spec":{"type":"ClusterIP","clusterIPs":["10.0.0.1","FD00::1"]}}"#),
            expected(&["10.0.0.1", "fd00::1"], &[])
        );
        assert_eq!(
            allocations_of(r#"{"spec":{"type":"ClusterIP","clusterIPs":["None"]}}"#),
            expected(&[], &[])
        );
        assert_eq!(
            allocations_of(r#"{"spec":{"type":"ExternalName","clusterIPs":["10.0.0.1"]}}"#),
            expected(&[], &[])
        );
        let balancer = r#"{"spec":{"type":"LoadBalancer","externalTrafficPolicy":"Local","healthCheckNodePort":30002,
            "ports":[{"port":1,"nodePort":30001},{"port":2,"nodePort":30001},{"port":3}]}}"#;
        assert_eq!(allocations_of(balancer), expected(&[], &[30_001, 30_002]));
    }
}
