//! PersistentVolumeClaims.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, fill_text, same};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::STORAGE_CLASS;
use pilothouse_apimachinery::{meta, names};

use super::{pod_warn, resources};
use crate::allowed::core_v1;
use crate::{
    DefaultingRules, DeletionRules, KindRules, MetaRevalidation, MetadataRules, PreparationRules,
    StatusRules, ValidationRules, WarningRules, WriteContext, gated,
};

/// The rules of a PersistentVolumeClaim.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules { revalidation: MetaRevalidation::WholeTwiceAndChange, ..MetadataRules::DEFAULT },
    defaulting: DefaultingRules { default_stored: Some(default_stored_claim), ..DefaultingRules::DEFAULT },
    gated: gated::rows::VOLUME_CLAIM,
    preparation: PreparationRules { prepare_create: prepare_claim, prepare_update: prepare_claim_update },
    validation: ValidationRules {
        validate: validate_claim,
        validate_update: validate_claim_update,
        ..ValidationRules::DEFAULT
    },
    warnings: WarningRules { warn: warn_claim, ..WarningRules::DEFAULT },
    status: StatusRules { validate: validate_claim_status, ..StatusRules::DEFAULT },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

const MODES: &[&str] = core_v1::PersistentVolumeClaimSpec::ACCESS_MODES;
const IMMUTABLE_SPEC: &str = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
/// Makes dataSource and dataSourceRef of a new claim equal.
fn prepare_claim(claim: &mut Value, context: &WriteContext<'_>) {
    let spec = claim.entry("spec");
    drop_sources(spec, None, context.features);
    normalize_sources(spec);
}

/// A new claim is Pending.
fn default_stored_claim(claim: &mut Value) {
    fill_text(claim.entry("status"), "phase", "Pending");
}

/// Makes dataSource and dataSourceRef equal in an update, too.
fn prepare_claim_update(claim: &mut Value, old: &Value, context: &WriteContext<'_>) {
    let spec = claim.entry("spec");
    drop_sources(spec, old.get("spec"), context.features);
    normalize_sources(spec);
}

/// Drops data sources in other namespaces if the feature is disabled, and unsupported ones, unless the old claim had them.
fn drop_sources(spec: &mut Value, old_spec: Option<&Value>, features: EnabledFeatures) {
    let was_set = |field: &str| old_spec.is_some_and(|old_spec| old_spec.get(field).is_some());
    let is_cross_namespace =
        spec.get("dataSourceRef").is_some_and(|source| !source.str("namespace").is_empty());
    if is_cross_namespace
        && !features.has(Feature::CrossNamespaceVolumeDataSource)
        && !was_set("dataSourceRef")
    {
        spec.remove("dataSourceRef");
    }
    if !was_set("dataSource") && !was_set("dataSourceRef") && spec.get("dataSourceRef").is_none() {
        let is_supported = spec.get("dataSource").is_some_and(|source| {
            matches!(
                (source.str("kind"), source.str("apiGroup")),
                ("PersistentVolumeClaim", "") | ("VolumeSnapshot", "snapshot.storage.k8s.io")
            )
        });
        if !is_supported {
            spec.remove("dataSource");
        }
    }
}

fn normalize_sources(spec: &mut Value) {
    match (spec.get("dataSource").cloned(), spec.get("dataSourceRef").cloned()) {
        (Some(source), None) => spec.set("dataSourceRef", source),
        (None, Some(source)) if source.str("namespace").is_empty() => {
            let mut local = source;
            local.remove("namespace");
            spec.set("dataSource", local);
        }
        _ => {}
    }
}

/// Checks the spec of a claim.
pub fn validate_spec(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    validate_spec_with(spec, false, errors);
}

