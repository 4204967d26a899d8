//! Nodes.

use std::collections::BTreeSet;

use crate::api::field::{FieldError, Path};
use crate::api::kinds::Errors;
use crate::api::kinds::check::{Node, mirror_first, present_mut, same};
use crate::api::names;
use crate::api::value::Value;

/// What a node has it can give away, unless it says otherwise.
pub fn default(node: &mut Value) {
    if let Some(spec) = present_mut(node, "spec") {
        mirror_first(spec, "podCIDR", "podCIDRs", None);
    }
    let Some(status) = present_mut(node, "status") else { return };
    if let (None, Some(capacity)) = (status.get("allocatable"), status.get("capacity").cloned()) {
        status.set("allocatable", capacity);
    }
}

/// Checks a node.
pub fn validate(node: &Value, errors: &mut Errors) {
    let spec = Node::of(node, "spec");
    let mut seen = BTreeSet::new();
    let list = Node { value: spec.child("taints").value, path: Path::new("metadata").child("taints") };
    for taint in list.items() {
        taint.child("key").syntax(errors, names::qualified_name);
        let wrong = names::label_value(taint.child("value").text());
        if !wrong.is_empty() {
            taint.child("value").invalid_text(errors, &wrong.join(";"));
        }
        taint.child("effect").need_one_of(errors, &["NoExecute", "NoSchedule", "PreferNoSchedule"]);
        if !seen.insert((taint.child("effect").text(), taint.child("key").text())) {
            let mut error = FieldError::duplicate(&taint.path, &taint.shown());
            error.message.push_str(": taints must be unique by key and effect pair");
            errors.push(error);
        }
    }
    for range in spec.child("podCIDRs").items() {
        range.syntax(errors, names::cidr);
    }
    if spec.child("podCIDRs").len() > 2 {
        spec.child("podCIDRs").invalid(errors, "may specify no more than one CIDR for each IP family");
    }
}

/// Checks a changed node: addresses of its pods and its machine are given once.
pub fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate(new, errors);
    let (spec, was) = (Node::of(new, "spec"), Node::of(old, "spec"));
    let fixed = |field: &str, shown: &str, why: &str, errors: &mut Errors| {
        let before = was.child(field);
        if !before.is_empty() && !same(Some(spec.child(field).value), Some(before.value)) {
            errors.push(FieldError::forbidden(&Path::new("spec").child(shown), why));
        }
    };
    let ranges = "node updates may not change podCIDR except from \"\" to valid";
    fixed("podCIDRs", "podCIDRs", ranges, errors);
    let machine = "node updates may not change providerID except from \"\" to valid";
    fixed("providerID", "providerID", machine, errors);
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{each_change_refused, each_refused, object};
    use super::*;

    #[test]
    fn each_rule_of_a_node_refuses() {
        let base = object(
            r#"{"spec":{"taints":[{"key":"k","value":"v","effect":"NoSchedule"}],"podCIDRs":["10.0.0.0/24"],
                "providerID":"p"}}"#,
        );
        each_refused(
            &base,
            validate,
            &[
                ("spec.taints.0.key", r#""-""#, "metadata.taints[0].key: Invalid value"),
                ("spec.taints.0.value", r#""-""#, "metadata.taints[0].value: Invalid value"),
                ("spec.taints.0.effect", r#""X""#, "metadata.taints[0].effect: Unsupported value: \"X\""),
                (
                    "spec.taints",
                    r#"[{"key":"k","effect":"NoSchedule"},{"key":"k","effect":"NoSchedule"}]"#,
                    "taints must be unique by key and effect pair",
                ),
                (
                    "spec.podCIDRs",
                    r#"["x"]"#,
                    "spec.podCIDRs[0]: Invalid value: \"x\": must be a valid CIDR value",
                ),
            ],
        );
        each_change_refused(
            &base,
            validate_update,
            &[
                (
                    "spec.providerID",
                    r#""q""#,
                    "spec.providerID: Forbidden: node updates may not change providerID",
                ),
                ("spec.podCIDRs", r#"["10.0.1.0/24"]"#, "spec.podCIDRs: Forbidden"),
            ],
        );
    }

    #[test]
    fn capacity_is_allocatable() {
        let mut node = object(r#"{"status":{"capacity":{"cpu":"1"}}}"#);
        default(&mut node);
        assert_eq!(node.at(&["status", "allocatable", "cpu"]), Some(&Value::from("1")));
    }
}
