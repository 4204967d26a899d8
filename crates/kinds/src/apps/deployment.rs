//! Deployments and the ReplicaSets that they make.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::{FieldValue, fill_text};
use pilothouse_apimachinery::value::Value;

use super::super::core::{pod_default, template};
use super::super::{
    DefaultingRules, Generation, KindRules, MetaRevalidation, MetadataRules, PodSpecPath, ResetFields,
    Revalidation, StatusMeta, StatusRules, ValidationRules, WarningRules, gated, messages,
};
use super::common::{
    ROLLING, int_value, render_int_or_string, render_strategy, require_selector,
    validate_at_most_100_percent, validate_collision_count, validate_count_or_percent,
    validate_selector_unchanged, warn_name_and_template,
};

/// The rules of a Deployment.
pub const DEPLOYMENT: KindRules = KindRules {
    metadata: MetadataRules {
        generation: Generation {
            increased_by: &[&["spec"], &["metadata", "annotations"]],
            ..Generation::FIRST
        },
        revalidation: MetaRevalidation::Change,
        ..MetadataRules::DEFAULT
    },
    pod_spec: PodSpecPath::TEMPLATE,
    defaulting: DefaultingRules { default: default_deployment, ..DefaultingRules::DEFAULT },
    gated: gated::rows::REPLICAS,
    validation: ValidationRules {
        validate: validate_deployment,
        revalidation: Revalidation::Once,
        validate_update: validate_selector_unchanged,
    },
    warnings: WarningRules { warn: warn_name_and_template, ..WarningRules::DEFAULT },
    status: StatusRules {
        metadata: StatusMeta::MutableExcept(&["labels"]),
        validate: validate_deployment_status,
        ..StatusRules::DEFAULT
    },
    reset_fields: ResetFields { status: &[&["spec"], &["metadata", "labels"]], ..ResetFields::DEFAULT },
    ..KindRules::DEFAULT
};

/// The rules of a ReplicaSet.
pub const REPLICA_SET: KindRules = KindRules {
    metadata: MetadataRules::SPEC_GENERATION,
    pod_spec: PodSpecPath::TEMPLATE,
    defaulting: DefaultingRules { default: default_replica_set, ..DefaultingRules::DEFAULT },
    gated: gated::rows::REPLICAS,
    validation: ValidationRules {
        validate: validate_replica_set,
        revalidation: Revalidation::Twice,
        validate_update: validate_selector_unchanged,
    },
    warnings: WarningRules { warn: warn_name_and_template, ..WarningRules::DEFAULT },
    status: StatusRules { validate: validate_replica_set_status, ..StatusRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// The defaults of a Deployment.
fn default_deployment(object: &mut Value) {
    let spec = object.entry("spec");
    pod_default::default_template(spec, "template");
    let strategy = spec.entry("strategy");
    fill_text(strategy, "type", ROLLING);
    if strategy.str("type") == ROLLING {
        strategy.entry("rollingUpdate").fields_mut();
    }
}

/// The defaults of a ReplicaSet.
fn default_replica_set(object: &mut Value) {
    pod_default::default_template(object.entry("spec"), "template");
}

/// Checks a Deployment.
pub(super) fn validate_deployment(object: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(object, "spec");
    spec.child("replicas").not_negative(errors);
    if require_selector(&spec, "deployment", "invalid label selector", errors) {
        template::validate_for_controller(&spec, "ReplicaSet", errors);
    }
    deployment_strategy(&spec.child("strategy"), errors);
    let min_ready = spec.child("minReadySeconds");
    min_ready.not_negative(errors);
    spec.child("revisionHistoryLimit").not_negative(errors);
    let deadline = spec.child("progressDeadlineSeconds");
    if deadline.is_set() {
        deadline.not_negative(errors);
        if deadline.number() <= min_ready.number() {
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
            validate_count_or_percent(&unavailable, errors);
            validate_count_or_percent(&surge, errors);
            if rolling.is_set() && int_value(&unavailable) == 0 && int_value(&surge) == 0 {
                let detail = "may not be 0 when `maxSurge` is 0";
                errors.push(FieldError::invalid(
                    &unavailable.path,
                    &render_int_or_string(&unavailable),
                    detail,
                ));
            }
            validate_at_most_100_percent(&unavailable, errors);
        }
        _ => {
            let rendered =
                render_strategy(strategy, "apps.DeploymentStrategy", "apps.RollingUpdateDeployment");
            errors.push(FieldError::not_supported(&strategy.path, &rendered, &["Recreate", ROLLING]));
        }
    }
}

/// Validates a status update of a Deployment.
pub(super) fn validate_deployment_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let status = FieldValue::top_level(new, "status");
    let fields = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    let bounded = ["updatedReplicas", "readyReplicas", "availableReplicas"];
    messages::validate_replica_counters(&status, &fields, &bounded, errors);
    validate_collision_count(new, old, errors);
}

/// Validates a status update of a ReplicaSet.
pub(super) fn validate_replica_set_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    let status = FieldValue::top_level(new, "status");
    let bounded = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    let fields = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    messages::validate_replica_counters(&status, &fields, &bounded, errors);
}

/// Checks a ReplicaSet.
pub(super) fn validate_replica_set(object: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(object, "spec");
    spec.child("replicas").not_negative(errors);
    spec.child("minReadySeconds").not_negative(errors);
    if require_selector(&spec, "deployment", "invalid label selector", errors) {
        template::validate_for_controller(&spec, "ReplicaSet", errors);
    }
}
