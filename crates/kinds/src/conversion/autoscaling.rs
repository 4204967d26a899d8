//! HorizontalPodAutoscaler: v1 has one percentage where v2 has metrics, behavior and conditions. v1 carries those in annotations,
//! as text in an older spelling.

use pilothouse_apimachinery::value::{Object, Value};

use super::{annotation_json, rename};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
/// All annotations that only carry fields. Stored objects have none of them.
const CARRIERS: [&str; 6] = [
    METRICS,
    CURRENT_METRICS,
    CONDITIONS,
    BEHAVIOR,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
];

/// The target CPU utilization in percent when v1 does not set one.
const DEFAULT_UTILIZATION: i64 = 80;

/// The source of a metric, and its spelling in v1: flat, where v2 has nested objects.
struct Source {
    key: &'static str,
    /// The v1 name of the metric's selector; `None` for sources without a named metric.
    selector: Option<&'static str>,
    /// Whether the metric describes an object, which v1 calls the target.
    object: bool,
    /// The numbers of a spec, in v2 below `target`.
    target: &'static [Number],
    /// The numbers of a status, in v2 below `current`.
    current: &'static [Number],
}

/// The v1 name of a number, its v2 name, and whether v1 always has it.
type Number = (&'static str, &'static str, bool);

const RESOURCE_SOURCE: Source = Source {
    key: "resource",
    selector: None,
    object: false,
    target: &[
        ("targetAverageUtilization", "averageUtilization", false),
        ("targetAverageValue", "averageValue", false),
    ],
    current: &[
        ("currentAverageUtilization", "averageUtilization", false),
        ("currentAverageValue", "averageValue", true),
    ],
};

const SOURCES: [Source; 5] = [
    Source {
        key: "object",
        selector: Some("selector"),
        object: true,
        target: &[("targetValue", "value", true), ("averageValue", "averageValue", false)],
        current: &[("currentValue", "value", true), ("averageValue", "averageValue", false)],
    },
    Source {
        key: "pods",
        selector: Some("selector"),
        object: false,
        target: &[("targetAverageValue", "averageValue", true)],
        current: &[("currentAverageValue", "averageValue", true)],
    },
    RESOURCE_SOURCE,
    Source { key: "containerResource", ..RESOURCE_SOURCE },
    Source {
        key: "external",
        selector: Some("metricSelector"),
        object: false,
        target: &[("targetValue", "value", false), ("targetAverageValue", "averageValue", false)],
        current: &[("currentValue", "value", true), ("currentAverageValue", "averageValue", false)],
    },
];

/// Whether a metric is of the spec or of the status.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Target,
    Current,
}

impl Half {
    fn key(self) -> &'static str {
        match self {
            Half::Target => "target",
            Half::Current => "current",
        }
    }

    fn numbers(self, source: &Source) -> &'static [Number] {
        match self {
            Half::Target => source.target,
            Half::Current => source.current,
        }
    }
}

/// From v1 to v2.
pub(super) fn v1_to_v2(scaler: &mut Value) {
    let carried = take_carriers(scaler);
    let read = |name: &str| carried.get(name).and_then(Value::as_str).and_then(annotation_json::read);
    let read_list = |name: &str| match read(name) {
        Some(Value::Array(items)) => Some(items.into_items()),
        _ => None,
    };
    let spec = scaler.entry("spec");
    let percentage = spec.remove("targetCPUUtilizationPercentage").and_then(|value| value.as_int());
    let mut metrics: Vec<Value> = read_list(METRICS).unwrap_or_default();
    metrics.iter_mut().for_each(|metric| metric_to_v2(metric, Half::Target));
    metrics.extend(percentage.map(|percent| cpu_metric(percent, Half::Target)));
    if metrics.is_empty() {
        metrics.push(cpu_metric(DEFAULT_UTILIZATION, Half::Target));
    }
    spec.set("metrics", metrics);
    if let Some(behavior) =
        read(BEHAVIOR).map(behavior_to_v2).filter(|value| value.fields().is_some_and(|f| !f.is_empty()))
    {
        spec.set("behavior", behavior);
    }
    let percentage =
        scaler.get_mut("status").and_then(|status| status.remove("currentCPUUtilizationPercentage"));
    let mut current =
        percentage.and_then(|value| value.as_int()).map(|percent| vec![cpu_metric(percent, Half::Current)]);
    if let Some(mut metrics) = read_list(CURRENT_METRICS) {
        metrics.iter_mut().for_each(|metric| metric_to_v2(metric, Half::Current));
        current = Some(metrics);
    }
    if let Some(metrics) = current {
        scaler.entry("status").set("currentMetrics", metrics);
    }
    if let Some(conditions) = read_list(CONDITIONS) {
        scaler.entry("status").set("conditions", conditions);
    }
}

