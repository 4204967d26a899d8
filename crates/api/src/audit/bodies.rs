//! Bodies in audit events: JSON on one line, escaped for HTML, and without managedFields if the policy says so. All of it works
//! on text: the order of fields is kept.

use pilothouse_apimachinery::codec::raw_fields::raw_fields;
use pilothouse_apimachinery::codec::syntax;
use pilothouse_apimachinery::json::write_string;
use serde_json::value::RawValue;

/// The field of metadata that records field ownership.
const OWNERS: &str = "managedFields";

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
    if memchr::memmem::find(text, OWNERS.as_bytes()).is_none() {
        return Some(text.to_vec());
    }
    rewritten(text, |key, value| match key {
        "metadata" => metadata(value),
        "items" => each(value, object),
        "rows" => each(value, row),
        _ => None,
    })
}

/// The replacement of a field.
enum Other {
    /// This text.
    Says(Vec<u8>),
    /// The field is removed.
    Gone,
}

/// Rewrites some fields of an object.
fn rewritten(text: &[u8], other: impl Fn(&str, &RawValue) -> Option<Other>) -> Option<Vec<u8>> {
    let mut out = vec![b'{'];
    for (key, value) in raw_fields(text)? {
        let other = other(&key, value);
        if matches!(other, Some(Other::Gone)) {
            continue;
        }
        if out.len() > 1 {
            out.push(b',');
        }
        write_string(&mut out, &key);
        out.push(b':');
        match &other {
            Some(Other::Says(text)) => out.extend_from_slice(text),
            _ => out.extend_from_slice(value.get().as_bytes()),
        }
    }
    out.push(b'}');
    Some(out)
}

fn metadata(value: &RawValue) -> Option<Other> {
    let gone = |key: &str, _: &RawValue| (key == OWNERS).then_some(Other::Gone);
    rewritten(value.get().as_bytes(), gone).map(Other::Says)
}

fn object(value: &RawValue) -> Option<Vec<u8>> {
    let inner = |key: &str, value: &RawValue| if key == "metadata" { metadata(value) } else { None };
    rewritten(value.get().as_bytes(), inner)
}

/// A table row.
fn row(value: &RawValue) -> Option<Vec<u8>> {
    let inner =
        |key: &str, value: &RawValue| if key == "object" { object(value).map(Other::Says) } else { None };
    rewritten(value.get().as_bytes(), inner)
}

/// Rewrites each item of a list; those that cannot be rewritten stay.
fn each(list: &RawValue, other: impl Fn(&RawValue) -> Option<Vec<u8>>) -> Option<Other> {
    let items: Vec<&RawValue> = serde_json::from_str(list.get()).ok()?;
    let mut out = vec![b'['];
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        match other(item) {
            Some(other) => out.extend_from_slice(&other),
            None => out.extend_from_slice(item.get().as_bytes()),
        }
    }
    out.push(b']');
    Some(Other::Says(out))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compacted(text: &str) -> Option<String> {
        compact(text.as_bytes()).map(|out| String::from_utf8(out).unwrap())
    }

    #[test]
    fn bodies_stand_on_one_line() {
        assert_eq!(
            compacted("{ \"b\" : [1, 2],\n\t\"a\": \" <\\\"> \\\\\" }").unwrap(),
            "{\"b\":[1,2],\"a\":\" \\u003c\\\"\\u003e \\\\\"}"
        );
        assert_eq!(compacted("\"a\u{2028}b€\"").unwrap(), "\"a\\u2028b€\"");
        assert_eq!(compacted("a: b"), None);
        assert_eq!(compacted(""), None);
    }

    #[test]
    fn owners_leave_objects_lists_and_tables() {
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
        fn one_line_says_the_same(text in "[ \\\\\"<>&a-c\u{2028}\u{e9}]{0,20}", spaces in "[ \n\t]{0,3}") {
            let value = serde_json::json!({"k<": [text, 1.5, null], "b": {"c": true}});
            let pretty = format!("{spaces}{value:#}{spaces}");
            let out = compacted(&pretty).unwrap();
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap(), value);
            prop_assert!(!out.contains('\n') && !out.contains('<') && !out.contains('&'));
        }
    }
}
