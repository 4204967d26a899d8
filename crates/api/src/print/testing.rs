//! Helpers for tests of table rows.

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;

use super::cells;
use crate::age::Ages;

/// The current time of the tests.
pub const NOW: &str = "2024-05-01T12:10:00Z";

/// Parses JSON.
pub fn value(json_text: &str) -> Value {
    json::read(json_text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {json_text}"))
}

/// Checks the cells of an object.
#[track_caller]
pub fn assert_cells(group: &str, kind: &str, object: &str, expected: &str) {
    let row = cells(group, kind, &value(object), Ages::At(time::parse_seconds(NOW).unwrap()));
    assert_eq!(Value::Array(row.into()), value(expected), "{kind} {object}");
}
