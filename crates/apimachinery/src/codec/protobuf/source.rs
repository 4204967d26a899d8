//! The input of Protobuf encoding: a value, or the JSON of one.

use std::borrow::Cow;

use crate::json;
use crate::value::Value;

/// A value. Accessors return `None` or nothing if the value has another type.
pub trait Source<'a>: Copy {
    /// Whether the value is null.
    fn is_null(self) -> bool;
    /// Whether the value is an object.
    fn is_object(self) -> bool;
    /// The value as a string.
    fn text(self) -> Option<Cow<'a, str>>;
    /// The value as an integer.
    fn integer(self) -> Option<i64>;
    /// The value as a floating-point number.
    fn double(self) -> Option<f64>;
    /// The value as a boolean.
    fn boolean(self) -> Option<bool>;
    /// The JSON of the value.
    fn json(self) -> Cow<'a, [u8]>;
    /// The items, last first.
    fn items_back(self) -> impl Iterator<Item = Self>;
    /// The fields or entries, last first.
    fn entries_back(self) -> impl Iterator<Item = (Cow<'a, str>, Self)>;
}

impl<'a> Source<'a> for &'a Value {
    fn is_null(self) -> bool {
        matches!(self, Value::Null)
    }

    fn is_object(self) -> bool {
        matches!(self, Value::Object(_))
    }

    fn text(self) -> Option<Cow<'a, str>> {
        self.as_str().map(Cow::Borrowed)
    }

    fn integer(self) -> Option<i64> {
        self.as_int()
    }

    fn double(self) -> Option<f64> {
        match self {
            Value::Float(number) => Some(*number),
            Value::Int(number) => Some(*number as f64),
            _ => None,
        }
    }

    fn boolean(self) -> Option<bool> {
        self.as_bool()
    }

    fn json(self) -> Cow<'a, [u8]> {
        Cow::Owned(json::to_json(self))
    }

    fn items_back(self) -> impl Iterator<Item = &'a Value> {
        self.items().iter().rev()
    }

    fn entries_back(self) -> impl Iterator<Item = (Cow<'a, str>, &'a Value)> {
        let entries = self.fields().into_iter().flatten().rev();
        entries.map(|(key, value)| (Cow::Borrowed(key.as_str()), value))
    }
}
