//! The node ports that a service requests. The allocated ports are written back into the same fields.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::items_mut;
use pilothouse_apimachinery::value::Value;

use super::{needs_health_port, needs_node_ports, node_ports};

/// The first dummy port of a dry run, outside of the usual range.
const DUMMY_PORTS: i64 = 32_769;

/// A requested node port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePortRequest {
    /// This port, or any.
    pub wanted: Option<i64>,
    /// The entries of `spec.ports` that get it. Empty for the health check port.
    pub entries: Vec<usize>,
}

impl NodePortRequest {
    /// The field of its errors.
    pub fn path(&self) -> FieldPath {
        match self.entries.first() {
            Some(index) => FieldPath::new("spec").child("ports").index(*index).child("nodePort"),
            None => FieldPath::new("spec").child("healthCheckNodePort"),
        }
    }

    /// The error for a refused port.
    pub fn refused(&self, detail: &str) -> FieldError {
        FieldError::invalid(&self.path(), &self.wanted.unwrap_or(0).to_string(), detail)
    }
}

/// The node ports that a new service requests. Entries with the same port share one: so DNS has one number for both protocols.
pub fn for_new(spec: &Value) -> Vec<NodePortRequest> {
    let mut requests: Vec<NodePortRequest> = Vec::new();
    if matches!(spec.str("type"), "NodePort" | "LoadBalancer") {
        // Service port to the index of its request.
        let mut request_of_port: BTreeMap<i64, usize> = BTreeMap::new();
        let entries = entries(spec);
        // Service port to the first node port that an entry states. Computed once, because a body may have very many entries.
        let mut stated: BTreeMap<i64, i64> = BTreeMap::new();
        for (port, node_port) in entries.iter().copied().filter(|(_, node_port)| *node_port != 0) {
            stated.entry(port).or_insert(node_port);
        }
        for (index, (port, node_port)) in entries.iter().copied().enumerate() {
            if node_port == 0 && !needs_node_ports(spec) {
                continue;
            }
            match request_of_port.get(&port) {
                Some(request) if node_port == 0 || requests[*request].wanted == Some(node_port) => {
                    requests[*request].entries.push(index);
                }
                Some(_) => requests.push(NodePortRequest { wanted: Some(node_port), entries: vec![index] }),
                None => {
                    request_of_port.insert(port, requests.len());
                    requests
                        .push(NodePortRequest { wanted: stated.get(&port).copied(), entries: vec![index] });
                }
            }
        }
    }
    if needs_health_port(spec) {
        requests.push(health_check_request(spec));
    }
    requests
}

/// The additional node ports that an updated service requests.
pub fn for_updated(spec: &Value, old_spec: &Value) -> Vec<NodePortRequest> {
    let mut requests: Vec<NodePortRequest> = Vec::new();
    if matches!(spec.str("type"), "NodePort" | "LoadBalancer") {
        // The ports that it has, and those requested already.
        let mut old_ports: BTreeSet<i64> = node_ports(old_spec).collect();
        for (index, (_, node_port)) in entries(spec).into_iter().enumerate() {
            if node_port != 0 && old_ports.insert(node_port) {
                requests.push(NodePortRequest { wanted: Some(node_port), entries: vec![index] });
            } else if node_port == 0 && needs_node_ports(spec) {
                requests.push(NodePortRequest { wanted: None, entries: vec![index] });
            }
        }
    }
    if needs_health_port(spec) && !needs_health_port(old_spec) {
        requests.push(health_check_request(spec));
    }
    requests
}

fn health_check_request(spec: &Value) -> NodePortRequest {
    let port = spec.get("healthCheckNodePort").and_then(Value::as_int).filter(|port| *port != 0);
    NodePortRequest { wanted: port, entries: Vec::new() }
}

/// The port and node port of each entry.
fn entries(spec: &Value) -> Vec<(i64, i64)> {
    let number = |port: &Value, field| port.get(field).and_then(Value::as_int).unwrap_or(0);
    let ports = spec.get("ports").map(Value::items).unwrap_or_default();
    ports.iter().map(|port| (number(port, "port"), number(port, "nodePort"))).collect()
}

/// Writes the allocated ports, one per request.
pub fn set_ports(service: &mut Value, requests: &[NodePortRequest], ports: &[i64]) {
    let spec = service.entry("spec");
    for (request, port) in requests.iter().zip(ports) {
        if request.entries.is_empty() {
            spec.set("healthCheckNodePort", *port);
        }
        let entries = items_mut(spec, "ports");
        for index in &request.entries {
            if let Some(entry) = entries.get_mut(*index) {
                entry.set("nodePort", *port);
            }
        }
    }
}

