//! FieldsV1: field sets as nested JSON objects.
//!
//! `f:name` is a field, `k:{"name":"a"}` the list item with these keys, `v:"a"` the one with this value, `i:0` the one at this
//! index, and `.` means that the position itself is in the set, too.

use std::sync::Arc;

use super::field_set::{FieldSet, PathElement};
use crate::json;
use crate::limits::OWNED_DEPTH;
use crate::value::{Object, Value};

/// Encodes a set.
pub fn write(set: &FieldSet) -> Value {
    let below = set.below().iter().map(|(element, set)| {
        let mut inner = write(set);
        if set.member && !set.below().is_empty() {
            inner.set(".", Value::object());
        }
        (key(element), inner)
    });
    Value::Object(below.collect())
}

/// The encoding of a path element.
pub(super) fn key(element: &PathElement) -> String {
    let mut text = Vec::with_capacity(16);
    match element {
        PathElement::Field(name) => {
            text.extend_from_slice(b"f:");
            text.extend_from_slice(name.as_bytes());
        }
        PathElement::Key(keys) => {
            text.extend_from_slice(b"k:{");
            for (index, (name, value)) in keys.iter().enumerate() {
                if index > 0 {
                    text.push(b',');
                }
                json::write_string(&mut text, name);
                text.push(b':');
                json::write_value(&mut text, value);
            }
            text.push(b'}');
        }
        PathElement::Value(value) => {
            text.extend_from_slice(b"v:");
            json::write_value(&mut text, value);
        }
        PathElement::Index(index) => return format!("i:{index}"),
    }
    // All parts are valid UTF-8.
    String::from_utf8(text).unwrap_or_default()
}

/// The reason why a value is no field set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldsError {
    /// A key is not a path element.
    #[error("invalid fieldsV1 path element {0:?}")]
    Key(String),
    /// A value is not an object.
    #[error("fieldsV1 must be a JSON object")]
    NoObject,
    /// The nesting is too deep.
    #[error("fieldsV1 has more than {OWNED_DEPTH} levels")]
    TooDeep,
}

/// Parses a set. Unknown kinds of path elements are dropped with everything below them.
pub fn read(value: &Value) -> Result<FieldSet, FieldsError> {
    let mut set = read_nested(value, OWNED_DEPTH)?;
    set.member = false;
    Ok(set)
}

fn read_nested(value: &Value, depth: usize) -> Result<FieldSet, FieldsError> {
    let depth = depth.checked_sub(1).ok_or(FieldsError::TooDeep)?;
    let mut set = FieldSet::default();
    let fields = match value {
        Value::Object(fields) => fields,
        Value::Null => &Object::new(),
        _ => return Err(FieldsError::NoObject),
    };
    set.reserve(fields.len());
    for (key, inner) in fields {
        if key == "." {
            set.member = true;
        } else if let Some(element) = element(key)? {
            set.push(element, read_nested(inner, depth)?);
        }
    }
    set.sort();
    // An empty object means the position itself.
    set.member |= set.below().is_empty();
    Ok(set)
}

/// Whether a text is a known path element in the form that [`key`] writes.
pub(super) fn is_canonical_key(text: &str) -> bool {
    element(text).is_ok_and(|element| element.is_some_and(|element| key(&element) == text))
}

fn element(key: &str) -> Result<Option<PathElement>, FieldsError> {
    let invalid = || FieldsError::Key(key.to_owned());
    let (kind, rest) = key.split_once(':').filter(|(kind, _)| kind.len() == 1).ok_or_else(invalid)?;
    Ok(Some(match kind {
        "f" => PathElement::field(rest),
        "v" => PathElement::Value(json::read(rest.as_bytes()).map_err(|_| invalid())?),
        "k" => match json::read(rest.as_bytes()) {
            Ok(Value::Object(keys)) => {
                PathElement::Key(keys.into_iter().map(|(name, value)| (Arc::from(name), value)).collect())
            }
            _ => return Err(invalid()),
        },
        "i" => PathElement::Index(rest.parse().map_err(|_| invalid())?),
        _ => return Ok(None),
    }))
}
