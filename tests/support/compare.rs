//! Comparison of objects: the server may add fields to a submitted object, but not change or drop any.

use serde_json::Value;

/// The fields of `expected` that `actual` lacks or has changed.
pub fn missing_fields(expected: &Value, actual: &Value) -> Vec<String> {
    let mut differences = Vec::new();
    walk(expected, actual, "", &mut differences);
    differences
}

fn walk(expected: &Value, actual: &Value, path: &str, differences: &mut Vec<String>) {
    match (expected, actual) {
        (Value::Object(expected), Value::Object(actual)) => {
            for (name, value) in expected {
                let path = format!("{path}.{name}");
                match actual.get(name) {
                    Some(actual) => walk(value, actual, &path, differences),
                    None => differences.push(format!("{path} is missing")),
                }
            }
        }
        (Value::Array(expected), Value::Array(actual)) if expected.len() == actual.len() => {
            for (index, (expected, actual)) in expected.iter().zip(actual).enumerate() {
                walk(expected, actual, &format!("{path}[{index}]"), differences);
            }
        }
        _ if expected == actual => {}
        _ => differences.push(format!("{path} is {actual}, not {expected}")),
    }
}

/// The string at a JSON pointer; empty if there is none.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The object's resourceVersion as a number. Clients must treat it as opaque; a test of the server need not.
pub fn revision(value: &Value) -> u64 {
    let text = text(value, "/metadata/resourceVersion");
    text.parse().unwrap_or_else(|_| panic!("resourceVersion {text:?} in {value}"))
}
