//! ReplicationControllers.

use super::{pod_default, template};
use crate::api::field::Path;
use crate::api::kinds::check::Node;
use crate::api::kinds::selector;
use crate::api::kinds::{Errors, Warned};
use crate::api::meta;
use crate::api::value::Value;

/// The labels of the template are the selector and the labels of the controller, unless it says otherwise.
pub fn default(controller: &mut Value) {
    pod_default::template(controller.entry("spec"), "template");
    let Some(labels) = controller.at(&["spec", "template", "metadata", "labels"]).cloned() else { return };
    let unset = |value: Option<&Value>| value.and_then(Value::fields).is_none_or(|fields| fields.is_empty());
    if unset(controller.at(&["spec", "selector"])) {
        controller.entry("spec").set("selector", labels.clone());
    }
    if unset(meta::of(controller).get("labels")) {
        controller.entry("metadata").set("labels", labels);
    }
}

/// Checks a controller.
pub fn validate(controller: &Value, errors: &mut Errors) {
    let spec = Node::of(controller, "spec");
    spec.child("minReadySeconds").not_negative(errors);
    spec.child("selector").need(errors);
    spec.child("replicas").not_negative(errors);
    let pods = spec.child("template");
    if !pods.is_set() {
        pods.required(errors, "");
        return;
    }
    let labels = pods.child("metadata").child("labels");
    if !selector::contains(Some(labels.value), Some(spec.child("selector").value)) {
        template::mismatch(&pods, errors);
    }
    template::validate(&pods, errors);
    template::always_restarts(&pods, "ReplicationController", errors);
}

/// Checks a changed controller.
pub fn validate_update(new: &Value, _old: &Value, errors: &mut Errors) {
    validate(new, errors);
}

/// Checks what a controller counted.
pub fn validate_status(new: &Value, _old: &Value, errors: &mut Errors) {
    let status = Node::of(new, "status");
    let counts =
        ["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"];
    for count in counts {
        status.child(count).not_negative(errors);
    }
    let all = status.child("replicas").number();
    for part in ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"] {
        if status.child(part).number() > all {
            status.child(part).invalid(errors, "cannot be greater than status.replicas");
        }
    }
    let available = status.child("availableReplicas");
    if available.number() > status.child("readyReplicas").number() {
        available.invalid(errors, "cannot be greater than readyReplicas");
    }
}

/// Warns about the pods of a controller.
pub fn warn(new: &Value, old: Option<&Value>, warned: &mut Warned) {
    let old = old.and_then(|old| old.at(&["spec", "template"]));
    template::warn(&Path::new("spec").child("template"), new.at(&["spec", "template"]), old, warned);
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{each_change_refused, each_refused, object};
    use super::*;

    #[test]
    fn each_rule_of_a_controller_refuses() {
        let mut base = object(
            r#"{"spec":{"replicas":1,"template":{"metadata":{"labels":{"a":"b"}},
                "spec":{"containers":[{"name":"c","image":"i"}]}}}}"#,
        );
        default(&mut base);
        assert_eq!(base.at(&["spec", "selector", "a"]), Some(&Value::from("b")));
        assert_eq!(base.at(&["metadata", "labels", "a"]), Some(&Value::from("b")));
        each_refused(
            &base,
            validate,
            &[
                (
                    "spec.replicas",
                    "-1",
                    "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                ),
                ("spec.minReadySeconds", "-1", "spec.minReadySeconds: Invalid value: -1"),
                ("spec.selector", "{}", "spec.selector: Required value"),
                ("spec.selector.a", r#""c""#, "`selector` does not match template `labels`"),
                ("spec.template", "null", "spec.template: Required value"),
            ],
        );
        each_change_refused(
            &object(r#"{"status":{"replicas":2,"readyReplicas":1}}"#),
            validate_status,
            &[
                (
                    "status.readyReplicas",
                    "3",
                    "status.readyReplicas: Invalid value: 3: cannot be greater than status.replicas",
                ),
                ("status.availableReplicas", "2", "cannot be greater than readyReplicas"),
                ("status.observedGeneration", "-1", "status.observedGeneration: Invalid value: -1"),
            ],
        );
    }
}
