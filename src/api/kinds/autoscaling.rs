//! HorizontalPodAutoscalers, in either version.

use super::Errors;
use super::check::{Node, fill, present_mut};
use crate::api::field::FieldError;
use crate::api::names;
use crate::api::value::Value;

const DEFAULT_UTILIZATION: i64 = 80;
const LONGEST_WINDOW: i64 = 3_600;
const LONGEST_PERIOD: i64 = 1_800;

/// The defaults of an autoscaler. The older version names its one metric in a field of its own.
pub fn default(object: &mut Value) {
    let is_v1 = object.str("apiVersion").ends_with("/v1");
    let spec = object.entry("spec");
    if !is_v1 && spec.get("metrics").is_none_or(|metrics| metrics.items().is_empty()) {
        let mut metric = Value::object();
        metric.set("type", "Resource");
        metric.entry("resource").set("name", "cpu");
        let target = metric.entry("resource").entry("target");
        target.set("type", "Utilization");
        target.set("averageUtilization", DEFAULT_UTILIZATION);
        spec.set("metrics", vec![metric]);
    }
    if let Some(behavior) = present_mut(spec, "behavior") {
        scaling_rules(behavior.entry("scaleUp"), Some(0), &[("Pods", 4), ("Percent", 100)]);
        scaling_rules(behavior.entry("scaleDown"), None, &[("Percent", 100)]);
    }
}

fn scaling_rules(rules: &mut Value, window: Option<i64>, policies: &[(&str, i64)]) {
    const PERIOD: i64 = 15;
    if let Some(seconds) = window {
        fill(rules, "stabilizationWindowSeconds", seconds);
    }
    fill(rules, "selectPolicy", "Max");
    let policies: Vec<Value> = policies
        .iter()
        .map(|(kind, value)| {
            let mut policy = Value::object();
            policy.set("type", *kind);
            policy.set("value", *value);
            policy.set("periodSeconds", PERIOD);
            policy
        })
        .collect();
    fill(rules, "policies", policies);
}

/// Checks an autoscaler.
pub fn validate(object: &Value, errors: &mut Errors) {
    let spec = Node::of(object, "spec");
    let (least, most) = (spec.child("minReplicas"), spec.child("maxReplicas"));
    if least.int().is_some_and(|least| least < 1) {
        least.invalid(errors, "must be greater than or equal to 1");
    }
    let mut too_few = |why| errors.push(FieldError::invalid(&most.path, &most.number().to_string(), why));
    if most.number() < 1 {
        too_few("must be greater than 0");
    }
    if least.int().is_some_and(|least| most.number() < least) {
        too_few("must be greater than or equal to `minReplicas`");
    }
    let target = spec.child("scaleTargetRef");
    for field in ["kind", "name"] {
        target.child(field).need_syntax(errors, |name| names::path_segment(name, false));
    }
    for metric in spec.child("metrics").items() {
        validate_metric(&metric, errors);
    }
    for direction in ["scaleUp", "scaleDown"] {
        validate_rules(&spec.child("behavior").child(direction), errors);
    }
}

fn validate_metric(metric: &Node<'_>, errors: &mut Errors) {
    let kinds = [
        ("ContainerResource", "containerResource"),
        ("External", "external"),
        ("Object", "object"),
        ("Pods", "pods"),
        ("Resource", "resource"),
    ];
    let words: Vec<&str> = kinds.iter().map(|(word, _)| *word).collect();
    let kind = metric.child("type");
    if kind.is_empty() {
        kind.required(errors, "must specify a metric source type");
    }
    kind.one_of(errors, &words);
    let wanted = kinds.iter().find(|(word, _)| *word == kind.text());
    if let Some((_, field)) = wanted.filter(|(_, field)| !metric.child(field).is_set()) {
        metric.child(field).required(errors, "must populate information for the given metric source");
    }
    for (_, field) in kinds.iter().filter(|kind| Some(*kind) != wanted && wanted.is_some()) {
        if metric.child(field).is_set() {
            metric.child(field).forbidden(errors, "must populate the given metric source only");
        }
    }
    let resource = metric.child("resource");
    if resource.is_set() {
        let name = resource.child("name");
        if name.is_empty() {
            name.required(errors, "must specify a resource name");
        }
    }
}

