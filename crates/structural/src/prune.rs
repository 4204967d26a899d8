//! Prunes unknown fields, and sets defaults.

use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::limits::STRICT_FINDINGS;
use pilothouse_apimachinery::value::{Object, Value};

use super::schema::{AdditionalProperties, Schema};

/// The fields of every resource, whatever its schema.
const RESOURCE_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes unknown fields, and returns their sorted paths.
pub fn prune(schema: &Schema, object: &mut Value) -> Vec<String> {
    let mut pruner = Pruner { unknown: Vec::new() };
    if let Value::Object(fields) = object {
        let known = known_fields(schema, true);
        pruner.prune_fields(known, fields, &FieldPath::root());
    }
    pruner.unknown.sort();
    pruner.unknown
}

/// Prunes a default by its schema.
pub fn prune_default(schema: &Schema, value: &mut Value) {
    Pruner { unknown: Vec::new() }.prune_value(Some(schema), value, &FieldPath::root());
}

/// The known fields of an object.
#[derive(Clone, Copy)]
struct KnownFields<'s> {
    schema: Option<&'s Schema>,
    is_resource: bool,
}

fn known_fields(schema: &Schema, is_root: bool) -> KnownFields<'_> {
    KnownFields { schema: Some(schema), is_resource: is_root || schema.embedded }
}

struct Pruner {
    unknown: Vec<String>,
}

impl Pruner {
    fn prune_value(&mut self, schema: Option<&Schema>, value: &mut Value, path: &FieldPath) {
        match value {
            Value::Object(fields) => {
                let known = schema.map_or(KnownFields { schema: None, is_resource: false }, |schema| {
                    known_fields(schema, false)
                });
                self.prune_fields(known, fields, path);
            }
            Value::Array(items) => {
                let inner = schema.and_then(|schema| schema.items.as_deref());
                let preserves = schema.is_some_and(|schema| schema.preserves_unknown_fields);
                // `iter_mut` would copy a shared list.
                if (inner.is_none() && preserves) || !has_parts(items) {
                    return;
                }
                for (index, item) in items.iter_mut().enumerate() {
                    // Items of preserved lists are kept, and so are values without a schema.
                    match (inner, preserves) {
                        (None, true) => {}
                        (Some(inner), true) => self.prune_preserved(inner, item, &path.index(index)),
                        (inner, false) => self.prune_value(inner, item, &path.index(index)),
                    }
                }
            }
            _ => {}
        }
    }

    /// An item of a list that preserves unknown fields.
    fn prune_preserved(&mut self, schema: &Schema, value: &mut Value, path: &FieldPath) {
        match value {
            Value::Object(fields) => self.prune_known_fields(known_fields(schema, false), fields, path),
            Value::Array(items) if has_parts(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    if let Some(inner) = &schema.items {
                        self.prune_preserved(inner, item, &path.index(index));
                    }
                }
            }
            _ => {}
        }
    }

    fn prune_fields(&mut self, known: KnownFields<'_>, fields: &mut Object, path: &FieldPath) {
        let Some(schema) = known.schema else {
            fields.keys().for_each(|name| self.report_unknown(path, name));
            fields.clear();
            return;
        };
        if !schema.preserves_unknown_fields {
            fields.retain(|name, _| {
                let stays = (known.is_resource && RESOURCE_FIELDS.contains(&name.as_str()))
                    || schema.properties.contains_key(name)
                    || schema.additional_properties.is_some();
                if !stays {
                    self.report_unknown(path, name);
                }
                stays
            });
        }
        self.prune_known_fields(known, fields, path);
    }

    /// Descends into the fields that have a schema.
    fn prune_known_fields(&mut self, known: KnownFields<'_>, fields: &mut Object, path: &FieldPath) {
        let Some(schema) = known.schema else { return };
        for (name, value) in fields {
            if known.is_resource && RESOURCE_FIELDS.contains(&name.as_str()) {
                continue;
            }
            let inner = match (schema.properties.get(name), &schema.additional_properties) {
                (Some(inner), _) => Some(inner),
                (None, Some(AdditionalProperties::Schema(inner))) => Some(&**inner),
                (None, Some(AdditionalProperties::Any)) => None,
                (None, None) => continue,
            };
            self.prune_value(inner, value, &path.child(name));
        }
    }

    fn report_unknown(&mut self, path: &FieldPath, name: &str) {
        if self.unknown.len() < STRICT_FINDINGS {
            self.unknown.push(path.child(name).to_string());
        }
    }
}

/// Whether a list has items that have fields or items of their own.
fn has_parts(items: &[Value]) -> bool {
    items.iter().any(|item| matches!(item, Value::Object(_) | Value::Array(_)))
}

