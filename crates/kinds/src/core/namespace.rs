//! Namespaces.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::{NAMESPACE_FINALIZER, NAMESPACE_NAME_LABEL};
use pilothouse_apimachinery::{meta, names};

use crate::{
    DefaultingRules, DeletionRules, FirstDeletion, KindRules, MetadataRules, PreparationRules, ResetFields,
    Revalidation, StatusRules, ValidationRules, WriteContext,
};

/// The rules of a Namespace.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules { name: names::label_name, ..MetadataRules::DEFAULT },
    defaulting: DefaultingRules { default, ..DefaultingRules::DEFAULT },
    preparation: PreparationRules { prepare_create, prepare_update },
    validation: ValidationRules { validate, revalidation: Revalidation::Once, ..ValidationRules::DEFAULT },
    status: StatusRules { validate: validate_status, ..StatusRules::DEFAULT },
    reset_fields: ResetFields { subresources: &[("finalize", &[&["status"]])], ..ResetFields::DEFAULT },
    deletion: DeletionRules {
        first_deletion: FirstDeletion::SetsDeletionTimestampAndFinalizer,
        terminate,
        blocks_removal,
        ..DeletionRules::RETURNS_OBJECT
    },
    ..KindRules::DEFAULT
};

/// Sets the label `kubernetes.io/metadata.name`.
fn default(namespace: &mut Value) {
    let name = meta::name(namespace).to_owned();
    if !name.is_empty() {
        namespace.entry("metadata").entry("labels").set(NAMESPACE_NAME_LABEL, name);
    }
}

/// A new namespace is Active and has the finalizer `kubernetes`.
fn prepare_create(namespace: &mut Value, _: &WriteContext<'_>) {
    default(namespace);
    let mut status = Value::object();
    status.set("phase", "Active");
    namespace.set("status", status);
    let finalizers = namespace.entry("spec").entry("finalizers");
    let mut with_default = finalizers.items().to_vec();
    if !with_default.contains(&Value::from(NAMESPACE_FINALIZER)) {
        with_default.push(Value::from(NAMESPACE_FINALIZER));
    }
    *finalizers = Value::Array(with_default.into());
}

/// `spec.finalizers` changes only through the subresource `finalize`.
fn prepare_update(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    meta::copy(new.entry("spec"), old.get("spec").unwrap_or(&Value::Null), "finalizers");
}

/// `spec.finalizers` blocks the removal of a namespace.
fn blocks_removal(namespace: &Value) -> bool {
    namespace.get_path(&["spec", "finalizers"]).is_some_and(|finalizers| !finalizers.items().is_empty())
}

/// The phase becomes Terminating.
fn terminate(namespace: &mut Value) {
    namespace.entry("status").set("phase", "Terminating");
}

/// Checks a namespace.
fn validate(namespace: &Value, errors: &mut ErrorList) {
    let finalizers = FieldValue::top_level(namespace, "spec").child("finalizers");
    for finalizer in finalizers.items() {
        validate_finalizer(finalizer.text(), &finalizers.path, errors);
    }
}

fn validate_finalizer(name: &str, path: &FieldPath, errors: &mut ErrorList) {
    meta::add_invalid(errors, path, name, names::qualified_name(name));
    let standard = [NAMESPACE_FINALIZER, meta::ORPHAN_FINALIZER, meta::FOREGROUND_FINALIZER];
    if !name.contains('/') && !standard.contains(&name) {
        let detail = "name is neither a standard finalizer name nor is it fully qualified";
        errors.push(FieldError::invalid(path, &quoted(name), detail));
    }
}

/// Validates an update of the subresource `finalize`.
pub fn validate_finalize(new: &Value, errors: &mut ErrorList) {
    for finalizer in FieldValue::top_level(new, "spec").child("finalizers").items() {
        validate_finalizer(finalizer.text(), &finalizer.path, errors);
    }
}

/// The phase must match the deletionTimestamp.
fn validate_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    let phase = FieldValue::top_level(new, "status").child("phase").text();
    let (expected, when) =
        if meta::is_terminating(new) { ("Terminating", "is not empty") } else { ("Active", "is empty") };
    if phase != expected {
        let detail = format!("may only be '{expected}' if `deletionTimestamp` {when}");
        errors.push(FieldError::invalid(&FieldPath::new("status").child("Phase"), &quoted(phase), &detail));
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::super::super::testing::context;
    use super::*;

    #[test]
    fn new_namespace_is_active_labelled_and_finalized() {
        let mut namespace = object(r#"{"metadata":{"name":"a"},"spec":{"finalizers":["x/y"]}}"#);
        prepare_create(&mut namespace, &context(""));
        let expected = object(
            r#"{"metadata":{"name":"a","labels":{"kubernetes.io/metadata.name":"a"}},
                "spec":{"finalizers":["x/y","kubernetes"]},"status":{"phase":"Active"}}"#,
        );
        assert_eq!(namespace, expected);
        each_refused(
            &namespace,
            validate,
            &[(
                "spec.finalizers",
                r#"["plain"]"#,
                "spec.finalizers: Invalid value: \"plain\": name is neither",
            )],
        );
        each_change_refused(
            &namespace,
            validate_status,
            &[(
                "status.phase",
                r#""Terminating""#,
                "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty",
            )],
        );
        let mut errors = ErrorList::new();
        validate_finalize(&object(r#"{"spec":{"finalizers":["a b"]}}"#), &mut errors);
        assert_eq!(errors[0].path.to_string(), "spec.finalizers[0]");
    }
}
