//! Uniqueness in lists: sets, and lists with keys.

use std::collections::BTreeMap;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::schema::ListFact;
use pilothouse_apimachinery::value::{Object, Value};

use super::schema::{AdditionalProperties, Schema};
use super::values::render;

/// Finds duplicate items.
pub fn check(schema: &Schema, value: &Value, errors: &mut ErrorList) {
    walk(schema, value, &FieldPath::root(), errors);
}

fn walk(schema: &Schema, value: &Value, path: &FieldPath, errors: &mut ErrorList) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (schema.properties.get(name), &schema.additional_properties) {
                    (Some(inner), _) => walk(inner, value, &path.child(name), errors),
                    (None, Some(AdditionalProperties::Schema(inner))) => {
                        walk(inner, value, &path.key(name), errors);
                    }
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            match &schema.list {
                ListFact::Set => {
                    report_duplicates(items.iter().map(item_identity), |index| {
                        let item = items.get(index).unwrap_or(&Value::Null);
                        errors.push(FieldError::duplicate(&path.index(index), &render(item)));
                    });
                }
                ListFact::Map(keys) => check_keyed(keys, items, path, errors),
                ListFact::Unspecified | ListFact::Atomic => {}
            }
            if let Some(inner) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    walk(inner, item, &path.index(index), errors);
                }
            }
        }
        _ => {}
    }
}

/// The identity of a set item: 1 is not 1.0.
fn item_identity(item: &Value) -> Vec<u8> {
    let mut text = json::to_json(item);
    if matches!(item, Value::Float(_)) {
        text.push(b'f');
    }
    text
}

fn check_keyed(keys: &[String], items: &[Value], path: &FieldPath, errors: &mut ErrorList) {
    let invalid_index = items.iter().position(|item| !matches!(item, Value::Null | Value::Object(_)));
    if let Some(index) = invalid_index {
        let item = items.get(index).unwrap_or(&Value::Null);
        let message = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(&path.index(index), &render(item), message));
        return;
    }
    let key_of = |item: &Value| {
        let fields = keys.iter().filter_map(|key| Some((key.clone(), item.fields()?.get(key)?.clone())));
        Value::Object(fields.collect::<Object>())
    };
    let item_keys: Vec<Value> = items.iter().map(key_of).collect();
    report_duplicates(item_keys.iter().map(json::to_json), |index| {
        let key = item_keys.get(index).unwrap_or(&Value::Null);
        errors.push(FieldError::duplicate(&path.index(index), &render(key)));
    });
}

/// Reports the second position of each duplicate.
fn report_duplicates(identities: impl Iterator<Item = Vec<u8>>, mut report: impl FnMut(usize)) {
    let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for (index, item) in identities.enumerate() {
        let times = seen.entry(item).or_default();
        *times += 1;
        if *times == 2 {
            report(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_distinguishes_integers_from_floats() {
        let schema =
            json::read(br#"{"type":"array","x-kubernetes-list-type":"set","items":{"type":"number"}}"#)
                .unwrap();
        let count_errors = |items: &[Value]| {
            let mut errors = ErrorList::new();
            check(&Schema::read(&schema), &Value::Array(items.to_vec().into()), &mut errors);
            errors.len()
        };
        assert_eq!(count_errors(&[Value::Int(1), Value::Float(1.0)]), 0);
        assert_eq!(count_errors(&[Value::Int(1), Value::Int(1), Value::Float(1.0), Value::Float(1.0)]), 2);
    }
}
