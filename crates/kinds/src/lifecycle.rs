//! Applies the rules of a kind to writes: the same steps in the same order for every kind.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::field_value::{present_mut, same};
use pilothouse_apimachinery::meta::{self, MetaRules};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::core::{namespace, pod_default, pod_features};
use super::gated::{self, rows};
use super::{DESCRIPTIONS, Generation, KindRules, MetaRevalidation, StatusMeta, WriteContext};

/// The default grace period of pods.
const POD_GRACE_SECONDS: i64 = 30;

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
        MetaRules {
            name: self.rules.name,
            own_name: self.rules.own_name,
            namespaced: self.namespaced,
            known_finalizers: self.rules.known_finalizers,
        }
    }
}

/// Prepares and validates a new object. Its name, namespace and system fields are already set.
pub fn before_create(
    kind: Kind,
    object: &mut Value,
    context: &WriteContext<'_>,
) -> Result<WarningList, ErrorList> {
    if kind.has_status && !kind.rules.status_on_create {
        object.remove("status");
    }
    if kind.rules.generation.starts {
        object.entry("metadata").set("generation", 1);
    }
    drop_disabled(kind, context.features, object, None);
    (kind.rules.prepare_create)(object, context);
    let mut errors = ErrorList::with_features(context.features);
    (kind.rules.validate_first)(object, &mut errors);
    if !kind.rules.meta_last {
        meta::validate(object, kind.meta_rules(), &mut errors);
    }
    (kind.rules.validate)(object, &mut errors);
    if kind.rules.meta_last && errors.is_empty() {
        meta::validate(object, kind.meta_rules(), &mut errors);
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok(accepted_warnings(kind, object, None, context.features))
}

/// Sets defaults that depend on other fields or on feature gates. Runs before the defaults of the schema table.
pub fn apply_defaults(rules: &KindRules, object: &mut Value, features: EnabledFeatures) {
    (rules.default)(object);
    (rules.default_by_feature)(object, features);
    if features.has(Feature::ImageVolume)
        && let Some(spec) = pod_spec_mut(rules, object)
    {
        pod_default::default_image_volumes(spec);
    }
}

/// Sets defaults that the reference sets when it decodes a stored object. Returns whether that changed the object.
pub fn finish(kind: Kind, object: &mut Value) -> bool {
    let Some(finish) = kind.rules.finish else { return false };
    let before = object.clone();
    finish(object);
    *object != before
}

/// Warnings about a new object, accepted or not.
pub fn warn_early(kind: Kind, object: &Value) -> WarningList {
    let mut warnings = WarningList::new();
    (kind.rules.warn_early)(object, &mut warnings);
    warnings
}

/// The PodSpec of a pod or a pod template.
fn pod_spec_mut<'a>(rules: &KindRules, object: &'a mut Value) -> Option<&'a mut Value> {
    let mut spec = Some(object).filter(|_| !rules.pod_spec_path.is_empty());
    for field in rules.pod_spec_path {
        spec = spec.and_then(|object| present_mut(object, field));
    }
    spec
}

/// The features for validating an update: those that the old pod or template used stay enabled.
fn with_used_features(kind: Kind, features: EnabledFeatures, new: &Value, old: &Value) -> EnabledFeatures {
    match kind.rules.pod_spec_path.split_last().map(|(_, parent)| (new.at(parent), old.at(parent))) {
        Some((Some(new), Some(old))) => pod_features::with_used_features(features, new, old),
        _ => features,
    }
}

/// Drops the fields of disabled features from an object and its PodSpec.
fn drop_disabled(kind: Kind, features: EnabledFeatures, object: &mut Value, old: Option<&Value>) {
    gated::drop_disabled(kind.rules.gated, features, object, old);
    if let Some(spec) = pod_spec_mut(kind.rules, object) {
        let old_spec = old.and_then(|old| old.at(kind.rules.pod_spec_path));
        gated::drop_disabled(rows::POD_SPEC, features, spec, old_spec);
        pod_default::drop_image_volumes(spec, old_spec, features);
        pod_default::drop_empty_labels(spec);
    }
}

