//! PodDisruptionBudgets.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::apps::{at_most_all, count_or_percent};
use super::{COUNTED, KindRules, MetaRevalidation, Revalidation, messages};
use crate::allowed::policy_v1;

/// The rules of a PodDisruptionBudget.
pub const RULES: KindRules = KindRules {
    status_meta_revalidation: MetaRevalidation::No,
    name: names::path_segment,
    known_finalizers: false,
    unconditional_update: false,
    validate,
    revalidation: Revalidation::Once,
    validate_status,
    meta_revalidation: MetaRevalidation::No,
    ..COUNTED
};

/// Checks a budget.
fn validate(budget: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(budget, "spec");
    let (least, most) = (spec.child("minAvailable"), spec.child("maxUnavailable"));
    if least.is_set() && most.is_set() {
        let wrong = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid(&spec.path, "policy.PodDisruptionBudgetSpec{}", wrong));
    }
    for node in [least, most] {
        if node.is_set() {
            count_or_percent(&node, errors);
            at_most_all(&node, errors);
        }
    }
    label_selector::validate(&spec.child("selector"), errors);
    spec.child("unhealthyPodEvictionPolicy")
        .one_of_if_set(errors, policy_v1::PodDisruptionBudgetSpec::UNHEALTHY_POD_EVICTION_POLICY);
}

/// Checks a changed status.
fn validate_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    let status = FieldValue::of(new, "status");
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
    fn each_rule_of_a_budget_refuses() {
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
