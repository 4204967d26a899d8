//! Reading the body of a patch: any JSON, with what a strict reader finds wrong noted on the way.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::api::codec::{json, syntax};
use crate::api::field::quoted;
use crate::api::limits;
use crate::api::value::{Object, Value};

/// What a body holds.
#[derive(Debug)]
pub struct Body<'a> {
    /// The text, with what is no text in it replaced.
    pub text: Cow<'a, str>,
    /// The value.
    pub value: Value,
    /// One sentence for each unknown or duplicate field, in the order of the body.
    pub strict: Vec<String>,
}

/// The fields of an operation of a JSON Patch. In any other body every field is known.
const OPERATION: [&str; 4] = ["op", "path", "from", "value"];

/// Reads a body. The error is what is wrong with it as JSON.
pub fn read(body: &[u8], operations: bool) -> Result<Body<'_>, String> {
    let text = match std::str::from_utf8(body) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => repaired(body)?,
    };
    if let Ok((value, strict)) = read_text(&text, operations) {
        return Ok(Body { text, value, strict });
    }
    let text = repaired(body)?;
    let (value, strict) = read_text(&text, operations).map_err(|_| "exceeded max depth".to_owned())?;
    Ok(Body { text, value, strict })
}

fn repaired(body: &[u8]) -> Result<Cow<'_, str>, String> {
    syntax::check(body)?;
    String::from_utf8(syntax::repair(body)).map(Cow::Owned).map_err(|error| error.to_string())
}

fn read_text(text: &str, operations: bool) -> Result<(Value, Vec<String>), serde_json::Error> {
    let mut notes = Notes { operations, path: Vec::new(), found: Vec::new() };
    let mut tokens = serde_json::Deserializer::from_str(text);
    let value = Seed(&mut notes).deserialize(&mut tokens)?;
    tokens.end()?;
    Ok((value, notes.found))
}

/// What was found, and where the reader is.
struct Notes {
    operations: bool,
    path: Vec<Step>,
    found: Vec<String>,
}

enum Step {
    Key(String),
    Index(usize),
}

impl Notes {
    fn note(&mut self, what: &str, key: &str) {
        if self.found.len() >= limits::STRICT_FINDINGS {
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
        let sentence = format!("{what} field {}", quoted(&path));
        if !self.found.contains(&sentence) {
            self.found.push(sentence);
        }
    }

    fn is_unknown(&self, key: &str) -> bool {
        self.operations && matches!(self.path.as_slice(), [Step::Index(_)]) && !OPERATION.contains(&key)
    }
}

struct Seed<'n>(&'n mut Notes);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, tokens: D) -> Result<Value, D::Error> {
        tokens.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Int(number))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Value, E> {
        json::Any.visit_u64(number)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        json::Any.visit_f64(number)
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        loop {
            self.0.path.push(Step::Index(all.len()));
            let item = items.next_element_seed(Seed(&mut *self.0))?;
            self.0.path.pop();
            match item {
                Some(item) => all.push(item),
                None => return Ok(Value::Array(all)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut all = Object::new();
        while let Some(key) = entries.next_key::<String>()? {
            if self.0.is_unknown(&key) {
                self.0.note("unknown", &key);
            } else if all.contains_key(&key) {
                self.0.note("duplicate", &key);
            }
            self.0.path.push(Step::Key(key.clone()));
            let value = entries.next_value_seed(Seed(&mut *self.0))?;
            self.0.path.pop();
            all.insert(key, value);
        }
        Ok(Value::Object(all))
    }
}

/// What a value is, as messages about JSON call it.
pub fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Int(_) | Value::Float(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// What a value is, as messages about patches call its kind.
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
        Value::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Value::Int(number) => out.push_str(&number.to_string()),
        Value::Float(number) => out.push_str(&number.to_string()),
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
    fn what_stands_twice_is_named_with_its_place() {
        let body = read(br#"{"a":{"b":1,"b":2},"l":[{"c":1,"c":1}],"a":{}}"#, false).unwrap();
        assert_eq!(
            body.strict,
            [r#"duplicate field "a.b""#, r#"duplicate field "l[0].c""#, r#"duplicate field "a""#]
        );
        let body = read(br#"[{"op":"x","nope":1,"value":{"nope":1},"op":"y"}]"#, true).unwrap();
        assert_eq!(body.strict, [r#"unknown field "[0].nope""#, r#"duplicate field "[0].op""#]);
    }

    #[test]
    fn what_is_no_json_is_refused_in_the_words_of_the_api() {
        let refused = |body: &[u8]| read(body, false).unwrap_err();
        assert_eq!(refused(b"data:\n"), "invalid character 'd' looking for beginning of value");
        assert_eq!(refused(b"["), "unexpected end of JSON input");
        assert_eq!(refused("[".repeat(200).as_bytes()), "unexpected end of JSON input");
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert_eq!(refused(deep.as_bytes()), "exceeded max depth");
        assert_eq!(read(b"\"\xff\"", false).unwrap().value, Value::from("\u{fffd}"));
    }

    #[test]
    fn values_are_printed_as_maps() {
        let value = json::read(br#"{"b":[1,"x",null,true],"a":{"c":1.5}}"#).unwrap();
        assert_eq!(printed(&value), "map[a:map[c:1.5] b:[1 x <nil> true]]");
    }
}
