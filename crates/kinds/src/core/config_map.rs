//! ConfigMaps.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use crate::{KindRules, ValidationRules};

/// The rules of a ConfigMap.
pub const RULES: KindRules = KindRules {
    validation: ValidationRules {
        validate: validate_config_map,
        validate_update: validate_config_map_update,
        ..ValidationRules::DEFAULT
    },
    ..KindRules::DEFAULT
};

/// The maximum total size of the values of a ConfigMap or Secret.
pub(super) const MAX_BYTES: usize = 1 << 20;
const IMMUTABLE_SET: &str = "field is immutable when `immutable` is set";

/// The decoded length of base64.
pub(super) fn decoded_length(text: &str) -> usize {
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

/// Checks a ConfigMap.
fn validate_config_map(object: &Value, errors: &mut ErrorList) {
    let (data, binary) = (FieldValue::top_level(object, "data"), FieldValue::top_level(object, "binaryData"));
    let mut bytes = 0;
    for (key, entry) in data.entries() {
        meta::add_invalid(errors, &entry.path, key, names::config_key(key));
        if binary.value.get(key).is_some() {
            meta::add_invalid(
                errors,
                &entry.path,
                key,
                vec!["duplicate of key present in binaryData".to_owned()],
            );
        }
        bytes += entry.text().len();
    }
    for (key, entry) in binary.entries() {
        meta::add_invalid(errors, &entry.path, key, names::config_key(key));
        bytes += decoded_length(entry.text());
    }
    if bytes > MAX_BYTES {
        errors.push(FieldError::too_long(&FieldPath::nameless(), MAX_BYTES));
    }
}

/// Validates an updated ConfigMap.
fn validate_config_map_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_immutable(new, old, &["data", "binaryData"], errors);
    validate_config_map(new, errors);
}

/// Checks that an object with `immutable: true` does not change.
pub(super) fn validate_immutable(new: &Value, old: &Value, fields: &[&str], errors: &mut ErrorList) {
    let is_immutable = |object| FieldValue::top_level(object, "immutable").is_true();
    if !is_immutable(old) {
        return;
    }
    if !is_immutable(new) {
        errors.push(FieldError::forbidden(&FieldPath::new("immutable"), IMMUTABLE_SET));
    }
    for field in fields {
        if !same(new.get(field), old.get(field)) {
            errors.push(FieldError::forbidden(&FieldPath::new(field), IMMUTABLE_SET));
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, error_messages, object};

    use super::*;

    #[test]
    fn config_map_validation_refuses_each_violation() {
        let base = object(r#"{"data":{"a":"1"},"binaryData":{"b":"AA=="},"immutable":true}"#);
        each_refused(
            &base,
            validate_config_map,
            &[
                ("data.b", r#""x""#, "data[b]: Invalid value: \"b\": duplicate of key present in binaryData"),
                (
                    "data",
                    r#"{"bad key":"1"}"#,
                    "data[bad key]: Invalid value: \"bad key\": a valid config key",
                ),
                ("binaryData", r#"{"..":"AA=="}"#, "binaryData[..]: Invalid value: \"..\": must not be '..'"),
            ],
        );
        each_change_refused(
            &base,
            validate_config_map_update,
            &[
                ("data.a", r#""2""#, "data: Forbidden: field is immutable when `immutable` is set"),
                ("binaryData", "null", "binaryData: Forbidden"),
                ("immutable", "false", "immutable: Forbidden"),
            ],
        );
        let mut large = Value::object();
        large.entry("data").set("a", "x".repeat(MAX_BYTES + 1));
        let mut errors = ErrorList::new();
        validate_config_map(&large, &mut errors);
        assert_eq!(error_messages(&errors), ["[]: Too long: may not be more than 1048576 bytes"]);
    }
}