/// The ports of a dry run: the stated ones, and dummies above them.
pub fn dummies(requests: &[NodePortRequest]) -> Vec<i64> {
    let mut highest: Option<i64> = None;
    let dummy = |request: &NodePortRequest| {
        let next = highest.map_or(DUMMY_PORTS, |highest| highest.saturating_add(1));
        let port = request.wanted.unwrap_or(next);
        highest = highest.max(Some(port));
        port
    };
    requests.iter().map(dummy).collect()
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::super::spec;
    use super::*;

    fn summary(requests: &[NodePortRequest]) -> Vec<(Option<i64>, Vec<usize>)> {
        requests.iter().map(|request| (request.wanted, request.entries.clone())).collect()
    }

    #[test]
    fn new_service_shares_node_port_between_protocols() {
        let spec = object(
            r#"{"type":"NodePort","ports":[{"port":53},{"port":53,"protocol":"UDP"},{"port":80,"nodePort":30080},
                {"port":81},{"port":81,"nodePort":30081},{"port":80,"nodePort":30082}]}"#,
        );
        let expected = [
            (None, vec![0, 1]),
            (Some(30_080), vec![2]),
            (Some(30_081), vec![3, 4]),
            (Some(30_082), vec![5]),
        ];
        assert_eq!(summary(&for_new(&spec)), expected);
        let mut service = object(r#"{}"#);
        service.set("spec", spec);
        let requests = for_new(service.get("spec").unwrap());
        set_ports(&mut service, &requests, &[1, 2, 3, 4]);
        assert_eq!(node_ports(service.get("spec").unwrap()).collect::<Vec<_>>(), [1, 1, 2, 3, 3, 4]);
    }

    #[test]
    fn only_node_port_types_request_node_ports() {
        assert!(for_new(&object(r#"{"type":"ClusterIP","ports":[{"port":1}]}"#)).is_empty());
        let without_allocation = r#"{"type":"LoadBalancer","allocateLoadBalancerNodePorts":false,"externalTrafficPolicy":"Local",
            "ports":[{"port":1},{"port":2,"nodePort":30001}]}"#;
        assert_eq!(summary(&for_new(&object(without_allocation))), [(Some(30_001), vec![1]), (None, vec![])]);
    }

    #[test]
    fn update_requests_only_additional_node_ports() {
        let old = object(r#"{"type":"NodePort","ports":[{"port":1,"nodePort":30001}]}"#);
        let new = object(
            r#"{"type":"LoadBalancer","externalTrafficPolicy":"Local","healthCheckNodePort":30009,
                "ports":[{"port":1,"nodePort":30001},{"port":2},{"port":3,"nodePort":30003},{"port":4,"nodePort":30003}]}"#,
        );
        let requests = for_updated(&new, &old);
        assert_eq!(summary(&requests), [(None, vec![1]), (Some(30_003), vec![2]), (Some(30_009), vec![])]);
        assert_eq!(dummies(&requests), [32_769, 30_003, 30_009]);
        assert_eq!(requests[1].refused("x").to_string(), "spec.ports[2].nodePort: Invalid value: 30003: x");
        assert!(for_updated(&old, &old).is_empty());
    }

    /// A Service with as many ports: with node ports, or without.
    fn service_with_ports(count: i64, node_ports: bool) -> Value {
        let entry = |port: i64| {
            let mut entry = Value::object();
            entry.set("port", port);
            if node_ports {
                entry.set("nodePort", port + 1);
            }
            entry
        };
        let mut service = object(r#"{"spec":{"type":"NodePort"}}"#);
        service.entry("spec").set("ports", Value::Array((1..=count).map(entry).collect()));
        service
    }

    /// Handles an update that replaces all ports. Returns how long that took.
    #[allow(clippy::disallowed_methods, reason = "the test measures time")]
    fn time_to_handle_ports(count: i64) -> std::time::Duration {
        let (mut any, exact) = (service_with_ports(count, false), service_with_ports(count, true));
        let start = std::time::Instant::now();
        let (new, changed) = (for_new(spec(&any)), for_updated(spec(&exact), spec(&any)));
        assert_eq!((new.len() as i64, changed.len() as i64), (count, count));
        let allocated = dummies(&new);
        assert_eq!(allocated.last(), Some(&(DUMMY_PORTS + count - 1)));
        set_ports(&mut any, &new, &allocated);
        assert_eq!(node_ports(spec(&any)).last(), allocated.last().copied());
        assert_eq!(for_updated(spec(&exact), spec(&exact)), []);
        start.elapsed()
    }

    /// The larger number is what fits into a request body. Quadratic work would take 256 times as long as for a sixteenth of it.
    #[test]
    fn handling_of_many_ports_is_linear() {
        let few = (0..3).map(|_| time_to_handle_ports(12_250)).max().unwrap();
        let many = time_to_handle_ports(196_000);
        assert!(many < few * 100, "{many:?} for sixteen times the ports of {few:?}");
    }
}
