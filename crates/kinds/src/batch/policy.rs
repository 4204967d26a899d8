//! The pod failure policy and the success policy of Jobs.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::names;

use super::indexes;
use crate::allowed::batch_v1;
use crate::messages;

const MAX_RULES: usize = 20;
const MAX_PATTERNS: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_INDEXES_LENGTH: usize = 64 * 1_024;

/// Adds a Required error that lists the allowed values.
fn require_one_of(node: &FieldValue<'_>, words: &[&str], errors: &mut ErrorList) {
    if node.is_empty() {
        let all: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        node.required(errors, &format!("valid values: [{}]", all.join(" ")));
    } else {
        node.one_of(errors, words);
    }
}

fn limit_items(list: &FieldValue<'_>, max: usize, errors: &mut ErrorList) {
    if list.len() > max {
        errors.push(FieldError::too_many(&list.path, list.len(), max));
    }
}

/// Checks the policy for failed pods.
pub fn validate_failure_policy(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let policy = spec.child("podFailurePolicy");
    if !policy.is_set() {
        return;
    }
    let rules = policy.child("rules");
    limit_items(&rules, MAX_RULES, errors);
    let pods = spec.child("template").child("spec");
    let names: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| {
            pods.child(list).items().map(|container| container.child("name").text()).collect::<Vec<_>>()
        })
        .collect();
    for rule in rules.items() {
        let action = rule.child("action");
        if action.text() == "FailIndex" {
            if !spec.child("backoffLimitPerIndex").is_set() {
                action.invalid(errors, "requires the backoffLimitPerIndex to be set");
            }
        } else {
            require_one_of(&action, batch_v1::PodFailurePolicyRule::ACTION, errors);
        }
        let (codes, patterns) = (rule.child("onExitCodes"), rule.child("onPodConditions"));
        if codes.is_set() {
            exit_codes(&codes, &names, errors);
        }
        limit_items(&patterns, MAX_PATTERNS, errors);
        for pattern in patterns.items() {
            pattern.child("type").syntax(errors, names::qualified_name);
            require_one_of(&pattern.child("status"), &["False", "True", "Unknown"], errors);
        }
        match (codes.is_set(), !patterns.is_empty()) {
            (true, true) => {
                let detail = "specifying both OnExitCodes and OnPodConditions is not supported";
                messages::invalid_without_value(&rule.path, errors, detail);
            }
            (false, false) => {
                let detail = "specifying one of OnExitCodes and OnPodConditions is required";
                messages::invalid_without_value(&rule.path, errors, detail);
            }
            _ => {}
        }
    }
}

fn exit_codes(codes: &FieldValue<'_>, names: &BTreeSet<&str>, errors: &mut ErrorList) {
    let (operator, container, values) =
        (codes.child("operator"), codes.child("containerName"), codes.child("values"));
    require_one_of(&operator, batch_v1::PodFailurePolicyOnExitCodesRequirement::OPERATOR, errors);
    if container.is_set() && !names.contains(container.text()) {
        container.invalid(errors, "must be one of the container or initContainer names in the pod template");
    }
    if values.is_empty() {
        let rendered = messages::render_numbers(&values);
        errors.push(FieldError::invalid(&values.path, &rendered, "at least one value is required"));
    }
    limit_items(&values, MAX_EXIT_CODES, errors);
    let (mut seen, mut previous, mut is_ordered) = (BTreeSet::new(), i64::MIN, true);
    for value in values.items() {
        let code = value.number();
        if operator.text() == "In" && code == 0 {
            value.invalid(errors, "must not be 0 for the In operator");
        }
        if !seen.insert(code) {
            value.duplicate(errors);
        }
        is_ordered &= previous <= code;
        previous = code;
    }
    if !is_ordered {
        errors.push(FieldError::invalid(&values.path, &messages::render_numbers(&values), "must be ordered"));
    }
}

