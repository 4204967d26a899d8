//! Removes unknown fields from the defaults of a schema, including those of metadata: objects would lose them again.

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::value::{Object, Value};

use super::schema::{AdditionalProperties, Schema};
use super::{defaults, embedded, prune};

/// One step of the path from metadata to a field within.
#[derive(Clone)]
enum Step {
    Field(String),
    Item,
}

/// Prunes the defaults of the schema of whole objects.
pub fn prune(schema: &mut Schema) {
    walk(schema, true, None);
}

/// `in_metadata`: the path from the metadata that the schema is a part of.
fn walk(schema: &mut Schema, is_root: bool, in_metadata: Option<&[Step]>) {
    if let Some(default) = schema.default.take() {
        schema.default = match in_metadata {
            Some(steps) => prune_metadata_default(default, steps),
            None => Some(prune_fields(schema, default)),
        };
        schema.default_bytes = schema.default.as_ref().map_or(0, |default| json::to_json(default).len());
    }
    let has_metadata = is_root || schema.embedded;
    for (name, inner) in schema.properties.iter_mut() {
        let child_steps = match in_metadata {
            Some(steps) => Some(append_step(steps, Step::Field(name.clone()))),
            None => (has_metadata && name == "metadata").then(Vec::new),
        };
        walk(inner, false, child_steps.as_deref());
    }
    if let Some(AdditionalProperties::Schema(inner)) = &mut schema.additional_properties {
        // Any name will do: metadata knows all names of its maps or none.
        let child_steps = in_metadata.map(|steps| append_step(steps, Step::Field("*".to_owned())));
        walk(inner, false, child_steps.as_deref());
    }
    if let Some(inner) = &mut schema.items {
        let child_steps = in_metadata.map(|steps| append_step(steps, Step::Item));
        walk(inner, false, child_steps.as_deref());
    }
    let properties = &schema.properties;
    schema.defaulted_fields.retain(|name| properties.get(name).is_some_and(|inner| inner.default.is_some()));
}

fn append_step(steps: &[Step], last: Step) -> Vec<Step> {
    steps.iter().cloned().chain([last]).collect()
}

/// A default without the fields that its schema does not know.
fn prune_fields(schema: &Schema, mut default: Value) -> Value {
    if let Some(registry) = defaults::metadata_types() {
        embedded::drop_unknown(schema, &mut default, registry);
    }
    prune::prune_default(schema, &mut default);
    default
}

/// A default within metadata, as far as metadata has such a field.
fn prune_metadata_default(default: Value, steps: &[Step]) -> Option<Value> {
    let Some(registry) = defaults::metadata_types() else { return Some(default) };
    let wrap = |inner: Value, step: &Step| match step {
        Step::Field(name) => Value::from(Object::from([(name.clone(), inner)])),
        Step::Item => Value::Array(vec![inner].into()),
    };
    let metadata = steps.iter().rev().fold(default, wrap);
    let unwrap = |value: Value, step: &Step| match (value, step) {
        (Value::Object(mut fields), Step::Field(name)) => fields.remove(name),
        (Value::Array(items), Step::Item) => items.into_iter().next(),
        _ => None,
    };
    steps.iter().try_fold(prune_metadata(metadata, registry)?, unwrap)
}

fn prune_metadata(metadata: Value, registry: &Registry) -> Option<Value> {
    let resource = Schema { embedded: true, ..Schema::default() };
    let mut object = Value::from(Object::from([("metadata".to_owned(), metadata)]));
    embedded::drop_unknown(&resource, &mut object, registry);
    object.remove("metadata")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object with the defaults of a schema.
    fn apply_defaults(schema: &str, object: &str) -> String {
        let value = |text: &str| json::read(text.as_bytes()).unwrap();
        let mut schema = Schema::read(&value(schema));
        prune(&mut schema);
        let mut object = value(object);
        assert!(prune::apply_defaults(&schema, &mut object, &mut 1_000));
        String::from_utf8(json::to_json(&object)).unwrap()
    }

    #[test]
    fn unknown_fields_of_metadata_defaults_are_pruned() {
        let resource = |metadata: &str| {
            format!(
                r#"{{"type":"object","properties":{{"r":{{"type":"object","x-kubernetes-embedded-resource":true,
                    "properties":{{"metadata":{{"type":"object",{metadata}}}}}}}}}}}"#
            )
        };
        let whole = resource(r#""default":{"name":"n","unknown":"u"}"#);
        assert_eq!(apply_defaults(&whole, r#"{"r":{}}"#), r#"{"r":{"metadata":{"name":"n"}}}"#);
        let fields = resource(
            r#""properties":{"name":{"type":"string","default":"n"},"unknown":{"type":"string","default":"u"},
                "labels":{"type":"object","default":{"a":"b"},"properties":{"c":{"type":"string","default":"d"}}}}"#,
        );
        let expected = r#"{"r":{"metadata":{"labels":{"a":"b","c":"d"},"name":"n"}}}"#;
        assert_eq!(apply_defaults(&fields, r#"{"r":{"metadata":{}}}"#), expected);
    }

    #[test]
    fn unknown_metadata_fields_of_enclosing_defaults_are_pruned() {
        let schema = r#"{"type":"object","properties":{"o":{"type":"object",
            "default":{"r":{"kind":"K","apiVersion":"v1","metadata":{"name":"n","unknown":"u"},"other":1}},
            "properties":{"r":{"type":"object","x-kubernetes-embedded-resource":true}}}}}"#;
        let expected = r#"{"o":{"r":{"kind":"K","apiVersion":"v1","metadata":{"name":"n"}}}}"#;
        let parse = |text: &str| json::read(text.as_bytes()).unwrap();
        assert_eq!(parse(&apply_defaults(schema, "{}")), parse(expected));
    }
}
