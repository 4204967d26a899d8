//! Type-checks an applied configuration: it is not read by the decoder, which would set defaults and drop fields.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::field_set::{PathElement, shown};
use super::shape;
use crate::limits::{FIELD_ERRORS, OWNED_DEPTH};
use crate::schema::{ListFact, Registry, Scalar, Type, TypeId};
use crate::value::Value;

/// Checks a configuration. The error contains all problems in one text.
pub fn check(registry: &Registry, ty: TypeId, value: &Value) -> Result<(), String> {
    checked(Walk { registry, repeats: false, wrong: Vec::new() }, ty, value)
}

/// Checks a state of an object, in which list keys may repeat.
pub fn check_state(registry: &Registry, ty: TypeId, value: &Value) -> Result<(), String> {
    checked(Walk { registry, repeats: true, wrong: Vec::new() }, ty, value)
}

fn checked(mut walk: Walk<'_>, ty: TypeId, value: &Value) -> Result<(), String> {
    walk.value(ty, value, "", OWNED_DEPTH);
    match walk.wrong.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("errors:\n  {}", many.join("\n  "))),
    }
}

struct Walk<'r> {
    registry: &'r Registry,
    /// Whether list keys may repeat.
    repeats: bool,
    wrong: Vec<String>,
}

impl Walk<'_> {
    fn report(&mut self, path: &str, what: &str) {
        if self.wrong.len() < FIELD_ERRORS {
            self.wrong.push(if path.is_empty() { what.to_owned() } else { format!("{path}: {what}") });
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
            (Type::List(list), Value::Array(items)) => {
                self.items(
                    ty,
                    list.item,
                    list.merge != ListFact::Unsaid && list.merge != ListFact::Atomic,
                    items,
                    path,
                    depth,
                );
            }
            (Type::Struct(_) | Type::Map(_), _) => {
                self.report(path, &format!("expected map, got &{{{}}}", plain(value)));
            }
            (Type::List(_), _) => self.report(path, &format!("expected list, got &{{{}}}", plain(value))),
            (Type::Either(_), _) => {}
            (Type::Scalar(scalar), _) => {
                if let Err(what) = check_scalar(*scalar, value) {
                    self.report(path, &what);
                }
            }
        }
    }

    fn items(&mut self, ty: TypeId, item: TypeId, owned: bool, items: &[Value], path: &str, depth: usize) {
        let shape = shape::of_type(self.registry, ty, None);
        let mut seen = BTreeSet::new();
        for (index, value) in items.iter().enumerate() {
            let element = if owned {
                match shape::element(self.registry, shape, value) {
                    Ok(element) => element,
                    Err(error) => return self.report(path, &format!("element {index}: {error}")),
                }
            } else {
                PathElement::Index(i64::try_from(index).unwrap_or(i64::MAX))
            };
            let inner = format!("{path}{element}");
            if owned && !self.repeats && seen.contains(&element) {
                self.report(path, &format!("duplicate entries for key {element}"));
            }
            seen.insert(element);
            self.value(item, value, &inner, depth);
        }
    }
}

fn check_scalar(scalar: Scalar, value: &Value) -> Result<(), String> {
    let is_scalar = !matches!(value, Value::Array(_) | Value::Object(_));
    match scalar {
        Scalar::String | Scalar::Bytes => match value {
            Value::String(_) => Ok(()),
            _ => Err(format!("expected string, got &value.valueUnstructured{{Value:{}}}", typed(value))),
        },
        Scalar::Int32 | Scalar::Int64 | Scalar::Double => match value {
            Value::Int(_) | Value::Float(_) => Ok(()),
            _ => Err(format!("expected numeric (int or float), got {}", value.go_type())),
        },
        Scalar::Bool => match value {
            Value::Bool(_) => Ok(()),
            _ => Err(format!("expected boolean, got &{{{}}}", plain(value))),
        },
        Scalar::Time | Scalar::MicroTime | Scalar::Quantity | Scalar::IntOrString if !is_scalar => {
            Err(format!("expected any scalar, got &{{{}}}", plain(value)))
        }
        Scalar::Raw if !matches!(value, Value::Object(_)) => {
            Err(format!("expected map, got &{{{}}}", plain(value)))
        }
        _ => Ok(()),
    }
}

/// A value like Go's `%v`: `map[a:1]`, `[1 2]`, text without quotes.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(" ")),
        Value::Object(fields) => {
            let pairs: Vec<String> =
                fields.iter().map(|(key, value)| format!("{key}:{}", plain(value))).collect();
            format!("map[{}]", pairs.join(" "))
        }
        other => shown(other),
    }
}

/// A value like Go's `%#v`: `map[string]interface {}{"a":1}`.
fn typed(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(typed).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let mut text = "map[string]interface {}{".to_owned();
            for (at, (key, value)) in fields.iter().enumerate() {
                let comma = if at > 0 { ", " } else { "" };
                let _ = write!(text, "{comma}{}:{}", shown(&key.as_str().into()), typed(value));
            }
            text.push('}');
            text
        }
        other => shown(other),
    }
}
