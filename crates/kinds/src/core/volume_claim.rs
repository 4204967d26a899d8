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
use crate::{BASE, KindRules, MetaRevalidation, WriteContext, gated};

/// The rules of a PersistentVolumeClaim.
pub const RULES: KindRules = KindRules {
    gated: gated::rows::VOLUME_CLAIM,
    prepare_create: prepare_claim,
    finish: Some(finish_claim),
    prepare_update: prepare_claim_update,
    validate_status: validate_claim_status,
    validate: validate_claim,
    validate_update: validate_claim_update,
    warn: warn_claim,
    meta_revalidation: MetaRevalidation::WholeTwiceAndChange,
    ..BASE
};

const MODES: &[&str] = core_v1::PersistentVolumeClaimSpec::ACCESS_MODES;
const FIXED: &str = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
/// Makes dataSource and dataSourceRef of a new claim equal.
fn prepare_claim(claim: &mut Value, context: &WriteContext<'_>) {
    let spec = claim.entry("spec");
    drop_sources(spec, None, context.features);
    normalize_sources(spec);
}

/// A new claim is Pending.
fn finish_claim(claim: &mut Value) {
    fill_text(claim.entry("status"), "phase", "Pending");
}

/// Makes dataSource and dataSourceRef equal in an update, too.
fn prepare_claim_update(claim: &mut Value, old: &Value, context: &WriteContext<'_>) {
    let spec = claim.entry("spec");
    drop_sources(spec, old.get("spec"), context.features);
    normalize_sources(spec);
}

