//! Helpers of the tests of several crates.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that meets the unexpected fails")]

use std::path::Path;
use std::sync::LazyLock;

use crate::error_list::ErrorList;
use crate::field::FieldError;
use crate::schema::Registry;
use crate::value::Value;

/// The types of all kinds.
pub static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

/// The value that a JSON text is.
pub fn object(json: &str) -> Value {
    fn value(json: serde_json::Value) -> Value {
        match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(truth) => Value::Bool(truth),
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
pub fn said(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// A copy of `base` with one field changed, by its path; null takes the field out.
pub fn with(base: &Value, path: &str, json: &str) -> Value {
    let mut changed = base.clone();
    let mut place = &mut changed;
    let mut steps = path.split('.').peekable();
    while let Some(step) = steps.next() {
        place = match (step.parse::<usize>(), &mut *place) {
            (Ok(index), Value::Array(_)) => match place {
                Value::Array(items) => &mut items[index],
                _ => unreachable!(),
            },
            _ => place.entry(step),
        };
        if steps.peek().is_none() {
            *place = object(json);
        }
    }
    changed
}

/// Checks that `base` is accepted, and that each change of one field is refused with exactly one error that contains
/// the words.
pub fn each_refused(base: &Value, validate: fn(&Value, &mut ErrorList), table: &[(&str, &str, &str)]) {
    let mut errors = ErrorList::new();
    validate(base, &mut errors);
    assert_eq!(said(&errors), Vec::<String>::new(), "the base must be accepted");
    for (path, json, wanted) in table {
        let mut errors = ErrorList::new();
        validate(&with(base, path, json), &mut errors);
        let errors = said(&errors);
        assert!(errors.len() == 1 && errors[0].contains(wanted), "{path}={json}: {errors:#?}");
    }
}

/// The same for updates of `base`.
pub fn each_change_refused(
    base: &Value,
    validate: fn(&Value, &Value, &mut ErrorList),
    table: &[(&str, &str, &str)],
) {
    let mut errors = ErrorList::new();
    validate(base, base, &mut errors);
    assert_eq!(said(&errors), Vec::<String>::new(), "no change must be accepted");
    for (path, json, wanted) in table {
        let mut errors = ErrorList::new();
        validate(&with(base, path, json), base, &mut errors);
        let errors = said(&errors);
        assert!(errors.len() == 1 && errors[0].contains(wanted), "{path}={json}: {errors:#?}");
    }
}

/// Reads every source file of a folder and what is below it, files of tests apart.
pub fn each_source(folder: &Path, see: &mut impl FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            each_source(&path, see);
        } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
            see(&path, &std::fs::read_to_string(&path).unwrap());
        }
    }
}
