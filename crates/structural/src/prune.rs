//! Prunes unknown fields, and sets defaults.

use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::limits::STRICT_FINDINGS;
use pilothouse_apimachinery::value::{Object, Value};

use super::schema::{AdditionalProperties, Schema};

/// The fields of every object, whatever its schema.
const OWN: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes unknown fields, and answers their sorted paths.
pub fn prune(schema: &Schema, object: &mut Value) -> Vec<String> {
    let mut walk = Walk { unknown: Vec::new() };
    if let Value::Object(fields) = object {
        let known = fields_of(schema, true);
        walk.fields(known, fields, &FieldPath::root());
    }
    walk.unknown.sort();
    walk.unknown
}

/// Prunes a default by the schema of its place.
pub fn prune_default(schema: &Schema, value: &mut Value) {
    Walk { unknown: Vec::new() }.value(Some(schema), value, &FieldPath::root());
}

/// The known fields of an object.
#[derive(Clone, Copy)]
struct Known<'s> {
    schema: Option<&'s Schema>,
    has_own: bool,
}

fn fields_of(schema: &Schema, is_root: bool) -> Known<'_> {
    Known { schema: Some(schema), has_own: is_root || schema.embedded }
}

struct Walk {
    unknown: Vec<String>,
}

impl Walk {
    fn value(&mut self, schema: Option<&Schema>, value: &mut Value, path: &FieldPath) {
        match value {
            Value::Object(fields) => {
                let known =
                    schema.map_or(Known { schema: None, has_own: false }, |schema| fields_of(schema, false));
                self.fields(known, fields, path);
            }
            Value::Array(items) => {
                let inner = schema.and_then(|schema| schema.items.as_deref());
                let free = schema.is_some_and(|schema| schema.preserves);
                // Not even looked at for writing, which would copy a list that is shared.
                if (inner.is_none() && free) || !has_parts(items) {
                    return;
                }
                for (index, item) in items.iter_mut().enumerate() {
                    // Items of preserved lists are kept, and so are values without a schema.
                    match (inner, free) {
                        (None, true) => {}
                        (Some(inner), true) => self.kept(inner, item, &path.index(index)),
                        (inner, false) => self.value(inner, item, &path.index(index)),
                    }
                }
            }
            _ => {}
        }
    }

    /// An item of a list that preserves unknown fields.
    fn kept(&mut self, schema: &Schema, value: &mut Value, path: &FieldPath) {
        match value {
            Value::Object(fields) => self.known_fields(fields_of(schema, false), fields, path),
            Value::Array(items) if has_parts(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    if let Some(inner) = &schema.items {
                        self.kept(inner, item, &path.index(index));
                    }
                }
            }
            _ => {}
        }
    }

    fn fields(&mut self, known: Known<'_>, fields: &mut Object, path: &FieldPath) {
        let Some(schema) = known.schema else {
            fields.keys().for_each(|name| self.found(path, name));
            fields.clear();
            return;
        };
        if !schema.preserves {
            fields.retain(|name, _| {
                let stays = (known.has_own && OWN.contains(&name.as_str()))
                    || schema.properties.contains_key(name)
                    || schema.others.is_some();
                if !stays {
                    self.found(path, name);
                }
                stays
            });
        }
        self.known_fields(known, fields, path);
    }

    /// Descends into the fields that have a schema.
    fn known_fields(&mut self, known: Known<'_>, fields: &mut Object, path: &FieldPath) {
        let Some(schema) = known.schema else { return };
        for (name, value) in fields {
            if known.has_own && OWN.contains(&name.as_str()) {
                continue;
            }
            let inner = match (schema.properties.get(name), &schema.others) {
                (Some(inner), _) => Some(inner),
                (None, Some(AdditionalProperties::Of(inner))) => Some(&**inner),
                (None, Some(AdditionalProperties::Any)) => None,
                (None, None) => continue,
            };
            self.value(inner, value, &path.child(name));
        }
    }

    fn found(&mut self, path: &FieldPath, name: &str) {
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
                !schema.field(name).is_some_and(|inner| inner.forbids(value) && inner.default.is_none())
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

/// Sets the defaults of a schema at every level, within the limit. Answers whether they fit.
pub fn fill(schema: &Schema, value: &mut Value, room: &mut usize) -> bool {
    if !schema.fills {
        return true;
    }
    match value {
        Value::Object(fields) => {
            let defaulted = schema.defaulted.iter().filter_map(|name| schema.properties.get_key_value(name));
            for (name, inner) in defaulted {
                if fields.get(name).is_none_or(|value| inner.forbids(value)) {
                    let Some(default) = taken(inner, room) else { return false };
                    fields.insert(name.clone(), default);
                }
            }
            fields.iter_mut().all(|(name, value)| match (schema.properties.get(name), &schema.others) {
                (Some(inner), _) => fill(inner, value, room),
                (None, Some(AdditionalProperties::Of(inner))) => fill_null(inner, value, room),
                _ => true,
            })
        }
        Value::Array(items) => match &schema.items {
            Some(inner) => items.iter_mut().all(|item| fill_null(inner, item, room)),
            None => true,
        },
        _ => true,
    }
}

/// Sets the default of a present value, if it is a forbidden null.
fn fill_null(schema: &Schema, value: &mut Value, room: &mut usize) -> bool {
    if schema.forbids(value) && schema.default.is_some() {
        let Some(default) = taken(schema, room) else { return false };
        *value = default;
    }
    fill(schema, value, room)
}

fn taken(schema: &Schema, room: &mut usize) -> Option<Value> {
    *room = room.checked_sub(schema.default_bytes)?;
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
    fn what_a_schema_does_not_know_goes_and_is_told() {
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
        let kept = value(
            r#"{"kind":"W","metadata":{"whatever":1},"spec":{"a":"b","free":{"q":{"w":[{"e":1}]},"n":{}},
                "map":{"one":{"x":"1"}},"any":{"a":{},"c":2},"list":[{"k":"1"}]}}"#,
        );
        assert_eq!(object, kept);
    }

    #[test]
    fn nulls_go_or_become_what_nobody_said() {
        let schema = Schema::read(&value(
            r#"{"type":"object","properties":{"spec":{"type":"object","properties":{
                "a":{"type":"string"},"b":{"type":"string","default":"x"},"c":{"type":"string","nullable":true,"default":"y"},
                "n":{"type":"object","default":{},"properties":{"d":{"type":"boolean","default":true}}},
                "l":{"type":"array","items":{"type":"object","properties":{"k":{"type":"integer","default":0}}}}}}}}"#,
        ));
        let mut object = value(r#"{"spec":{"a":null,"b":null,"c":null,"l":[{},{"k":7}]}}"#);
        drop_nulls(&schema, &mut object);
        assert!(fill(&schema, &mut object, &mut 1_000));
        let wanted = value(r#"{"spec":{"b":"x","c":null,"n":{"d":true},"l":[{"k":0},{"k":7}]}}"#);
        assert_eq!(object, wanted);
        let mut none = value("{}");
        assert!(fill(&schema, &mut none, &mut 1_000));
        assert_eq!(none, value("{}"), "an absent object without a default stays absent");
        let mut many = value(r#"{"spec":{"l":[{},{},{},{}]}}"#);
        assert!(!fill(&schema, &mut many, &mut 10), "defaults do not grow for ever");
    }
}