/// From v2 to v1.
pub(super) fn v2_to_v1(scaler: &mut Value) {
    take_carriers(scaler);
    let mut carried = Object::new();
    let mut annotate = |name: &str, value: &Value| {
        carried.insert(name.to_owned(), annotation_json::write(value).into());
    };
    if let Some(spec) = scaler.get_mut("spec") {
        let metrics = list(spec.remove("metrics"));
        if let Some(percent) = metrics.iter().find_map(|metric| utilization(metric, Half::Target)) {
            spec.set("targetCPUUtilizationPercentage", percent);
        }
        let mut others: Vec<Value> =
            metrics.into_iter().filter(|metric| utilization(metric, Half::Target).is_none()).collect();
        others.iter_mut().for_each(|metric| metric_to_v1(metric, Half::Target));
        if !others.is_empty() {
            annotate(METRICS, &others.into());
        }
        if let Some(behavior) = spec.remove("behavior").filter(|behavior| !behavior.is_null()) {
            annotate(BEHAVIOR, &behavior_to_v1(&behavior));
        }
    }
    if let Some(status) = scaler.get_mut("status") {
        let mut metrics = list(status.remove("currentMetrics"));
        if let Some(percent) = metrics.iter().rev().find_map(|metric| utilization(metric, Half::Current)) {
            status.set("currentCPUUtilizationPercentage", percent);
        }
        // The percentage alone would lose the absolute value, so the annotation has every metric.
        metrics.iter_mut().for_each(|metric| metric_to_v1(metric, Half::Current));
        if !metrics.is_empty() {
            annotate(CURRENT_METRICS, &metrics.into());
        }
        let mut conditions = list(status.remove("conditions"));
        conditions.iter_mut().for_each(|condition| {
            condition.entry("lastTransitionTime");
        });
        if !conditions.is_empty() {
            annotate(CONDITIONS, &conditions.into());
        }
    }
    if !carried.is_empty() {
        scaler.entry("metadata").entry("annotations").fields_mut().extend(carried);
    }
}

/// Removes the carrying annotations and returns them.
fn take_carriers(scaler: &mut Value) -> Value {
    let mut carried = Value::object();
    let Some(metadata) = scaler.get_mut("metadata") else {
        return carried;
    };
    if let Some(annotations) = metadata.get_mut("annotations") {
        for name in CARRIERS {
            if let Some(text) = annotations.remove(name) {
                carried.set(name, text);
            }
        }
        if annotations.fields().is_some_and(|rest| rest.is_empty()) {
            metadata.remove("annotations");
        }
    }
    carried
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(items)) => items.into_items(),
        _ => Vec::new(),
    }
}

/// The CPU utilization in percent, if the metric is of that kind: the only one with a v1 field.
fn utilization(metric: &Value, half: Half) -> Option<i64> {
    let resource = metric.get("resource").filter(|_| metric.str("type") == "Resource")?;
    resource.get_path(&[half.key(), "averageUtilization"])?.as_int().filter(|_| resource.str("name") == "cpu")
}

/// A CPU utilization metric.
fn cpu_metric(percent: i64, half: Half) -> Value {
    let mut metric = Value::object();
    metric.set("type", "Resource");
    let resource = metric.entry("resource");
    resource.set("name", "cpu");
    let numbers = resource.entry(half.key());
    numbers.set("averageUtilization", percent);
    if half == Half::Target {
        numbers.set("type", "Utilization");
    }
    metric
}

fn metric_to_v1(metric: &mut Value, half: Half) {
    for source in &SOURCES {
        let Some(fields) = metric.get_mut(source.key).filter(|fields| !fields.is_null()) else {
            continue;
        };
        let mut numbers = fields.remove(half.key()).unwrap_or_default();
        if source.object {
            rename(fields, "describedObject", "target");
        }
        if let Some(selector) = source.selector {
            let mut metric_id = fields.remove("metric").unwrap_or_default();
            fields.set("metricName", metric_id.remove("name").unwrap_or_else(|| "".into()));
            if let Some(value) = metric_id.remove("selector") {
                fields.set(selector, value);
            }
        }
        for (old, new, always) in half.numbers(source) {
            let number = numbers.remove(new).filter(|number| !number.is_null());
            if let Some(number) = number.or_else(|| always.then(|| "0".into())) {
                fields.set(old, number);
            }
        }
    }
}