/// Checks the policy for early success of an indexed Job.
pub fn validate_success_policy(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let rules = spec.child("successPolicy").child("rules");
    if rules.is_empty() {
        rules.required(errors, "at least one rules must be specified when the successPolicy is specified");
    }
    limit_items(&rules, MAX_RULES, errors);
    let completions = spec.child("completions").number();
    for rule in rules.items() {
        let (count, indexes) = (rule.child("succeededCount"), rule.child("succeededIndexes"));
        if !count.is_set() && !indexes.is_set() {
            rule.required(errors, "at least one of succeededCount or succeededIndexes must be specified");
        }
        let mut total = 0;
        if indexes.is_set() {
            if indexes.text().len() > MAX_INDEXES_LENGTH {
                errors.push(FieldError::too_long(&indexes.path, MAX_INDEXES_LENGTH));
            }
            match indexes::count(indexes.text(), completions) {
                Ok(count) => total = count,
                Err(detail) => indexes.invalid(errors, &format!("error parsing succeededIndexes: {detail}")),
            }
        }
        count.not_negative(errors);
        if count.number() > completions {
            let detail =
                format!("must be less than or equal to {completions} (the number of specified completions)");
            count.invalid(errors, &detail);
        }
        if indexes.is_set() && count.number() > total {
            let detail = format!(
                "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            );
            count.invalid(errors, &detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn failure_policy_validation_refuses_each_violation() {
        let base = object(
            r#"{"spec":{"template":{"spec":{"containers":[{"name":"c"}]}},"podFailurePolicy":{"rules":[
                {"action":"FailJob","onExitCodes":{"operator":"In","values":[1,2],"containerName":"c"}},
                {"action":"Ignore","onPodConditions":[{"type":"DisruptionTarget","status":"True"}]}]}}}"#,
        );
        let rule = "spec.podFailurePolicy.rules.0";
        let field_path = |rest: &str| format!("{rule}.{rest}");
        let (action, values, codes) =
            (field_path("action"), field_path("onExitCodes.values"), field_path("onExitCodes"));
        let (operator, container, both) = (
            field_path("onExitCodes.operator"),
            field_path("onExitCodes.containerName"),
            field_path("onPodConditions"),
        );
        let many = format!(
            "[{}]",
            vec![r#"{"action":"Count","onExitCodes":{"operator":"NotIn","values":[0]}}"#; 21].join(",")
        );
        each_refused(
            &base,
            |object, errors| validate_failure_policy(&FieldValue::top_level(object, "spec"), errors),
            &[
                ("spec.podFailurePolicy.rules", &many, "rules: Too many: 21: must have at most 20 items"),
                (
                    &action,
                    "null",
                    "action: Required value: valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]",
                ),
                (&action, r#""X""#, "supported values: \"Count\", \"FailIndex\", \"FailJob\", \"Ignore\""),
                (&action, r#""FailIndex""#, "requires the backoffLimitPerIndex to be set"),
                (&operator, "null", "operator: Required value: valid values: [\"In\" \"NotIn\"]"),
                (&operator, r#""X""#, "supported values: \"In\", \"NotIn\""),
                (
                    &container,
                    r#""x""#,
                    "must be one of the container or initContainer names in the pod template",
                ),
                (&values, "[]", "values: Invalid value: []int32{}: at least one value is required"),
                (&values, "[0]", "values[0]: Invalid value: 0: must not be 0 for the In operator"),
                (&values, "[1,1]", "values[1]: Duplicate value: 1"),
                (&values, "[2,1]", "values: Invalid value: []int32{2, 1}: must be ordered"),
                (
                    &both,
                    r#"[{"type":"A","status":"True"}]"#,
                    "rules[0]: Invalid value: specifying both OnExitCodes and OnPodConditions is not supported",
                ),
                (
                    &codes,
                    "null",
                    "rules[0]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
                ),
                (
                    "spec.podFailurePolicy.rules.1.onPodConditions.0.status",
                    r#""X""#,
                    "\"False\", \"True\", \"Unknown\"",
                ),
                (
                    "spec.podFailurePolicy.rules.1.onPodConditions.0.type",
                    r#""-""#,
                    "type: Invalid value: \"-\"",
                ),
            ],
        );
    }

    #[test]
    fn success_policy_validation_refuses_each_violation() {
        let base = object(
            r#"{"spec":{"completions":5,"successPolicy":{"rules":[{"succeededIndexes":"0-2","succeededCount":2}]}}}"#,
        );
        let rules = "spec.successPolicy.rules";
        let count = format!("{rules}.0.succeededCount");
        each_refused(
            &base,
            |object, errors| validate_success_policy(&FieldValue::top_level(object, "spec"), errors),
            &[
                (rules, "[]", "rules: Required value: at least one rules must be specified"),
                (
                    rules,
                    "[{}]",
                    "rules[0]: Required value: at least one of succeededCount or succeededIndexes",
                ),
                (
                    rules,
                    r#"[{"succeededCount":6}]"#,
                    "must be less than or equal to 5 (the number of specified completions)",
                ),
                (rules, r#"[{"succeededCount":-1}]"#, "must be greater than or equal to 0"),
                (
                    &count,
                    "4",
                    "must be less than or equal to 3 (the number of indexes in the specified succeededIndexes field)",
                ),
                (
                    rules,
                    r#"[{"succeededIndexes":"7"}]"#,
                    "error parsing succeededIndexes: too large index: \"7\"",
                ),
            ],
        );
    }
}
