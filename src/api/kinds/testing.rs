//! Helpers of the rules' tests.

use std::sync::LazyLock;

use super::{EnabledFeatures, ErrorList, UserInfo, WriteContext, rules};
use crate::api::field::FieldError;
use crate::api::schema::{Registry, default};
use crate::api::value::Value;

/// A user without a name.
pub static NOBODY: UserInfo =
    UserInfo { name: String::new(), uid: String::new(), groups: Vec::new(), extra: Vec::new() };

/// Such a user writes at this time, to a server of which nothing was said.
pub const fn context(now: &str) -> WriteContext<'_> {
    WriteContext { now, user: &NOBODY, features: EnabledFeatures::RELEASE }
}

/// The types of all kinds.
pub static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

/// What a client wrote of a kind, by its group and version, filled in as it is before it is checked.
pub fn filled(gv: (&str, &str), kind: &str, json: &str) -> Value {
    let mut value = object(json);
    (rules(gv.0, kind).default)(&mut value);
    default::apply(&REGISTRY, REGISTRY.kind(gv.0, gv.1, kind).unwrap(), &mut value);
    value
}

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
