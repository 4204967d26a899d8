//! Bodies in audit events: JSON on one line, escaped for HTML, and without managedFields if the policy says so. All of it works
//! on text: the order of fields is kept.

use pilothouse_apimachinery::codec::raw_fields::raw_fields;
use pilothouse_apimachinery::codec::syntax;
use pilothouse_apimachinery::json::write_string;
use serde_json::value::RawValue;

/// The field of metadata that records field ownership.
const MANAGED_FIELDS: &str = "managedFields";

/// The identity of the object in a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyIdentity {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
}

/// JSON on one line; `None` if the text is invalid.
pub fn compact(text: &[u8]) -> Option<Vec<u8>> {
    std::str::from_utf8(text).ok()?;
    syntax::check(text).ok()?;
    let mut out = Vec::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        rest = after;
        if !in_string {
            in_string = *byte == b'"';
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                out.push(*byte);
            }
            continue;
        }
        let escape: &[u8] = match (byte, after) {
            (b'<', _) => b"\\u003c",
            (b'>', _) => b"\\u003e",
            (b'&', _) => b"\\u0026",
            (0xe2, [0x80, 0xa8, ..]) => b"\\u2028",
            (0xe2, [0x80, 0xa9, ..]) => b"\\u2029",
            _ => {
                out.push(*byte);
                in_string = escaped || *byte != b'"';
                escaped = *byte == b'\\' && !escaped;
                continue;
            }
        };
        out.extend_from_slice(escape);
        if *byte == 0xe2 {
            rest = after.get(2..).unwrap_or_default();
        }
    }
    Some(out)
}

/// An object, list or table without managedFields; `None` if it cannot be parsed.
pub fn without_managed_fields(text: &[u8]) -> Option<Vec<u8>> {
    if memchr::memmem::find(text, MANAGED_FIELDS.as_bytes()).is_none() {
        return Some(text.to_vec());
    }
    rewrite(text, |key, value| match key {
        "metadata" => strip_metadata(value),
        "items" => strip_each(value, strip_object),
        "rows" => strip_each(value, strip_row),
        _ => None,
    })
}

/// The replacement of a field.
enum Replacement {
    /// This text.
    Text(Vec<u8>),
    /// The field is removed.
    Removed,
}

/// Rewrites some fields of an object.
fn rewrite(text: &[u8], replace: impl Fn(&str, &RawValue) -> Option<Replacement>) -> Option<Vec<u8>> {
    let mut out = vec![b'{'];
    for (key, value) in raw_fields(text)? {
        let replacement = replace(&key, value);
        if matches!(replacement, Some(Replacement::Removed)) {
            continue;
        }
        if out.len() > 1 {
            out.push(b',');
        }
        write_string(&mut out, &key);
        out.push(b':');
        match &replacement {
            Some(Replacement::Text(text)) => out.extend_from_slice(text),
            _ => out.extend_from_slice(value.get().as_bytes()),
        }
    }
    out.push(b'}');
    Some(out)
}

fn strip_metadata(value: &RawValue) -> Option<Replacement> {
    let remove = |key: &str, _: &RawValue| (key == MANAGED_FIELDS).then_some(Replacement::Removed);
    rewrite(value.get().as_bytes(), remove).map(Replacement::Text)
}

fn strip_object(value: &RawValue) -> Option<Vec<u8>> {
    let inner = |key: &str, value: &RawValue| if key == "metadata" { strip_metadata(value) } else { None };
    rewrite(value.get().as_bytes(), inner)
}

/// A table row.
fn strip_row(value: &RawValue) -> Option<Vec<u8>> {
    let inner = |key: &str, value: &RawValue| {
        if key == "object" { strip_object(value).map(Replacement::Text) } else { None }
    };
    rewrite(value.get().as_bytes(), inner)
}

/// Rewrites each item of a list; those that cannot be rewritten stay.
fn strip_each(list: &RawValue, rewrite: impl Fn(&RawValue) -> Option<Vec<u8>>) -> Option<Replacement> {
    let items: Vec<&RawValue> = serde_json::from_str(list.get()).ok()?;
    let mut out = vec![b'['];
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        match rewrite(item) {
            Some(replacement) => out.extend_from_slice(&replacement),
            None => out.extend_from_slice(item.get().as_bytes()),
        }
    }
    out.push(b']');
    Some(Replacement::Text(out))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compacted(text: &str) -> Option<String> {
        compact(text.as_bytes()).map(|out| String::from_utf8(out).unwrap())
    }

    #[test]
    fn compact_body_is_one_escaped_line() {
        assert_eq!(
            compacted("{ \"b\" : [1, 2],\n\t\"a\": \" <\\\"> \\\\\" }").unwrap(),
            "{\"b\":[1,2],\"a\":\" \\u003c\\\"\\u003e \\\\\"}"
        );
        assert_eq!(compacted("\"a\u{2028}b€\"").unwrap(), "\"a\\u2028b€\"");
        assert_eq!(compacted("a: b"), None);
        assert_eq!(compacted(""), None);
    }

    #[test]
    fn managed_fields_are_removed_from_objects_lists_and_tables() {
        let out = |text: &str| String::from_utf8(without_managed_fields(text.as_bytes()).unwrap()).unwrap();
        assert_eq!(
            out(
                r#"{"kind":"A","metadata":{"name":"a","managedFields":[{"x":1}],"uid":"u"},"managedFields":1}"#
            ),
            r#"{"kind":"A","metadata":{"name":"a","uid":"u"},"managedFields":1}"#
        );
        assert_eq!(
            out(r#"{"metadata":{},"items":[{"metadata":{"managedFields":[]}},{"z":1,"metadata":{"a":2}}]}"#),
            r#"{"metadata":{},"items":[{"metadata":{}},{"z":1,"metadata":{"a":2}}]}"#
        );
        assert_eq!(
            out(
                r#"{"rows":[{"cells":[1],"object":{"metadata":{"managedFields":[],"name":"a"}}},{"object":null}]}"#
            ),
            r#"{"rows":[{"cells":[1],"object":{"metadata":{"name":"a"}}},{"object":null}]}"#
        );
        assert_eq!(without_managed_fields(b"[\"managedFields\"]"), None);
    }

    proptest! {
        #[test]
        fn compact_body_has_the_same_value(text in "[ \\\\\"<>&a-c\u{2028}\u{e9}]{0,20}", spaces in "[ \n\t]{0,3}") {
            let value = serde_json::json!({"k<": [text, 1.5, null], "b": {"c": true}});
            let pretty = format!("{spaces}{value:#}{spaces}");
            let out = compacted(&pretty).unwrap();
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap(), value);
            prop_assert!(!out.contains('\n') && !out.contains('<') && !out.contains('&'));
        }
    }
}
