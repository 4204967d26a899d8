//! LimitRanges and ResourceQuotas.

use super::resources;
use crate::api::kinds::Errors;
use crate::api::kinds::check::{Node, fill, items_mut};
use crate::api::value::Value;

/// What containers get by default follows from what they may have at most and at least.
pub fn default_range(range: &mut Value) {
    let Some(spec) = crate::api::kinds::check::present_mut(range, "spec") else { return };
    for item in items_mut(spec, "limits").iter_mut().filter(|item| item.str("type") == "Container") {
        for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
            let amounts = item.get(from).cloned().unwrap_or_default();
            for (name, amount) in amounts.fields().into_iter().flatten() {
                fill(item.entry(to), name, amount.clone());
            }
        }
    }
}

/// Checks a range.
pub fn validate_range(range: &Value, errors: &mut Errors) {
    for item in Node::of(range, "spec").child("limits").items() {
        for kind in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
            for (name, entry) in item.child(kind).entries() {
                resources::name(name, &entry, errors);
            }
        }
        let amount = |kind: &str, name: &str| item.child(kind).child(name).amount();
        let ordered = [
            ("min", "min", "max", "max"),
            ("defaultRequest", "default request", "max", "max"),
            ("default", "default", "max", "max"),
        ];
        for (kind, word, over, over_word) in ordered {
            for (name, entry) in item.child(kind).entries() {
                if let (Some(low), Some(high)) = (entry.amount(), amount(over, name))
                    && low > high
                {
                    let most = item.child(over).child(name).text();
                    let wrong =
                        format!("{word} value {} is greater than {over_word} value {most}", entry.text());
                    entry.invalid(errors, &wrong);
                }
            }
        }
    }
}

/// Checks a changed range.
pub fn validate_range_update(new: &Value, _old: &Value, errors: &mut Errors) {
    validate_range(new, errors);
}

/// Checks a quota.
pub fn validate_quota(quota: &Value, errors: &mut Errors) {
    for (name, entry) in Node::of(quota, "spec").child("hard").entries() {
        if name.contains('/') || name.starts_with("requests.") || name.starts_with("limits.") {
            if !crate::api::names::qualified_name(name).is_empty() {
                resources::name(name, &entry, errors);
            }
        } else {
            resources::name(name, &entry, errors);
        }
        resources::amount(name, &entry, errors);
    }
}

/// Checks a changed quota: what it counts stays.
pub fn validate_quota_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_quota(new, errors);
    let (spec, was) = (Node::of(new, "spec"), Node::of(old, "spec"));
    let scopes = |spec: &Node<'_>| -> std::collections::BTreeSet<String> {
        spec.child("scopes").items().map(|scope| scope.text().to_owned()).collect()
    };
    if scopes(&spec) != scopes(&was) {
        spec.child("scopes").invalid(errors, crate::api::meta::IMMUTABLE);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{each_change_refused, each_refused, object};
    use super::*;

    #[test]
    fn defaults_follow_from_bounds() {
        let mut range =
            object(r#"{"spec":{"limits":[{"type":"Container","max":{"cpu":"2"},"min":{"memory":"1Mi"}}]}}"#);
        default_range(&mut range);
        let wanted = object(
            r#"{"spec":{"limits":[{"type":"Container","max":{"cpu":"2"},"min":{"memory":"1Mi"},
                "default":{"cpu":"2"},"defaultRequest":{"cpu":"2","memory":"1Mi"}}]}}"#,
        );
        assert_eq!(range, wanted);
        each_refused(
            &range,
            validate_range,
            &[
                (
                    "spec.limits.0.min",
                    r#"{"cpu":"3"}"#,
                    "spec.limits[0].min[cpu]: Invalid value: \"3\": min value 3 is greater than max value 2",
                ),
                ("spec.limits.0.max.x", r#""1""#, "must be a standard resource type or fully qualified"),
            ],
        );
    }

    #[test]
    fn each_rule_of_a_quota_refuses() {
        let base = object(
            r#"{"spec":{"hard":{"pods":"1","requests.example.com/gpu":"1","count/x.y":"2"},"scopes":["BestEffort"]}}"#,
        );
        each_refused(
            &base,
            validate_quota,
            &[
                (
                    "spec.hard.pods",
                    r#""500m""#,
                    "spec.hard[pods]: Invalid value: resource.Quantity{s:\"500m\"}: must be an integer",
                ),
                ("spec.hard.pods", r#""-1""#, "must be greater than or equal to 0"),
                ("spec.hard.x", r#""1""#, "must be a standard resource type or fully qualified"),
            ],
        );
        each_change_refused(
            &base,
            validate_quota_update,
            &[("spec.scopes", "[]", "spec.scopes: Invalid value: []string{}: field is immutable")],
        );
    }
}
