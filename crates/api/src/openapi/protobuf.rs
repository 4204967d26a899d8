//! OpenAPI documents in Protobuf: the same content as messages of the published description of OpenAPI.
//!
//! The messages follow the JSON closely, so they are written from it, by a table of field types. Only one level is parsed at a
//! time: a tree of a whole document would take many times its size.

use std::collections::BTreeMap;

use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::json;
use serde_json::value::RawValue;

use super::messages::{self, FieldEncoding, Message};
use crate::limits::{OPENAPI_INDENTED_BYTES, OPENAPI_INDENTED_GROWTH};

/// So much YAML is short, however many times as long as its JSON it is.
const SHORT_YAML_BYTES: usize = 64;

/// The unparsed fields of one object.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// A v2 document as Protobuf; `None` if it is invalid.
pub fn v2_protobuf(json: &[u8]) -> Option<Vec<u8>> {
    encode_document(json, &messages::V2)
}

/// A v3 document as Protobuf; `None` if it is invalid.
pub fn v3_protobuf(json: &[u8]) -> Option<Vec<u8>> {
    encode_document(json, &messages::V3)
}

fn encode_document(json: &[u8], message: &'static Message) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(json.len());
    write_message(&mut out, message, serde_json::from_slice(json).ok()?)?;
    Some(out)
}

/// Writes the fields of a message in the order of their numbers.
fn write_message(out: &mut Vec<u8>, message: &'static Message, json: &RawValue) -> Option<()> {
    let fields: Fields<'_> = serde_json::from_str(json.get()).ok()?;
    for (name, number, encoding) in message.fields {
        // Values that the messages cannot represent are omitted: a custom schema may contain more than they can.
        if let Some(json) = fields.get(*name) {
            write_field(out, *number, encoding, json);
        }
    }
    for (name, json) in fields.iter().filter(|(name, _)| name.starts_with("x-")) {
        write_entry(out, message.extensions, &FieldEncoding::Any, name, json);
    }
    Some(())
}

/// Writes a field, or nothing if its value has an unexpected form.
fn write_field(out: &mut Vec<u8>, number: u32, encoding: &FieldEncoding, json: &RawValue) -> Option<()> {
    match encoding {
        FieldEncoding::Text => write_bytes(out, number, parse_string(json)?.as_bytes()),
        FieldEncoding::Bool => {
            write_key(out, number, 0);
            out.push(u8::from(json.get() == "true"));
        }
        FieldEncoding::Integer => {
            let value: i64 = json.get().parse().ok()?;
            write_key(out, number, 0);
            write_varint(out, value.cast_unsigned());
        }
        FieldEncoding::Double => {
            let value: f64 = json.get().parse().ok()?;
            write_key(out, number, 1);
            out.extend(value.to_le_bytes());
        }
        FieldEncoding::SchemaOrBool(schema) => {
            let mut wrapped = Vec::new();
            let encoding =
                if matches!(json.get(), "true" | "false") { (2, &FieldEncoding::Bool) } else { (1, *schema) };
            write_field(&mut wrapped, encoding.0, encoding.1, json)?;
            write_bytes(out, number, &wrapped);
        }
        FieldEncoding::Default => write_bytes(out, number, &encode_default(json)?),
        FieldEncoding::Any => write_bytes(out, number, &encode_any(json)?),
        FieldEncoding::Message(message) => {
            let mut wrapped = Vec::new();
            write_message(&mut wrapped, message, json)?;
            write_bytes(out, number, &wrapped);
        }
        FieldEncoding::Each(encoding) => {
            let items: Vec<&RawValue> = serde_json::from_str(json.get()).ok()?;
            items.iter().try_for_each(|item| write_field(out, number, encoding, item))?;
        }
        FieldEncoding::Wrapped(inner, encoding) => {
            let mut wrapped = Vec::new();
            write_field(&mut wrapped, *inner, encoding, json)?;
            write_bytes(out, number, &wrapped);
        }
        FieldEncoding::Map(inner, encoding) => {
            let entries: Fields<'_> = serde_json::from_str(json.get()).ok()?;
            let mut wrapped = Vec::new();
            entries
                .iter()
                .try_for_each(|(name, json)| write_entry(&mut wrapped, *inner, encoding, name, json))?;
            write_bytes(out, number, &wrapped);
        }
        FieldEncoding::Choice(choose) => {
            let fields: Fields<'_> = serde_json::from_str(json.get()).ok()?;
            let is = |name: &str, value: &str| fields.get(name).is_some_and(|json| json.get() == value);
            write_field(out, number, choose(&|name| fields.contains_key(name), &is), json)?;
        }
    }
    Some(())
}

