//! Pod templates in other kinds, and the kind PodTemplate.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::{FieldValue, render_map};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::{pod_default, pod_meta, pod_spec, pod_warn};
use crate::{
    DefaultingRules, DeletionRules, Generation, KindRules, MetaRevalidation, MetadataRules, PodSpecPath,
    Revalidation, ValidationRules, WarningRules,
};

/// The rules of a PodTemplate.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules {
        generation: Generation { increased_by: &[&["template"]], ..Generation::FIRST },
        revalidation: MetaRevalidation::Change,
        ..MetadataRules::DEFAULT
    },
    pod_spec: PodSpecPath(&["template", "spec"]),
    defaulting: DefaultingRules { default, ..DefaultingRules::DEFAULT },
    validation: ValidationRules {
        validate: validate_object,
        revalidation: Revalidation::Once,
        ..ValidationRules::DEFAULT
    },
    warnings: WarningRules { warn: warn_object, ..WarningRules::DEFAULT },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

/// Checks a template.
pub fn validate(template: &FieldValue<'_>, errors: &mut ErrorList) {
    validate_meta(template, errors);
    let spec = template.child("spec");
    pod_spec::validate(&spec, None, errors);
    pod_meta::validate_profiles_match(template.child("metadata").read("annotations"), &spec, errors);
    let ephemeral = template.child("spec").child("ephemeralContainers");
    if !ephemeral.is_empty() {
        ephemeral.forbidden(errors, "ephemeral containers not allowed in pod template");
    }
}

/// Checks the metadata of a template.
pub fn validate_meta(template: &FieldValue<'_>, errors: &mut ErrorList) {
    let metadata = template.child("metadata");
    meta::validate_labels(Some(metadata.child("labels").value), &template.child("labels").path, errors);
    let annotations = metadata.child("annotations");
    let path = template.child("annotations").path;
    meta::validate_annotations(Some(annotations.value), &path, errors);
    pod_meta::validate(annotations.value, &template.child("spec"), &path, errors);
}

/// Reports that the selector does not match the labels of the template.
pub fn report_label_mismatch(template: &FieldValue<'_>, errors: &mut ErrorList) {
    let labels = template.child("metadata").child("labels");
    let detail = "`selector` does not match template `labels`";
    errors.push(FieldError::invalid(&labels.path, &render_map(Some(labels.value)), detail));
}

/// Checks the template of a controller, which must have restartPolicy Always.
pub fn validate_for_controller(spec: &FieldValue<'_>, controller: &str, errors: &mut ErrorList) {
    let (selector, template) = (spec.child("selector"), spec.child("template"));
    let labels = template.child("metadata").child("labels");
    let selects_all = selector.is_set() && label_selector::is_empty(selector.value);
    if !selects_all && !label_selector::matches(Some(selector.value), Some(labels.value)) {
        report_label_mismatch(&template, errors);
    }
    validate(&template, errors);
    validate_always_restarts(&template, controller, errors);
}

/// Checks that restartPolicy is Always.
pub fn validate_always_restarts(template: &FieldValue<'_>, controller: &str, errors: &mut ErrorList) {
    let spec = template.child("spec");
    if !matches!(spec.child("restartPolicy").text(), "" | "Always") {
        spec.child("restartPolicy").one_of(errors, &["Always"]);
    }
    let deadline = spec.child("activeDeadlineSeconds");
    if deadline.is_set() {
        deadline.forbidden(errors, &format!("activeDeadlineSeconds in {controller} is not Supported"));
    }
}

/// Warns about a template at `path`, whatever the old one had.
pub fn warn(path: &FieldPath, template: Option<&Value>, _old: Option<&Value>, warnings: &mut WarningList) {
    if let Some(template) = template {
        pod_warn::warn_spec_and_meta(path, template, true, warnings);
    }
}

/// Warns about a PodTemplate.
fn warn_object(new: &Value, old: Option<&Value>, warnings: &mut WarningList) {
    if old.is_some_and(|old| meta::generation(old) == meta::generation(new)) {
        return;
    }
    warn(&FieldPath::new("template"), new.get("template"), old.and_then(|old| old.get("template")), warnings);
}

/// The defaults of the kind PodTemplate.
fn default(object: &mut Value) {
    pod_default::default_template(object, "template");
}

/// Checks a PodTemplate.
fn validate_object(object: &Value, errors: &mut ErrorList) {
    validate(&FieldValue::top_level(object, "template"), errors);
}

/// Warns about the pod template of a controller.
pub fn warn_template(new: &FieldValue<'_>, old: Option<&FieldValue<'_>>, warnings: &mut WarningList) {
    warn(&new.path, Some(new.value), old.map(|old| old.value), warnings);
}

/// Warns about a pod template, unless an update left the spec unchanged.
pub fn warn_unless_unchanged(object: &Value, old: Option<&Value>, warnings: &mut WarningList) {
    if old.is_some_and(|old| meta::generation(old) == meta::generation(object)) {
        return;
    }
    let template = |object| FieldValue::top_level(object, "spec").child("template");
    warn_template(&template(object), old.map(template).as_ref(), warnings);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn pod_template_validation_refuses_each_violation() {
        let base = object(
            r#"{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},
                "spec":{"containers":[{"name":"c","image":"i"}]}}}"#,
        );
        each_refused(
            &base,
            |object, errors| {
                let spec = object.clone();
                let controller = object_with(&spec);
                validate_for_controller(&FieldValue::top_level(&controller, "spec"), "ReplicaSet", errors);
            },
            &[
                (
                    "template.metadata.labels.a",
                    r#""c""#,
                    "spec.template.metadata.labels: Invalid value: map[string]string{\"a\":\"c\"}: `selector`",
                ),
                ("template.metadata.labels.x", r#""-""#, "spec.template.labels: Invalid value: \"-\""),
                (
                    "template.metadata.annotations",
                    r#"{"a b":""}"#,
                    "spec.template.annotations: Invalid value: \"a b\"",
                ),
                (
                    "template.spec.ephemeralContainers",
                    r#"[{"name":"e","image":"i"}]"#,
                    "ephemeral containers not allowed in pod template",
                ),
                (
                    "template.spec.restartPolicy",
                    r#""Never""#,
                    "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
                ),
                (
                    "template.spec.activeDeadlineSeconds",
                    "5",
                    "activeDeadlineSeconds in ReplicaSet is not Supported",
                ),
            ],
        );
    }

    fn object_with(spec: &Value) -> Value {
        let mut object = Value::object();
        object.set("spec", spec.clone());
        object
    }
}
