//! Rows of HorizontalPodAutoscalers.

use pilothouse_apimachinery::value::Value;

use super::cells::{NONE, PrintedObject, UNSET, cells};
use crate::age::UNKNOWN;

/// How many metrics of an autoscaler are shown.
const FEW: usize = 2;

/// What an average is marked with where it is not the only way to measure.
const AVERAGE: &str = " (avg)";

/// Cells of a horizontal pod autoscaler.
pub fn autoscaler(it: &PrintedObject<'_>) -> Vec<Value> {
    let least = it.at("spec.minReplicas").and_then(Value::as_int);
    cells![
        it.name(),
        format!("{}/{}", it.text("spec.scaleTargetRef.kind"), it.text("spec.scaleTargetRef.name")),
        metrics(it.items("spec.metrics"), it.items("status.currentMetrics")),
        least.map_or_else(|| UNSET.to_owned(), |least| least.to_string()),
        it.int("spec.maxReplicas"),
        it.int("status.currentReplicas"),
        it.age()
    ]
}

/// Cells of a scale.
pub fn scale(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![it.name(), it.int("spec.replicas"), it.int("status.replicas"), it.age()]
}

/// Current and wanted values. The state of a metric stands at the same position as its target.
fn metrics(specs: &[Value], states: &[Value]) -> String {
    if specs.is_empty() {
        return NONE.to_owned();
    }
    let all: Vec<String> = specs
        .iter()
        .enumerate()
        .take(FEW)
        .map(|(position, spec)| metric(spec, states.get(position).unwrap_or(&Value::Null)))
        .collect();
    match specs.len().saturating_sub(FEW) {
        0 => all.join(", "),
        more => format!("{} + {more} more...", all.join(", ")),
    }
}

fn metric(spec: &Value, state: &Value) -> String {
    match spec.str("type") {
        "External" => value_or_average(spec, state, "external"),
        "Object" => value_or_average(spec, state, "object"),
        "Pods" => {
            let (target, current) = sides(spec, state, "pods");
            format!("{}/{}", measured(current, "averageValue"), amount(target, "averageValue"))
        }
        "Resource" => of_resource(spec, state, "resource"),
        "ContainerResource" => of_resource(spec, state, "containerResource"),
        _ => "<unknown type>".to_owned(),
    }
}

/// The target of a metric, and the current value, if there is a state of the same source.
fn sides<'a>(spec: &'a Value, state: &'a Value, source: &str) -> (&'a Value, Option<&'a Value>) {
    let target = spec.at(&[source, "target"]).unwrap_or(&Value::Null);
    let current = state.get(source).map(|source| source.get("current").unwrap_or(&Value::Null));
    (target, current)
}

fn value_or_average(spec: &Value, state: &Value, source: &str) -> String {
    let (target, current) = sides(spec, state, source);
    if target.get("averageValue").is_none() {
        return format!("{}/{}", measured(current, "value"), amount(target, "value"));
    }
    let current = current.filter(|current| current.get("averageValue").is_some());
    format!("{}/{}{AVERAGE}", measured(current, "averageValue"), amount(target, "averageValue"))
}

fn of_resource(spec: &Value, state: &Value, source: &str) -> String {
    let (target, current) = sides(spec, state, source);
    let name = spec.get(source).map(|source| source.str("name")).unwrap_or_default();
    if target.get("averageValue").is_some() {
        return format!("{name}: {}/{}", measured(current, "averageValue"), amount(target, "averageValue"));
    }
    let percent = |side: &Value| {
        side.get("averageUtilization").and_then(Value::as_int).map(|percent| format!("{percent}%"))
    };
    let current = current.and_then(percent).unwrap_or_else(|| UNKNOWN.to_owned());
    let target = percent(target).unwrap_or_else(|| "<auto>".to_owned());
    format!("{name}: {current}/{target}")
}

/// What was measured; unknown as long as nothing was.
fn measured<'a>(current: Option<&'a Value>, field: &str) -> &'a str {
    current.map_or(UNKNOWN, |current| amount(current, field))
}

fn amount<'a>(side: &'a Value, field: &str) -> &'a str {
    side.get(field).and_then(Value::as_str).unwrap_or("<nil>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::print::testing::{shows, value};

    #[test]
    fn metrics_show_current_and_target() {
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
    fn two_metrics_are_shown() {
        let pods = r#"{"type":"Pods","pods":{"target":{"averageValue":"1"}}}"#;
        shows(
            "autoscaling",
            "HorizontalPodAutoscaler",
            &format!(
                r#"{{"metadata":{{"name":"h"}},"spec":{{"scaleTargetRef":{{"kind":"Deployment","name":"d"}},"minReplicas":2,
                    "maxReplicas":9,"metrics":[{pods},{pods},{pods},{pods}]}},"status":{{"currentReplicas":3}}}}"#
            ),
            r#"["h","Deployment/d","<unknown>/1, <unknown>/1 + 2 more...","2",9,3,"<unknown>"]"#,
        );
        shows(
            "autoscaling",
            "HorizontalPodAutoscaler",
            "{}",
            r#"["","/","<none>","<unset>",0,0,"<unknown>"]"#,
        );
    }

    #[test]
    fn scales_are_two_numbers() {
        let object = r#"{"metadata":{"name":"d"},"spec":{"replicas":3},"status":{"replicas":2}}"#;
        shows("autoscaling", "Scale", object, r#"["d",3,2,"<unknown>"]"#);
    }
}
