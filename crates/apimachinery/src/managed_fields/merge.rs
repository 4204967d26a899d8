//! Merges an applied configuration into an object, and removes fields.

use std::collections::{BTreeMap, BTreeSet};

use super::field_set::{FieldSet, PathElement};
use super::shape::{self, Shape};
use crate::schema::{Registry, TypeId};
use crate::value::{Object, Value};

/// The object with the values of `partial`. Atomic values are replaced; items of associative lists are merged, in the order of
/// `partial` as far as it has one.
pub fn merge(registry: &Registry, ty: TypeId, whole: &Value, partial: &Value) -> Result<Value, String> {
    let merged = merge_values(registry, shape::for_type(registry, ty, None), Some(whole), Some(partial))?;
    Ok(merged.unwrap_or_else(Value::object))
}

fn merge_values(
    registry: &Registry,
    shape: Shape<'_>,
    whole: Option<&Value>,
    partial: Option<&Value>,
) -> Result<Option<Value>, String> {
    let Some(partial) = partial else { return Ok(whole.cloned()) };
    let shape = shape.resolve([whole, Some(partial)]);
    let is_absent = |value: Option<&Value>| value.is_none_or(is_empty);
    if matches!(shape, Shape::Atomic(_)) || (is_absent(whole) && is_empty(partial)) {
        return Ok(Some(partial.clone()));
    }
    let none = Object::new();
    let fields = |value: Option<&Value>| value.and_then(Value::fields).cloned();
    match shape {
        Shape::Struct(_) | Shape::Map(_) => {
            let mut merged = fields(whole).unwrap_or_default();
            for (name, value) in partial.fields().unwrap_or(&none) {
                let inner = match shape {
                    Shape::Struct(structure) => match shape::for_name(registry, structure, name) {
                        Some(shape) => shape,
                        None => continue,
                    },
                    Shape::Map(ty) => shape::for_type(registry, ty, None),
                    _ => continue,
                };
                if let Some(value) = merge_values(registry, inner, merged.get(name), Some(value))
                    .map_err(|error| format!(".{name}{error}"))?
                {
                    merged.insert(name.clone(), value);
                }
            }
            Ok(Some(Value::Object(merged)))
        }
        Shape::Set(item) | Shape::Keyed(item, _) => {
            let whole = whole.map(Value::items).unwrap_or_default();
            merge_items(registry, shape, item, whole, partial.items())
                .map(|items| Some(Value::Array(items.into())))
        }
        Shape::Atomic(_) | Shape::Untyped(_) => Ok(Some(partial.clone())),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Merges two lists. Items that only the whole list has stay in place; shared ones come in the order of the partial list; new
/// ones come right before the shared item that follows them, or at the end.
fn merge_items(
    registry: &Registry,
    shape: Shape<'_>,
    item: TypeId,
    whole: &[Value],
    partial: &[Value],
) -> Result<Vec<Value>, String> {
    let current = elements(registry, shape, whole)?;
    let stated = elements(registry, shape, partial)?;
    let inner = shape::for_item(registry, shape, item);
    // A duplicate item has no single state to merge with.
    let mut current_values: BTreeMap<&PathElement, Option<&Value>> = BTreeMap::new();
    for (element, value) in &current {
        current_values.entry(element).and_modify(|state| *state = None).or_insert(Some(value));
    }
    let in_partial: BTreeSet<&PathElement> = stated.iter().map(|(element, _)| element).collect();
    let mut shared =
        stated.iter().map(|(element, _)| element).filter(|element| current_values.contains_key(element));
    let mut next_shared = shared.next();
    let mut rest = stated.iter();
    let mut merged = Vec::with_capacity(whole.len().max(partial.len()));
    let merge_item = |element: &PathElement, value: &Value, merged: &mut Vec<Value>| -> Result<(), String> {
        let current = current_values.get(element).copied().flatten();
        let value = merge_values(registry, inner, current, Some(value))
            .map_err(|error| format!("{element}{error}"))?;
        merged.extend(value);
        Ok(())
    };
    for (element, value) in &current {
        if !in_partial.contains(element) {
            merged.push((*value).clone());
        } else if next_shared == Some(element) {
            for (next, value) in rest.by_ref() {
                merge_item(next, value, &mut merged)?;
                if next == element {
                    break;
                }
            }
            next_shared = shared.next();
        }
    }
    for (element, value) in rest {
        merge_item(element, value, &mut merged)?;
    }
    Ok(merged)
}

fn elements<'v>(
    registry: &Registry,
    shape: Shape<'_>,
    items: &'v [Value],
) -> Result<Vec<(PathElement, &'v Value)>, String> {
    let elements = items.iter().enumerate().map(|(index, item)| {
        let element = shape::element(registry, shape, item);
        element.map(|element| (element, item)).map_err(|error| format!(": element {index}: {error}"))
    });
    elements.collect()
}

/// The object without these fields.
pub fn remove(registry: &Registry, ty: TypeId, value: &Value, fields: &FieldSet) -> Value {
    remove_fields(registry, shape::for_type(registry, ty, None), value, fields)
}

fn remove_fields(registry: &Registry, shape: Shape<'_>, value: &Value, fields: &FieldSet) -> Value {
    match (shape.resolve([Some(value)]), value) {
        (Shape::Struct(_) | Shape::Map(_), Value::Object(entries)) => {
            let mut remaining = Object::new();
            for (name, value) in entries {
                let inner = match shape {
                    Shape::Struct(structure) => shape::for_name(registry, structure, name),
                    Shape::Map(ty) | Shape::Untyped(ty) => Some(shape::for_type(registry, ty, None)),
                    _ => None,
                };
                match (fields.get_field(name), inner) {
                    (Some(below), _) if below.member => {}
                    (Some(below), Some(inner)) => {
                        remaining.insert(name.clone(), remove_fields(registry, inner, value, below));
                    }
                    _ => {
                        remaining.insert(name.clone(), value.clone());
                    }
                }
            }
            if remaining.is_empty() { Value::Null } else { Value::Object(remaining) }
        }
        (Shape::Set(item) | Shape::Keyed(item, _), Value::Array(items)) => {
            let inner = shape::for_item(registry, shape, item);
            let remaining = items.iter().filter_map(|item| {
                let below = shape::element(registry, shape, item).ok();
                match below.and_then(|element| fields.get(&element)) {
                    Some(below) if below.member => None,
                    Some(below) => Some(remove_fields(registry, inner, item, below)),
                    None => Some(item.clone()),
                }
            });
            let remaining: Vec<Value> = remaining.collect();
            if remaining.is_empty() { Value::Null } else { Value::Array(remaining.into()) }
        }
        _ => value.clone(),
    }
}
