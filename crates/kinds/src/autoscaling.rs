//! HorizontalPodAutoscalers, in either version.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::{FieldValue, fill, present_mut};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::core::resources;
use super::{
    DefaultingRules, KindRules, MetaRevalidation, MetadataRules, StatusRules, ValidationRules, gated,
    messages,
};

/// The rules of a HorizontalPodAutoscaler.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules { revalidation: MetaRevalidation::Change, ..MetadataRules::DEFAULT },
    defaulting: DefaultingRules { default, ..DefaultingRules::DEFAULT },
    gated: gated::rows::AUTOSCALER,
    validation: ValidationRules { validate, validate_update, ..ValidationRules::DEFAULT },
    status: StatusRules { validate: validate_status, ..StatusRules::DEFAULT },
    ..KindRules::DEFAULT
};

const DEFAULT_UTILIZATION: i64 = 80;
const MAX_WINDOW: i64 = 3_600;
const MAX_PERIOD: i64 = 1_800;

/// The defaults of an autoscaler. v1 has a separate field for its one metric.
fn default(object: &mut Value) {
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
fn validate(object: &Value, errors: &mut ErrorList) {
    let min_allowed = if errors.features().has(Feature::HPAScaleToZero) { 0 } else { 1 };
    validate_spec(object, min_allowed, errors);
}

fn validate_spec(object: &Value, min_allowed: i64, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(object, "spec");
    let (min_replicas, max_replicas) = (spec.child("minReplicas"), spec.child("maxReplicas"));
    if min_replicas.int().is_some_and(|min_replicas| min_replicas < min_allowed) {
        min_replicas.invalid(errors, &format!("must be greater than or equal to {min_allowed}"));
    }
    let mut invalid_max = |detail| {
        errors.push(FieldError::invalid(&max_replicas.path, &max_replicas.number().to_string(), detail));
    };
    if max_replicas.number() < 1 {
        invalid_max("must be greater than 0");
    }
    if min_replicas.int().is_some_and(|min_replicas| max_replicas.number() < min_replicas) {
        invalid_max("must be greater than or equal to `minReplicas`");
    }
    reference(&spec.child("scaleTargetRef"), errors);
    let metrics = spec.child("metrics");
    for metric in metrics.items() {
        validate_metric(&metric, errors);
    }
    let has_external_metric =
        metrics.items().any(|metric| matches!(metric.child("type").text(), "Object" | "External"));
    if min_replicas.int() == Some(0) && !has_external_metric {
        let detail =
            "must specify at least one Object or External metric to support scaling to zero replicas";
        metrics.forbidden(errors, detail);
    }
    for direction in ["scaleUp", "scaleDown"] {
        validate_rules(&spec.child("behavior").child(direction), errors);
    }
    if is_v1(object) {
        let target = spec.child("targetCPUUtilizationPercentage");
        if target.int().is_some_and(|percent| percent < 1) {
            target_utilization(&target, errors);
        }
    }
}

fn is_v1(object: &Value) -> bool {
    object.str("apiVersion").ends_with("/v1")
}

/// The metric of v1 is the first of v2, and errors have the path of v2.
fn target_utilization(target: &FieldValue<'_>, errors: &mut ErrorList) {
    let metric = pilothouse_apimachinery::field::FieldPath::new("spec").child("metrics").index(0);
    let path = metric.child("resource").child("target").child("averageUtilization");
    errors.push(FieldError::invalid(&path, &target.number().to_string(), "must be greater than 0"));
}

fn reference(target: &FieldValue<'_>, errors: &mut ErrorList) {
    for field in ["kind", "name"] {
        target.child(field).need_syntax(errors, |name| names::path_segment(name, false));
    }
}

/// The metric types and their fields, in the order of validation.
const METRICS: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

fn validate_metric(metric: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut words = METRICS.map(|(word, _)| word);
    words.sort_unstable();
    let kind = metric.child("type");
    if kind.is_empty() {
        kind.required(errors, "must specify a metric source type");
    }
    kind.one_of(errors, &words);
    let present: Vec<&str> =
        METRICS.iter().map(|(_, field)| *field).filter(|field| metric.child(field).is_set()).collect();
    if let Some(field) = present.first() {
        validate_source(field, &metric.child(field), errors);
    }
    let expected_field = METRICS.iter().find(|(word, _)| *word == kind.text()).map(|(_, field)| *field);
    match expected_field {
        Some(field) if !metric.child(field).is_set() => {
            let detail = "must populate information for the given metric source";
            metric.child(field).required(errors, detail);
        }
        Some(_) => {}
        None => kind.one_of(errors, &words),
    }
    if present.len() > 1 {
        for field in present.into_iter().filter(|field| Some(*field) != expected_field) {
            metric.child(field).forbidden(errors, "must populate the given metric source only");
        }
    }
}

fn validate_source(field: &str, source: &FieldValue<'_>, errors: &mut ErrorList) {
    if field == "object" {
        reference(&source.child("describedObject"), errors);
    }
    if matches!(field, "object" | "external" | "pods") {
        let name = source.child("metric").child("name");
        if name.is_empty() {
            name.required(errors, "must specify a metric name");
        } else {
            name.syntax(errors, |name| names::path_segment(name, false));
        }
    } else {
        resource(field == "containerResource", source, errors);
    }
    let target = source.child("target");
    validate_target(&target, errors);
    let (value, average, utilization) =
        (target.child("value"), target.child("averageValue"), target.child("averageUtilization"));
    match field {
        "pods" if !average.is_set() => {
            average.required(errors, "must specify a positive target averageValue");
        }
        "pods" => {}
        "object" if !value.is_set() && !average.is_set() => {
            average.required(errors, "must set either a target value or averageValue");
        }
        "object" => {}
        "external" => match (value.is_set(), average.is_set()) {
            (false, false) => {
                average.required(errors, "must set either a target value for metric or a per-pod target");
            }
            (true, true) => {
                value.forbidden(errors, "may not set both a target value for metric and a per-pod target");
            }
            _ => {}
        },
        _ => match (utilization.is_set(), average.is_set()) {
            (false, false) => {
                utilization.required(errors, "must set either a target raw value or a target utilization");
            }
            (true, true) => {
                average.forbidden(errors, "may not set both a target raw value and a target utilization");
            }
            _ => {}
        },
    }
}

fn resource(is_container_resource: bool, source: &FieldValue<'_>, errors: &mut ErrorList) {
    let name = source.child("name");
    if name.is_empty() {
        name.required(errors, "must specify a resource name");
    } else if is_container_resource {
        // Only syntax errors are reported.
        let details = names::qualified_name(name.text());
        if details.is_empty() {
            resources::validate_container_resource(name.text(), &name, errors);
        } else {
            meta::add_invalid(errors, &name.path, name.text(), details);
            resources::validate_supported_by_containers(name.text(), &name, errors);
        }
    }
    if !is_container_resource {
        return;
    }
    let container = source.child("container");
    if container.is_empty() {
        container.required(errors, "must specify a container");
    } else {
        container.syntax(errors, names::dns_label);
    }
}

fn validate_target(target: &FieldValue<'_>, errors: &mut ErrorList) {
    let kind = target.child("type");
    if kind.is_empty() {
        kind.required(errors, "must specify a metric target type");
    }
    if !matches!(kind.text(), "Utilization" | "Value" | "AverageValue") {
        kind.invalid_text(errors, "must be either Utilization, Value, or AverageValue");
    }
    for field in ["value", "averageValue"] {
        let amount = target.child(field);
        if amount.amount().is_some_and(|amount| amount.is_negative() || amount.is_zero()) {
            // The reference prints the Go struct of the quantity.
            messages::invalid_struct(&amount.path, "resource.Quantity", errors, "must be positive");
        }
    }
    let utilization = target.child("averageUtilization");
    if utilization.int().is_some_and(|utilization| utilization < 1) {
        utilization.invalid(errors, "must be greater than 0");
    }
}

fn validate_rules(rules: &FieldValue<'_>, errors: &mut ErrorList) {
    if !rules.is_set() {
        return;
    }
    let window = rules.child("stabilizationWindowSeconds");
    if window.number() < 0 {
        window.invalid(errors, "must be greater than or equal to zero");
    }
    if window.number() > MAX_WINDOW {
        window.invalid(errors, &format!("must be less than or equal to {MAX_WINDOW}"));
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
                let rendered = policy.child(field).number().to_string();
                errors.push(FieldError::invalid(
                    &policy.child(field).path,
                    &rendered,
                    "must be greater than zero",
                ));
            }
        }
        if policy.child("periodSeconds").number() > MAX_PERIOD {
            let detail = format!("must be less than or equal to {MAX_PERIOD}");
            policy.child("periodSeconds").invalid(errors, &detail);
        }
    }
    let tolerance = rules.child("tolerance");
    if tolerance.amount().is_some_and(pilothouse_apimachinery::nano_quantity::NanoQuantity::is_negative) {
        errors.push(FieldError::invalid(
            &tolerance.path,
            &pilothouse_apimachinery::field::quoted(tolerance.text()),
            "must be greater than or equal to 0",
        ));
    }
}