fn metric_to_v2(metric: &mut Value, half: Half) {
    for source in &SOURCES {
        let Some(fields) = metric.get_mut(source.key).filter(|fields| !fields.is_null()) else {
            continue;
        };
        let mut numbers = Value::object();
        for (old, new, always) in half.numbers(source) {
            let number = fields.remove(old).filter(|number| !number.is_null());
            if let Some(number) = number.or_else(|| always.then(|| "0".into())) {
                numbers.set(new, number);
            }
        }
        if half == Half::Target {
            numbers.set("type", target_type(source, &numbers));
        }
        if source.object {
            rename(fields, "target", "describedObject");
        }
        if let Some(selector) = source.selector {
            let mut metric_id = Value::object();
            metric_id.set("name", fields.remove("metricName").unwrap_or_else(|| "".into()));
            if let Some(value) = fields.remove(selector) {
                metric_id.set("selector", value);
            }
            fields.set("metric", metric_id);
        }
        fields.set(half.key(), numbers);
    }
}

/// The target type, which v1 does not have: it follows from the numbers that are set.
fn target_type(source: &Source, numbers: &Value) -> &'static str {
    let has = |name: &str| numbers.get(name).is_some();
    match source.key {
        "object" if !has("averageValue") => "Value",
        "external" if has("value") => "Value",
        _ if has("averageUtilization") => "Utilization",
        _ => "AverageValue",
    }
}

/// The annotation spells the fields of a behavior with capital letters, and unset ones as null.
fn behavior_to_v1(behavior: &Value) -> Value {
    let or_null = |value: Option<&Value>, make: &dyn Fn(&Value) -> Value| value.map_or(Value::Null, make);
    let policy = |policy: &Value| {
        let mut out = Value::object();
        out.set("Type", policy.str("type"));
        for (new, old) in [("value", "Value"), ("periodSeconds", "PeriodSeconds")] {
            out.set(old, policy.get(new).and_then(Value::as_int).unwrap_or(0));
        }
        out
    };
    let rules = |rules: &Value| {
        let mut out = Value::object();
        for (new, old) in [
            ("stabilizationWindowSeconds", "StabilizationWindowSeconds"),
            ("selectPolicy", "SelectPolicy"),
            ("tolerance", "Tolerance"),
        ] {
            out.set(old, or_null(rules.get(new), &Value::clone));
        }
        let policies = |list: &Value| list.items().iter().map(policy).collect::<Vec<_>>().into();
        out.set("Policies", or_null(rules.get("policies"), &policies));
        out
    };
    let mut out = Value::object();
    for (new, old) in [("scaleUp", "ScaleUp"), ("scaleDown", "ScaleDown")] {
        out.set(old, or_null(behavior.get(new), &rules));
    }
    out
}

