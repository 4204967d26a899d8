//! JSON without a schema: parses any text into a [`Value`], and writes text, numbers and values as the API does.

use std::fmt;
use std::io::Write as _;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::value::{ArrayBuilder, FieldsBuilder, Value};

/// Parses a whole text. The last of duplicate keys counts.
pub fn read(text: &[u8]) -> Result<Value, serde_json::Error> {
    let mut tokens = serde_json::Deserializer::from_slice(text);
    let value = Any(&mut NoObserver).deserialize(&mut tokens)?;
    tokens.end()?;
    Ok(value)
}

/// Observes every step of [`Any`], to report errors with their position. The last of duplicate fields counts, with any
/// observer.
pub trait ParseObserver {
    /// The state to restore after a step down.
    type Mark;

    /// A field begins. `is_duplicate`: whether its object already has a field of this name.
    fn enter_field(&mut self, name: &str, is_duplicate: impl FnOnce() -> bool) -> Self::Mark;

    /// The field ended, successfully or not.
    fn leave_field(&mut self, mark: Self::Mark, name: &str);

    /// An item of a list begins, or the list ends instead.
    fn enter_item(&mut self, index: usize) -> Self::Mark;

    /// The item ended, successfully or not, or there was none.
    fn leave_item(&mut self, mark: Self::Mark, index: usize);
}

/// Observes nothing, at no cost.
pub struct NoObserver;

impl ParseObserver for NoObserver {
    type Mark = ();

    fn enter_field(&mut self, _: &str, _: impl FnOnce() -> bool) {}

    fn leave_field(&mut self, (): (), _: &str) {}

    fn enter_item(&mut self, _: usize) {}

    fn leave_item(&mut self, (): (), _: usize) {}
}

/// Parses any value. The tokenizer limits the depth.
pub struct Any<'l, L>(pub &'l mut L);

impl<'de, L: ParseObserver> DeserializeSeed<'de> for Any<'_, L> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, tokens: D) -> Result<Value, D::Error> {
        tokens.deserialize_any(self)
    }
}

impl<'de, L: ParseObserver> Visitor<'de> for Any<'_, L> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, boolean: bool) -> Result<Value, E> {
        Ok(Value::Bool(boolean))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Int(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or(Value::Float(number as f64), Value::Int))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        // The tokenizer parses -0 as a double; the API treats it as the integer 0.
        Ok(if number == 0.0 { Value::Int(0) } else { Value::Float(number) })
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, tokens: D) -> Result<Value, D::Error> {
        tokens.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = ArrayBuilder::default();
        loop {
            let mark = self.0.enter_item(all.len());
            let item = items.next_element_seed(Any(&mut *self.0));
            self.0.leave_item(mark, all.len());
            match item? {
                Some(item) => all.push(item),
                None => return Ok(Value::Array(all.finish())),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut all = FieldsBuilder::default();
        while let Some(key) = entries.next_key::<String>()? {
            let mark = self.0.enter_field(&key, || all.contains_key(&key));
            let value = entries.next_value_seed(Any(&mut *self.0));
            self.0.leave_field(mark, &key);
            all.insert(key, value?);
        }
        Ok(Value::Object(all.finish().into()))
    }
}

/// The JSON of a value, with sorted keys.
pub fn to_json(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write_value(&mut out, value);
    out
}

/// Appends the JSON of a value, with sorted keys.
pub fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Int(number) => out.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes()),
        Value::Float(number) => write_float(out, *number),
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_value(out, item);
            }
            out.push(b']');
        }
        Value::Object(fields) => {
            out.push(b'{');
            for (index, (key, value)) in fields.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_string(out, key);
                out.push(b':');
                write_value(out, value);
            }
            out.push(b'}');
        }
    }
}

/// Appends a double like Go: plain digits, or an exponent for very small and very large numbers. NaN and infinity become null.
pub fn write_float(out: &mut Vec<u8>, number: f64) {
    if !number.is_finite() {
        out.extend_from_slice(b"null");
        return;
    }
    let size = number.abs();
    // Writing to a vector cannot fail.
    let _ = if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{number:e}");
        match text.split_once('e') {
            Some((digits, exponent)) if !exponent.starts_with('-') => write!(out, "{digits}e+{exponent}"),
            _ => write!(out, "{text}"),
        }
    } else {
        write!(out, "{number}")
    };
}

/// A double in its shortest form as messages, cells and YAML have it: with an exponent for small numbers and from a million on.
pub fn short_float(number: f64) -> String {
    scientific_if_long(number)
}

/// A float of either precision in its shortest form; see [`short_float`].
pub(super) fn scientific_if_long(number: impl std::fmt::Display + std::fmt::LowerExp) -> String {
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let power: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&power) {
        return number.to_string();
    }
    let sign = if power < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", power.unsigned_abs())
}

