//! Sets the defaults of the schema table. Defaults that depend on other values are functions of the kinds, which run before.

use super::{Registry, Scalar, Struct, Type, TypeId};
use crate::quantity::Quantity;
use crate::value::{Fields, Value};

/// Sets the defaults of the type, at every level.
pub fn apply(registry: &Registry, ty: TypeId, value: &mut Value) {
    match (registry.get(ty), value) {
        (Type::Struct(structure), Value::Object(fields)) if !structure.defaulted.is_empty() => {
            fill(registry, structure, fields);
        }
        (Type::List(list), Value::Array(items)) if may_have_defaults(registry, list.item) => {
            for item in items {
                apply(registry, list.item, item);
            }
        }
        (Type::Map(map), Value::Object(entries)) if may_have_defaults(registry, map.value) => {
            for value in entries.values_mut() {
                apply(registry, map.value, value);
            }
        }
        // Resource quantities are rounded to thousandths.
        (Type::Scalar(Scalar::Quantity), Value::String(text)) => {
            // Only these can be smaller than a thousandth.
            let may_be_small = text.bytes().any(|byte| matches!(byte, b'.' | b'n' | b'u' | b'e' | b'E'));
            if may_be_small && let Ok(quantity) = Quantity::parse(text) {
                *text = quantity.in_thousandths().to_string();
            }
        }
        _ => {}
    }
}

fn fill(registry: &Registry, structure: &Struct, fields: &mut Fields) {
    for field in structure.defaulted.iter().filter_map(|index| structure.fields.get(usize::from(*index))) {
        let is_set = fields.get(&field.name).is_some_and(|value| !is_unset(value, field.pointer));
        let default = field.default.as_ref().or(field.fill.as_ref());
        // A zero that is no pointer equals absence, and values are canonical: otherwise a defaulted object would differ from
        // itself after it was stored.
        if !is_set && let Some(default) = default.filter(|default| !is_unset(default, field.pointer)) {
            fields.insert((*field.name).to_owned(), (**default).clone());
        }
        if matches!(registry.get(field.ty), Type::Scalar(_)) {
            continue;
        }
        if let Some(value) = fields.get_mut(&field.name).filter(|value| !value.is_null()) {
            apply(registry, field.ty, value);
        } else if !field.pointer
            && registry.structure(field.ty).is_some_and(|inner| !inner.defaulted.is_empty())
        {
            // A struct that is no pointer is always present: its defaults apply even if the body omits it.
            let mut inner = Value::object();
            apply(registry, field.ty, &mut inner);
            if inner.fields().is_some_and(|fields| !fields.is_empty()) {
                fields.insert((*field.name).to_owned(), inner);
            }
        }
    }
}

/// Whether a value counts as absent. A pointer that is set counts, even to zero.
fn is_unset(value: &Value, pointer: bool) -> bool {
    match value {
        Value::Null => true,
        _ if pointer => false,
        Value::String(text) => text.is_empty(),
        Value::Int(number) => *number == 0,
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Float(_) | Value::Object(_) => false,
    }
}

fn may_have_defaults(registry: &Registry, ty: TypeId) -> bool {
    match registry.get(ty) {
        Type::Struct(structure) => !structure.defaulted.is_empty(),
        Type::List(_) | Type::Map(_) => true,
        // Quantities in a map are resource quantities; a single quantity may be anything.
        Type::Scalar(scalar) => *scalar == Scalar::Quantity,
        Type::Either(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn defaulted(group: &str, kind: &str, body: &str) -> Value {
        let registry = Registry::builtin().unwrap();
        let mut value = json::read(body.as_bytes()).unwrap();
        apply(&registry, registry.kind(group, "v1", kind).unwrap(), &mut value);
        value
    }

    #[test]
    fn absent_fields_are_defaulted_at_all_levels() {
        let value = defaulted("apps", "Deployment", r#"{"spec":{"replicas":0}}"#);
        assert_eq!(value.get_path(&["spec", "replicas"]), Some(&Value::Int(0)));
        assert_eq!(value.get_path(&["spec", "revisionHistoryLimit"]), Some(&Value::Int(10)));
        assert_eq!(value.get_path(&["spec", "strategy", "type"]), Some(&Value::from("RollingUpdate")));
        assert_eq!(
            value.get_path(&["spec", "template", "spec", "dnsPolicy"]),
            Some(&Value::from("ClusterFirst"))
        );
    }

    #[test]
    fn set_fields_are_not_defaulted() {
        let value = defaulted("", "Pod", r#"{"spec":{"dnsPolicy":"None","containers":[{"ports":[{}]}]}}"#);
        assert_eq!(value.get_path(&["spec", "dnsPolicy"]), Some(&Value::from("None")));
        let container = &value.get_path(&["spec", "containers"]).unwrap().items()[0];
        assert_eq!(container.get("ports").unwrap().items()[0].str("protocol"), "TCP");
        assert_eq!(container.str("terminationMessagePolicy"), "File");
    }

    #[test]
    fn absent_pointer_stays_absent() {
        let value = defaulted("", "Pod", r#"{"spec":{"containers":[{"livenessProbe":{}},{}]}}"#);
        let containers = value.get_path(&["spec", "containers"]).unwrap().items();
        assert_eq!(containers[0].get_path(&["livenessProbe", "periodSeconds"]), Some(&Value::Int(10)));
        assert_eq!(containers[1].get("livenessProbe"), None);
    }
}
