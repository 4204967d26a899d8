//! Comparing objects: a server may add to what it was given, never change it.

use serde_json::Value;

/// Where `got` lacks or changes something of `given`; empty if it has it all.
pub fn lost(given: &Value, got: &Value) -> Vec<String> {
    let mut differences = Vec::new();
    walk(given, got, "", &mut differences);
    differences
}

fn walk(given: &Value, got: &Value, path: &str, differences: &mut Vec<String>) {
    match (given, got) {
        (Value::Object(given), Value::Object(got)) => {
            for (name, value) in given {
                let path = format!("{path}.{name}");
                match got.get(name) {
                    Some(got) => walk(value, got, &path, differences),
                    None => differences.push(format!("{path} is missing")),
                }
            }
        }
        (Value::Array(given), Value::Array(got)) if given.len() == got.len() => {
            for (at, (given, got)) in given.iter().zip(got).enumerate() {
                walk(given, got, &format!("{path}[{at}]"), differences);
            }
        }
        _ if given == got => {}
        _ => differences.push(format!("{path} is {got}, not {given}")),
    }
}

/// The string at a JSON pointer; empty if there is none.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The object's resourceVersion as a number. Clients must not read it so; a test of the server may.
pub fn revision(value: &Value) -> u64 {
    let text = text(value, "/metadata/resourceVersion");
    text.parse().unwrap_or_else(|_| panic!("resourceVersion {text:?} in {value}"))
}