/// Bytes that must be escaped in JSON or HTML, and the first byte of the two line separators that JavaScript does not accept.
const fn is_special(byte: u8) -> bool {
    byte < 0x20 || matches!(byte, b'"' | b'\\' | b'<' | b'>' | b'&' | 0xe2)
}

const SPECIAL: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_special(byte as u8);
        byte += 1;
    }
    table
};

/// Appends quoted text.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.reserve(text.len() + 2);
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut start = 0;
    for (index, &byte) in bytes.iter().enumerate() {
        if !SPECIAL[usize::from(byte)] {
            continue;
        }
        let mut length = 1;
        let escape: &[u8] = match byte {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0x08 => b"\\b",
            0x0c => b"\\f",
            0xe2 => match bytes.get(index + 1..index + 3) {
                Some([0x80, 0xa8]) => {
                    length = 3;
                    b"\\u2028"
                }
                Some([0x80, 0xa9]) => {
                    length = 3;
                    b"\\u2029"
                }
                _ => continue,
            },
            _ => &[b'\\', b'u', b'0', b'0', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]],
        };
        out.extend_from_slice(&bytes[start..index]);
        out.extend_from_slice(escape);
        start = index + length;
    }
    out.extend_from_slice(&bytes[start..]);
    out.push(b'"');
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(value: &Value) -> String {
        String::from_utf8(to_json(value)).unwrap()
    }

    #[test]
    fn numbers_are_written_like_go() {
        for (input, expected) in [
            ("1.0", "1"),
            ("1e2", "100"),
            ("-0", "0"),
            ("1.5", "1.5"),
            ("1e20", "100000000000000000000"),
            ("1e21", "1e+21"),
            ("0.0000001", "1e-7"),
            ("0.000001", "0.000001"),
            ("9223372036854775807", "9223372036854775807"),
            ("9223372036854775808", "9223372036854776000"),
            ("0.1", "0.1"),
        ] {
            assert_eq!(text(&read(input.as_bytes()).unwrap()), expected, "{input}");
        }
    }

    /// Records the observed steps.
    #[derive(Default)]
    struct Recorder(Vec<String>);

    impl ParseObserver for Recorder {
        type Mark = usize;

        fn enter_field(&mut self, name: &str, is_duplicate: impl FnOnce() -> bool) -> usize {
            self.0.push(format!("{name}{}", if is_duplicate() { " again" } else { "" }));
            self.0.len()
        }

        fn leave_field(&mut self, mark: usize, name: &str) {
            self.0.push(format!("/{name} since {mark}"));
        }

        fn enter_item(&mut self, index: usize) -> usize {
            self.0.push(index.to_string());
            self.0.len()
        }

        fn leave_item(&mut self, mark: usize, index: usize) {
            self.0.push(format!("/{index} since {mark}"));
        }
    }

    #[test]
    fn observer_is_called_for_every_step() {
        let text = br#"{"a":[true],"b":1,"b":null}"#;
        let mut recorder = Recorder::default();
        let value = Any(&mut recorder)
            .deserialize(&mut serde_json::Deserializer::from_slice(text))
            .expect("valid JSON");
        assert_eq!(value, read(text).unwrap());
        let expected = ["a", "0", "/0 since 2", "1", "/1 since 4", "/a since 1"];
        assert_eq!(recorder.0[..6], expected);
        assert_eq!(recorder.0[6..], ["b", "/b since 7", "b again", "/b since 9"]);
        let mut truncated = Recorder::default();
        let result = Any(&mut truncated).deserialize(&mut serde_json::Deserializer::from_slice(b"[{\"a\":"));
        assert!(result.is_err());
        assert_eq!(truncated.0, ["0", "a", "/a since 2", "/0 since 1"], "each enter has its leave");
    }

    #[test]
    fn html_characters_and_line_separators_are_escaped() {
        let value = Value::from("<a>&\"\\\u{8}\u{c}\n\u{1}\u{2028}\u{2029}é\u{20ac}");
        assert_eq!(text(&value), "\"\\u003ca\\u003e\\u0026\\\"\\\\\\b\\f\\n\\u0001\\u2028\\u2029é\u{20ac}\"");
    }

    /// Any value, a few levels deep.
    pub(crate) fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            "\\PC{0,8}".prop_map(Value::String),
            // Characters with a meaning in JSON or YAML, or more than one byte.
            "[\"\\\\{\\[,: \\-#a\n\té\u{20ac}\u{1f600}]{0,12}".prop_map(Value::String),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("\\PC{0,6}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_output_round_trips(value in any_value()) {
            prop_assert_eq!(&read(&to_json(&value)).unwrap(), &value);
            prop_assert_eq!(&read(&crate::codec::pretty(&to_json(&value))).unwrap(), &value);
        }

        #[test]
        fn floats_round_trip(number in any::<f64>().prop_filter("finite", |number| number.is_finite())) {
            let mut out = Vec::new();
            write_float(&mut out, number);
            let read: f64 = std::str::from_utf8(&out).unwrap().parse().unwrap();
            prop_assert_eq!(read, number);
        }
    }
}
