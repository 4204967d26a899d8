//! Applies the rules of a kind to writes: the same steps in the same order for every kind.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::meta::{self, MetaRules};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::core::{namespace, pod_default, pod_features};
use super::gated::{self, rows};
use super::{KindRules, MetaRevalidation, MetadataOrder, PodSpecPath, WriteContext};

/// A kind of the catalog with its rules.
#[derive(Clone, Copy)]
pub struct Kind {
    /// The rules.
    pub rules: &'static KindRules,
    /// Whether it is namespaced.
    pub namespaced: bool,
    /// Whether it has a status subresource.
    pub has_status: bool,
}

impl Kind {
    fn meta_rules(&self) -> MetaRules {
        self.rules.metadata.meta_rules(self.namespaced)
    }
}

/// Prepares and validates a new object. Its name, namespace and system fields are already set.
pub fn before_create(
    kind: Kind,
    object: &mut Value,
    context: &WriteContext<'_>,
) -> Result<WarningList, ErrorList> {
    if kind.has_status && !kind.rules.status.writable_on_create {
        object.remove("status");
    }
    if kind.rules.metadata.generation.starts {
        object.entry("metadata").set("generation", 1);
    }
    drop_disabled(kind.rules, context.features, object, None);
    (kind.rules.preparation.prepare_create)(object, context);
    let mut errors = ErrorList::with_features(context.features);
    validate_new_object(kind, object, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok(kind.rules.warnings.accepted_warnings(object, None, context.features))
}

/// Validates a new object and its metadata, in the order of the kind.
fn validate_new_object(kind: Kind, object: &Value, errors: &mut ErrorList) {
    let validate = kind.rules.validation.validate;
    match kind.rules.metadata.validation_order {
        MetadataOrder::First => {
            meta::validate(object, kind.meta_rules(), errors);
            validate(object, errors);
        }
        MetadataOrder::After(validate_first) => {
            validate_first(object, errors);
            meta::validate(object, kind.meta_rules(), errors);
            validate(object, errors);
        }
        MetadataOrder::Last => {
            validate(object, errors);
            if errors.is_empty() {
                meta::validate(object, kind.meta_rules(), errors);
            }
        }
    }
}

/// Sets defaults that depend on other fields or on feature gates. Runs before the defaults of the schema table.
pub fn apply_defaults(rules: &KindRules, object: &mut Value, features: EnabledFeatures) {
    (rules.defaulting.default)(object);
    (rules.defaulting.default_by_feature)(object, features);
    if features.has(Feature::ImageVolume)
        && let Some(spec) = rules.pod_spec.find_mut(object)
    {
        pod_default::default_image_volumes(spec);
    }
}

/// The features for validating an update: those that the old pod or template used stay enabled.
fn with_used_features(
    pod_spec: PodSpecPath,
    features: EnabledFeatures,
    new: &Value,
    old: &Value,
) -> EnabledFeatures {
    match (pod_spec.find_pod(new), pod_spec.find_pod(old)) {
        (Some(new), Some(old)) => pod_features::with_used_features(features, new, old),
        _ => features,
    }
}

/// Drops the fields of disabled features from an object and its PodSpec.
fn drop_disabled(rules: &KindRules, features: EnabledFeatures, object: &mut Value, old: Option<&Value>) {
    gated::drop_disabled(rules.gated, features, object, old);
    if let Some(spec) = rules.pod_spec.find_mut(object) {
        let old_spec = old.and_then(|old| rules.pod_spec.find(old));
        gated::drop_disabled(rows::POD_SPEC, features, spec, old_spec);
        pod_default::drop_image_volumes(spec, old_spec, features);
        pod_default::drop_empty_labels(spec);
    }
}

/// The same for an update, which also drops an empty overhead.
fn drop_unchanged(rules: &KindRules, features: EnabledFeatures, object: &mut Value, old: &Value) {
    drop_disabled(rules, features, object, Some(old));
    let has_empty_overhead = |spec: &&mut Value| {
        spec.get("overhead").and_then(Value::fields).is_some_and(|fields| fields.is_empty())
    };
    if let Some(spec) = rules.pod_spec.find_mut(object).filter(has_empty_overhead) {
        spec.remove("overhead");
    }
}

/// Prepares and validates an update.
pub fn before_update(
    kind: Kind,
    new: &mut Value,
    old: &Value,
    context: &WriteContext<'_>,
) -> Result<WarningList, ErrorList> {
    meta::copy(new.entry("metadata"), meta::metadata(old), "generation");
    if kind.has_status && !kind.rules.status.writable_on_update {
        meta::copy(new, old, "status");
    }
    let generation = kind.rules.metadata.generation;
    let dropped_changed = generation.counts_dropped_fields && generation.has_change(new, old);
    drop_unchanged(kind.rules, context.features, new, old);
    (kind.rules.preparation.prepare_update)(new, old, context);
    if dropped_changed || generation.has_change(new, old) {
        new.entry("metadata").set("generation", meta::generation(old) + 1);
    }
    meta::keep_system_fields(new, old);
    // An unchanged object was validated before. Most updates are no-ops of controllers.
    if new == old {
        return Ok(kind.rules.warnings.accepted_warnings(new, Some(old), context.features));
    }
    let features = with_used_features(kind.rules.pod_spec, context.features, new, old);
    let mut errors = metadata_errors(kind.meta_rules(), kind.rules.metadata.revalidation, new, old, features);
    kind.rules.validation.check_update(new, old, &mut errors);
    if errors.is_empty() {
        Ok(kind.rules.warnings.accepted_warnings(new, Some(old), context.features))
    } else {
        Err(errors)
    }
}

/// Prepares and validates a status update: everything but the status and part of the metadata is kept.
pub fn before_status_update(
    kind: Kind,
    new: &mut Value,
    old: &Value,
    context: &WriteContext<'_>,
) -> Result<WarningList, ErrorList> {
    let known = ["kind", "apiVersion", "metadata", "status"];
    new.fields_mut().retain(|field, _| known.contains(&field.as_str()));
    for (field, value) in old.fields().into_iter().flatten() {
        if !known.contains(&field.as_str()) {
            new.set(field, value.clone());
        }
    }
    kind.rules.status.metadata.keep(new, old);
    meta::copy(new.entry("metadata"), meta::metadata(old), "generation");
    gated::drop_disabled(kind.rules.gated, context.features, new, Some(old));
    (kind.rules.status.prepare)(new, old, context);
    meta::keep_system_fields(new, old);
    let features = with_used_features(kind.rules.pod_spec, context.features, new, old);
    let mut errors =
        metadata_errors(kind.meta_rules(), kind.rules.status.metadata_revalidation, new, old, features);
    (kind.rules.status.validate)(new, old, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut warnings = WarningList::with_features(context.features);
    (kind.rules.status.warn)(new, &mut warnings);
    Ok(warnings)
}

/// Prepares and validates an update of a namespace's subresource `finalize`, the only one that changes `spec.finalizers`.
pub fn before_finalize(
    kind: Kind,
    new: &mut Value,
    old: &Value,
    context: &WriteContext<'_>,
) -> Result<WarningList, ErrorList> {
    meta::copy(new, old, "status");
    meta::copy(new.entry("metadata"), meta::metadata(old), "generation");
    meta::keep_system_fields(new, old);
    let mut errors =
        metadata_errors(kind.meta_rules(), kind.rules.metadata.revalidation, new, old, context.features);
    namespace::validate_finalize(new, &mut errors);
    if errors.is_empty() { Ok(WarningList::new()) } else { Err(errors) }
}

/// The rules of a subresource that has its own.
#[derive(Clone, Copy, Debug)]
pub struct SubresourceRules {
    /// Copies everything from the old object that the subresource does not change.
    pub prepare: fn(&mut Value, &Value),
    /// Validates the result against the old object.
    pub validate: fn(&Value, &Value, &mut ErrorList),
}

/// Prepares and validates an update of a subresource with its own rules.
pub fn before_subresource_update(
    kind: Kind,
    new: &mut Value,
    old: &Value,
    context: &WriteContext<'_>,
    rules: SubresourceRules,
) -> Result<WarningList, ErrorList> {
    meta::copy(new.entry("metadata"), meta::metadata(old), "generation");
    drop_unchanged(kind.rules, context.features, new, old);
    (rules.prepare)(new, old);
    if kind.rules.metadata.generation.has_change(new, old) {
        new.entry("metadata").set("generation", meta::generation(old) + 1);
    }
    meta::keep_system_fields(new, old);
    let features = with_used_features(kind.rules.pod_spec, context.features, new, old);
    let mut errors = metadata_errors(kind.meta_rules(), kind.rules.metadata.revalidation, new, old, features);
    (rules.validate)(new, old, &mut errors);
    if errors.is_empty() { Ok(WarningList::new()) } else { Err(errors) }
}

/// The errors of the metadata, including the validations that the kind repeats.
fn metadata_errors(
    rules: MetaRules,
    revalidation: MetaRevalidation,
    new: &Value,
    old: &Value,
    features: EnabledFeatures,
) -> ErrorList {
    let mut errors = ErrorList::with_features(features);
    let generic_rules = MetaRules {
        name: names::path_segment,
        validate_name: meta::any_name,
        requires_standard_finalizers: false,
        ..rules
    };
    meta::validate(new, generic_rules, &mut errors);
    meta::validate_update(new, old, false, &mut errors);
    let (full_count, update_count) = revalidation.times();
    for _ in 0..full_count {
        meta::validate(new, rules, &mut errors);
    }
    for _ in 0..update_count {
        meta::validate_update(new, old, rules.requires_standard_finalizers, &mut errors);
    }
    errors
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{error_messages, object};

    use super::super::testing::context;
    use super::super::{Generation, MetadataRules, StatusMeta, StatusRules, rules};
    use super::*;

    const NOW: WriteContext<'_> = context("2024-01-01T00:00:00Z");

    static PLAIN: KindRules = KindRules {
        metadata: MetadataRules {
            generation: Generation::SPEC,
            revalidation: MetaRevalidation::Change,
            ..MetadataRules::DEFAULT
        },
        ..KindRules::DEFAULT
    };
    const KIND: Kind = Kind { rules: &PLAIN, namespaced: true, has_status: true };

    fn stored() -> Value {
        object(
            r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","generation":3,
                "labels":{"l":"old"},"creationTimestamp":"2001-01-01T00:00:00Z"},
                "spec":{"x":1},"status":{"s":1}}"#,
        )
    }

    #[test]
    fn create_drops_status_and_sets_generation_one() {
        let mut new = stored();
        assert!(before_create(KIND, &mut new, &NOW).is_ok());
        assert_eq!(new.get("status"), None);
        assert_eq!(meta::generation(&new), 1);
    }

    #[test]
    fn update_keeps_status_and_counts_spec_changes() {
        let mut new = stored();
        new.set("status", Value::Null);
        new.entry("metadata").set("generation", 99);
        assert!(before_update(KIND, &mut new, &stored(), &NOW).is_ok());
        assert_eq!(new, stored());
        new.entry("spec").set("x", 2);
        new.entry("metadata").set("creationTimestamp", "2024-01-01T00:00:00Z");
        assert!(before_update(KIND, &mut new, &stored(), &NOW).is_ok());
        assert_eq!(meta::generation(&new), 4);
        assert_eq!(meta::metadata(&new).str("creationTimestamp"), "2001-01-01T00:00:00Z");
    }

    #[test]
    fn status_update_keeps_the_spec() {
        let mut new = object(
            r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"7","labels":{"l":"new"}},
                "spec":{"x":2},"other":1,"status":{"s":2}}"#,
        );
        static FIXED: KindRules = KindRules {
            status: StatusRules { metadata: StatusMeta::ResetForStatus, ..StatusRules::DEFAULT },
            ..KindRules::DEFAULT
        };
        let mut strict = new.clone();
        assert!(before_status_update(KIND, &mut new, &stored(), &NOW).is_ok());
        assert_eq!(new.get_path(&["spec", "x"]), Some(&Value::Int(1)));
        assert_eq!(new.get("other"), None);
        assert_eq!(new.get_path(&["status", "s"]), Some(&Value::Int(2)));
        assert_eq!(new.get_path(&["metadata", "labels", "l"]), Some(&Value::from("new")));
        assert_eq!(meta::generation(&new), 3);
        assert!(before_status_update(Kind { rules: &FIXED, ..KIND }, &mut strict, &stored(), &NOW).is_ok());
        assert_eq!(strict.get_path(&["metadata", "labels", "l"]), Some(&Value::from("old")));
    }

    #[test]
    fn changed_uid_is_reported_twice() {
        let mut new = stored();
        new.entry("metadata").set("uid", "v");
        let errors = before_update(KIND, &mut new, &stored(), &NOW).unwrap_err();
        let expected = "metadata.uid: Invalid value: \"v\": field is immutable";
        assert_eq!(error_messages(&errors), [expected, expected]);
    }

    #[test]
    fn kind_with_status_on_update_writes_status() {
        static OPEN: KindRules = KindRules {
            status: StatusRules {
                writable_on_create: true,
                writable_on_update: true,
                ..StatusRules::DEFAULT
            },
            ..KindRules::DEFAULT
        };
        let kind = Kind { rules: &OPEN, ..KIND };
        let mut new = stored();
        assert!(before_create(kind, &mut new, &NOW).is_ok());
        assert_eq!(new.get("status"), stored().get("status"));
        new.set("status", object(r#"{"s":2}"#));
        assert!(before_update(kind, &mut new, &stored(), &NOW).is_ok());
        assert_eq!(new.get_path(&["status", "s"]), Some(&Value::Int(2)));
    }

    #[test]
    fn metadata_errors_repeat_as_the_kind_revalidates() {
        static REVALIDATING: KindRules = KindRules {
            metadata: MetadataRules {
                revalidation: MetaRevalidation::WholeTwiceAndChange,
                ..MetadataRules::DEFAULT
            },
            status: StatusRules { metadata_revalidation: MetaRevalidation::No, ..StatusRules::DEFAULT },
            ..KindRules::DEFAULT
        };
        let kind = Kind { rules: &REVALIDATING, ..KIND };
        let mut new = stored();
        new.entry("metadata").entry("labels").set("l", "-");
        let errors = before_update(kind, &mut new.clone(), &stored(), &NOW).unwrap_err();
        assert_eq!(errors.len(), 5, "two of every update, three of the kind");
        let errors = before_status_update(kind, &mut new, &stored(), &NOW).unwrap_err();
        assert_eq!(errors.len(), 2);
    }

    #[test]
    fn finalize_changes_only_finalizers() {
        let kind = Kind { rules: rules("", "Namespace"), namespaced: false, has_status: true };
        let old = object(
            r#"{"metadata":{"name":"a","uid":"u","resourceVersion":"1"},"spec":{"finalizers":["kubernetes"]},
                "status":{"phase":"Terminating"}}"#,
        );
        let mut new = old.clone();
        new.entry("spec").set("finalizers", Value::array());
        new.set("status", Value::Null);
        assert!(before_finalize(kind, &mut new, &old, &NOW).is_ok());
        assert_eq!(new.get("status"), old.get("status"));
        new.entry("spec").set("finalizers", vec!["plain"]);
        assert!(before_finalize(kind, &mut new, &old, &NOW).is_err());
    }

    #[test]
    fn disabled_pod_fields_are_dropped_from_all_templates() {
        let pods = r#"{"containers":[],"resourceClaims":[{"name":"r"}]}"#;
        for (group, name, body) in [
            ("", "Pod", format!(r#"{{"spec":{pods}}}"#)),
            ("", "PodTemplate", format!(r#"{{"template":{{"spec":{pods}}}}}"#)),
            ("", "ReplicationController", format!(r#"{{"spec":{{"template":{{"spec":{pods}}}}}}}"#)),
            ("apps", "Deployment", format!(r#"{{"spec":{{"template":{{"spec":{pods}}}}}}}"#)),
            ("apps", "ReplicaSet", format!(r#"{{"spec":{{"template":{{"spec":{pods}}}}}}}"#)),
            ("apps", "StatefulSet", format!(r#"{{"spec":{{"template":{{"spec":{pods}}}}}}}"#)),
            ("apps", "DaemonSet", format!(r#"{{"spec":{{"template":{{"spec":{pods}}}}}}}"#)),
            ("batch", "Job", format!(r#"{{"spec":{{"template":{{"spec":{pods}}}}}}}"#)),
            (
                "batch",
                "CronJob",
                format!(r#"{{"spec":{{"jobTemplate":{{"spec":{{"template":{{"spec":{pods}}}}}}}}}}}"#),
            ),
        ] {
            let rules = rules(group, name);
            let mut stored = object(&body);
            drop_disabled(rules, EnabledFeatures::RELEASE, &mut stored, None);
            assert_eq!(rules.pod_spec.find(&stored), Some(&object(r#"{"containers":[]}"#)), "{name}");
        }
    }

    #[test]
    fn each_metadata_revalidation_adds_errors() {
        let mut new = stored();
        new.entry("metadata").entry("labels").set("a b", "c");
        let count = |revalidation| {
            metadata_errors(KIND.meta_rules(), revalidation, &new, &stored(), EnabledFeatures::RELEASE).len()
        };
        let table = [
            (MetaRevalidation::No, 2),
            (MetaRevalidation::Change, 3),
            (MetaRevalidation::Whole, 3),
            (MetaRevalidation::WholeAndChange, 4),
            (MetaRevalidation::WholeTwice, 4),
            (MetaRevalidation::WholeTwiceAndChange, 5),
        ];
        for (revalidation, expected) in table {
            assert_eq!(count(revalidation), expected, "{revalidation:?}");
        }
        // A status update of a pod only runs the update validation of the metadata.
        let pod = Kind { rules: rules("", "Pod"), namespaced: true, has_status: true };
        let mut updated = new.clone();
        let errors = before_status_update(pod, &mut updated, &stored(), &NOW).unwrap_err();
        assert_eq!(errors.iter().filter(|error| error.path.to_string() == "metadata.labels").count(), 3);
    }
}
