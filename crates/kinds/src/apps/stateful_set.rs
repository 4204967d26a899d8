//! StatefulSets.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::{FieldValue, fill, present_mut, same};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::super::core::{pod_default, template, volume_claim};
use super::super::{
    DefaultingRules, KindRules, MetaRevalidation, MetadataRules, PodSpecPath, StatusRules, ValidationRules,
    WarningRules, gated, messages,
};
use super::common::{
    ROLLING, int_value, render_int_or_string, require_selector, validate_at_most_100_percent,
    validate_collision_count, validate_count_or_percent,
};

/// The rules of a StatefulSet.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules {
        name: names::label_name,
        revalidation: MetaRevalidation::Change,
        ..MetadataRules::SPEC_GENERATION
    },
    pod_spec: PodSpecPath::TEMPLATE,
    defaulting: DefaultingRules {
        default: default_stateful_set,
        default_by_feature: default_unavailable,
        ..DefaultingRules::DEFAULT
    },
    gated: gated::rows::STATEFUL_SET,
    validation: ValidationRules {
        validate: validate_stateful_set,
        validate_update: validate_stateful_set_update,
        ..ValidationRules::DEFAULT
    },
    warnings: WarningRules { warn: warn_stateful_set, ..WarningRules::DEFAULT },
    status: StatusRules { validate: validate_stateful_set_status, ..StatusRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// The defaults of a StatefulSet.
fn default_stateful_set(object: &mut Value) {
    let spec = object.entry("spec");
    pod_default::default_template(spec, "template");
    let strategy = spec.entry("updateStrategy");
    if strategy.str("type").is_empty() {
        strategy.set("type", ROLLING);
        strategy.entry("rollingUpdate").fields_mut();
    }
    spec.entry("persistentVolumeClaimRetentionPolicy").fields_mut();
    for claim in pilothouse_apimachinery::field_value::items_mut(spec, "volumeClaimTemplates") {
        claim.set("kind", "PersistentVolumeClaim");
        claim.set("apiVersion", "v1");
    }
}

/// The default of maxUnavailable, if its feature is enabled.
fn default_unavailable(object: &mut Value, features: EnabledFeatures) {
    if features.has(Feature::MaxUnavailableStatefulSet)
        && object.get_path(&["spec", "updateStrategy", "type"]).and_then(Value::as_str) == Some(ROLLING)
        && let Some(rolling) = present_mut(object.entry("spec").entry("updateStrategy"), "rollingUpdate")
    {
        fill(rolling, "maxUnavailable", 1);
    }
}

/// Validates a status update of a StatefulSet.
pub(super) fn validate_stateful_set_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let status = FieldValue::top_level(new, "status");
    let bounded = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    let fields = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    messages::validate_counters(&status, &fields, &bounded, errors);
    let (available, ready) = (status.child("availableReplicas"), status.child("readyReplicas").number());
    messages::validate_at_most(&available, ready, errors, "cannot be greater than status.readyReplicas");
    validate_collision_count(new, old, errors);
}

/// Warnings about a StatefulSet.
pub(super) fn warn_stateful_set(object: &Value, old: Option<&Value>, warnings: &mut WarningList) {
    template::warn_unless_unchanged(object, old, warnings);
    let spec = FieldValue::top_level(object, "spec");
    for claim in spec.child("volumeClaimTemplates").items() {
        let path = if old.is_some() { claim.path.child("Spec") } else { claim.path.clone() };
        volume_claim::warn_spec(&path, claim.child("spec").value, warnings);
    }
    if spec.child("revisionHistoryLimit").number() < 0 {
        warnings.push(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
                .to_owned(),
        );
    }
}

fn stateful_set_spec(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let policy = spec.child("podManagementPolicy");
    if policy.need(errors) && !matches!(policy.text(), "OrderedReady" | "Parallel") {
        policy.invalid(errors, "must be 'OrderedReady' or 'Parallel'");
    }
    let strategy = spec.child("updateStrategy");
    let rolling = strategy.child("rollingUpdate");
    match strategy.child("type").text() {
        "OnDelete" if rolling.is_set() => {
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            messages::invalid_struct(&rolling.path, "apps.RollingUpdateStatefulSetStrategy", errors, detail);
        }
        "OnDelete" => {}
        "" => strategy.required(errors, ""),
        ROLLING => {
            rolling.child("partition").not_negative(errors);
            let unavailable = rolling.child("maxUnavailable");
            if unavailable.is_set() {
                validate_count_or_percent(&unavailable, errors);
                if int_value(&unavailable) == 0 {
                    let rendered = render_int_or_string(&unavailable);
                    errors.push(FieldError::invalid(&unavailable.path, &rendered, "cannot be 0"));
                }
                validate_at_most_100_percent(&unavailable, errors);
            }
        }
        _ => {
            let detail = "must be 'RollingUpdate' or 'OnDelete'";
            messages::invalid_struct(&strategy.path, "apps.StatefulSetUpdateStrategy", errors, detail);
        }
    }
    for when in ["whenDeleted", "whenScaled"] {
        let policy = spec.child("persistentVolumeClaimRetentionPolicy").child(when);
        if spec.child("persistentVolumeClaimRetentionPolicy").is_set() {
            policy.one_of(errors, &["Retain", "Delete"]);
        }
    }
    spec.child("replicas").not_negative(errors);
    spec.child("minReadySeconds").not_negative(errors);
    let start = spec.child("ordinals").child("start");
    FieldValue { value: start.value, path: spec.child("ordinals.start").path }.not_negative(errors);
}

fn stateful_set_pods(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let is_usable = require_selector(spec, "statefulset", "", errors);
    let (selector, pods) = (spec.child("selector"), spec.child("template"));
    let labels = pods.child("metadata").child("labels");
    let selects_all = selector.is_set() && label_selector::is_empty(selector.value);
    if is_usable {
        if !selects_all && !label_selector::matches(Some(selector.value), Some(labels.value)) {
            template::report_label_mismatch(&pods, errors);
        }
        template::validate_meta(&pods, errors);
    }
    template::validate_always_restarts(&pods, "StatefulSet", errors);
}

/// Checks a StatefulSet. Its PodSpec is checked when pods are created.
pub(super) fn validate_stateful_set(object: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(object, "spec");
    stateful_set_spec(&spec, errors);
    spec.child("serviceName").syntax_if_set(errors, names::dns_label);
    stateful_set_pods(&spec, errors);
}

/// Validates an updated StatefulSet.
pub(super) fn validate_stateful_set_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (spec, old_spec) = (FieldValue::top_level(new, "spec"), FieldValue::top_level(old, "spec"));
    stateful_set_spec(&spec, errors);
    stateful_set_pods(&spec, errors);
    let mut mutable_reset = spec.value.clone();
    for field in [
        "replicas",
        "template",
        "updateStrategy",
        "minReadySeconds",
        "ordinals",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
    ] {
        meta::copy(&mut mutable_reset, old_spec.value, field);
    }
    if !same(Some(&mutable_reset), Some(old_spec.value)) {
        let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                     'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                     'minReadySeconds' are forbidden";
        spec.forbidden(errors, detail);
    }
}