/// Checks the spec of a claim. `any_group`: the API groups of its data sources need not be valid.
fn validate_spec_with(spec: &FieldValue<'_>, any_group: bool, errors: &mut ErrorList) {
    let modes = spec.child("accessModes");
    if modes.is_empty() {
        modes.required(errors, "at least 1 access mode is required");
    }
    label_selector::validate(&spec.child("selector"), errors);
    validate_access_modes(&modes, errors);
    let size = FieldValue {
        value: spec.child("resources").child("requests").child("storage").value,
        path: spec.child("resources").path.key("storage"),
    };
    match size.amount() {
        None => size.required(errors, ""),
        Some(amount) if amount.is_negative() || amount.is_zero() => {
            size.invalid(errors, "must be greater than zero");
        }
        Some(_) => {}
    }
    spec.child("storageClassName").syntax_if_set(errors, names::dns_subdomain);
    spec.child("volumeMode").one_of_if_set(errors, core_v1::PersistentVolumeClaimSpec::VOLUME_MODE);
    validate_sources(spec, any_group, errors);
    if errors.features().has(Feature::VolumeAttributesClass) {
        spec.child("volumeAttributesClassName").syntax_if_set(errors, names::dns_subdomain);
    }
}

fn validate_sources(spec: &FieldValue<'_>, any_group: bool, errors: &mut ErrorList) {
    let (source, reference) = (spec.child("dataSource"), spec.child("dataSourceRef"));
    validate_data_source(&source, any_group, errors);
    validate_data_source(&reference, any_group, errors);
    if reference.is_set() {
        reference.child("namespace").syntax_if_set(errors, names::dns_label);
    }
    if !source.is_set() || !reference.is_set() {
        return;
    }
    let detail = if !reference.str("namespace").is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if ["apiGroup", "kind", "name"].iter().any(|field| source.read(field) != reference.read(field)) {
        "must match dataSourceRef"
    } else {
        return;
    };
    // The reference prints a Go pointer, which differs each time.
    let rendered = format!("field.Path{{name:\"dataSource\", parent:({:#x})}}", errors.len());
    errors.push(FieldError::invalid(&spec.path, &rendered, detail));
}

/// Checks access modes.
pub fn validate_access_modes(modes: &FieldValue<'_>, errors: &mut ErrorList) {
    let (mut has_exclusive, mut has_shared) = (false, false);
    for mode in modes.items() {
        let is_known = MODES.contains(&mode.text());
        if !is_known {
            errors.push(FieldError::not_supported(&modes.path, &mode.render(), MODES));
        }
        has_exclusive |= mode.text() == "ReadWriteOncePod";
        has_shared |= is_known && mode.text() != "ReadWriteOncePod";
    }
    if has_exclusive && has_shared {
        modes.forbidden(errors, "may not use ReadWriteOncePod with other access modes");
    }
}

fn validate_data_source(source: &FieldValue<'_>, any_group: bool, errors: &mut ErrorList) {
    if !source.is_set() {
        return;
    }
    source.child("name").need(errors);
    source.child("kind").need(errors);
    if source.child("apiGroup").is_empty() && source.child("kind").text() != "PersistentVolumeClaim" {
        let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.push(FieldError::invalid(&source.path, &quoted(source.child("kind").text()), detail));
    }
    if !any_group {
        source.child("apiGroup").syntax_if_set(errors, names::dns_subdomain);
    }
}

/// Warns about a claim.
fn warn_claim(claim: &Value, _old: Option<&Value>, warnings: &mut WarningList) {
    if meta::metadata(claim).get_path(&["annotations", STORAGE_CLASS]).is_some() {
        let path = FieldPath::new("metadata").child("annotations").key(STORAGE_CLASS);
        warnings.push(format!("{path}: deprecated since v1.8; use \"storageClassName\" attribute instead"));
    }
    if let Some(spec) = claim.get("spec") {
        warn_spec(&FieldPath::new("spec"), spec, warnings);
    }
}

/// Warns about fractional bytes in the requests of a claim.
pub fn warn_spec(path: &FieldPath, spec: &Value, warnings: &mut WarningList) {
    for part in ["requests", "limits"] {
        if let Some(amounts) = spec.get_path(&["resources", part]) {
            pod_warn::warn_fractions(&path.child("resources").child(part), amounts, &["storage"], warnings);
        }
    }
}

/// Checks a claim.
pub fn validate_claim(claim: &Value, errors: &mut ErrorList) {
    validate_spec(&FieldValue::top_level(claim, "spec"), errors);
}

