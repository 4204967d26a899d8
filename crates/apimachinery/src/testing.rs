//! Helpers of the tests of several crates.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that meets the unexpected fails")]

use std::path::Path;
use std::sync::LazyLock;

use crate::error_list::ErrorList;
use crate::field::FieldError;
use crate::schema::Registry;
use crate::value::Value;

/// The types of all built-in kinds.
pub static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

/// Parses JSON; panics if it is invalid.
pub fn object(json: &str) -> Value {
    fn value(json: serde_json::Value) -> Value {
        match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(boolean) => Value::Bool(boolean),
            serde_json::Value::Number(number) => {
                number.as_i64().map_or_else(|| Value::Float(number.as_f64().unwrap()), Value::Int)
            }
            serde_json::Value::String(text) => Value::String(text),
            serde_json::Value::Array(items) => Value::Array(items.into_iter().map(value).collect()),
            serde_json::Value::Object(fields) => {
                Value::Object(fields.into_iter().map(|(key, field)| (key, value(field))).collect())
            }
        }
    }
    value(serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}")))
}

/// The errors as the message of a Status has them.
pub fn error_messages(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// A copy of `base` with the field at `path` set to `json`; null removes the field.
pub fn with(base: &Value, path: &str, json: &str) -> Value {
    let mut changed = base.clone();
    let mut target = &mut changed;
    let mut steps = path.split('.').peekable();
    while let Some(step) = steps.next() {
        target = match (step.parse::<usize>(), &mut *target) {
            (Ok(index), Value::Array(_)) => match target {
                Value::Array(items) => &mut items[index],
                _ => unreachable!(),
            },
            _ => target.entry(step),
        };
        if steps.peek().is_none() {
            *target = object(json);
        }
    }
    changed
}

/// Checks that `base` is valid, and that each row of `table` (path, JSON, message) makes it invalid with exactly one error that
/// contains the message.
pub fn each_refused(base: &Value, validate: fn(&Value, &mut ErrorList), table: &[(&str, &str, &str)]) {
    let mut errors = ErrorList::new();
    validate(base, &mut errors);
    assert_eq!(error_messages(&errors), Vec::<String>::new(), "the base must be accepted");
    for (path, json, expected) in table {
        let mut errors = ErrorList::new();
        validate(&with(base, path, json), &mut errors);
        let errors = error_messages(&errors);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{path}={json}: {errors:#?}");
    }
}

/// Like [`each_refused`], for updates of `base`.
pub fn each_change_refused(
    base: &Value,
    validate: fn(&Value, &Value, &mut ErrorList),
    table: &[(&str, &str, &str)],
) {
    let mut errors = ErrorList::new();
    validate(base, base, &mut errors);
    assert_eq!(error_messages(&errors), Vec::<String>::new(), "no change must be accepted");
    for (path, json, expected) in table {
        let mut errors = ErrorList::new();
        validate(&with(base, path, json), base, &mut errors);
        let errors = error_messages(&errors);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{path}={json}: {errors:#?}");
    }
}

/// Calls `visit` with each Rust source file below a folder, `tests.rs` files apart.
pub fn each_source(folder: &Path, visit: &mut impl FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            each_source(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            visit(&path, &std::fs::read_to_string(&path).unwrap());
        }
    }
}
