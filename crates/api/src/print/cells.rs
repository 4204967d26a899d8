//! Reads the fields of an object for its cells.

use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;

use crate::age::Ages;

/// The cell of an empty value.
pub const NONE: &str = "<none>";
/// The cell of an unset field.
pub const UNSET: &str = "<unset>";

/// The cells of a row, from anything that can be one.
macro_rules! cells {
    ($($cell:expr),* $(,)?) => { vec![$(pilothouse_apimachinery::value::Value::from($cell)),*] };
}
pub(super) use cells;

/// An object to be printed, and how its ages are written. Paths are dot-separated and lead through objects only.
#[derive(Clone, Copy)]
pub struct PrintedObject<'a> {
    /// The object.
    pub value: &'a Value,
    /// How its ages are written.
    pub ages: Ages,
}

impl<'a> PrintedObject<'a> {
    /// The field at the end of a path.
    pub fn field(&self, path: &str) -> Option<&'a Value> {
        field(self.value, path)
    }

    /// The text at the end of a path, empty when absent.
    pub fn text(&self, path: &str) -> &'a str {
        text(self.value, path)
    }

    /// The number at the end of a path, zero when absent.
    pub fn int(&self, path: &str) -> i64 {
        int(self.value, path)
    }

    /// The boolean at the end of a path.
    pub fn flag(&self, path: &str) -> Option<bool> {
        self.field(path).and_then(Value::as_bool)
    }

    /// The items of the list at the end of a path.
    pub fn items(&self, path: &str) -> &'a [Value] {
        items(self.value, path)
    }

    /// How many items or entries the list or map at the end of a path has.
    pub fn count(&self, path: &str) -> i64 {
        let count = match self.field(path) {
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

    /// The entry of this name in a map of the metadata, `labels` or `annotations`.
    pub fn metadata_entry(&self, map: &str, name: &str) -> Option<&'a str> {
        self.value.get_path(&["metadata", map, name]).and_then(Value::as_str)
    }

    /// Whether it has a deletionTimestamp.
    pub fn is_terminating(&self) -> bool {
        self.field("metadata.deletionTimestamp").is_some()
    }

    /// The time since its creation.
    pub fn age(&self) -> String {
        self.since("metadata.creationTimestamp")
    }

    /// The time since the instant at the end of a path.
    pub fn since(&self, path: &str) -> String {
        self.ages.since(self.instant(path))
    }

    /// The instant at the end of a path, in seconds since 1970.
    pub fn instant(&self, path: &str) -> Option<i64> {
        instant(self.value, path)
    }
}

/// The field of `value` at the end of a path.
pub fn field<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, key| value.get(key))
}

/// The text at the end of a path, empty when absent.
pub fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    field(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// The number at the end of a path, zero when absent.
pub fn int(value: &Value, path: &str) -> i64 {
    field(value, path).and_then(Value::as_int).unwrap_or_default()
}

/// The items of the list at the end of a path.
pub fn items<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    field(value, path).map(Value::items).unwrap_or_default()
}

/// The instant at the end of a path, in seconds since 1970. The zero time is no instant.
pub fn instant(value: &Value, path: &str) -> Option<i64> {
    let text = field(value, path).and_then(Value::as_str)?;
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

/// The text, or `default` if it is empty.
pub fn text_or<'a>(text: &'a str, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text }
}

/// A quantity as text; zero if absent.
pub fn quantity(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or("0")
}

/// The first condition of a type.
pub fn condition<'a>(conditions: &'a [Value], kind: &str) -> Option<&'a Value> {
    conditions.iter().find(|condition| condition.str("type") == kind)
}

/// Whether the first condition of a type is true.
pub fn is_condition_true(conditions: &[Value], kind: &str) -> bool {
    condition(conditions, kind).is_some_and(|condition| condition.str("status") == "True")
}

/// The first `max` items of a list, and how many more there are.
pub fn first_few(list: &[String], max: usize) -> String {
    first_few_of_count(list, max, list.len())
}

/// The same for a list that has only the first of `count` items.
pub fn first_few_of_count(list: &[String], max: usize, count: usize) -> String {
    let first = list.iter().take(max).map(String::as_str).collect::<Vec<_>>().join(",");
    match count.saturating_sub(max) {
        0 => first,
        more => format!("{first} + {more} more..."),
    }
}