/// Checks an updated claim: the spec is immutable, except that a bound claim may grow.
pub fn validate_claim_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (spec, old_spec) = (FieldValue::top_level(new, "spec"), FieldValue::top_level(old, "spec"));
    let had_group = |field: &str| old_spec.child(field).child("apiGroup").is_set();
    let any_group = had_group("dataSource") || had_group("dataSourceRef");
    // Twice, as the reference does.
    validate_spec_with(&spec, any_group, errors);
    validate_spec_with(&spec, any_group, errors);
    let mut comparable = spec.value.clone();
    let mut expected = old_spec.value.clone();
    normalize_sources(&mut expected);
    if old_spec.child("volumeName").is_empty() {
        meta::copy(&mut expected, &comparable, "volumeName");
    }
    allow_class_upgrade(new, old, &mut comparable, errors);
    if new.get_path(&["status", "phase"]).and_then(Value::as_str) == Some("Bound") {
        let size =
            old_spec.value.get_path(&["resources", "requests", "storage"]).cloned().unwrap_or_default();
        comparable.entry("resources").entry("requests").set("storage", size);
        if comparable.get("volumeAttributesClassName").is_some() {
            meta::copy(&mut comparable, &expected, "volumeAttributesClassName");
        }
    }
    if !same(Some(&comparable), Some(&expected)) {
        spec.forbidden(errors, IMMUTABLE_SPEC);
    }
    let size = |spec: &FieldValue<'_>| {
        spec.child("resources").child("requests").child("storage").amount().unwrap_or_default()
    };
    let capacity =
        FieldValue::top_level(old, "status").child("capacity").child("storage").amount().unwrap_or_default();
    // A removed request counts as smaller.
    let can_recover = errors.features().has(Feature::RecoverVolumeExpansionFailure);
    if size(&spec) < size(&old_spec) && (!can_recover || size(&spec) <= capacity) {
        let path = spec.child("resources").child("requests").child("storage").path;
        let lower_bound = if can_recover { "status.capacity" } else { "previous value" };
        errors.push(FieldError::forbidden(&path, &format!("field can not be less than {lower_bound}")));
    }
    spec.child("volumeMode")
        .named(FieldPath::new("volumeMode"))
        .unchanged(&old_spec.child("volumeMode"), errors);
    validate_attributes_class_change(&spec, &old_spec, errors);
}

/// volumeAttributesClassName can change, but not be removed.
fn validate_attributes_class_change(
    spec: &FieldValue<'_>,
    old_spec: &FieldValue<'_>,
    errors: &mut ErrorList,
) {
    let (class, old_class) =
        (spec.child("volumeAttributesClassName"), old_spec.child("volumeAttributesClassName"));
    if same(Some(class.value), Some(old_class.value)) {
        return;
    }
    if !errors.features().has(Feature::VolumeAttributesClass) {
        class
            .forbidden(errors, "update is forbidden when the VolumeAttributesClass feature gate is disabled");
        return;
    }
    if old_class.is_set() && !class.is_set() {
        class.forbidden(errors, "update from non-nil value to nil is forbidden");
    } else if old_class.is_set() && class.is_empty() {
        class.forbidden(errors, "update from non-nil value to an empty string is forbidden");
    }
}

/// The storage class may move from the annotation to the field, and an absent one may be set once.
fn allow_class_upgrade(new: &Value, old: &Value, comparable: &mut Value, errors: &mut ErrorList) {
    fn annotation(claim: &Value) -> Option<&Value> {
        meta::metadata(claim).get_path(&["annotations", STORAGE_CLASS])
    }
    let class = |claim: &'_ Value| claim.get_path(&["spec", "storageClassName"]).cloned();
    let (old_annotation, new_annotation) = (annotation(old), annotation(new));
    let new_class = class(old).is_none().then(|| class(new)).flatten();
    let from_annotation = old_annotation.is_some()
        && new_class.as_ref() == old_annotation
        && (new_annotation.is_none() || new_annotation == old_annotation);
    if !from_annotation
        && new_annotation.and_then(Value::as_str).unwrap_or_default()
            != old_annotation.and_then(Value::as_str).unwrap_or_default()
    {
        let path = FieldPath::new("metadata").child("annotations").child(STORAGE_CLASS);
        let text = new_annotation.and_then(Value::as_str).unwrap_or_default();
        errors.push(FieldError::invalid(&path, &quoted(text), meta::IMMUTABLE));
    }
    if from_annotation
        || (new_class.is_some()
            && old_annotation.is_none_or(|old_annotation| Some(old_annotation) == new_class.as_ref()))
    {
        comparable.remove("storageClassName");
    }
}