/// Drops data sources in other namespaces if the feature is disabled, and unsupported ones, unless the old claim had them.
fn drop_sources(spec: &mut Value, was: Option<&Value>, features: EnabledFeatures) {
    let had = |field: &str| was.is_some_and(|was| was.get(field).is_some());
    let elsewhere = spec.get("dataSourceRef").is_some_and(|source| !source.str("namespace").is_empty());
    if elsewhere && !features.has(Feature::CrossNamespaceVolumeDataSource) && !had("dataSourceRef") {
        spec.remove("dataSourceRef");
    }
    if !had("dataSource") && !had("dataSourceRef") && spec.get("dataSourceRef").is_none() {
        let known = spec.get("dataSource").is_some_and(|source| {
            matches!(
                (source.str("kind"), source.str("apiGroup")),
                ("PersistentVolumeClaim", "") | ("VolumeSnapshot", "snapshot.storage.k8s.io")
            )
        });
        if !known {
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
    spec_of(spec, false, errors);
}

/// Checks the spec of a claim. `any_group`: the API groups of its data sources need not be valid.
fn spec_of(spec: &FieldValue<'_>, any_group: bool, errors: &mut ErrorList) {
    let modes = spec.child("accessModes");
    if modes.is_empty() {
        modes.required(errors, "at least 1 access mode is required");
    }
    label_selector::validate(&spec.child("selector"), errors);
    access_modes(&modes, errors);
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
    sources(spec, any_group, errors);
    if errors.features().has(Feature::VolumeAttributesClass) {
        spec.child("volumeAttributesClassName").syntax_if_set(errors, names::dns_subdomain);
    }
}

fn sources(spec: &FieldValue<'_>, any_group: bool, errors: &mut ErrorList) {
    let (source, other) = (spec.child("dataSource"), spec.child("dataSourceRef"));
    data_source(&source, any_group, errors);
    data_source(&other, any_group, errors);
    if other.is_set() {
        other.child("namespace").syntax_if_set(errors, names::dns_label);
    }
    if !source.is_set() || !other.is_set() {
        return;
    }
    let wrong = if !other.str("namespace").is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if ["apiGroup", "kind", "name"].iter().any(|field| source.read(field) != other.read(field)) {
        "must match dataSourceRef"
    } else {
        return;
    };
    // The reference prints a Go pointer, which differs each time.
    let shown = format!("field.Path{{name:\"dataSource\", parent:({:#x})}}", errors.len());
    errors.push(FieldError::invalid(&spec.path, &shown, wrong));
}

/// Checks access modes.
pub fn access_modes(modes: &FieldValue<'_>, errors: &mut ErrorList) {
    let (mut alone, mut shared) = (false, false);
    for mode in modes.items() {
        let known = MODES.contains(&mode.text());
        if !known {
            errors.push(FieldError::not_supported(&modes.path, &mode.shown(), MODES));
        }
        alone |= mode.text() == "ReadWriteOncePod";
        shared |= known && mode.text() != "ReadWriteOncePod";
    }
    if alone && shared {
        modes.forbidden(errors, "may not use ReadWriteOncePod with other access modes");
    }
}

fn data_source(source: &FieldValue<'_>, any_group: bool, errors: &mut ErrorList) {
    if !source.is_set() {
        return;
    }
    source.child("name").need(errors);
    source.child("kind").need(errors);
    if source.child("apiGroup").is_empty() && source.child("kind").text() != "PersistentVolumeClaim" {
        let wrong = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.push(FieldError::invalid(&source.path, &quoted(source.child("kind").text()), wrong));
    }
    if !any_group {
        source.child("apiGroup").syntax_if_set(errors, names::dns_subdomain);
    }
}

/// Warns about a claim.
fn warn_claim(claim: &Value, _old: Option<&Value>, warned: &mut WarningList) {
    if meta::of(claim).at(&["annotations", STORAGE_CLASS]).is_some() {
        let path = FieldPath::new("metadata").child("annotations").key(STORAGE_CLASS);
        warned.push(format!("{path}: deprecated since v1.8; use \"storageClassName\" attribute instead"));
    }
    if let Some(spec) = claim.get("spec") {
        warn_spec(&FieldPath::new("spec"), spec, warned);
    }
}

/// Warns about fractional bytes in the requests of a claim.
pub fn warn_spec(path: &FieldPath, spec: &Value, warned: &mut WarningList) {
    for part in ["requests", "limits"] {
        if let Some(amounts) = spec.at(&["resources", part]) {
            pod_warn::fractions(&path.child("resources").child(part), amounts, &["storage"], warned);
        }
    }
}

/// Checks a claim.
pub fn validate_claim(claim: &Value, errors: &mut ErrorList) {
    validate_spec(&FieldValue::of(claim, "spec"), errors);
}

/// Checks an updated claim: the spec is immutable, except that a bound claim may grow.
pub fn validate_claim_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (spec, was) = (FieldValue::of(new, "spec"), FieldValue::of(old, "spec"));
    let had_group = |field: &str| was.child(field).child("apiGroup").is_set();
    let any_group = had_group("dataSource") || had_group("dataSourceRef");
    // Twice, as the reference does.
    spec_of(&spec, any_group, errors);
    spec_of(&spec, any_group, errors);
    let mut rest = spec.value.clone();
    let mut base = was.value.clone();
    normalize_sources(&mut base);
    if was.child("volumeName").is_empty() {
        meta::copy(&mut base, &rest, "volumeName");
    }
    class_upgrade(new, old, &mut rest, errors);
    if new.at(&["status", "phase"]).and_then(Value::as_str) == Some("Bound") {
        let size = was.value.at(&["resources", "requests", "storage"]).cloned().unwrap_or_default();
        rest.entry("resources").entry("requests").set("storage", size);
        if rest.get("volumeAttributesClassName").is_some() {
            meta::copy(&mut rest, &base, "volumeAttributesClassName");
        }
    }
    if !same(Some(&rest), Some(&base)) {
        spec.forbidden(errors, FIXED);
    }
    let size = |spec: &FieldValue<'_>| {
        spec.child("resources").child("requests").child("storage").amount().unwrap_or_default()
    };
    let capacity =
        FieldValue::of(old, "status").child("capacity").child("storage").amount().unwrap_or_default();
    // A removed request counts as smaller.
    let may_recover = errors.features().has(Feature::RecoverVolumeExpansionFailure);
    if size(&spec) < size(&was) && (!may_recover || size(&spec) <= capacity) {
        let path = spec.child("resources").child("requests").child("storage").path;
        let least = if may_recover { "status.capacity" } else { "previous value" };
        errors.push(FieldError::forbidden(&path, &format!("field can not be less than {least}")));
    }
    spec.child("volumeMode").named(FieldPath::new("volumeMode")).unchanged(&was.child("volumeMode"), errors);
    attributes_update(&spec, &was, errors);
}

/// volumeAttributesClassName can change, but not be removed.
fn attributes_update(spec: &FieldValue<'_>, was: &FieldValue<'_>, errors: &mut ErrorList) {
    let (now, before) = (spec.child("volumeAttributesClassName"), was.child("volumeAttributesClassName"));
    if same(Some(now.value), Some(before.value)) {
        return;
    }
    if !errors.features().has(Feature::VolumeAttributesClass) {
        now.forbidden(errors, "update is forbidden when the VolumeAttributesClass feature gate is disabled");
        return;
    }
    if before.is_set() && !now.is_set() {
        now.forbidden(errors, "update from non-nil value to nil is forbidden");
    } else if before.is_set() && now.is_empty() {
        now.forbidden(errors, "update from non-nil value to an empty string is forbidden");
    }
}

