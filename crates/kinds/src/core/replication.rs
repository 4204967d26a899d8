//! ReplicationControllers.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::field_value::{FieldValue, covered};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::{pod_default, template};
use crate::messages;
use crate::{
    DefaultingRules, DeletionRules, GarbageCollection, KindRules, MetadataRules, PodSpecPath, Revalidation,
    StatusRules, ValidationRules, WarningRules,
};

/// The rules of a ReplicationController.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules::SPEC_GENERATION,
    pod_spec: PodSpecPath::TEMPLATE,
    defaulting: DefaultingRules { default, default_stored: Some(default), ..DefaultingRules::DEFAULT },
    validation: ValidationRules { validate, revalidation: Revalidation::Twice, ..ValidationRules::DEFAULT },
    warnings: WarningRules { warn, ..WarningRules::DEFAULT },
    status: StatusRules { validate: validate_status, ..StatusRules::DEFAULT },
    deletion: DeletionRules {
        garbage_collection: GarbageCollection::OrphanDependents,
        ..DeletionRules::DEFAULT
    },
    ..KindRules::DEFAULT
};

/// The selector and the labels default to the labels of the template.
fn default(controller: &mut Value) {
    pod_default::default_template(controller.entry("spec"), "template");
    let Some(labels) = controller.get_path(&["spec", "template", "metadata", "labels"]).cloned() else {
        return;
    };
    let is_unset =
        |value: Option<&Value>| value.and_then(Value::fields).is_none_or(|fields| fields.is_empty());
    if is_unset(controller.get_path(&["spec", "selector"])) {
        controller.entry("spec").set("selector", labels.clone());
    }
    if is_unset(meta::metadata(controller).get("labels")) {
        controller.entry("metadata").set("labels", labels);
    }
}

/// Checks a controller.
fn validate(controller: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(controller, "spec");
    covered(errors, |errors| spec.child("minReadySeconds").not_negative(errors));
    spec.child("selector").need(errors);
    covered(errors, |errors| {
        let replicas = spec.child("replicas");
        if replicas.is_set() {
            replicas.not_negative(errors);
        } else {
            replicas.required(errors, "");
        }
    });
    let pods = spec.child("template");
    if !pods.is_set() {
        pods.required(errors, "");
        return;
    }
    let labels = pods.child("metadata").child("labels");
    if !label_selector::contains(Some(labels.value), Some(spec.child("selector").value)) {
        template::report_label_mismatch(&pods, errors);
    }
    template::validate(&pods, errors);
    template::validate_always_restarts(&pods, "ReplicationController", errors);
}

/// Checks the status of a controller.
fn validate_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    let status = FieldValue::top_level(new, "status");
    let counts =
        ["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"];
    let bounded = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    messages::validate_replica_counters(&status, &counts, &bounded, errors);
}

/// Warns about the pod template. An update warns about the old template, as in the reference.
fn warn(new: &Value, old: Option<&Value>, warnings: &mut WarningList) {
    if old.is_some_and(|old| meta::generation(old) == meta::generation(new)) {
        return;
    }
    if old.is_none() {
        messages::warn_pod_name(new, warnings);
    }
    let template = old.unwrap_or(new).get_path(&["spec", "template"]);
    template::warn(&FieldPath::new("spec").child("template"), template, None, warnings);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::*;

    #[test]
    fn update_warns_about_the_old_template() {
        let with = |generation: i64, env: &str| {
            object(&format!(
                r#"{{"metadata":{{"name":"c","generation":{generation}}},"spec":{{"template":{{"spec":{{"containers":[{{"name":"c","env":[{env}]}}]}}}}}}}}"#
            ))
        };
        let (twice, once) = (r#"{"name":"A"},{"name":"A"}"#, r#"{"name":"A"}"#);
        let count = |new: &Value, old: Option<&Value>| {
            let mut warnings = WarningList::new();
            warn(new, old, &mut warnings);
            warnings.len()
        };
        assert_eq!(count(&with(1, twice), None), 1);
        let mut dotted = with(1, once);
        dotted.entry("metadata").set("name", "a.b");
        assert_eq!(count(&dotted, None), 1, "the name becomes part of pod names");
        assert_eq!(count(&dotted, Some(&dotted)), 0);
        assert_eq!(count(&with(1, twice), Some(&with(1, twice))), 0, "nothing changed");
        assert_eq!(count(&with(2, once), Some(&with(1, twice))), 1);
        assert_eq!(count(&with(2, twice), Some(&with(1, once))), 0);
    }

    #[test]
    fn replication_controller_validation_refuses_each_violation() {
        let mut base = object(
            r#"{"spec":{"replicas":1,"template":{"metadata":{"labels":{"a":"b"}},
                "spec":{"containers":[{"name":"c","image":"i"}]}}}}"#,
        );
        default(&mut base);
        assert_eq!(base.get_path(&["spec", "selector", "a"]), Some(&Value::from("b")));
        assert_eq!(base.get_path(&["metadata", "labels", "a"]), Some(&Value::from("b")));
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
