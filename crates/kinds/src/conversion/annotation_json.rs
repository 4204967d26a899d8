//! JSON inside an annotation, for fields that an older version lacks.

use pilothouse_apimachinery::value::{Object, Value};

/// The order of the keys in the text: clients compare annotations as text. Other keys follow alphabetically.
const ORDER: [&str; 39] = [
    "type",
    "status",
    "lastTransitionTime",
    "reason",
    "message",
    "object",
    "pods",
    "resource",
    "containerResource",
    "external",
    "kind",
    "name",
    "apiVersion",
    "target",
    "metricName",
    "metricSelector",
    "targetAverageUtilization",
    "targetValue",
    "targetAverageValue",
    "currentAverageUtilization",
    "currentValue",
    "currentAverageValue",
    "selector",
    "averageValue",
    "container",
    "matchLabels",
    "matchExpressions",
    "key",
    "operator",
    "values",
    "ScaleUp",
    "ScaleDown",
    "StabilizationWindowSeconds",
    "SelectPolicy",
    "Policies",
    "Type",
    "Value",
    "PeriodSeconds",
    "Tolerance",
];

/// Writes a value as text.
pub(super) fn write(value: &Value) -> String {
    let mut out = String::new();
    write_value_to(value, false, &mut out);
    out
}

fn write_value_to(value: &Value, alphabetical: bool, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(boolean) => out.push_str(if *boolean { "true" } else { "false" }),
        Value::Int(number) => out.push_str(&number.to_string()),
        Value::Float(number) => out.push_str(&number.to_string()),
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value_to(item, false, out);
            }
            out.push(']');
        }
        Value::Object(fields) => write_fields(fields, alphabetical, out),
    }
}

fn write_fields(fields: &Object, alphabetical: bool, out: &mut String) {
    let rank = |key: &str| ORDER.iter().position(|name| *name == key).unwrap_or(ORDER.len());
    let mut all: Vec<(&String, &Value)> = fields.iter().collect();
    if !alphabetical {
        all.sort_by_key(|(key, _)| rank(key));
    }
    out.push('{');
    for (index, (key, value)) in all.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_text(key, out);
        out.push(':');
        // The keys of labels are data: a label may be called `type`.
        write_value_to(value, key == "matchLabels", out);
    }
    out.push('}');
}

fn write_text(text: &str, out: &mut String) {
    let quoted = serde_json::Value::from(text).to_string();
    // As Go's JSON encoder does: these characters could end a script in an HTML page.
    out.push_str(&quoted.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"));
}

/// Parses such a text; `None` if it is not JSON.
pub(super) fn read(text: &str) -> Option<Value> {
    serde_json::from_str::<serde_json::Value>(text).ok().map(from_json)
}

fn from_json(value: serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::Null,
        Json::Bool(boolean) => Value::Bool(boolean),
        Json::Number(number) => {
            number.as_i64().map_or_else(|| Value::Float(number.as_f64().unwrap_or_default()), Value::Int)
        }
        Json::String(text) => Value::String(text),
        Json::Array(items) => Value::Array(items.into_iter().map(from_json).collect()),
        Json::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| (key, from_json(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotation_text_round_trips_in_order() {
        let text = r#"[{"type":"Pods","pods":{"metricName":"m\u003c1","targetAverageValue":"2","selector":{"matchLabels":{"a":"b","type":"x"}}}},{"type":"Resource","resource":{"name":"memory","targetAverageUtilization":5,"zeta":1.5,"zulu":null}}]"#;
        assert_eq!(write(&read(text).unwrap()), text);
        assert_eq!(read("{"), None);
    }
}