/// The storage class may move from the annotation to the field, and an absent one may be set once.
fn class_upgrade(new: &Value, old: &Value, rest: &mut Value, errors: &mut ErrorList) {
    fn annotation(claim: &Value) -> Option<&Value> {
        meta::of(claim).at(&["annotations", STORAGE_CLASS])
    }
    let class = |claim: &'_ Value| claim.at(&["spec", "storageClassName"]).cloned();
    let (was, now) = (annotation(old), annotation(new));
    let named = class(old).is_none().then(|| class(new)).flatten();
    let from_annotation = was.is_some() && named.as_ref() == was && (now.is_none() || now == was);
    if !from_annotation
        && now.and_then(Value::as_str).unwrap_or_default() != was.and_then(Value::as_str).unwrap_or_default()
    {
        let path = FieldPath::new("metadata").child("annotations").child(STORAGE_CLASS);
        let text = now.and_then(Value::as_str).unwrap_or_default();
        errors.push(FieldError::invalid(&path, &quoted(text), meta::IMMUTABLE));
    }
    if from_annotation || (named.is_some() && was.is_none_or(|was| Some(was) == named.as_ref())) {
        rest.remove("storageClassName");
    }
}

/// Checks that a quantity is not negative, with the message for capacities.
pub fn not_below_zero(entry: &FieldValue<'_>, errors: &mut ErrorList) {
    if let Some(amount) = entry.amount().filter(|amount| amount.ceiling() < 0) {
        let wrong = "must be a valid resource quantity";
        errors.push(FieldError::invalid(&entry.path, &amount.ceiling().to_string(), wrong));
    }
}

const RESIZE_STATES: &[&str] = core_v1::PersistentVolumeClaimStatus::ALLOCATED_RESOURCE_STATUSES;

/// Checks a changed status.
pub fn validate_claim_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    let modes =
        FieldValue::of(new, "spec").child("accessModes").named(FieldPath::new("Spec").child("accessModes"));
    modes.need(errors);
    let status = FieldValue::of(new, "status");
    for (_, entry) in status.child("capacity").entries() {
        not_below_zero(&entry, errors);
    }
    let path = status.path.child("allocatedResourceStatus");
    for (key, state) in status.child("allocatedResourceStatuses").entries() {
        resource_key(key, &path, errors);
        if !RESIZE_STATES.contains(&state.text()) {
            errors.push(FieldError::not_supported(&path, key, RESIZE_STATES));
        }
    }
    let allocated = status.child("allocatedResources");
    for (key, entry) in allocated.entries() {
        let before = errors.len();
        resource_key(key, &allocated.path, errors);
        if errors.len() == before {
            not_below_zero(&entry, errors);
        }
    }
}

fn resource_key(key: &str, path: &FieldPath, errors: &mut ErrorList) {
    let wrong = names::qualified_name(key);
    if wrong.is_empty() && resources::is_native(key) && key != "storage" {
        errors.push(FieldError::not_supported(path, &quoted(key), &["storage"]));
    }
    meta::texts(errors, path, key, wrong);
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
    fn each_rule_of_a_claim_refuses() {
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
                ("spec.resources.requests.storage", r#""2Gi""#, FIXED),
            ],
        );
        let mut nothing = claim();
        nothing.entry("spec").set("resources", Value::object());
        let mut errors = ErrorList::new();
        validate_claim_update(&nothing, &claim(), &mut errors);
        let wanted = "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity";
        assert!(errors.iter().any(|error| error.to_string() == wanted), "{errors:?}");
    }

    #[test]
    fn a_bound_claim_may_grow() {
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
    fn each_rule_of_a_status_refuses() {
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
    fn sources_that_nobody_fills_are_dropped() {
        let at = |json: &str| {
            let mut claim = object(&format!(r#"{{"spec":{json}}}"#));
            prepare_claim(&mut claim, &crate::testing::context(""));
            claim.get("spec").cloned().unwrap_or_default()
        };
        assert_eq!(at(r#"{"dataSource":{"kind":"X","name":"x","apiGroup":"g"}}"#), object("{}"));
        assert_eq!(at(r#"{"dataSourceRef":{"kind":"X","name":"x","namespace":"n"}}"#), object("{}"));
        let both = at(r#"{"dataSourceRef":{"kind":"X","name":"x","apiGroup":"g"}}"#);
        assert_eq!(both.get("dataSource"), both.get("dataSourceRef"));
    }

    #[test]
    fn a_class_may_move_from_the_annotation_to_the_field() {
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
