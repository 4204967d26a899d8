//! Reads the fields of an object for its cells.

use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;

use crate::age;

/// What a cell says where there is nothing to say.
pub const NONE: &str = "<none>";
/// What a cell says of a field that nobody has set.
pub const UNSET: &str = "<unset>";

/// The cells of a row, from anything that can be one.
macro_rules! cells {
    ($($cell:expr),* $(,)?) => { vec![$(pilothouse_apimachinery::value::Value::from($cell)),*] };
}
pub(super) use cells;

/// An object to be shown, at an instant. Paths are written with dots, and lead through objects only.
#[derive(Clone, Copy)]
pub struct PrintedObject<'a> {
    /// The object.
    pub object: &'a Value,
    /// Now, in seconds since 1970.
    pub now: i64,
}

impl<'a> PrintedObject<'a> {
    /// The field at the end of a path.
    pub fn at(&self, path: &str) -> Option<&'a Value> {
        at(self.object, path)
    }

    /// The text at the end of a path, empty when absent.
    pub fn text(&self, path: &str) -> &'a str {
        text(self.object, path)
    }

    /// The number at the end of a path, zero when absent.
    pub fn int(&self, path: &str) -> i64 {
        int(self.object, path)
    }

    /// The truth at the end of a path.
    pub fn flag(&self, path: &str) -> Option<bool> {
        self.at(path).and_then(Value::as_bool)
    }

    /// The items of the list at the end of a path.
    pub fn items(&self, path: &str) -> &'a [Value] {
        items(self.object, path)
    }

    /// How many items or entries the list or map at the end of a path has.
    pub fn count(&self, path: &str) -> i64 {
        let count = match self.at(path) {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(entries)) => entries.len(),
            _ => 0,
        };
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    /// Its name.
    pub fn name(&self) -> &'a str {
        self.text("metadata.name")
    }

    /// The label or annotation of this name; `of` says which.
    pub fn note(&self, of: &str, name: &str) -> Option<&'a str> {
        self.object.at(&["metadata", of, name]).and_then(Value::as_str)
    }

    /// Whether its deletion has been asked for.
    pub fn is_terminating(&self) -> bool {
        self.at("metadata.deletionTimestamp").is_some()
    }

    /// How long it has existed.
    pub fn age(&self) -> String {
        self.since("metadata.creationTimestamp")
    }

    /// How long ago the instant at the end of a path was.
    pub fn since(&self, path: &str) -> String {
        age::since(self.instant(path), self.now)
    }

    /// The instant at the end of a path, in seconds since 1970.
    pub fn instant(&self, path: &str) -> Option<i64> {
        instant(self.object, path)
    }
}

/// The field of `value` at the end of a path.
pub fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, key| value.get(key))
}

/// The text at the end of a path, empty when absent.
pub fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// The number at the end of a path, zero when absent.
pub fn int(value: &Value, path: &str) -> i64 {
    at(value, path).and_then(Value::as_int).unwrap_or_default()
}

/// The items of the list at the end of a path.
pub fn items<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).map(Value::items).unwrap_or_default()
}

/// The instant at the end of a path, in seconds since 1970. The zero time is no instant.
pub fn instant(value: &Value, path: &str) -> Option<i64> {
    let text = at(value, path).and_then(Value::as_str)?;
    time::parse_seconds(text).ok().filter(|seconds| *seconds != time::ZERO_SECONDS)
}

/// The texts of a list.
pub fn texts(items: &[Value]) -> impl Iterator<Item = &str> {
    items.iter().filter_map(Value::as_str)
}

/// The texts of a list, with commas between them.
pub fn joined(items: &[Value]) -> String {
    texts(items).collect::<Vec<_>>().join(",")
}

/// The text, or `otherwise` when it is empty.
pub fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

/// A quantity as text; what is absent is nothing.
pub fn quantity(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or("0")
}

/// The status of the first condition of a type.
pub fn condition<'a>(conditions: &'a [Value], kind: &str) -> Option<&'a Value> {
    conditions.iter().find(|condition| condition.str("type") == kind)
}

/// Whether the first condition of a type is true.
pub fn holds(conditions: &[Value], kind: &str) -> bool {
    condition(conditions, kind).is_some_and(|condition| condition.str("status") == "True")
}

/// The first few of a list, and how many more there are.
pub fn first_few(list: &[String], most: usize) -> String {
    first_few_of(list, most, list.len())
}

/// The same where the list has only the beginning of all there are.
pub fn first_few_of(list: &[String], most: usize, count: usize) -> String {
    let shown = list.iter().take(most).map(String::as_str).collect::<Vec<_>>().join(",");
    match count.saturating_sub(most) {
        0 => shown,
        more => format!("{shown} + {more} more..."),
    }
}