fn validate_rules(rules: &Node<'_>, errors: &mut Errors) {
    if !rules.is_set() {
        return;
    }
    let window = rules.child("stabilizationWindowSeconds");
    if window.number() < 0 {
        window.invalid(errors, "must be greater than or equal to zero");
    }
    if window.number() > LONGEST_WINDOW {
        window.invalid(errors, &format!("must be less than or equal to {LONGEST_WINDOW}"));
    }
    rules.child("selectPolicy").one_of_if_set(errors, &["Disabled", "Max", "Min"]);
    let policies = rules.child("policies");
    if policies.is_empty() {
        policies.required(errors, "must specify at least one Policy");
    }
    for policy in policies.items() {
        policy.child("type").one_of(errors, &["Percent", "Pods"]);
        for field in ["value", "periodSeconds"] {
            if policy.child(field).number() <= 0 {
                let shown = policy.child(field).number().to_string();
                errors.push(FieldError::invalid(
                    &policy.child(field).path,
                    &shown,
                    "must be greater than zero",
                ));
            }
        }
        if policy.child("periodSeconds").number() > LONGEST_PERIOD {
            let wrong = format!("must be less than or equal to {LONGEST_PERIOD}");
            policy.child("periodSeconds").invalid(errors, &wrong);
        }
    }
}

/// Checks a changed autoscaler.
pub fn validate_update(new: &Value, _old: &Value, errors: &mut Errors) {
    validate(new, errors);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{each_refused, object};
    use super::*;

    #[test]
    fn each_rule_of_an_autoscaler_refuses() {
        let mut base = object(
            r#"{"apiVersion":"autoscaling/v2","spec":{"minReplicas":1,"maxReplicas":3,
                "scaleTargetRef":{"kind":"Deployment","name":"d"},"behavior":{"scaleDown":{"selectPolicy":"Min"}}}}"#,
        );
        default(&mut base);
        assert_eq!(base.at(&["spec", "behavior", "scaleDown", "stabilizationWindowSeconds"]), None);
        assert_eq!(
            base.at(&["spec", "behavior", "scaleUp", "stabilizationWindowSeconds"]),
            Some(&Value::Int(0))
        );
        each_refused(
            &base,
            validate,
            &[
                (
                    "spec.minReplicas",
                    "0",
                    "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1",
                ),
                ("spec.minReplicas", "4", "must be greater than or equal to `minReplicas`"),
                ("spec.scaleTargetRef.kind", "null", "spec.scaleTargetRef.kind: Required value"),
                ("spec.scaleTargetRef.name", r#""a/b""#, "may not contain '/'"),
                ("spec.metrics.0.resource", "null", "must populate information for the given metric source"),
                ("spec.metrics.0.pods", r#"{"x":1}"#, "must populate the given metric source only"),
                ("spec.metrics.0.resource.name", "null", "must specify a resource name"),
                (
                    "spec.behavior.scaleUp.stabilizationWindowSeconds",
                    "-1",
                    "must be greater than or equal to zero",
                ),
                (
                    "spec.behavior.scaleUp.stabilizationWindowSeconds",
                    "3601",
                    "must be less than or equal to 3600",
                ),
                ("spec.behavior.scaleUp.selectPolicy", r#""X""#, "\"Disabled\", \"Max\", \"Min\""),
                ("spec.behavior.scaleUp.policies", "[]", "must specify at least one Policy"),
                ("spec.behavior.scaleUp.policies.0.type", r#""X""#, "\"Percent\", \"Pods\""),
                ("spec.behavior.scaleUp.policies.0.value", "0", "must be greater than zero"),
                (
                    "spec.behavior.scaleUp.policies.0.periodSeconds",
                    "1801",
                    "must be less than or equal to 1800",
                ),
            ],
        );
    }
}