/// Reverses [`behavior_to_v1`]: small letters, and no nulls.
fn behavior_to_v2(text: Value) -> Value {
    match text {
        Value::Object(fields) => {
            let lowercase_first = |key: String| {
                let mut letters = key.chars();
                letters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(letters).collect()
            };
            let set_fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(
                set_fields.map(|(key, value)| (lowercase_first(key), behavior_to_v2(value))).collect(),
            )
        }
        Value::Array(items) => Value::Array(items.into_iter().map(behavior_to_v2).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::annotation_json::read;
    use super::*;

    const V2: &str = r#"{"metadata":{"name":"x","annotations":{"mine":"1"}},"spec":{"scaleTargetRef":{"kind":"Deployment","name":"d"},
        "maxReplicas":3,"metrics":[
        {"type":"Pods","pods":{"metric":{"name":"qps","selector":{"matchLabels":{"a":"b"}}},"target":{"type":"AverageValue","averageValue":"5"}}},
        {"type":"External","external":{"metric":{"name":"q"},"target":{"type":"Value","value":"7"}}},
        {"type":"ContainerResource","containerResource":{"name":"memory","container":"c","target":{"type":"Utilization","averageUtilization":60}}},
        {"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":50}}}],
        "behavior":{"scaleDown":{"stabilizationWindowSeconds":300,"selectPolicy":"Max","policies":[{"type":"Percent","value":100,"periodSeconds":15}]}}},
        "status":{"desiredReplicas":1,"currentMetrics":[
        {"type":"Resource","resource":{"name":"cpu","current":{"averageUtilization":40,"averageValue":"400m"}}}],
        "conditions":[{"type":"AbleToScale","status":"True","lastTransitionTime":"2024-01-01T00:00:00Z","reason":"R","message":"m"}]}}"#;

    #[test]
    fn v1_autoscaler_carries_v2_fields_in_annotations() {
        let mut scaler = read(V2).unwrap();
        v2_to_v1(&mut scaler);
        assert_eq!(scaler.get_path(&["spec", "targetCPUUtilizationPercentage"]), Some(&Value::Int(50)));
        assert_eq!(scaler.get_path(&["status", "currentCPUUtilizationPercentage"]), Some(&Value::Int(40)));
        for removed in [
            ["spec", "metrics"],
            ["spec", "behavior"],
            ["status", "currentMetrics"],
            ["status", "conditions"],
        ] {
            assert_eq!(scaler.get_path(&removed), None, "{removed:?}");
        }
        let annotations = scaler.get_path(&["metadata", "annotations"]).unwrap();
        let table = [
            (
                METRICS,
                r#"[{"type":"Pods","pods":{"metricName":"qps","targetAverageValue":"5","selector":{"matchLabels":{"a":"b"}}}},{"type":"External","external":{"metricName":"q","targetValue":"7"}},{"type":"ContainerResource","containerResource":{"name":"memory","targetAverageUtilization":60,"container":"c"}}]"#,
            ),
            (
                CURRENT_METRICS,
                r#"[{"type":"Resource","resource":{"name":"cpu","currentAverageUtilization":40,"currentAverageValue":"400m"}}]"#,
            ),
            (
                CONDITIONS,
                r#"[{"type":"AbleToScale","status":"True","lastTransitionTime":"2024-01-01T00:00:00Z","reason":"R","message":"m"}]"#,
            ),
            (
                BEHAVIOR,
                r#"{"ScaleUp":null,"ScaleDown":{"StabilizationWindowSeconds":300,"SelectPolicy":"Max","Policies":[{"Type":"Percent","Value":100,"PeriodSeconds":15}],"Tolerance":null}}"#,
            ),
            ("mine", "1"),
        ];
        for (name, text) in table {
            assert_eq!(annotations.str(name), text, "{name}");
        }
    }

    #[test]
    fn autoscaler_round_trips_through_v1() {
        let mut scaler = read(V2).unwrap();
        v2_to_v1(&mut scaler);
        v1_to_v2(&mut scaler);
        assert_eq!(scaler, read(V2).unwrap());
    }

    #[test]
    fn object_metric_round_trips_through_v1() {
        let text = r#"{"type":"Object","object":{"metric":{"name":"m"},"describedObject":{"kind":"K","name":"n","apiVersion":"v1"},"target":{"type":"Value","value":"3"}}}"#;
        let mut metric = read(text).unwrap();
        metric_to_v1(&mut metric, Half::Target);
        assert_eq!(
            annotation_json::write(&metric),
            r#"{"type":"Object","object":{"target":{"kind":"K","name":"n","apiVersion":"v1"},"metricName":"m","targetValue":"3"}}"#
        );
        metric_to_v2(&mut metric, Half::Target);
        assert_eq!(metric, read(text).unwrap());
    }

    #[test]
    fn autoscaler_without_metrics_gets_default_utilization() {
        let mut scaler = read(r#"{"spec":{"maxReplicas":3}}"#).unwrap();
        v1_to_v2(&mut scaler);
        let expected = r#"{"spec":{"maxReplicas":3,"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":80}}}]}}"#;
        assert_eq!(scaler, read(expected).unwrap());
    }

    #[test]
    fn malformed_annotations_are_dropped() {
        let mut scaler = read(r#"{"spec":{"targetCPUUtilizationPercentage":50}}"#).unwrap();
        for name in CARRIERS {
            scaler.entry("metadata").entry("annotations").set(name, "{");
        }
        v1_to_v2(&mut scaler);
        assert_eq!(scaler.get("metadata"), Some(&Value::object()));
        assert_eq!(scaler.get_path(&["spec", "metrics"]).unwrap().items().len(), 1);
        assert_eq!(scaler.get("status"), None);
    }
}