/// Removes nulls that are not allowed and have no default.
pub fn drop_nulls(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                !schema.field(name).is_some_and(|inner| inner.forbids_null(value) && inner.default.is_none())
            });
            for (name, value) in fields {
                if let Some(inner) = schema.field(name) {
                    drop_nulls(inner, value);
                }
            }
        }
        Value::Array(items) if has_parts(items) => {
            if let Some(inner) = &schema.items {
                items.iter_mut().for_each(|item| drop_nulls(inner, item));
            }
        }
        _ => {}
    }
}

/// Sets the defaults of a schema at every level. Returns false if they exceed the budget in bytes.
pub fn apply_defaults(schema: &Schema, value: &mut Value, budget: &mut usize) -> bool {
    if !schema.has_defaults {
        return true;
    }
    match value {
        Value::Object(fields) => {
            let defaulted =
                schema.defaulted_fields.iter().filter_map(|name| schema.properties.get_key_value(name));
            for (name, inner) in defaulted {
                if fields.get(name).is_none_or(|value| inner.forbids_null(value)) {
                    let Some(default) = take_default(inner, budget) else { return false };
                    fields.insert(name.clone(), default);
                }
            }
            fields.iter_mut().all(|(name, value)| {
                match (schema.properties.get(name), &schema.additional_properties) {
                    (Some(inner), _) => apply_defaults(inner, value, budget),
                    (None, Some(AdditionalProperties::Schema(inner))) => default_null(inner, value, budget),
                    _ => true,
                }
            })
        }
        Value::Array(items) => match &schema.items {
            Some(inner) => items.iter_mut().all(|item| default_null(inner, item, budget)),
            None => true,
        },
        _ => true,
    }
}

/// Sets the default of a present value, if it is a forbidden null.
fn default_null(schema: &Schema, value: &mut Value, budget: &mut usize) -> bool {
    if schema.forbids_null(value) && schema.default.is_some() {
        let Some(default) = take_default(schema, budget) else { return false };
        *value = default;
    }
    apply_defaults(schema, value, budget)
}

fn take_default(schema: &Schema, budget: &mut usize) -> Option<Value> {
    *budget = budget.checked_sub(schema.default_bytes)?;
    schema.default.clone()
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    fn value(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn prune_removes_and_reports_unknown_fields() {
        let schema = Schema::read(&value(
            r#"{"type":"object","properties":{"spec":{"type":"object","properties":{
                "a":{"type":"string"},
                "free":{"x-kubernetes-preserve-unknown-fields":true,"properties":{"n":{"type":"object"}}},
                "map":{"additionalProperties":{"type":"object","properties":{"x":{"type":"string"}}}},
                "any":{"type":"object","additionalProperties":true},
                "list":{"type":"array","items":{"type":"object","properties":{"k":{"type":"string"}}}}}}}}"#,
        ));
        let mut object = value(
            r#"{"kind":"W","metadata":{"whatever":1},"other":1,"spec":{"a":"b","z":1,
                "free":{"q":{"w":[{"e":1}]},"n":{"gone":1}},"map":{"one":{"x":"1","y":2}},
                "any":{"a":{"b":1},"c":2},"list":[{"k":"1","l":2}]}}"#,
        );
        let unknown = prune(&schema, &mut object);
        assert_eq!(
            unknown,
            ["other", "spec.any.a.b", "spec.free.n.gone", "spec.list[0].l", "spec.map.one.y", "spec.z"]
        );
        let expected = value(
            r#"{"kind":"W","metadata":{"whatever":1},"spec":{"a":"b","free":{"q":{"w":[{"e":1}]},"n":{}},
                "map":{"one":{"x":"1"}},"any":{"a":{},"c":2},"list":[{"k":"1"}]}}"#,
        );
        assert_eq!(object, expected);
    }

    #[test]
    fn nulls_are_dropped_or_defaulted() {
        let schema = Schema::read(&value(
            r#"{"type":"object","properties":{"spec":{"type":"object","properties":{
                "a":{"type":"string"},"b":{"type":"string","default":"x"},"c":{"type":"string","nullable":true,"default":"y"},
                "n":{"type":"object","default":{},"properties":{"d":{"type":"boolean","default":true}}},
                "l":{"type":"array","items":{"type":"object","properties":{"k":{"type":"integer","default":0}}}}}}}}"#,
        ));
        let mut object = value(r#"{"spec":{"a":null,"b":null,"c":null,"l":[{},{"k":7}]}}"#);
        drop_nulls(&schema, &mut object);
        assert!(apply_defaults(&schema, &mut object, &mut 1_000));
        let expected = value(r#"{"spec":{"b":"x","c":null,"n":{"d":true},"l":[{"k":0},{"k":7}]}}"#);
        assert_eq!(object, expected);
        let mut none = value("{}");
        assert!(apply_defaults(&schema, &mut none, &mut 1_000));
        assert_eq!(none, value("{}"), "an absent object without a default stays absent");
        let mut many = value(r#"{"spec":{"l":[{},{},{},{}]}}"#);
        assert!(!apply_defaults(&schema, &mut many, &mut 10), "defaults are limited in size");
    }
}
