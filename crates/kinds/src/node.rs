//! The kinds of node.k8s.io: RuntimeClass.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::{KindRules, MetadataRules, Revalidation, UpdateRules, ValidationRules, WarningRules};

/// The rules of a RuntimeClass.
pub const RUNTIME_CLASS: KindRules = KindRules {
    metadata: MetadataRules { requires_standard_finalizers: false, ..MetadataRules::DEFAULT },
    update: UpdateRules { allows_create: true, allows_unconditional: false },
    validation: ValidationRules {
        validate: validate_runtime,
        revalidation: Revalidation::Once,
        validate_update: validate_runtime_update,
    },
    warnings: WarningRules { warn: warn_runtime, ..WarningRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// Checks a RuntimeClass.
fn validate_runtime(class: &Value, errors: &mut ErrorList) {
    FieldValue::top_level(class, "handler").syntax(errors, names::dns_label);
    let overhead = FieldValue::top_level(class, "overhead");
    if overhead.is_set() {
        let mut requirements = Value::object();
        requirements.set("limits", overhead.child("podFixed").value.clone());
        crate::core::resources::validate_requirements(
            &FieldValue { value: &requirements, path: overhead.path },
            errors,
        );
    }
    let scheduling = FieldValue::top_level(class, "scheduling");
    let nodes = scheduling.child("nodeSelector");
    meta::validate_labels(Some(nodes.value), &nodes.path, errors);
    let tolerations = scheduling.child("tolerations");
    // The path contains the field twice, as in the reference.
    let inner = FieldValue { value: tolerations.value, path: tolerations.path.child("tolerations") };
    crate::core::pod_spec::validate_tolerations(&inner, errors);
    let mut seen = BTreeSet::new();
    for toleration in tolerations.items() {
        let key = ["key", "operator", "value", "effect"].map(|field| toleration.child(field).text());
        if !seen.insert(key) {
            let [key, operator, value, effect] = key.map(quoted);
            // The reference prints the address of the seconds, which differs each time.
            let seconds = if toleration.has("tolerationSeconds") { "0xc000000000" } else { "nil" };
            errors.add(|| {
                let rendered = format!(
                    "core.Toleration{{Key:{key}, Operator:{operator}, Value:{value}, Effect:{effect}, \
                     TolerationSeconds:(*int64)({seconds})}}"
                );
                FieldError::duplicate(&toleration.path, &rendered)
            });
        }
    }
}

/// Warns about deprecated node labels.
fn warn_runtime(class: &Value, _old: Option<&Value>, warnings: &mut WarningList) {
    let nodes = FieldValue::top_level(class, "scheduling").child("nodeSelector");
    for (label, _) in nodes.entries() {
        if let Some(detail) = crate::core::node_label::deprecated(label) {
            warnings.push(format!("{}: {detail}", nodes.path));
        }
    }
}

/// Validates an updated RuntimeClass: its handler is immutable.
fn validate_runtime_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    if !same(new.get("handler"), old.get("handler")) {
        FieldValue::top_level(new, "handler").invalid_text(errors, meta::IMMUTABLE);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::*;

    #[test]
    fn runtime_class_validation_refuses_each_violation() {
        let runtime = object(r#"{"handler":"h","scheduling":{"nodeSelector":{"a":"b"}}}"#);
        each_refused(
            &runtime,
            validate_runtime,
            &[
                ("handler", r#""A""#, "handler: Invalid value: \"A\": a lowercase RFC 1123 label"),
                ("scheduling.nodeSelector.a", r#""-""#, "scheduling.nodeSelector: Invalid value"),
                ("overhead", r#"{"podFixed":{"cpu":"-1"}}"#, "overhead.limits[cpu]: Invalid value"),
                (
                    "scheduling.tolerations",
                    r#"[{"key":"-","operator":"Exists"}]"#,
                    "scheduling.tolerations.tolerations[0].key: Invalid value",
                ),
                (
                    "scheduling.tolerations",
                    r#"[{"operator":"Exists"},{"operator":"Exists"}]"#,
                    "scheduling.tolerations[1]: Duplicate value: core.Toleration{Key:\"\", Operator:\"Exists\", \
                     Value:\"\", Effect:\"\", TolerationSeconds:(*int64)(nil)}",
                ),
            ],
        );
        each_change_refused(
            &runtime,
            validate_runtime_update,
            &[("handler", r#""g""#, "handler: Invalid value: \"g\": field is immutable")],
        );
    }

    #[test]
    fn deprecated_node_label_in_runtime_class_gets_a_warning() {
        let mut warnings = WarningList::new();
        warn_runtime(
            &object(r#"{"scheduling":{"nodeSelector":{"beta.kubernetes.io/os":"x"}}}"#),
            None,
            &mut warnings,
        );
        assert_eq!(
            warnings,
            ["scheduling.nodeSelector: deprecated since v1.14; use \"kubernetes.io/os\" instead"]
        );
    }
}
