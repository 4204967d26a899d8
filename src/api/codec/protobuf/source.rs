//! What messages are written from: a value, or the JSON of one.

use std::borrow::Cow;

use crate::api::codec::json;
use crate::api::value::Value;

/// A value somewhere. What is asked for and is not there is `None`, or nothing is visited.
pub trait Source<'a>: Copy {
    /// Whether it is null.
    fn is_null(self) -> bool;
    /// Whether it is an object.
    fn is_object(self) -> bool;
    /// Its text.
    fn text(self) -> Option<Cow<'a, str>>;
    /// Its integer.
    fn integer(self) -> Option<i64>;
    /// Its number.
    fn double(self) -> Option<f64>;
    /// Its truth.
    fn truth(self) -> Option<bool>;
    /// Its JSON.
    fn json(self) -> Cow<'a, [u8]>;
    /// Its items, the last first.
    fn items_back(self) -> impl Iterator<Item = Self>;
    /// Its fields or entries, the last first.
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

    fn truth(self) -> Option<bool> {
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
