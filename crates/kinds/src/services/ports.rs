//! The node ports that a service requests. The allocated ports are written back into the same fields.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::items_mut;
use pilothouse_apimachinery::value::Value;

use super::{needs_health_port, needs_node_ports, node_ports};

/// A dry run shows unallocatable ports from here on.
const DUMMY_PORTS: i64 = 32_769;

/// One requested node port.
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
    pub fn refused(&self, why: &str) -> FieldError {
        FieldError::invalid(&self.path(), &self.wanted.unwrap_or(0).to_string(), why)
    }
}

/// The node ports that a new service requests. Entries with the same port share one: so DNS has one number for both protocols.
pub fn for_new(spec: &Value) -> Vec<NodePortRequest> {
    let mut asks: Vec<NodePortRequest> = Vec::new();
    if matches!(spec.str("type"), "NodePort" | "LoadBalancer") {
        // By service port: the request that answers it.
        let mut answered: BTreeMap<i64, usize> = BTreeMap::new();
        let entries = entries(spec);
        // By service port: the first node port that an entry states. Computed once, because a body may have very many entries.
        let mut named: BTreeMap<i64, i64> = BTreeMap::new();
        for (port, own) in entries.iter().copied().filter(|(_, own)| *own != 0) {
            named.entry(port).or_insert(own);
        }
        for (index, (port, own)) in entries.iter().copied().enumerate() {
            if own == 0 && !needs_node_ports(spec) {
                continue;
            }
            match answered.get(&port) {
                Some(ask) if own == 0 || asks[*ask].wanted == Some(own) => asks[*ask].entries.push(index),
                Some(_) => asks.push(NodePortRequest { wanted: Some(own), entries: vec![index] }),
                None => {
                    answered.insert(port, asks.len());
                    asks.push(NodePortRequest { wanted: named.get(&port).copied(), entries: vec![index] });
                }
            }
        }
    }
    if needs_health_port(spec) {
        asks.push(health(spec));
    }
    asks
}

/// The additional node ports that a changed service requests.
pub fn for_changed(spec: &Value, was: &Value) -> Vec<NodePortRequest> {
    let mut asks: Vec<NodePortRequest> = Vec::new();
    if matches!(spec.str("type"), "NodePort" | "LoadBalancer") {
        // The ports that it has, and those requested already.
        let mut known: BTreeSet<i64> = node_ports(was).collect();
        for (index, (_, own)) in entries(spec).into_iter().enumerate() {
            if own != 0 && known.insert(own) {
                asks.push(NodePortRequest { wanted: Some(own), entries: vec![index] });
            } else if own == 0 && needs_node_ports(spec) {
                asks.push(NodePortRequest { wanted: None, entries: vec![index] });
            }
        }
    }
    if needs_health_port(spec) && !needs_health_port(was) {
        asks.push(health(spec));
    }
    asks
}

fn health(spec: &Value) -> NodePortRequest {
    let own = spec.get("healthCheckNodePort").and_then(Value::as_int).filter(|port| *port != 0);
    NodePortRequest { wanted: own, entries: Vec::new() }
}

/// The port and node port of each entry.
fn entries(spec: &Value) -> Vec<(i64, i64)> {
    let number = |port: &Value, field| port.get(field).and_then(Value::as_int).unwrap_or(0);
    let ports = spec.get("ports").map(Value::items).unwrap_or_default();
    ports.iter().map(|port| (number(port, "port"), number(port, "nodePort"))).collect()
}

/// Writes the allocated ports, one per request.
pub fn fill(service: &mut Value, asks: &[NodePortRequest], got: &[i64]) {
    let spec = service.entry("spec");
    for (ask, port) in asks.iter().zip(got) {
        if ask.entries.is_empty() {
            spec.set("healthCheckNodePort", *port);
        }
        let entries = items_mut(spec, "ports");
        for index in &ask.entries {
            if let Some(entry) = entries.get_mut(*index) {
                entry.set("nodePort", *port);
            }
        }
    }
}

/// The ports of a dry run: the stated ones, and dummies above them.
pub fn dummies(asks: &[NodePortRequest]) -> Vec<i64> {
    let mut highest: Option<i64> = None;
    let shown = |ask: &NodePortRequest| {
        let next = highest.map_or(DUMMY_PORTS, |highest| highest.saturating_add(1));
        let port = ask.wanted.unwrap_or(next);
        highest = highest.max(Some(port));
        port
    };
    asks.iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::super::spec;
    use super::*;

    fn asked(asks: &[NodePortRequest]) -> Vec<(Option<i64>, Vec<usize>)> {
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
    /// As many entries as a body can have: quadratic work would take minutes.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
    fn very_many_ports_are_handled_in_one_pass() {
        let many = 196_000_i64;
        let service = |node_ports: bool| {
            let entry = |port: i64| {
                let mut entry = Value::object();
                entry.set("port", port);
                if node_ports {
                    entry.set("nodePort", port + 1);
                }
                entry
            };
            let mut service = object(r#"{"spec":{"type":"NodePort"}}"#);
            service.entry("spec").set("ports", Value::Array((1..=many).map(entry).collect()));
            service
        };
        let began = std::time::Instant::now();
        let (mut any, exact) = (service(false), service(true));
        let (new, changed) = (for_new(spec(&any)), for_changed(spec(&exact), spec(&any)));
        assert_eq!((new.len(), changed.len()), (196_000, 196_000));
        let got = dummies(&new);
        assert_eq!(got.last(), Some(&(DUMMY_PORTS + many - 1)));
        fill(&mut any, &new, &got);
        assert_eq!(node_ports(spec(&any)).last(), got.last().copied());
        assert_eq!(for_changed(spec(&exact), spec(&exact)), []);
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }
}
