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
use super::super::{COUNTED, KindRules, MetaRevalidation, POD_TEMPLATE, gated, messages};
use super::common::{
    ROLLING, at_most_all, count, count_or_percent, counters, need_selector, no_fewer_collisions, shown_share,
};

/// The rules of a StatefulSet.
pub const RULES: KindRules = KindRules {
    pods_at: POD_TEMPLATE,
    gated: gated::rows::STATEFUL_SET,
    name: names::label_name,
    default: default_stateful_set,
    default_by: default_unavailable,
    validate: validate_stateful_set,
    validate_update: validate_stateful_set_update,
    validate_status: validate_stateful_set_status,
    warn: warn_stateful_set,
    meta_revalidation: MetaRevalidation::Change,
    ..COUNTED
};

/// The defaults of a StatefulSet.
fn default_stateful_set(object: &mut Value) {
    let spec = object.entry("spec");
    pod_default::template(spec, "template");
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
        && object.at(&["spec", "updateStrategy", "type"]).and_then(Value::as_str) == Some(ROLLING)
        && let Some(rolling) = present_mut(object.entry("spec").entry("updateStrategy"), "rollingUpdate")
    {
        fill(rolling, "maxUnavailable", 1);
    }
}

/// Checks a changed status of a StatefulSet.
pub(super) fn validate_stateful_set_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let status = FieldValue::of(new, "status");
    let of_all = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    let all = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    counters(&status, &all, &of_all, errors);
    let (available, ready) = (status.child("availableReplicas"), status.child("readyReplicas").number());
    messages::no_more(&available, ready, errors, "cannot be greater than status.readyReplicas");
    no_fewer_collisions(new, old, errors);
}

/// Warns of what is dubious in a StatefulSet.
pub(super) fn warn_stateful_set(object: &Value, old: Option<&Value>, warned: &mut WarningList) {
    template::warn_unless_unchanged(object, old, warned);
    let spec = FieldValue::of(object, "spec");
    for claim in spec.child("volumeClaimTemplates").items() {
        let path = if old.is_some() { claim.path.child("Spec") } else { claim.path.clone() };
        volume_claim::warn_spec(&path, claim.child("spec").value, warned);
    }
    if spec.child("revisionHistoryLimit").number() < 0 {
        warned.push(
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
            let why = "only allowed for updateStrategy 'RollingUpdate'";
            messages::structure(&rolling.path, "apps.RollingUpdateStatefulSetStrategy", errors, why);
        }
        "OnDelete" => {}
        "" => strategy.required(errors, ""),
        ROLLING => {
            rolling.child("partition").not_negative(errors);
            let unavailable = rolling.child("maxUnavailable");
            if unavailable.is_set() {
                count_or_percent(&unavailable, errors);
                if count(&unavailable) == 0 {
                    let shown = shown_share(&unavailable);
                    errors.push(FieldError::invalid(&unavailable.path, &shown, "cannot be 0"));
                }
                at_most_all(&unavailable, errors);
            }
        }
        _ => {
            let why = "must be 'RollingUpdate' or 'OnDelete'";
            messages::structure(&strategy.path, "apps.StatefulSetUpdateStrategy", errors, why);
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
    let usable = need_selector(spec, "statefulset", "", errors);
    let (chosen, pods) = (spec.child("selector"), spec.child("template"));
    let labels = pods.child("metadata").child("labels");
    let everything = chosen.is_set() && label_selector::is_empty(chosen.value);
    if usable {
        if !everything && !label_selector::matches(Some(chosen.value), Some(labels.value)) {
            template::mismatch(&pods, errors);
        }
        template::validate_meta(&pods, errors);
    }
    template::always_restarts(&pods, "StatefulSet", errors);
}

/// Checks a StatefulSet. Its PodSpec is checked when pods are created.
pub(super) fn validate_stateful_set(object: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(object, "spec");
    stateful_set_spec(&spec, errors);
    spec.child("serviceName").syntax_if_set(errors, names::dns_label);
    stateful_set_pods(&spec, errors);
}

/// Checks a changed StatefulSet.
pub(super) fn validate_stateful_set_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (spec, was) = (FieldValue::of(new, "spec"), FieldValue::of(old, "spec"));
    stateful_set_spec(&spec, errors);
    stateful_set_pods(&spec, errors);
    let mut rest = spec.value.clone();
    for field in [
        "replicas",
        "template",
        "updateStrategy",
        "minReadySeconds",
        "ordinals",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
    ] {
        meta::copy(&mut rest, was.value, field);
    }
    if !same(Some(&rest), Some(was.value)) {
        let wrong = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                     'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                     'minReadySeconds' are forbidden";
        spec.forbidden(errors, wrong);
    }
}
