//! Bindings: a pod gets its node, once.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;

use super::conditions;

/// Validates a binding.
pub fn validate(binding: &Value, errors: &mut ErrorList) {
    let (target, path) = (binding.get("target").unwrap_or(&Value::Null), FieldPath::new("target"));
    if !matches!(target.str("kind"), "" | "Node") {
        let kind = quoted(target.str("kind"));
        errors.push(FieldError::not_supported(&path.child("kind"), &kind, &["Node", "<empty>"]));
    }
    if target.str("name").is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
}

/// Checks the preconditions of a binding. `key` is the storage key of the pod.
pub fn check_preconditions(
    pod: &Value,
    binding: &Value,
    resource: GroupResource<'_>,
    key: &str,
) -> Result<()> {
    for (field, name) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let (expected, actual) = (meta::metadata(binding).str(field), meta::metadata(pod).str(field));
        if !expected.is_empty() && expected != actual {
            return Err(Status::precondition_failed(resource, key, name, expected, actual));
        }
    }
    Ok(())
}

/// Binds a pod to a node, or returns the reason that it cannot be bound.
pub fn bind(pod: &mut Value, binding: &Value, now: &str) -> std::result::Result<(), String> {
    let name = meta::name(pod);
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    if meta::is_terminating(pod) {
        return Err(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    if !spec.str("nodeName").is_empty() {
        return Err(format!("pod {name} is already assigned to node {}", quoted(spec.str("nodeName"))));
    }
    if spec.get("schedulingGates").is_some_and(|gates| !gates.items().is_empty()) {
        return Err(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let node = binding.get("target").unwrap_or(&Value::Null).str("name");
    pod.entry("spec").set("nodeName", node);
    for (key, value) in
        meta::metadata(binding).get("annotations").and_then(Value::fields).into_iter().flatten()
    {
        pod.entry("metadata").entry("annotations").set(key, value.clone());
    }
    let mut scheduled = Value::object();
    scheduled.set("type", "PodScheduled");
    scheduled.set("status", "True");
    scheduled.set("lastProbeTime", Value::Null);
    conditions::set(pod.entry("status"), scheduled, now);
    Ok(())
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    const BINDING: &str = r#"{"metadata":{"name":"p","annotations":{"a":"new","b":"c"}},
        "target":{"kind":"Node","name":"n1"}}"#;

    #[test]
    fn binding_needs_a_node_as_target() {
        each_refused(
            &object(BINDING),
            validate,
            &[
                (
                    "target.kind",
                    r#""Pod""#,
                    r#"target.kind: Unsupported value: "Pod": supported values: "Node", "<empty>""#,
                ),
                ("target.name", r#""""#, "target.name: Required value"),
            ],
        );
    }

    #[test]
    fn binding_sets_node_annotations_and_scheduled_condition() {
        let mut pod = object(r#"{"metadata":{"name":"p","annotations":{"a":"old"}},"spec":{}}"#);
        bind(&mut pod, &object(BINDING), "now").unwrap();
        let expected = object(
            r#"{"metadata":{"name":"p","annotations":{"a":"new","b":"c"}},"spec":{"nodeName":"n1"},
                "status":{"conditions":[{"type":"PodScheduled","status":"True","lastProbeTime":null,
                    "lastTransitionTime":"now"}]}}"#,
        );
        assert_eq!(pod, expected);
    }

    #[test]
    fn terminating_assigned_or_gated_pods_cannot_be_bound() {
        let table = [
            (
                r#"{"metadata":{"name":"p","deletionTimestamp":"2001-01-01T00:00:00Z"},"spec":{"nodeName":"n"}}"#,
                "pod p is being deleted, cannot be assigned to a host",
            ),
            (
                r#"{"metadata":{"name":"p"},"spec":{"nodeName":"n"}}"#,
                r#"pod p is already assigned to node "n""#,
            ),
            (
                r#"{"metadata":{"name":"p"},"spec":{"schedulingGates":[{"name":"g"}]}}"#,
                "pod p has non-empty .spec.schedulingGates",
            ),
        ];
        for (json, reason) in table {
            let mut pod = object(json);
            assert_eq!(bind(&mut pod, &object(BINDING), "now"), Err(reason.to_owned()));
            assert_eq!(pod, object(json), "a refusal changes nothing");
        }
    }

    #[test]
    fn binding_checks_uid_and_resource_version() {
        let pod = object(r#"{"metadata":{"name":"p","uid":"u","resourceVersion":"3"}}"#);
        let resource = GroupResource { group: "", resource: "pods" };
        let check = |json: &str| check_preconditions(&pod, &object(json), resource, "n/p");
        assert!(check(r#"{"metadata":{"uid":"u","resourceVersion":"3"}}"#).is_ok());
        assert!(check(r#"{"metadata":{}}"#).is_ok());
        let refused = check(r#"{"metadata":{"resourceVersion":"4"}}"#).unwrap_err();
        assert_eq!(refused.code, 409);
        assert!(refused.message.ends_with(
            "Precondition failed: ResourceVersion in precondition: 4, ResourceVersion in object meta: 3"
        ));
        assert!(check(r#"{"metadata":{"uid":"v"}}"#).is_err());
    }
}