/// The same for an update, which also drops an empty overhead.
fn drop_unchanged(kind: Kind, features: EnabledFeatures, object: &mut Value, old: &Value) {
    drop_disabled(kind, features, object, Some(old));
    let pods = pod_spec_mut(kind.rules, object);
    if let Some(spec) = pods.filter(|spec| spec.get("overhead").is_some_and(is_empty_object)) {
        spec.remove("overhead");
    }
}

fn is_empty_object(value: &Value) -> bool {
    value.fields().is_some_and(|fields| fields.is_empty())
}

/// Prepares and validates an update.
pub fn before_update(
    kind: Kind,
    new: &mut Value,
    old: &Value,
    context: &WriteContext<'_>,
) -> Result<WarningList, ErrorList> {
    meta::copy(new.entry("metadata"), meta::metadata(old), "generation");
    if kind.has_status && !kind.rules.status_on_update {
        meta::copy(new, old, "status");
    }
    let dropped_changed =
        kind.rules.generation.counts_dropped_fields && has_generation_change(kind.rules.generation, new, old);
    drop_unchanged(kind, context.features, new, old);
    (kind.rules.prepare_update)(new, old, context);
    if dropped_changed || has_generation_change(kind.rules.generation, new, old) {
        new.entry("metadata").set("generation", meta::generation(old) + 1);
    }
    meta::keep_system_fields(new, old);
    // An unchanged object was validated before. Most updates are no-ops of controllers.
    if new == old {
        return Ok(accepted_warnings(kind, new, Some(old), context.features));
    }
    let features = with_used_features(kind, context.features, new, old);
    let mut errors = common_errors(kind, kind.rules.meta_revalidation, new, old, features);
    kind.rules.check_update(new, old, &mut errors);
    if errors.is_empty() {
        Ok(accepted_warnings(kind, new, Some(old), context.features))
    } else {
        Err(errors)
    }
}

/// The warnings about an accepted object.
fn accepted_warnings(kind: Kind, new: &Value, old: Option<&Value>, features: EnabledFeatures) -> WarningList {
    let mut warnings = WarningList::with_features(features);
    (kind.rules.warn)(new, old, &mut warnings);
    warnings
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
    keep_status_meta(kind.rules.status_meta, new, old);
    meta::copy(new.entry("metadata"), meta::metadata(old), "generation");
    gated::drop_disabled(kind.rules.gated, context.features, new, Some(old));
    (kind.rules.prepare_status)(new, old, context);
    meta::keep_system_fields(new, old);
    let features = with_used_features(kind, context.features, new, old);
    let mut errors = common_errors(kind, kind.rules.status_meta_revalidation, new, old, features);
    (kind.rules.validate_status)(new, old, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut warnings = WarningList::with_features(context.features);
    (kind.rules.warn_status)(new, &mut warnings);
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
    let mut errors = common_errors(kind, kind.rules.meta_revalidation, new, old, context.features);
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
    drop_unchanged(kind, context.features, new, old);
    (rules.prepare)(new, old);
    if has_generation_change(kind.rules.generation, new, old) {
        new.entry("metadata").set("generation", meta::generation(old) + 1);
    }
    meta::keep_system_fields(new, old);
    let features = with_used_features(kind, context.features, new, old);
    let mut errors = common_errors(kind, kind.rules.meta_revalidation, new, old, features);
    (rules.validate)(new, old, &mut errors);
    if errors.is_empty() { Ok(WarningList::new()) } else { Err(errors) }
}

fn keep_status_meta(rule: StatusMeta, new: &mut Value, old: &Value) {
    let meta = new.entry("metadata");
    match rule {
        StatusMeta::Mutable => {}
        StatusMeta::MutableExcept(fields) => {
            for field in fields {
                meta::copy(meta, meta::metadata(old), field);
            }
        }
        StatusMeta::DescriptionsKept => {
            for field in DESCRIPTIONS {
                meta::copy(meta, meta::metadata(old), field);
            }
        }
        StatusMeta::AllKept => {
            let mut kept = meta::metadata(old).clone();
            meta::copy(&mut kept, meta, "managedFields");
            *meta = kept;
        }
    }
}

/// Whether a field has changed that increases the generation.
fn has_generation_change(generation: Generation, new: &Value, old: &Value) -> bool {
    let is_changed = |path: &&[&str]| {
        let (value, old_value) = (non_empty(new, path), non_empty(old, path));
        !same(value, old_value) || (generation.counts_empty_lists && value.is_some_and(has_empty_list))
    };
    generation.increased_by.iter().any(is_changed)
}

/// A top-level struct of an object. These are no pointers in Go, so an empty one equals an absent one.
fn non_empty<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    object.at(path).filter(|value| !is_empty_object(value))
}

