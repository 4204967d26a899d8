//! Helpers of the tests of rows.

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;

use super::cells;

/// The instant at which the tests look: ten minutes after noon of a day in May.
pub const NOW: &str = "2024-05-01T12:10:00Z";

/// The value that a JSON text is.
pub fn value(json_text: &str) -> Value {
    json::read(json_text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {json_text}"))
}

/// Checks the cells of an object.
#[track_caller]
pub fn shows(group: &str, kind: &str, object: &str, expected: &str) {
    let row = cells(group, kind, &value(object), time::parse_seconds(NOW).unwrap());
    assert_eq!(Value::Array(row.into()), value(expected), "{kind} {object}");
}
