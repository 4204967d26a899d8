//! Type-checks an applied configuration: it does not pass through the decoder, which would set defaults and drop fields.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::field_set::{PathElement, render};
use super::shape;
use crate::limits::{FIELD_ERRORS, OWNED_DEPTH};
use crate::schema::{List, Registry, Scalar, Type, TypeId};
use crate::value::Value;

/// Checks a configuration. The error contains all problems in one text.
pub fn check(registry: &Registry, ty: TypeId, value: &Value) -> Result<(), String> {
    run(Checker { registry, allows_duplicates: false, errors: Vec::new() }, ty, value)
}

/// Checks a state of an object, in which list keys may repeat.
pub fn check_state(registry: &Registry, ty: TypeId, value: &Value) -> Result<(), String> {
    run(Checker { registry, allows_duplicates: true, errors: Vec::new() }, ty, value)
}

fn run(mut checker: Checker<'_>, ty: TypeId, value: &Value) -> Result<(), String> {
    checker.value(ty, value, "", OWNED_DEPTH);
    match checker.errors.as_slice() {
        [] => Ok(()),
        [error] => Err(error.clone()),
        errors => Err(format!("errors:\n  {}", errors.join("\n  "))),
    }
}

struct Checker<'r> {
    registry: &'r Registry,
    /// Whether list keys may repeat.
    allows_duplicates: bool,
    errors: Vec<String>,
}

impl Checker<'_> {
    fn report(&mut self, path: &str, message: &str) {
        if self.errors.len() < FIELD_ERRORS {
            self.errors.push(if path.is_empty() { message.to_owned() } else { format!("{path}: {message}") });
        }
    }

    fn value(&mut self, ty: TypeId, value: &Value, path: &str, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else {
            return self.report(path, "the object has too many levels");
        };
        let registry = self.registry;
        match (registry.get(ty), value) {
            (_, Value::Null) => {}
            (Type::Struct(structure), Value::Object(fields)) => {
                for (name, value) in fields {
                    let path = format!("{path}.{name}");
                    let Some(field) = structure.field(name) else {
                        if structure.open.is_some() {
                            continue;
                        }
                        // The reference stops here in this object.
                        return self.report(&path, "field not declared in schema");
                    };
                    self.value(field.ty, value, &path, depth);
                }
            }
            (Type::Map(map), Value::Object(entries)) => {
                for (key, value) in entries {
                    self.value(map.value, value, &format!("{path}.{key}"), depth);
                }
            }
            (Type::List(list), Value::Array(items)) => self.items(list, items, path, depth),
            (Type::Struct(_) | Type::Map(_), _) => {
                self.report(path, &format!("expected map, got &{{{}}}", render_plain(value)));
            }
            (Type::List(_), _) => {
                self.report(path, &format!("expected list, got &{{{}}}", render_plain(value)));
            }
            (Type::Either(_), _) => {}
            (Type::Scalar(scalar), _) => {
                if let Err(message) = check_scalar(*scalar, value) {
                    self.report(path, &message);
                }
            }
        }
    }

    fn items(&mut self, list: &List, items: &[Value], path: &str, depth: usize) {
        let shape = shape::for_list(list);
        let mut seen = BTreeSet::new();
        for (index, value) in items.iter().enumerate() {
            let element = match shape {
                Some(shape) => match shape::element(self.registry, shape, value) {
                    Ok(element) => element,
                    Err(error) => return self.report(path, &format!("element {index}: {error}")),
                },
                None => PathElement::Index(i64::try_from(index).unwrap_or(i64::MAX)),
            };
            let inner = format!("{path}{element}");
            if shape.is_some() && !self.allows_duplicates && seen.contains(&element) {
                self.report(path, &format!("duplicate entries for key {element}"));
            }
            seen.insert(element);
            self.value(list.item, value, &inner, depth);
        }
    }
}

fn check_scalar(scalar: Scalar, value: &Value) -> Result<(), String> {
    let is_scalar = !matches!(value, Value::Array(_) | Value::Object(_));
    match scalar {
        Scalar::String | Scalar::Bytes => match value {
            Value::String(_) => Ok(()),
            _ => Err(format!("expected string, got &value.valueUnstructured{{Value:{}}}", render_go(value))),
        },
        Scalar::Int32 | Scalar::Int64 | Scalar::Double => match value {
            Value::Int(_) | Value::Float(_) => Ok(()),
            _ => Err(format!("expected numeric (int or float), got {}", value.go_type())),
        },
        Scalar::Bool => match value {
            Value::Bool(_) => Ok(()),
            _ => Err(format!("expected boolean, got &{{{}}}", render_plain(value))),
        },
        Scalar::Time | Scalar::MicroTime | Scalar::Quantity | Scalar::IntOrString if !is_scalar => {
            Err(format!("expected any scalar, got &{{{}}}", render_plain(value)))
        }
        Scalar::Raw if !matches!(value, Value::Object(_)) => {
            Err(format!("expected map, got &{{{}}}", render_plain(value)))
        }
        _ => Ok(()),
    }
}

/// A value like Go's `%v`: `map[a:1]`, `[1 2]`, text without quotes.
fn render_plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(render_plain).collect::<Vec<_>>().join(" ")),
        Value::Object(fields) => {
            let pairs: Vec<String> =
                fields.iter().map(|(key, value)| format!("{key}:{}", render_plain(value))).collect();
            format!("map[{}]", pairs.join(" "))
        }
        other => render(other),
    }
}

/// A value like Go's `%#v`: `map[string]interface {}{"a":1}`.
fn render_go(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(render_go).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let mut text = "map[string]interface {}{".to_owned();
            for (index, (key, value)) in fields.iter().enumerate() {
                let comma = if index > 0 { ", " } else { "" };
                let _ = write!(text, "{comma}{}:{}", render(&key.as_str().into()), render_go(value));
            }
            text.push('}');
            text
        }
        other => render(other),
    }
}
