//! Rows of nodes and RuntimeClasses.

use std::collections::BTreeSet;

use pilothouse_apimachinery::value::Value;

use super::cells::{NONE, PrintedObject, cells, or};
use crate::age::UNKNOWN;

/// A label that begins like this names a role of a node.
const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
/// The value of this label is a role of a node.
const ROLE_LABEL: &str = "kubernetes.io/role";

/// Cells of a node.
pub fn node(it: &PrintedObject<'_>) -> Vec<Value> {
    let info = |field: &str| it.text(&format!("status.nodeInfo.{field}"));
    cells![
        it.name(),
        status(it),
        or(&roles(it), NONE),
        it.age(),
        info("kubeletVersion"),
        address(it, "InternalIP"),
        address(it, "ExternalIP"),
        or(info("osImage"), UNKNOWN),
        or(info("kernelVersion"), UNKNOWN),
        or(info("containerRuntimeVersion"), UNKNOWN)
    ]
}

fn status(it: &PrintedObject<'_>) -> String {
    // Of several conditions of one type the last counts.
    let ready = it.items("status.conditions").iter().rev().find(|found| found.str("type") == "Ready");
    let mut status = match ready.map(|ready| ready.str("status")) {
        None => "Unknown",
        Some("True") => "Ready",
        Some(_) => "NotReady",
    }
    .to_owned();
    if it.flag("spec.unschedulable") == Some(true) {
        status.push_str(",SchedulingDisabled");
    }
    status
}

fn roles(it: &PrintedObject<'_>) -> String {
    let labels = it.at("metadata.labels").and_then(Value::fields).into_iter().flatten();
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

fn address<'a>(it: &PrintedObject<'a>, kind: &str) -> &'a str {
    let found = it.items("status.addresses").iter().find(|address| address.str("type") == kind);
    found.map_or(NONE, |address| address.str("address"))
}

/// Cells of a runtime class.
pub fn runtime_class(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![it.name(), it.text("handler"), it.age()]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::shows;

    #[test]
    fn nodes_show_what_they_are() {
        shows(
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
    fn nodes_of_which_little_is_known() {
        let rest = r#""<none>","<unknown>","","<none>","<none>","<unknown>","<unknown>","<unknown>""#;
        for (status, word) in [
            ("{}", "Unknown"),
            (r#"{"conditions":[{"type":"Ready","status":"Unknown"}]}"#, "NotReady"),
            (r#"{"conditions":[{"type":"Ready","status":"False"}]}"#, "NotReady"),
        ] {
            shows("", "Node", &format!(r#"{{"status":{status}}}"#), &format!(r#"["","{word}",{rest}]"#));
        }
    }

    #[test]
    fn runtime_classes_name_their_handler() {
        shows(
            "node.k8s.io",
            "RuntimeClass",
            r#"{"metadata":{"name":"r"},"handler":"h"}"#,
            r#"["r","h","<unknown>"]"#,
        );
    }
}
