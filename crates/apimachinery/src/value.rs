//! The value tree: any API object between decoding and encoding.
//!
//! The keys of an object are sorted, so that lookups are logarithmic for any keys that a client sends, and equal objects compare
//! equal. The schema decides the order of encoded fields.

mod array;
mod builder;
mod fields;
mod object;

pub use array::{Array, ArrayBuilder};
pub use builder::FieldsBuilder;
pub use fields::{FieldEntry, Fields, Iter};
pub use object::Object;

/// A JSON value with the number model of the API: 64-bit integers, and doubles for all others.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// `null`, and absent values.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number that is a 64-bit integer.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    String(String),
    /// A list.
    Array(Array),
    /// An object.
    Object(Object),
}

impl Value {
    /// The JSON type as messages name it.
    pub fn json_word(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::Float(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        }
    }

    /// The Go type as some messages name it.
    pub fn go_type(&self) -> &'static str {
        match self {
            Value::Null => "<nil>",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int64",
            Value::Float(_) => "float64",
            Value::String(_) => "string",
            Value::Array(_) => "[]interface {}",
            Value::Object(_) => "map[string]interface {}",
        }
    }

    /// The empty object.
    pub fn object() -> Value {
        Value::Object(Object::new())
    }

    /// The empty list.
    pub fn array() -> Value {
        Value::Array(Array::new())
    }

    /// The field `key`; `None` if this is no object or the field is null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        match self {
            Value::Object(fields) => fields.get(key).filter(|value| !value.is_null()),
            _ => None,
        }
    }

    /// The field at the end of `path`.
    pub fn get_path(&self, path: &[&str]) -> Option<&Value> {
        path.iter().try_fold(self, |value, key| value.get(key))
    }

    /// The field `key`, mutable; `None` if this is no object or lacks the field.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        match self {
            Value::Object(fields) => fields.get_mut(key),
            _ => None,
        }
    }

    /// The field `key`, created as null if absent. Anything that is no object becomes one first.
    pub fn entry(&mut self, key: &str) -> &mut Value {
        self.fields_mut().entry(key.to_owned()).or_default()
    }

    /// The fields, mutable. Anything that is no object becomes an empty one first.
    pub fn fields_mut(&mut self) -> &mut Object {
        if !matches!(self, Value::Object(_)) {
            *self = Value::object();
        }
        match self {
            Value::Object(fields) => fields,
            _ => unreachable!("made an object just above"),
        }
    }

    /// Sets the field `key`.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        *self.entry(key) = value.into();
    }

    /// Removes the field `key`.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        match self {
            // Fields are shared, so a lookup first avoids a copy if there is nothing to remove.
            Value::Object(fields) if fields.contains_key(key) => fields.remove(key),
            _ => None,
        }
    }

    /// The text, if this is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The integer, if this is one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// The boolean, if this is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(boolean) => Some(*boolean),
            _ => None,
        }
    }

    /// The items; empty if this is no list.
    pub fn items(&self) -> &[Value] {
        match self {
            Value::Array(items) => items,
            _ => &[],
        }
    }

    /// The fields, if this is an object.
    pub fn fields(&self) -> Option<&Object> {
        match self {
            Value::Object(fields) => Some(fields),
            _ => None,
        }
    }

    /// The text of field `key`, empty if absent.
    pub fn str(&self, key: &str) -> &str {
        self.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// The strings in the list of field `key`, sorted; empty if absent.
    pub fn sorted_strings(&self, key: &str) -> Vec<&str> {
        let items = self.get(key).map(Value::items).unwrap_or_default();
        let mut strings: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
        strings.sort_unstable();
        strings
    }

    /// The number of objects in this value, including itself; counted up to `limit` and one more.
    pub fn objects(&self, limit: usize) -> usize {
        let count = |counted: usize, value: &Value| match limit.checked_sub(counted) {
            Some(rest) => counted + value.objects(rest),
            None => counted,
        };
        match self {
            Value::Array(items) => items.iter().fold(0, count),
            Value::Object(fields) => fields.values().fold(1, count),
            _ => 0,
        }
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::String(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Int(number)
    }
}

impl From<bool> for Value {
    fn from(boolean: bool) -> Value {
        Value::Bool(boolean)
    }
}

impl From<Object> for Value {
    fn from(fields: Object) -> Value {
        Value::Object(fields)
    }
}

impl From<Array> for Value {
    fn from(items: Array) -> Value {
        Value::Array(items)
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Value {
        Value::Array(items.into_iter().map(Into::into).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_counted_up_to_a_bound() {
        let item = Value::object();
        let mut value = Value::object();
        value.set("a", vec![item; 10]);
        assert_eq!(value.objects(100), 11);
        assert_eq!(value.objects(4), 5);
    }

    #[test]
    fn null_fields_count_as_absent() {
        let mut value = Value::object();
        value.set("a", Value::Null);
        value.entry("b").set("c", "d");
        assert_eq!(value.get("a"), None);
        assert_eq!(value.get_path(&["b", "c"]).and_then(Value::as_str), Some("d"));
        assert_eq!(value.str("missing"), "");
        assert_eq!(value.remove("a"), Some(Value::Null));
    }
}