/// A map entry: a message of name and value.
fn write_entry(
    out: &mut Vec<u8>,
    number: u32,
    encoding: &FieldEncoding,
    name: &str,
    json: &RawValue,
) -> Option<()> {
    let mut wrapped = Vec::new();
    write_bytes(&mut wrapped, 1, name.as_bytes());
    write_field(&mut wrapped, 2, encoding, json)?;
    write_bytes(out, number, &wrapped);
    Some(())
}

/// An untyped value, as YAML. JSON is YAML, too, and stays what it is where its tree or its indentation would take far more: another
/// server may have written it.
fn encode_any(json: &RawValue) -> Option<Vec<u8>> {
    let json = json.get();
    let indented = match json.len() <= OPENAPI_INDENTED_BYTES {
        true => Some(yaml::to_yaml(json::read(json.as_bytes()).ok()?)),
        false => None,
    };
    let short = indented.filter(|yaml| yaml.len() <= json.len() * OPENAPI_INDENTED_GROWTH + SHORT_YAML_BYTES);
    let mut wrapped = Vec::new();
    write_bytes(&mut wrapped, 2, short.as_deref().unwrap_or(json.as_bytes()));
    Some(wrapped)
}

/// A default. Only numbers, booleans and strings can be represented.
fn encode_default(json: &RawValue) -> Option<Vec<u8>> {
    let mut wrapped = Vec::new();
    match json.get() {
        "true" | "false" => {
            write_key(&mut wrapped, 2, 0);
            wrapped.push(u8::from(json.get() == "true"));
        }
        other if other.starts_with('"') => write_bytes(&mut wrapped, 3, parse_string(json)?.as_bytes()),
        other => {
            if let Ok(number) = other.parse::<f64>() {
                write_key(&mut wrapped, 1, 1);
                wrapped.extend(number.to_le_bytes());
            }
        }
    }
    Some(wrapped)
}

fn parse_string(json: &RawValue) -> Option<String> {
    serde_json::from_str(json.get()).ok()
}

fn write_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    write_key(out, number, 2);
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn write_key(out: &mut Vec<u8>, number: u32, wire: u32) {
    write_varint(out, u64::from(number << 3 | wire));
}

fn write_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_protobuf_has_the_published_encoding() {
        let json = br#"{"openapi":"3.0.0","info":{"title":"T","version":"v"}}"#;
        assert_eq!(v3_protobuf(json).unwrap(), b"\x0a\x053.0.0\x12\x06\x0a\x01T\x32\x01v");
        let json = br#"{"swagger":"2.0","security":[{"B":[]}]}"#;
        assert_eq!(v2_protobuf(json).unwrap(), b"\x0a\x032.0\x62\x07\x0a\x05\x0a\x01B\x12\x00");
        assert_eq!(v2_protobuf(b"[]"), None);
        assert_eq!(v2_protobuf(b"{"), None);
    }

    #[test]
    fn protobuf_defaults_keep_their_type() {
        let encoded = |json: &str| encode_default(serde_json::from_str(json).unwrap()).unwrap();
        assert_eq!(encoded("true"), b"\x10\x01");
        assert_eq!(encoded("\"a\""), b"\x1a\x01a");
        assert_eq!(encoded("1"), b"\x09\x00\x00\x00\x00\x00\x00\xf0\x3f");
        assert_eq!(encoded("{}"), b"");
    }

    /// A hundred levels make two hundred bytes of indentation of every number.
    #[test]
    fn protobuf_of_an_untyped_value_is_not_far_longer_than_its_json() {
        let encoded = |json: &str| encode_any(serde_json::from_str(json).unwrap()).unwrap();
        assert!(
            encoded(r#"{"a":[1,{"b":"c"}]}"#).ends_with(b"a:\n- 1\n- b: c\n"),
            "usual values are indented"
        );
        for count in [1_000, OPENAPI_INDENTED_BYTES] {
            let deep = format!("{}{}{}", "[".repeat(100), vec!["1"; count].join(","), "]".repeat(100));
            let encoded = encoded(&deep);
            assert!(encoded.ends_with(deep.as_bytes()) && encoded.len() < deep.len() + 10);
        }
    }

    #[test]
    fn protobuf_lengths_are_varints() {
        let mut out = Vec::new();
        write_bytes(&mut out, 31, &[7; 300]);
        assert_eq!(&out[..4], b"\xfa\x01\xac\x02");
    }
}
