//! Ingresses and endpoint slices.

use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::HOSTNAME_LABEL;

use super::{each_item, fill, rename};

/// The key of the zone in the topology of an endpoint.
const ZONE: &str = "topology.kubernetes.io/zone";

/// An Ingress of v1beta1: its backends name a service and a port, and the kind of a path has a default.
pub(super) fn ingress(mut ingress: Value) -> Value {
    if let Some(spec) = ingress.get_mut("spec") {
        rename(spec, "backend", "defaultBackend");
        if let Some(default_backend) = spec.get_mut("defaultBackend") {
            backend(default_backend);
        }
        each_item(spec, &["rules"], |rule| {
            each_item(rule, &["http", "paths"], |path| {
                fill(path, "pathType", "ImplementationSpecific");
                if let Some(path_backend) = path.get_mut("backend") {
                    backend(path_backend);
                }
            });
        });
    }
    ingress
}

fn backend(backend: &mut Value) {
    let (name, port) = (backend.remove("serviceName"), backend.remove("servicePort"));
    let name = name.filter(|name| name.as_str().is_some_and(|name| !name.is_empty()));
    let port = port.filter(|port| !matches!(port, Value::Null | Value::Int(0)));
    if name.is_none() && port.is_none() {
        return;
    }
    let service = backend.entry("service");
    if let Some(name) = name {
        service.set("name", name);
    }
    match port {
        Some(Value::String(name)) if name.is_empty() => {}
        Some(Value::String(name)) => service.entry("port").set("name", name),
        Some(number) => service.entry("port").set("number", number),
        None => {}
    }
}

/// An EndpointSlice of v1beta1: the zone and the node of an endpoint are in a map.
pub(super) fn endpoint_slice(mut slice: Value) -> Value {
    each_item(&mut slice, &["endpoints"], |endpoint| {
        let Some(mut topology) = endpoint.remove("topology").filter(|topology| !topology.is_null()) else {
            return;
        };
        if let Some(zone) = topology.remove(ZONE) {
            endpoint.set("zone", zone);
        }
        let node = endpoint.get("nodeName").and_then(Value::as_str);
        if node.is_some() && topology.get(HOSTNAME_LABEL).and_then(Value::as_str) == node {
            topology.remove(HOSTNAME_LABEL);
        }
        if topology.fields().is_some_and(|fields| !fields.is_empty()) {
            endpoint.set("deprecatedTopology", topology);
        }
    });
    slice
}
