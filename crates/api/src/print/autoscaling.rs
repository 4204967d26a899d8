//! Rows of HorizontalPodAutoscalers.

use pilothouse_apimachinery::value::Value;

use super::cells::{NONE, PrintedObject, UNSET, cells};
use crate::age::UNKNOWN;

/// The number of metrics that the cell of an autoscaler lists.
const MAX_SHOWN: usize = 2;

/// Marks an average of a metric that may also be an absolute value.
const AVERAGE: &str = " (avg)";

/// Cells of a horizontal pod autoscaler.
pub fn autoscaler(object: &PrintedObject<'_>) -> Vec<Value> {
    let min_replicas = object.field("spec.minReplicas").and_then(Value::as_int);
    cells![
        object.name(),
        format!("{}/{}", object.text("spec.scaleTargetRef.kind"), object.text("spec.scaleTargetRef.name")),
        metrics(object.items("spec.metrics"), object.items("status.currentMetrics")),
        min_replicas.map_or_else(|| UNSET.to_owned(), |min_replicas| min_replicas.to_string()),
        object.int("spec.maxReplicas"),
        object.int("status.currentReplicas"),
        object.age()
    ]
}

/// Cells of a scale.
pub fn scale(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![object.name(), object.int("spec.replicas"), object.int("status.replicas"), object.age()]
}

/// Current and target values. The state of a metric has the index of its spec.
fn metrics(specs: &[Value], states: &[Value]) -> String {
    if specs.is_empty() {
        return NONE.to_owned();
    }
    let all: Vec<String> = specs
        .iter()
        .enumerate()
        .take(MAX_SHOWN)
        .map(|(position, spec)| metric(spec, states.get(position).unwrap_or(&Value::Null)))
        .collect();
    match specs.len().saturating_sub(MAX_SHOWN) {
        0 => all.join(", "),
        more => format!("{} + {more} more...", all.join(", ")),
    }
}

fn metric(spec: &Value, state: &Value) -> String {
    match spec.str("type") {
        "External" => value_or_average(spec, state, "external"),
        "Object" => value_or_average(spec, state, "object"),
        "Pods" => {
            let (target, current) = target_and_current(spec, state, "pods");
            format!("{}/{}", current_amount(current, "averageValue"), amount(target, "averageValue"))
        }
        "Resource" => resource_metric(spec, state, "resource"),
        "ContainerResource" => resource_metric(spec, state, "containerResource"),
        _ => "<unknown type>".to_owned(),
    }
}

/// The target of a metric, and the current value, if there is a state of the same source.
fn target_and_current<'a>(spec: &'a Value, state: &'a Value, source: &str) -> (&'a Value, Option<&'a Value>) {
    let target = spec.get_path(&[source, "target"]).unwrap_or(&Value::Null);
    let current = state.get(source).map(|source| source.get("current").unwrap_or(&Value::Null));
    (target, current)
}

fn value_or_average(spec: &Value, state: &Value, source: &str) -> String {
    let (target, current) = target_and_current(spec, state, source);
    if target.get("averageValue").is_none() {
        return format!("{}/{}", current_amount(current, "value"), amount(target, "value"));
    }
    let current = current.filter(|current| current.get("averageValue").is_some());
    format!("{}/{}{AVERAGE}", current_amount(current, "averageValue"), amount(target, "averageValue"))
}

fn resource_metric(spec: &Value, state: &Value, source: &str) -> String {
    let (target, current) = target_and_current(spec, state, source);
    let name = spec.get(source).map(|source| source.str("name")).unwrap_or_default();
    if target.get("averageValue").is_some() {
        return format!(
            "{name}: {}/{}",
            current_amount(current, "averageValue"),
            amount(target, "averageValue")
        );
    }
    let percent = |side: &Value| {
        side.get("averageUtilization").and_then(Value::as_int).map(|percent| format!("{percent}%"))
    };
    let current = current.and_then(percent).unwrap_or_else(|| UNKNOWN.to_owned());
    let target = percent(target).unwrap_or_else(|| "<auto>".to_owned());
    format!("{name}: {current}/{target}")
}

/// The current amount; unknown if there is none.
fn current_amount<'a>(current: Option<&'a Value>, field: &str) -> &'a str {
    current.map_or(UNKNOWN, |current| amount(current, field))
}

