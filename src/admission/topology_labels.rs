//! PodTopologyLabels: copies the topology labels of a node to its pods, so that containers need not read the Node.

use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, TypeName};

use super::{Operation, Outcome, Plugin, Write};

const LABELS: [&str; 2] = ["topology.k8s.io/zone", "topology.k8s.io/region"];
const NODES: GroupResource<'_> = GroupResource { group: "", resource: "nodes" };

/// Sets the zone and region of the node on pods, when they are created with a node or bound to it.
pub struct PodTopologyLabels;

impl Plugin for PodTopologyLabels {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Create
            && (write.is_of("", "pods") || write.is_of_subresource("", "pods", "binding"))
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value) -> Outcome<'a> {
        Box::pin(set_labels(write, object))
    }

    fn labels_bound_pods(&self) -> bool {
        true
    }
}

async fn set_labels(write: &Write<'_>, object: &mut Value) -> Result<()> {
    let Some(node) = node_of(object, write.subresource() == "binding") else { return Ok(()) };
    let result =
        write.backend.stores.get_seen(&TypeName::new("nodes"), Key::cluster(node), write.call.permit()).await;
    let node = match result {
        Ok(node) => node,
        Err(StoreError::NotFound) => return Ok(()),
        Err(error) => return Err(Status::from_store(&error, NODES, node)),
    };
    for key in LABELS {
        if let Some(value) = node.labels.get(key) {
            object.entry("metadata").entry("labels").set(key, value);
        }
    }
    Ok(())
}

/// The node that a pod or a binding names.
fn node_of(object: &Value, is_binding: bool) -> Option<&str> {
    let name = if is_binding {
        object.get("target").filter(|target| target.str("kind") == "Node").map(|target| target.str("name"))
    } else {
        object.get("spec").map(|spec| spec.str("nodeName"))
    };
    name.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::*;

    #[test]
    fn node_of_pod_and_binding() {
        for (text, is_binding, expected) in [
            ("spec: {nodeName: a}", false, Some("a")),
            ("spec: {nodeName: a}", true, None),
            ("spec: {}", false, None),
            ("target: {kind: Node, name: a}", true, Some("a")),
            ("target: {kind: Other, name: a}", true, None),
        ] {
            assert_eq!(node_of(&yaml::read(text.as_bytes()).unwrap(), is_binding), expected, "{text}");
        }
    }
}
