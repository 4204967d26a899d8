//! Which ports on the nodes a service asks for. The answers are written back where they were asked for.

use std::collections::BTreeMap;

use super::{needs_health_port, needs_node_ports, node_ports};
use crate::api::field::{FieldError, Path};
use crate::api::kinds::items_mut;
use crate::api::value::Value;

/// A dry run shows ports that nobody can have, from here on.
const DUMMY_PORTS: i64 = 32_769;

/// One port that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// This port, or any.
    pub wanted: Option<i64>,
    /// Which entries of `spec.ports` get it. None: it is for health checks.
    pub entries: Vec<usize>,
}

impl Ask {
    /// The field that a refusal is about.
    pub fn path(&self) -> Path {
        match self.entries.first() {
            Some(index) => Path::new("spec").child("ports").index(*index).child("nodePort"),
            None => Path::new("spec").child("healthCheckNodePort"),
        }
    }

    /// The error of a port that cannot be had.
    pub fn refused(&self, why: &str) -> FieldError {
        FieldError::invalid(&self.path(), &self.wanted.unwrap_or(0).to_string(), why)
    }
}

/// What a new service asks for. Entries with the same port share one on the nodes: so a name server is reached at one
/// number by both protocols.
pub fn for_new(spec: &Value) -> Vec<Ask> {
    let mut asks: Vec<Ask> = Vec::new();
    if matches!(spec.str("type"), "NodePort" | "LoadBalancer") {
        // By the port of the service: which ask answers it.
        let mut answered: BTreeMap<i64, usize> = BTreeMap::new();
        let entries = entries(spec);
        for (index, (port, own)) in entries.iter().copied().enumerate() {
            if own == 0 && !needs_node_ports(spec) {
                continue;
            }
            match answered.get(&port) {
                Some(ask) if own == 0 || asks[*ask].wanted == Some(own) => asks[*ask].entries.push(index),
                Some(_) => asks.push(Ask { wanted: Some(own), entries: vec![index] }),
                None => {
                    let wanted =
                        entries.iter().find(|entry| entry.0 == port && entry.1 != 0).map(|entry| entry.1);
                    answered.insert(port, asks.len());
                    asks.push(Ask { wanted, entries: vec![index] });
                }
            }
        }
    }
    if needs_health_port(spec) {
        asks.push(health(spec));
    }
    asks
}

/// What a changed service asks for besides what it has.
pub fn for_changed(spec: &Value, was: &Value) -> Vec<Ask> {
    let mut asks: Vec<Ask> = Vec::new();
    if matches!(spec.str("type"), "NodePort" | "LoadBalancer") {
        let had: Vec<i64> = node_ports(was).collect();
        for (index, (_, own)) in entries(spec).into_iter().enumerate() {
            let asked = asks.iter().any(|ask| ask.wanted == Some(own));
            if own != 0 && !had.contains(&own) && !asked {
                asks.push(Ask { wanted: Some(own), entries: vec![index] });
            } else if own == 0 && needs_node_ports(spec) {
                asks.push(Ask { wanted: None, entries: vec![index] });
            }
        }
    }
    if needs_health_port(spec) && !needs_health_port(was) {
        asks.push(health(spec));
    }
    asks
}

fn health(spec: &Value) -> Ask {
    let own = spec.get("healthCheckNodePort").and_then(Value::as_int).filter(|port| *port != 0);
    Ask { wanted: own, entries: Vec::new() }
}

/// The port and the port on the nodes of each entry.
fn entries(spec: &Value) -> Vec<(i64, i64)> {
    let number = |port: &Value, field| port.get(field).and_then(Value::as_int).unwrap_or(0);
    let ports = spec.get("ports").map(Value::items).unwrap_or_default();
    ports.iter().map(|port| (number(port, "port"), number(port, "nodePort"))).collect()
}

/// Writes the ports that were got, one for each ask.
pub fn fill(service: &mut Value, asks: &[Ask], got: &[i64]) {
    let spec = service.entry("spec");
    for (ask, port) in asks.iter().zip(got) {
        if ask.entries.is_empty() {
            spec.set("healthCheckNodePort", *port);
        }
        for (index, entry) in items_mut(spec, "ports").iter_mut().enumerate() {
            if ask.entries.contains(&index) {
                entry.set("nodePort", *port);
            }
        }
    }
}

/// What a dry run shows: the ports that were named, and dummies above them for the rest.
pub fn dummies(asks: &[Ask]) -> Vec<i64> {
    let mut got: Vec<i64> = Vec::with_capacity(asks.len());
    for ask in asks {
        let next = got.iter().max().map_or(DUMMY_PORTS, |highest| highest + 1);
        got.push(ask.wanted.unwrap_or(next));
    }
    got
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds::testing::object;

    fn asked(asks: &[Ask]) -> Vec<(Option<i64>, Vec<usize>)> {
        asks.iter().map(|ask| (ask.wanted, ask.entries.clone())).collect()
    }

    #[test]
    fn new_services_share_ports_between_protocols() {
        let spec = object(
            r#"{"type":"NodePort","ports":[{"port":53},{"port":53,"protocol":"UDP"},{"port":80,"nodePort":30080},
                {"port":81},{"port":81,"nodePort":30081},{"port":80,"nodePort":30082}]}"#,
        );
        let wanted = [
            (None, vec![0, 1]),
            (Some(30_080), vec![2]),
            (Some(30_081), vec![3, 4]),
            (Some(30_082), vec![5]),
        ];
        assert_eq!(asked(&for_new(&spec)), wanted);
        let mut service = object(r#"{}"#);
        service.set("spec", spec);
        let asks = for_new(service.get("spec").unwrap());
        fill(&mut service, &asks, &[1, 2, 3, 4]);
        assert_eq!(node_ports(service.get("spec").unwrap()).collect::<Vec<_>>(), [1, 1, 2, 3, 3, 4]);
    }

    #[test]
    fn only_types_that_need_ports_ask() {
        assert!(for_new(&object(r#"{"type":"ClusterIP","ports":[{"port":1}]}"#)).is_empty());
        let mute = r#"{"type":"LoadBalancer","allocateLoadBalancerNodePorts":false,"externalTrafficPolicy":"Local",
            "ports":[{"port":1},{"port":2,"nodePort":30001}]}"#;
        assert_eq!(asked(&for_new(&object(mute))), [(Some(30_001), vec![1]), (None, vec![])]);
    }

    #[test]
    fn changes_ask_for_what_is_new() {
        let was = object(r#"{"type":"NodePort","ports":[{"port":1,"nodePort":30001}]}"#);
        let now = object(
            r#"{"type":"LoadBalancer","externalTrafficPolicy":"Local","healthCheckNodePort":30009,
                "ports":[{"port":1,"nodePort":30001},{"port":2},{"port":3,"nodePort":30003},{"port":4,"nodePort":30003}]}"#,
        );
        let asks = for_changed(&now, &was);
        assert_eq!(asked(&asks), [(None, vec![1]), (Some(30_003), vec![2]), (Some(30_009), vec![])]);
        assert_eq!(dummies(&asks), [32_769, 30_003, 30_009]);
        assert_eq!(asks[1].refused("x").to_string(), "spec.ports[2].nodePort: Invalid value: 30003: x");
        assert!(for_changed(&was, &was).is_empty());
    }
}
