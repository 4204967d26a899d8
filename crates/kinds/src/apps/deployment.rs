//! Deployments and the ReplicaSets that they make.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::{FieldValue, fill_text};
use pilothouse_apimachinery::value::Value;

use super::super::core::{pod_default, template};
use super::super::{
    BASE, COUNTED, Generation, KindRules, MetaRevalidation, POD_TEMPLATE, Revalidation, StatusMeta, gated,
    messages,
};
use super::common::{
    ROLLING, at_most_all, count, count_or_percent, counters, need_selector, no_fewer_collisions,
    same_selector, shown_share, shown_strategy, warn_named,
};

/// The rules of a Deployment.
pub const DEPLOYMENT: KindRules = KindRules {
    pods_at: POD_TEMPLATE,
    gated: gated::rows::REPLICAS,
    generation: Generation { moves_with: &[&["spec"], &["metadata", "annotations"]], ..Generation::FIRST },
    status_meta: StatusMeta::Without(&["labels"]),
    default: default_deployment,
    validate: validate_deployment,
    revalidation: Revalidation::Once,
    validate_update: same_selector,
    validate_status: validate_deployment_status,
    warn: warn_named,
    meta_revalidation: MetaRevalidation::Change,
    ..BASE
};

/// The rules of a ReplicaSet.
pub const REPLICA_SET: KindRules = KindRules {
    pods_at: POD_TEMPLATE,
    gated: gated::rows::REPLICAS,
    default: default_replica_set,
    validate: validate_replica_set,
    revalidation: Revalidation::Twice,
    validate_update: same_selector,
    validate_status: validate_replica_set_status,
    warn: warn_named,
    ..COUNTED
};

/// The defaults of a Deployment.
fn default_deployment(object: &mut Value) {
    let spec = object.entry("spec");
    pod_default::template(spec, "template");
    let strategy = spec.entry("strategy");
    fill_text(strategy, "type", ROLLING);
    if strategy.str("type") == ROLLING {
        strategy.entry("rollingUpdate").fields_mut();
    }
}

/// The defaults of a ReplicaSet.
fn default_replica_set(object: &mut Value) {
    pod_default::template(object.entry("spec"), "template");
}

/// Checks a Deployment.
pub(super) fn validate_deployment(object: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(object, "spec");
    spec.child("replicas").not_negative(errors);
    if need_selector(&spec, "deployment", "invalid label selector", errors) {
        template::validate_for_controller(&spec, "ReplicaSet", errors);
    }
    deployment_strategy(&spec.child("strategy"), errors);
    let ready = spec.child("minReadySeconds");
    ready.not_negative(errors);
    spec.child("revisionHistoryLimit").not_negative(errors);
    let deadline = spec.child("progressDeadlineSeconds");
    if deadline.is_set() {
        deadline.not_negative(errors);
        if deadline.number() <= ready.number() {
            deadline.invalid(errors, "must be greater than minReadySeconds");
        }
    }
}

fn deployment_strategy(strategy: &FieldValue<'_>, errors: &mut ErrorList) {
    let rolling = strategy.child("rollingUpdate");
    match strategy.child("type").text() {
        "Recreate" if rolling.is_set() => {
            rolling.forbidden(errors, "may not be specified when strategy `type` is 'Recreate'");
        }
        "Recreate" | "" => {}
        ROLLING => {
            let (unavailable, surge) = (rolling.child("maxUnavailable"), rolling.child("maxSurge"));
            count_or_percent(&unavailable, errors);
            count_or_percent(&surge, errors);
            if rolling.is_set() && count(&unavailable) == 0 && count(&surge) == 0 {
                let wrong = "may not be 0 when `maxSurge` is 0";
                errors.push(FieldError::invalid(&unavailable.path, &shown_share(&unavailable), wrong));
            }
            at_most_all(&unavailable, errors);
        }
        _ => {
            let shown = shown_strategy(strategy, "apps.DeploymentStrategy", "apps.RollingUpdateDeployment");
            errors.push(FieldError::not_supported(&strategy.path, &shown, &["Recreate", ROLLING]));
        }
    }
}

/// Checks a changed status of a Deployment.
pub(super) fn validate_deployment_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let status = FieldValue::of(new, "status");
    let all = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    counters(&status, &all, &["updatedReplicas", "readyReplicas", "availableReplicas"], errors);
    let ready = status.child("readyReplicas").number();
    messages::no_more(
        &status.child("availableReplicas"),
        ready,
        errors,
        "cannot be greater than readyReplicas",
    );
    no_fewer_collisions(new, old, errors);
}

/// Checks a changed status of a ReplicaSet.
pub(super) fn validate_replica_set_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    let status = FieldValue::of(new, "status");
    let of_all = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    let all = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    counters(&status, &all, &of_all, errors);
    let ready = status.child("readyReplicas").number();
    messages::no_more(
        &status.child("availableReplicas"),
        ready,
        errors,
        "cannot be greater than readyReplicas",
    );
}

/// Checks a ReplicaSet.
pub(super) fn validate_replica_set(object: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(object, "spec");
    spec.child("replicas").not_negative(errors);
    spec.child("minReadySeconds").not_negative(errors);
    if need_selector(&spec, "deployment", "invalid label selector", errors) {
        template::validate_for_controller(&spec, "ReplicaSet", errors);
    }
}
