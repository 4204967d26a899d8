//! JSON inside an annotation, for fields that an older version lacks.

use crate::value::{Object, Value};

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
    put(value, false, &mut out);
    out
}

fn put(value: &Value, by_letters: bool, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Value::Int(number) => out.push_str(&number.to_string()),
        Value::Float(number) => out.push_str(&number.to_string()),
        Value::String(text) => put_text(text, out),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                put(item, false, out);
            }
            out.push(']');
        }
        Value::Object(fields) => put_fields(fields, by_letters, out),
    }
}

fn put_fields(fields: &Object, by_letters: bool, out: &mut String) {
    let place = |key: &str| ORDER.iter().position(|known| *known == key).unwrap_or(ORDER.len());
    let mut all: Vec<(&String, &Value)> = fields.iter().collect();
    if !by_letters {
        all.sort_by_key(|(key, _)| place(key));
    }
    out.push('{');
    for (at, (key, value)) in all.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        put_text(key, out);
        out.push(':');
        // The keys of labels are data: a label may be called `type`.
        put(value, key == "matchLabels", out);
    }
    out.push('}');
}

fn put_text(text: &str, out: &mut String) {
    let quoted = serde_json::Value::from(text).to_string();
    // As Go's JSON encoder does: these characters could end a script in an HTML page.
    out.push_str(&quoted.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"));
}

/// Parses such a text; `None` if it is not JSON.
pub(super) fn read(text: &str) -> Option<Value> {
    serde_json::from_str::<serde_json::Value>(text).ok().map(of_json)
}

fn of_json(value: serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::Null,
        Json::Bool(truth) => Value::Bool(truth),
        Json::Number(number) => {
            number.as_i64().map_or_else(|| Value::Float(number.as_f64().unwrap_or_default()), Value::Int)
        }
        Json::String(text) => Value::String(text),
        Json::Array(items) => Value::Array(items.into_iter().map(of_json).collect()),
        Json::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| (key, of_json(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keeps_its_order_through_a_value() {
        let text = r#"[{"type":"Pods","pods":{"metricName":"m\u003c1","targetAverageValue":"2","selector":{"matchLabels":{"a":"b","type":"x"}}}},{"type":"Resource","resource":{"name":"memory","targetAverageUtilization":5,"zeta":1.5,"zulu":null}}]"#;
        assert_eq!(write(&read(text).unwrap()), text);
        assert_eq!(read("{"), None);
    }
}