fn amount<'a>(side: &'a Value, field: &str) -> &'a str {
    side.get(field).and_then(Value::as_str).unwrap_or("<nil>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::print::testing::{assert_cells, value};

    #[test]
    fn autoscaler_metrics_show_current_and_target() {
        for (spec, state, text) in [
            (
                r#"{"type":"External","external":{"target":{"averageValue":"100m"}}}"#,
                "{}",
                "<unknown>/100m (avg)",
            ),
            (
                r#"{"type":"External","external":{"target":{"averageValue":"100m"}}}"#,
                r#"{"external":{"current":{"averageValue":"50m"}}}"#,
                "50m/100m (avg)",
            ),
            (
                r#"{"type":"External","external":{"target":{"averageValue":"100m"}}}"#,
                r#"{"external":{"current":{"value":"7"}}}"#,
                "<unknown>/100m (avg)",
            ),
            (r#"{"type":"External","external":{"target":{"value":"1k"}}}"#, "{}", "<unknown>/1k"),
            (
                r#"{"type":"External","external":{"target":{"value":"1k"}}}"#,
                r#"{"external":{"current":{"value":"9"}}}"#,
                "9/1k",
            ),
            (r#"{"type":"Pods","pods":{"target":{"averageValue":"1"}}}"#, "{}", "<unknown>/1"),
            (
                r#"{"type":"Pods","pods":{"target":{"averageValue":"1"}}}"#,
                r#"{"pods":{"current":{"averageValue":"2"}}}"#,
                "2/1",
            ),
            (
                r#"{"type":"Object","object":{"target":{"value":"3"}}}"#,
                r#"{"object":{"current":{"value":"4"}}}"#,
                "4/3",
            ),
            (
                r#"{"type":"Object","object":{"target":{"averageValue":"3"}}}"#,
                r#"{"object":{"current":{"averageValue":"4"}}}"#,
                "4/3 (avg)",
            ),
            (
                r#"{"type":"Resource","resource":{"name":"cpu","target":{"averageValue":"1"}}}"#,
                r#"{"resource":{"current":{"averageValue":"900m"}}}"#,
                "cpu: 900m/1",
            ),
            (
                r#"{"type":"Resource","resource":{"name":"cpu","target":{"averageUtilization":80}}}"#,
                r#"{"resource":{"current":{"averageUtilization":55}}}"#,
                "cpu: 55%/80%",
            ),
            (r#"{"type":"Resource","resource":{"name":"cpu","target":{}}}"#, "{}", "cpu: <unknown>/<auto>"),
            (
                r#"{"type":"ContainerResource","containerResource":{"name":"memory","target":{"averageUtilization":80}}}"#,
                "{}",
                "memory: <unknown>/80%",
            ),
            (
                r#"{"type":"ContainerResource","containerResource":{"name":"memory","target":{"averageValue":"1Gi"}}}"#,
                r#"{"containerResource":{"current":{"averageValue":"5Mi"}}}"#,
                "memory: 5Mi/1Gi",
            ),
            (r#"{"type":"Odd"}"#, "{}", "<unknown type>"),
        ] {
            assert_eq!(metrics(&[value(spec)], &[value(state)]), text, "{spec} {state}");
        }
    }

    #[test]
    fn autoscaler_cells_show_two_metrics() {
        let pods = r#"{"type":"Pods","pods":{"target":{"averageValue":"1"}}}"#;
        assert_cells(
            "autoscaling",
            "HorizontalPodAutoscaler",
            &format!(
                r#"{{"metadata":{{"name":"h"}},"spec":{{"scaleTargetRef":{{"kind":"Deployment","name":"d"}},"minReplicas":2,
                    "maxReplicas":9,"metrics":[{pods},{pods},{pods},{pods}]}},"status":{{"currentReplicas":3}}}}"#
            ),
            r#"["h","Deployment/d","<unknown>/1, <unknown>/1 + 2 more...","2",9,3,"<unknown>"]"#,
        );
        assert_cells(
            "autoscaling",
            "HorizontalPodAutoscaler",
            "{}",
            r#"["","/","<none>","<unset>",0,0,"<unknown>"]"#,
        );
    }

    #[test]
    fn scale_cells_show_replicas() {
        let object = r#"{"metadata":{"name":"d"},"spec":{"replicas":3},"status":{"replicas":2}}"#;
        assert_cells("autoscaling", "Scale", object, r#"["d",3,2,"<unknown>"]"#);
    }
}