/// Checks an updated autoscaler. One that had minReplicas 0 may keep it.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let had_zero = FieldValue::top_level(old, "spec").child("minReplicas").int() == Some(0);
    let may_be_zero = had_zero || errors.features().has(Feature::HPAScaleToZero);
    validate_spec(new, if may_be_zero { 0 } else { 1 }, errors);
}

/// Validates a status update.
fn validate_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    for field in ["currentReplicas", "desiredReplicas"] {
        FieldValue::top_level(new, "status").child(field).not_negative(errors);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::field::FieldPath;
    use pilothouse_apimachinery::testing::{each_refused, error_messages, object};

    use super::super::testing::filled;
    use super::*;

    #[test]
    fn autoscaler_validation_refuses_each_violation() {
        let base = filled(
            ("autoscaling", "v2"),
            "HorizontalPodAutoscaler",
            r#"{"apiVersion":"autoscaling/v2","spec":{"minReplicas":1,"maxReplicas":3,
                "scaleTargetRef":{"kind":"Deployment","name":"d"},"behavior":{"scaleDown":{"selectPolicy":"Min"}}}}"#,
        );
        assert_eq!(base.get_path(&["spec", "behavior", "scaleDown", "stabilizationWindowSeconds"]), None);
        assert_eq!(
            base.get_path(&["spec", "behavior", "scaleUp", "stabilizationWindowSeconds"]),
            Some(&Value::Int(0))
        );
        each_refused(
            &base,
            validate,
            &[
                (
                    "spec.minReplicas",
                    "-1",
                    "spec.minReplicas: Invalid value: -1: must be greater than or equal to 1",
                ),
                ("spec.minReplicas", "4", "must be greater than or equal to `minReplicas`"),
                ("spec.scaleTargetRef.kind", "null", "spec.scaleTargetRef.kind: Required value"),
                ("spec.scaleTargetRef.name", r#""a/b""#, "may not contain '/'"),
                ("spec.metrics.0.resource", "null", "must populate information for the given metric source"),
                (
                    "spec.metrics.0.containerResource",
                    r#"{"x":1}"#,
                    "must populate the given metric source only",
                ),
                (
                    "spec.metrics.0.resource.target.averageUtilization",
                    "null",
                    "target.averageUtilization: Required value: must set either a target raw value or a target utilization",
                ),
                (
                    "spec.metrics.0.resource.target.averageUtilization",
                    "0",
                    "averageUtilization: Invalid value: 0: must be greater than 0",
                ),
                (
                    "spec.metrics.0.resource.target.averageValue",
                    r#""1""#,
                    "averageValue: Forbidden: may not set both a target raw value and a target utilization",
                ),
                (
                    "spec.metrics.0.resource.target.type",
                    r#""X""#,
                    "must be either Utilization, Value, or AverageValue",
                ),
                (
                    "spec.metrics.0.resource.target.value",
                    r#""0""#,
                    "value: Invalid value: resource.Quantity{}: must be positive",
                ),
                (
                    "spec.metrics.0",
                    r#"{"type":"Pods","pods":{"metric":{"name":"m"},"target":{"type":"AverageValue"}}}"#,
                    "must specify a positive target averageValue",
                ),
                (
                    "spec.metrics.0",
                    r#"{"type":"Pods","pods":{"metric":{},"target":{"type":"AverageValue","averageValue":"1"}}}"#,
                    "metric.name: Required value: must specify a metric name",
                ),
                (
                    "spec.metrics.0",
                    r#"{"type":"Object","object":{"describedObject":{"kind":"K","name":"n"},"metric":{"name":"m"},"target":{"type":"Value"}}}"#,
                    "must set either a target value or averageValue",
                ),
                (
                    "spec.metrics.0",
                    r#"{"type":"Object","object":{"describedObject":{"kind":"K"},"metric":{"name":"m"},"target":{"type":"Value","value":"1"}}}"#,
                    "describedObject.name: Required value",
                ),
                (
                    "spec.metrics.0",
                    r#"{"type":"External","external":{"metric":{"name":"m"},"target":{"type":"Value"}}}"#,
                    "must set either a target value for metric or a per-pod target",
                ),
                (
                    "spec.metrics.0",
                    r#"{"type":"External","external":{"metric":{"name":"m"},"target":{"type":"Value","value":"1","averageValue":"1"}}}"#,
                    "may not set both a target value for metric and a per-pod target",
                ),
                (
                    "spec.metrics.0",
                    r#"{"type":"ContainerResource","containerResource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":5}}}"#,
                    "container: Required value: must specify a container",
                ),
                (
                    "spec.metrics.0",
                    r#"{"type":"ContainerResource","containerResource":{"name":"cpu","container":"-","target":{"type":"Utilization","averageUtilization":5}}}"#,
                    "containerResource.container: Invalid value: \"-\"",
                ),
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

    #[test]
    fn container_resource_reports_syntax_and_extended_name_errors() {
        let source = object(r#"{"name":"/abs","container":"c"}"#);
        let mut errors = ErrorList::new();
        resource(true, &FieldValue { value: &source, path: FieldPath::new("s") }, &mut errors);
        let messages = error_messages(&errors);
        assert!(
            messages[0].starts_with("s.name: Invalid value: \"/abs\": prefix part must be non-empty"),
            "{messages:?}"
        );
        assert_eq!(
            messages[1],
            "s.name: Invalid value: /abs: doesn't follow extended resource name standard"
        );
    }
}
