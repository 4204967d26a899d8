//! Parses the body of a patch: any JSON, with the findings of strict decoding.

use std::borrow::Cow;

use serde::de::DeserializeSeed as _;

use crate::codec::syntax;
use crate::field::quoted;
use crate::json::{Any, ParseObserver, short_float};
use crate::limits;
use crate::value::Value;

/// A parsed body.
#[derive(Debug)]
pub struct Body<'a> {
    /// The text, with invalid UTF-8 replaced.
    pub text: Cow<'a, str>,
    /// The parsed value.
    pub value: Value,
    /// One message per unknown or duplicate field, in order.
    pub strict: Vec<String>,
}

/// The fields of a JSON Patch operation. In other bodies every field is known.
const OPERATION_FIELDS: [&str; 4] = ["op", "path", "from", "value"];

/// Parses a body. The error is about JSON syntax.
pub fn read(body: &[u8], operations: bool) -> Result<Body<'_>, String> {
    let text = match std::str::from_utf8(body) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => repair_text(body)?,
    };
    if let Ok((value, strict)) = read_text(&text, operations) {
        return Ok(Body { text, value, strict });
    }
    let text = repair_text(body)?;
    let (value, strict) = read_text(&text, operations).map_err(|_| "exceeded max depth".to_owned())?;
    Ok(Body { text, value, strict })
}

fn repair_text(body: &[u8]) -> Result<Cow<'_, str>, String> {
    syntax::check(body)?;
    String::from_utf8(syntax::repair(body)).map(Cow::Owned).map_err(|error| error.to_string())
}

fn read_text(text: &str, operations: bool) -> Result<(Value, Vec<String>), serde_json::Error> {
    let mut findings = StrictFindings { operations, path: Vec::new(), findings: Vec::new() };
    let mut tokens = serde_json::Deserializer::from_str(text);
    let value = Any(&mut findings).deserialize(&mut tokens)?;
    tokens.end()?;
    Ok((value, findings.findings))
}

/// The findings, and the position of the parser.
struct StrictFindings {
    operations: bool,
    path: Vec<Step>,
    findings: Vec<String>,
}

enum Step {
    Key(String),
    Index(usize),
}

impl StrictFindings {
    fn add_finding(&mut self, problem: &str, key: &str) {
        if self.findings.len() >= limits::STRICT_FINDINGS {
            return;
        }
        let mut path = String::new();
        for step in &self.path {
            match step {
                Step::Key(key) if path.is_empty() => path.push_str(key),
                Step::Key(key) => path.extend([".", key]),
                Step::Index(index) => path.push_str(&format!("[{index}]")),
            }
        }
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
        let message = format!("{problem} field {}", quoted(&path));
        if !self.findings.contains(&message) {
            self.findings.push(message);
        }
    }

    fn is_unknown(&self, key: &str) -> bool {
        self.operations
            && matches!(self.path.as_slice(), [Step::Index(_)])
            && !OPERATION_FIELDS.contains(&key)
    }
}

impl ParseObserver for StrictFindings {
    type Mark = ();

    fn enter_field(&mut self, name: &str, is_duplicate: impl FnOnce() -> bool) {
        if self.is_unknown(name) {
            self.add_finding("unknown", name);
        } else if is_duplicate() {
            self.add_finding("duplicate", name);
        }
        self.path.push(Step::Key(name.to_owned()));
    }

    fn leave_field(&mut self, (): (), _: &str) {
        self.path.pop();
    }

    fn enter_item(&mut self, index: usize) {
        self.path.push(Step::Index(index));
    }

    fn leave_item(&mut self, (): (), _: usize) {
        self.path.pop();
    }
}

/// The type of a value as messages about patches name it.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int64",
        Value::Float(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}

/// A value as messages about patches print it.
pub fn printed(value: &Value) -> String {
    let mut out = String::new();
    print(&mut out, value);
    out
}

fn print(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::Bool(boolean) => out.push_str(if *boolean { "true" } else { "false" }),
        Value::Int(number) => out.push_str(&number.to_string()),
        Value::Float(number) => out.push_str(&short_float(*number)),
        Value::String(text) => out.push_str(text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(' ');
                }
                print(out, item);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push_str("map[");
            for (index, (key, value)) in fields.iter().enumerate() {
                if index > 0 {
                    out.push(' ');
                }
                out.push_str(key);
                out.push(':');
                print(out, value);
            }
            out.push(']');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_and_unknown_fields_are_reported_with_their_path() {
        let body = read(br#"{"a":{"b":1,"b":2},"l":[{"c":1,"c":1}],"a":{}}"#, false).unwrap();
        assert_eq!(
            body.strict,
            [r#"duplicate field "a.b""#, r#"duplicate field "l[0].c""#, r#"duplicate field "a""#]
        );
        let body = read(br#"[{"op":"x","nope":1,"value":{"nope":1},"op":"y"}]"#, true).unwrap();
        assert_eq!(body.strict, [r#"unknown field "[0].nope""#, r#"duplicate field "[0].op""#]);
    }

    #[test]
    fn invalid_json_has_the_reference_message() {
        let refused = |body: &[u8]| read(body, false).unwrap_err();
        assert_eq!(refused(b"data:\n"), "invalid character 'd' looking for beginning of value");
        assert_eq!(refused(b"["), "unexpected end of JSON input");
        assert_eq!(refused("[".repeat(200).as_bytes()), "unexpected end of JSON input");
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert_eq!(refused(deep.as_bytes()), "exceeded max depth");
        assert_eq!(read(b"\"\xff\"", false).unwrap().value, Value::from("\u{fffd}"));
    }

    #[test]
    fn values_are_printed_like_go_maps() {
        let value = crate::json::read(br#"{"b":[1,"x",null,true,1e30],"a":{"c":1.5}}"#).unwrap();
        assert_eq!(printed(&value), "map[a:map[c:1.5] b:[1 x <nil> true 1e+30]]");
    }
}