/// Checks that a quantity is not negative, with the message for capacities.
pub fn validate_not_negative(entry: &FieldValue<'_>, errors: &mut ErrorList) {
    if let Some(amount) = entry.amount().filter(|amount| amount.ceiling() < 0) {
        let detail = "must be a valid resource quantity";
        errors.push(FieldError::invalid(&entry.path, &amount.ceiling().to_string(), detail));
    }
}

const RESIZE_STATES: &[&str] = core_v1::PersistentVolumeClaimStatus::ALLOCATED_RESOURCE_STATUSES;

/// Validates a status update.
pub fn validate_claim_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    let modes = FieldValue::top_level(new, "spec")
        .child("accessModes")
        .named(FieldPath::new("Spec").child("accessModes"));
    modes.need(errors);
    let status = FieldValue::top_level(new, "status");
    for (_, entry) in status.child("capacity").entries() {
        validate_not_negative(&entry, errors);
    }
    let path = status.path.child("allocatedResourceStatus");
    for (key, state) in status.child("allocatedResourceStatuses").entries() {
        validate_resource_key(key, &path, errors);
        if !RESIZE_STATES.contains(&state.text()) {
            errors.push(FieldError::not_supported(&path, key, RESIZE_STATES));
        }
    }
    let allocated = status.child("allocatedResources");
    for (key, entry) in allocated.entries() {
        let error_count = errors.len();
        validate_resource_key(key, &allocated.path, errors);
        if errors.len() == error_count {
            validate_not_negative(&entry, errors);
        }
    }
}