/// Whether it contains an empty list.
fn has_empty_list(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty() || items.iter().any(has_empty_list),
        Value::Object(fields) => fields.values().any(has_empty_list),
        _ => false,
    }
}

/// The errors of the metadata, including the validations that the kind repeats.
fn common_errors(
    kind: Kind,
    revalidation: MetaRevalidation,
    new: &Value,
    old: &Value,
    features: EnabledFeatures,
) -> ErrorList {
    let mut errors = ErrorList::with_features(features);
    let generic_rules = MetaRules {
        name: names::path_segment,
        own_name: meta::any_name,
        known_finalizers: false,
        ..kind.meta_rules()
    };
    meta::validate(new, generic_rules, &mut errors);
    meta::validate_update(new, old, false, &mut errors);
    let (full_count, update_count) = revalidation.times();
    for _ in 0..full_count {
        meta::validate(new, kind.meta_rules(), &mut errors);
    }
    for _ in 0..update_count {
        meta::validate_update(new, old, kind.rules.known_finalizers, &mut errors);
    }
    errors
}

/// The grace period in seconds; `None` if deletion of the kind is not graceful.
pub fn grace_period(rules: &KindRules, object: &Value, requested: Option<i64>) -> Option<i64> {
    if !rules.graceful {
        return None;
    }
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let own_seconds =
        spec.get("terminationGracePeriodSeconds").and_then(Value::as_int).unwrap_or(POD_GRACE_SECONDS);
    let has_ended =
        matches!(object.at(&["status", "phase"]).and_then(Value::as_str), Some("Failed" | "Succeeded"));
    if spec.str("nodeName").is_empty() || has_ended {
        return Some(0);
    }
    let seconds = requested.unwrap_or(own_seconds);
    Some(if seconds < 0 { 1 } else { seconds })
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{error_messages, object};

    use super::super::testing::context;
    use super::super::{BASE, Generation, rules};
    use super::*;

    const NOW: WriteContext<'_> = context("2024-01-01T00:00:00Z");

    static PLAIN: KindRules = KindRules { generation: Generation::SPEC, ..BASE };
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
    fn finish_returns_whether_it_changed_the_object() {
        let kind = |kind| Kind { rules: rules("", kind), namespaced: true, has_status: true };
        let mut claim = object(r#"{"spec":{}}"#);
        assert!(finish(kind("PersistentVolumeClaim"), &mut claim));
        assert_eq!(claim.at(&["status", "phase"]), Some(&Value::from("Pending")));
        assert!(!finish(kind("PersistentVolumeClaim"), &mut claim));
        assert!(!finish(kind("ConfigMap"), &mut object("{}")));
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
        let fixed: &'static KindRules =
            Box::leak(Box::new(KindRules { status_meta: StatusMeta::DescriptionsKept, ..BASE }));
        let mut strict = new.clone();
        assert!(before_status_update(KIND, &mut new, &stored(), &NOW).is_ok());
        assert_eq!(new.at(&["spec", "x"]), Some(&Value::Int(1)));
        assert_eq!(new.get("other"), None);
        assert_eq!(new.at(&["status", "s"]), Some(&Value::Int(2)));
        assert_eq!(new.at(&["metadata", "labels", "l"]), Some(&Value::from("new")));
        assert_eq!(meta::generation(&new), 3);
        assert!(before_status_update(Kind { rules: fixed, ..KIND }, &mut strict, &stored(), &NOW).is_ok());
        assert_eq!(strict.at(&["metadata", "labels", "l"]), Some(&Value::from("old")));
    }

    #[test]
    fn status_update_with_kept_metadata_changes_only_managed_fields() {
        let mut meta = object(
            r#"{"metadata":{"generateName":"g","labels":{"l":"new"},"managedFields":[{"manager":"m"}]}}"#,
        );
        keep_status_meta(StatusMeta::AllKept, &mut meta, &stored());
        assert_eq!(meta.at(&["metadata", "managedFields"]).map(|list| list.items().len()), Some(1));
        meta.entry("metadata").remove("managedFields");
        assert_eq!(meta.get("metadata"), stored().get("metadata"));
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
        static OPEN: KindRules = KindRules { status_on_create: true, status_on_update: true, ..BASE };
        let kind = Kind { rules: &OPEN, ..KIND };
        let mut new = stored();
        assert!(before_create(kind, &mut new, &NOW).is_ok());
        assert_eq!(new.get("status"), stored().get("status"));
        new.set("status", object(r#"{"s":2}"#));
        assert!(before_update(kind, &mut new, &stored(), &NOW).is_ok());
        assert_eq!(new.at(&["status", "s"]), Some(&Value::Int(2)));
    }

    #[test]
    fn empty_list_counts_as_change_where_configured() {
        let counts = Generation { counts_empty_lists: true, ..Generation::SPEC };
        let (without_list, empty) = (object(r#"{"spec":{"a":{}}}"#), object(r#"{"spec":{"a":{"b":[]}}}"#));
        assert!(
            has_generation_change(counts, &empty, &without_list)
                && !has_generation_change(counts, &without_list, &empty)
        );
        assert!(!has_generation_change(Generation::SPEC, &empty, &without_list));
        assert!(has_generation_change(Generation::SPEC, &without_list, &object("{}")));
        assert!(!has_generation_change(Generation::SPEC, &object(r#"{"spec":{}}"#), &object("{}")));
    }

    #[test]
    fn metadata_errors_repeat_as_the_kind_revalidates() {
        static REVALIDATING: KindRules = KindRules {
            meta_revalidation: MetaRevalidation::WholeTwiceAndChange,
            status_meta_revalidation: MetaRevalidation::No,
            ..BASE
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
    fn grace_period_applies_only_to_running_pods() {
        let pod = rules("", "Pod");
        let running = object(r#"{"spec":{"nodeName":"n","terminationGracePeriodSeconds":9}}"#);
        let table = [
            (grace_period(rules("", "ConfigMap"), &running, Some(5)), None),
            (grace_period(pod, &running, None), Some(9)),
            (grace_period(pod, &running, Some(5)), Some(5)),
            (grace_period(pod, &running, Some(-5)), Some(1)),
            (grace_period(pod, &object(r#"{"spec":{}}"#), Some(5)), Some(0)),
            (
                grace_period(pod, &object(r#"{"spec":{"nodeName":"n"},"status":{"phase":"Failed"}}"#), None),
                Some(0),
            ),
        ];
        for (index, (actual, expected)) in table.into_iter().enumerate() {
            assert_eq!(actual, expected, "row {index}");
        }
        assert!(rules("batch", "Job").orphans_by_default && !rules("apps", "Deployment").orphans_by_default);
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
            let kind = Kind { rules: rules(group, name), namespaced: true, has_status: true };
            let mut stored = object(&body);
            drop_disabled(kind, EnabledFeatures::RELEASE, &mut stored, None);
            let mut pods = &stored;
            for field in kind.rules.pod_spec_path {
                pods = pods.get(field).unwrap();
            }
            assert!(!kind.rules.pod_spec_path.is_empty(), "{name}");
            assert_eq!(pods, &object(r#"{"containers":[]}"#), "{name}");
        }
    }

    #[test]
    fn each_metadata_revalidation_adds_errors() {
        let mut new = stored();
        new.entry("metadata").entry("labels").set("a b", "c");
        let count =
            |revalidation| common_errors(KIND, revalidation, &new, &stored(), EnabledFeatures::RELEASE).len();
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
