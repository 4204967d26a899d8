//! Uniqueness in lists: sets, and lists with keys.

use std::collections::BTreeMap;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::schema::ListFact;
use pilothouse_apimachinery::value::{Object, Value};

use super::schema::{AdditionalProperties, Schema};
use super::values::shown;

/// Finds duplicate items.
pub fn check(schema: &Schema, value: &Value, errors: &mut ErrorList) {
    walk(schema, value, &FieldPath::root(), errors);
}

fn walk(schema: &Schema, value: &Value, path: &FieldPath, errors: &mut ErrorList) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (schema.properties.get(name), &schema.others) {
                    (Some(inner), _) => walk(inner, value, &path.child(name), errors),
                    (None, Some(AdditionalProperties::Of(inner))) => {
                        walk(inner, value, &path.key(name), errors);
                    }
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            match &schema.list {
                ListFact::Set => {
                    twice(items.iter().map(told_apart), |index| {
                        let item = items.get(index).unwrap_or(&Value::Null);
                        errors.push(FieldError::duplicate(&path.index(index), &shown(item)));
                    });
                }
                ListFact::Map(keys) => keyed(keys, items, path, errors),
                ListFact::Unsaid | ListFact::Atomic => {}
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
fn told_apart(item: &Value) -> Vec<u8> {
    let mut text = json::to_json(item);
    if matches!(item, Value::Float(_)) {
        text.push(b'f');
    }
    text
}

fn keyed(keys: &[String], items: &[Value], path: &FieldPath, errors: &mut ErrorList) {
    let odd = items.iter().position(|item| !matches!(item, Value::Null | Value::Object(_)));
    if let Some(index) = odd {
        let item = items.get(index).unwrap_or(&Value::Null);
        let why = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(&path.index(index), &shown(item), why));
        return;
    }
    let key_of = |item: &Value| {
        let fields = keys.iter().filter_map(|key| Some((key.clone(), item.fields()?.get(key)?.clone())));
        Value::Object(fields.collect::<Object>())
    };
    let all: Vec<Value> = items.iter().map(key_of).collect();
    twice(all.iter().map(json::to_json), |index| {
        let key = all.get(index).unwrap_or(&Value::Null);
        errors.push(FieldError::duplicate(&path.index(index), &shown(key)));
    });
}

/// Reports the second position of each duplicate.
fn twice(all: impl Iterator<Item = Vec<u8>>, mut tell: impl FnMut(usize)) {
    let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for (index, item) in all.enumerate() {
        let times = seen.entry(item).or_default();
        *times += 1;
        if *times == 2 {
            tell(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_is_not_a_fraction() {
        let said =
            json::read(br#"{"type":"array","x-kubernetes-list-type":"set","items":{"type":"number"}}"#)
                .unwrap();
        let found = |items: &[Value]| {
            let mut errors = ErrorList::new();
            check(&Schema::read(&said), &Value::Array(items.to_vec().into()), &mut errors);
            errors.len()
        };
        assert_eq!(found(&[Value::Int(1), Value::Float(1.0)]), 0);
        assert_eq!(found(&[Value::Int(1), Value::Int(1), Value::Float(1.0), Value::Float(1.0)]), 2);
    }
}
