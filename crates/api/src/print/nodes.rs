//! Rows of nodes and RuntimeClasses.

use std::collections::BTreeSet;

use pilothouse_apimachinery::value::Value;

use super::cells::{NONE, PrintedObject, cells, text_or};
use crate::age::UNKNOWN;

/// The prefix of labels that name a role of a node.
const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
/// The label whose value is a role of a node.
const ROLE_LABEL: &str = "kubernetes.io/role";

/// Cells of a node.
pub fn node(object: &PrintedObject<'_>) -> Vec<Value> {
    let info = |field: &str| object.text(&format!("status.nodeInfo.{field}"));
    cells![
        object.name(),
        status(object),
        text_or(&roles(object), NONE),
        object.age(),
        info("kubeletVersion"),
        address(object, "InternalIP"),
        address(object, "ExternalIP"),
        text_or(info("osImage"), UNKNOWN),
        text_or(info("kernelVersion"), UNKNOWN),
        text_or(info("containerRuntimeVersion"), UNKNOWN)
    ]
}

fn status(object: &PrintedObject<'_>) -> String {
    // Of several conditions of one type the last counts.
    let ready =
        object.items("status.conditions").iter().rev().find(|condition| condition.str("type") == "Ready");
    let mut status = match ready.map(|ready| ready.str("status")) {
        None => "Unknown",
        Some("True") => "Ready",
        Some(_) => "NotReady",
    }
    .to_owned();
    if object.flag("spec.unschedulable") == Some(true) {
        status.push_str(",SchedulingDisabled");
    }
    status
}

fn roles(object: &PrintedObject<'_>) -> String {
    let labels = object.field("metadata.labels").and_then(Value::fields).into_iter().flatten();
    let roles: BTreeSet<&str> = labels
        .filter_map(|(key, value)| match key.strip_prefix(ROLE_PREFIX) {
            Some(role) => Some(role),
            None if key == ROLE_LABEL => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.into_iter().collect::<Vec<_>>().join(",")
}

fn address<'a>(object: &PrintedObject<'a>, kind: &str) -> &'a str {
    let address = object.items("status.addresses").iter().find(|address| address.str("type") == kind);
    address.map_or(NONE, |address| address.str("address"))
}

/// Cells of a runtime class.
pub fn runtime_class(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![object.name(), object.text("handler"), object.age()]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::assert_cells;

    #[test]
    fn node_cells_show_status_roles_and_addresses() {
        assert_cells(
            "",
            "Node",
            r#"{"metadata":{"name":"n","creationTimestamp":"2024-04-01T12:10:00Z","labels":{"kubernetes.io/role":"etcd",
                "node-role.kubernetes.io/worker":"","node-role.kubernetes.io/":"","node-role.kubernetes.io/control-plane":""}},
                "spec":{"unschedulable":true},"status":{"conditions":[{"type":"DiskPressure","status":"True"},
                {"type":"Ready","status":"True"}],"addresses":[{"type":"Hostname","address":"h"},
                {"type":"InternalIP","address":"10.0.0.1"},{"type":"InternalIP","address":"10.0.0.2"},
                {"type":"ExternalIP","address":"1.2.3.4"}],"nodeInfo":{"kubeletVersion":"v1.33.0","osImage":"Linux",
                "kernelVersion":"6.1","containerRuntimeVersion":"containerd://2"}}}"#,
            r#"["n","Ready,SchedulingDisabled","control-plane,etcd,worker","30d","v1.33.0","10.0.0.1","1.2.3.4",
                "Linux","6.1","containerd://2"]"#,
        );
    }

    #[test]
    fn node_cells_without_status_are_unknown() {
        let rest = r#""<none>","<unknown>","","<none>","<none>","<unknown>","<unknown>","<unknown>""#;
        for (status, expected) in [
            ("{}", "Unknown"),
            (r#"{"conditions":[{"type":"Ready","status":"Unknown"}]}"#, "NotReady"),
            (r#"{"conditions":[{"type":"Ready","status":"False"}]}"#, "NotReady"),
        ] {
            assert_cells(
                "",
                "Node",
                &format!(r#"{{"status":{status}}}"#),
                &format!(r#"["","{expected}",{rest}]"#),
            );
        }
    }

    #[test]
    fn runtime_class_cells_show_handler() {
        assert_cells(
            "node.k8s.io",
            "RuntimeClass",
            r#"{"metadata":{"name":"r"},"handler":"h"}"#,
            r#"["r","h","<unknown>"]"#,
        );
    }
}
