//! PodDisruptionBudgets.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::apps::{validate_at_most_100_percent, validate_count_or_percent};
use super::{
    KindRules, MetaRevalidation, MetadataRules, Revalidation, StatusRules, UpdateRules, ValidationRules,
    messages,
};
use crate::allowed::policy_v1;

/// The rules of a PodDisruptionBudget.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules {
        name: names::path_segment,
        requires_standard_finalizers: false,
        revalidation: MetaRevalidation::No,
        ..MetadataRules::SPEC_GENERATION
    },
    update: UpdateRules::CONDITIONAL,
    validation: ValidationRules { validate, revalidation: Revalidation::Once, ..ValidationRules::DEFAULT },
    status: StatusRules {
        metadata_revalidation: MetaRevalidation::No,
        validate: validate_status,
        ..StatusRules::DEFAULT
    },
    ..KindRules::DEFAULT
};

/// Validates a PodDisruptionBudget.
fn validate(budget: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(budget, "spec");
    let (min_available, max_unavailable) = (spec.child("minAvailable"), spec.child("maxUnavailable"));
    if min_available.is_set() && max_unavailable.is_set() {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid(&spec.path, "policy.PodDisruptionBudgetSpec{}", detail));
    }
    for node in [min_available, max_unavailable] {
        if node.is_set() {
            validate_count_or_percent(&node, errors);
            validate_at_most_100_percent(&node, errors);
        }
    }
    label_selector::validate(&spec.child("selector"), errors);
    spec.child("unhealthyPodEvictionPolicy")
        .one_of_if_set(errors, policy_v1::PodDisruptionBudgetSpec::UNHEALTHY_POD_EVICTION_POLICY);
}

/// Validates a status update.
fn validate_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    let status = FieldValue::top_level(new, "status");
    messages::conditions(&status.child("conditions"), errors);
    for field in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
        status.child(field).not_negative(errors);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::*;

    #[test]
    fn disruption_budget_validation_refuses_each_violation() {
        let base = object(r#"{"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}}"#);
        each_refused(
            &base,
            validate,
            &[
                (
                    "spec.maxUnavailable",
                    "1",
                    "spec: Invalid value: policy.PodDisruptionBudgetSpec{}: minAvailable and",
                ),
                ("spec.minAvailable", r#""abc""#, "a valid percent string must be a numeric string"),
                (
                    "spec.minAvailable",
                    "-1",
                    "spec.minAvailable: Invalid value: -1: must be greater than or equal to 0",
                ),
                ("spec.minAvailable", r#""101%""#, "must not be greater than 100%"),
                ("spec.selector.matchLabels.a", r#""-""#, "spec.selector.matchLabels: Invalid value"),
                ("spec.unhealthyPodEvictionPolicy", r#""X""#, "\"AlwaysAllow\", \"IfHealthyBudget\""),
            ],
        );
        each_change_refused(
            &base,
            validate_status,
            &[("status.expectedPods", "-1", "status.expectedPods: Invalid value: -1")],
        );
    }
}
