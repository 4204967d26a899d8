//! Kinds with few rules: leases, priorities, runtimes.

use super::Errors;
use super::check::{Node, fill, same};
use crate::api::field::{FieldError, Path};
use crate::api::value::Value;
use crate::api::{meta, names};

/// The largest priority that is not the system's.
const LARGEST_PRIORITY: i64 = 1_000_000_000;
const SYSTEM_PREFIX: &str = "system-";
const SYSTEM_PRIORITIES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// Checks a Lease.
pub fn validate_lease(lease: &Value, errors: &mut Errors) {
    let spec = Node::of(lease, "spec");
    if spec.child("leaseDurationSeconds").is_set() {
        spec.child("leaseDurationSeconds").positive(errors);
    }
    spec.child("leaseTransitions").not_negative(errors);
    if !spec.child("preferredHolder").is_empty() && spec.child("strategy").is_empty() {
        spec.child("preferredHolder").forbidden(errors, "may only be specified if `strategy` is defined");
    }
}

/// Checks a changed Lease.
pub fn validate_lease_update(new: &Value, _old: &Value, errors: &mut Errors) {
    validate_lease(new, errors);
}

/// The defaults of a PriorityClass.
pub fn default_priority(class: &mut Value) {
    fill(class, "preemptionPolicy", "PreemptLowerPriority");
}

/// Checks a PriorityClass: the highest ones belong to the system.
pub fn validate_priority(class: &Value, errors: &mut Errors) {
    let (name, value) = (meta::name(class), Node::of(class, "value").number());
    if name.starts_with(SYSTEM_PREFIX) {
        let why = match SYSTEM_PRIORITIES.iter().find(|(known, _)| *known == name) {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, wanted)) if *wanted != value => {
                Some(format!("value of {name} PriorityClass must be {wanted}"))
            }
            Some(_) if Node::of(class, "globalDefault").is_true() => {
                Some(format!("globalDefault of {name} PriorityClass must be false"))
            }
            Some(_) => None,
        };
        if let Some(why) = why {
            let wrong = format!(
                "priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. error: {why}"
            );
            errors.push(FieldError::forbidden(&Path::new("metadata").child("name"), &wrong));
        }
    } else if value > LARGEST_PRIORITY {
        let wrong = format!("maximum allowed value of a user defined priority is {LARGEST_PRIORITY}");
        Node::of(class, "value").forbidden(errors, &wrong);
    }
    Node::of(class, "preemptionPolicy").one_of_if_set(errors, &["Never", "PreemptLowerPriority"]);
}

/// Checks a changed PriorityClass.
pub fn validate_priority_update(new: &Value, old: &Value, errors: &mut Errors) {
    if Node::of(new, "value").number() != Node::of(old, "value").number() {
        Node::of(new, "value").forbidden(errors, "may not be changed in an update.");
    }
    Node::of(new, "preemptionPolicy").unchanged(&Node::of(old, "preemptionPolicy"), errors);
}

/// Checks a RuntimeClass.
pub fn validate_runtime(class: &Value, errors: &mut Errors) {
    Node::of(class, "handler").syntax(errors, names::dns_label);
    let scheduling = Node::of(class, "scheduling");
    let nodes = scheduling.child("nodeSelector");
    meta::validate_labels(Some(nodes.value), &nodes.path, errors);
    super::core::pod_spec::tolerations(&scheduling.child("tolerations"), errors);
}

/// Checks a changed RuntimeClass: what it names stays.
pub fn validate_runtime_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_runtime(new, errors);
    if !same(new.get("handler"), old.get("handler")) {
        Node::of(new, "handler").invalid_text(errors, meta::IMMUTABLE);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{each_change_refused, each_refused, object};
    use super::*;

    #[test]
    fn each_rule_of_small_kinds_refuses() {
        each_refused(
            &object(r#"{"spec":{"leaseDurationSeconds":15}}"#),
            validate_lease,
            &[
                (
                    "spec.leaseDurationSeconds",
                    "0",
                    "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                ),
                (
                    "spec.leaseTransitions",
                    "-1",
                    "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
                ),
                ("spec.preferredHolder", r#""x""#, "may only be specified if `strategy` is defined"),
            ],
        );
        let mut class = object(r#"{"metadata":{"name":"a"},"value":5}"#);
        default_priority(&mut class);
        each_refused(
            &class,
            validate_priority,
            &[
                (
                    "metadata.name",
                    r#""system-x""#,
                    "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-x is not a known",
                ),
                ("value", "1000000001", "maximum allowed value of a user defined priority is 1000000000"),
                ("preemptionPolicy", r#""X""#, "\"Never\", \"PreemptLowerPriority\""),
            ],
        );
        each_change_refused(
            &class,
            validate_priority_update,
            &[
                ("value", "6", "value: Forbidden: may not be changed in an update."),
                (
                    "preemptionPolicy",
                    r#""Never""#,
                    "preemptionPolicy: Invalid value: \"Never\": field is immutable",
                ),
            ],
        );
        let runtime = object(r#"{"handler":"h","scheduling":{"nodeSelector":{"a":"b"}}}"#);
        each_refused(
            &runtime,
            validate_runtime,
            &[
                ("handler", r#""A""#, "handler: Invalid value: \"A\": a lowercase RFC 1123 label"),
                ("scheduling.nodeSelector.a", r#""-""#, "scheduling.nodeSelector: Invalid value"),
            ],
        );
        each_change_refused(
            &runtime,
            validate_runtime_update,
            &[("handler", r#""g""#, "handler: Invalid value: \"g\": field is immutable")],
        );
    }
}