fn validate_resource_key(key: &str, path: &FieldPath, errors: &mut ErrorList) {
    let details = names::qualified_name(key);
    if details.is_empty() && resources::is_native(key) && key != "storage" {
        errors.push(FieldError::not_supported(path, &quoted(key), &["storage"]));
    }
    meta::add_invalid(errors, path, key, details);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::*;

    fn claim() -> Value {
        object(
            r#"{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}},
                "volumeMode":"Filesystem","storageClassName":"a"}}"#,
        )
    }

    #[test]
    fn volume_claim_validation_refuses_each_violation() {
        each_refused(
            &claim(),
            validate_claim,
            &[
                (
                    "spec.accessModes",
                    "[]",
                    "spec.accessModes: Required value: at least 1 access mode is required",
                ),
                ("spec.accessModes", r#"["X"]"#, "spec.accessModes: Unsupported value: \"X\""),
                (
                    "spec.accessModes",
                    r#"["ReadWriteOnce","ReadWriteOncePod"]"#,
                    "may not use ReadWriteOncePod with other",
                ),
                ("spec.resources", "null", "spec.resources[storage]: Required value"),
                (
                    "spec.resources.requests.storage",
                    r#""0""#,
                    "spec.resources[storage]: Invalid value: \"0\": must be greater than zero",
                ),
                ("spec.storageClassName", r#""A""#, "spec.storageClassName: Invalid value"),
                ("spec.volumeMode", r#""X""#, "\"Block\", \"Filesystem\""),
                (
                    "spec.dataSource",
                    r#"{"kind":"X","name":"x"}"#,
                    "must be 'PersistentVolumeClaim' when referencing",
                ),
                (
                    "spec",
                    r#"{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}},
                        "dataSource":{"kind":"X","name":"x","apiGroup":"g"},"dataSourceRef":{"kind":"X","name":"y","apiGroup":"g"}}"#,
                    ": must match dataSourceRef",
                ),
                (
                    "spec.dataSourceRef",
                    r#"{"kind":"X","name":"y","apiGroup":"g","namespace":"A"}"#,
                    "spec.dataSourceRef.namespace: Invalid value: \"A\"",
                ),
            ],
        );
        each_change_refused(
            &claim(),
            validate_claim_update,
            &[
                (
                    "spec.storageClassName",
                    r#""b""#,
                    "spec: Forbidden: spec is immutable after creation except",
                ),
                ("spec.resources.requests.storage", r#""2Gi""#, IMMUTABLE_SPEC),
            ],
        );
        let mut without_request = claim();
        without_request.entry("spec").set("resources", Value::object());
        let mut errors = ErrorList::new();
        validate_claim_update(&without_request, &claim(), &mut errors);
        let expected =
            "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity";
        assert!(errors.iter().any(|error| error.to_string() == expected), "{errors:?}");
    }

    #[test]
    fn bound_claim_may_grow() {
        let mut old = claim();
        old.entry("status").set("phase", "Bound");
        old.entry("status").entry("capacity").set("storage", "1Gi");
        let mut new = old.clone();
        new.entry("spec").entry("resources").entry("requests").set("storage", "2Gi");
        let mut errors = ErrorList::new();
        validate_claim_update(&new, &old, &mut errors);
        assert_eq!(errors, []);
        new.entry("spec").entry("resources").entry("requests").set("storage", "1Mi");
        validate_claim_update(&new, &old, &mut errors);
        assert_eq!(errors[0].message, "Forbidden: field can not be less than status.capacity");
    }

    #[test]
    fn volume_claim_status_validation_refuses_each_violation() {
        let mut base = claim();
        base.set(
            "status",
            object(
                r#"{"capacity":{"storage":"1Gi"},"allocatedResources":{"storage":"1Gi"},
                "allocatedResourceStatuses":{"storage":"NodeResizePending"}}"#,
            ),
        );
        each_change_refused(
            &base,
            validate_claim_status,
            &[
                ("spec.accessModes", "[]", "Spec.accessModes: Required value"),
                (
                    "status.capacity.storage",
                    r#""-1""#,
                    "status.capacity[storage]: Invalid value: -1: must be a valid",
                ),
                (
                    "status.allocatedResources",
                    r#"{"cpu":"1"}"#,
                    "status.allocatedResources: Unsupported value: \"cpu\"",
                ),
                (
                    "status.allocatedResourceStatuses.storage",
                    r#""X""#,
                    "status.allocatedResourceStatus: Unsupported value: storage",
                ),
            ],
        );
    }

    #[test]
    fn unsupported_data_sources_are_dropped() {
        let prepared_spec = |json: &str| {
            let mut claim = object(&format!(r#"{{"spec":{json}}}"#));
            prepare_claim(&mut claim, &crate::testing::context(""));
            claim.get("spec").cloned().unwrap_or_default()
        };
        assert_eq!(prepared_spec(r#"{"dataSource":{"kind":"X","name":"x","apiGroup":"g"}}"#), object("{}"));
        assert_eq!(
            prepared_spec(r#"{"dataSourceRef":{"kind":"X","name":"x","namespace":"n"}}"#),
            object("{}")
        );
        let both = prepared_spec(r#"{"dataSourceRef":{"kind":"X","name":"x","apiGroup":"g"}}"#);
        assert_eq!(both.get("dataSource"), both.get("dataSourceRef"));
    }

    #[test]
    fn storage_class_may_move_from_annotation_to_field() {
        let mut old = claim();
        old.entry("spec").remove("storageClassName");
        old.entry("metadata").entry("annotations").set(STORAGE_CLASS, "a");
        let mut new = claim();
        let mut errors = ErrorList::new();
        validate_claim_update(&new, &old, &mut errors);
        assert_eq!(errors, []);
        new.entry("metadata").entry("annotations").set(STORAGE_CLASS, "b");
        validate_claim_update(&new, &old, &mut errors);
        assert_eq!(
            errors[0].to_string(),
            format!("metadata.annotations.{STORAGE_CLASS}: Invalid value: \"b\": field is immutable")
        );
    }
}
