//! The CEL types of schemas, with their sizes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilothouse_apimachinery::value::{Object, Value};
use pilothouse_cel::escape::escape;
use pilothouse_cel::types::{DeclKind, DeclType, ListKind, ObjectType, Property};

use crate::limits::ESTIMATED_OBJECT_BYTES;

/// The maximum length of a date-time or duration, with quotes.
const TIME_BYTES: u64 = 32;
/// The length of a date, with quotes.
const DATE_BYTES: u64 = 12;

/// The declared type of the values of a schema; `None` if CEL cannot refer to them. `is_resource`: the values have kind and metadata.
/// `name` is the name of the type in messages.
pub fn from_schema(schema: &Value, is_resource: bool, name: &str) -> Option<Arc<DeclType>> {
    let flag = |field: &str| schema.get(field).and_then(Value::as_bool) == Some(true);
    let limit = |field: &str| {
        schema.get(field).and_then(Value::as_int).map(|limit| u64::try_from(limit).unwrap_or(0))
    };
    if flag("x-kubernetes-int-or-string") {
        return new_decl_type(DeclKind::Dyn, ESTIMATED_OBJECT_BYTES - 2, 1);
    }
    match schema.str("type") {
        "boolean" => new_decl_type(DeclKind::Bool, 0, 4),
        "number" => new_decl_type(DeclKind::Double, 0, 1),
        "integer" => new_decl_type(DeclKind::Int, 0, 1),
        "string" => string_type(schema, limit("maxLength")),
        "array" => {
            let items = schema.get("items").filter(|items| items.fields().is_some())?;
            let items = from_schema(items, is_embedded(items), &format!("{name}.@idx"))?;
            let count =
                limit("maxItems").unwrap_or((ESTIMATED_OBJECT_BYTES - 2) / (items.min_serialized_size + 1));
            new_decl_type(DeclKind::List(items, list_kind(schema)), count, 2)
        }
        "object" => match schema.get("additionalProperties").filter(|values| values.fields().is_some()) {
            Some(values) => {
                let values = from_schema(values, is_embedded(values), &format!("{name}.@elem"))?;
                let count = limit("maxProperties")
                    .unwrap_or((ESTIMATED_OBJECT_BYTES - 2) / (values.min_serialized_size + 6));
                new_decl_type(DeclKind::Map(values), count, 2)
            }
            None => object_type(schema, is_resource, name),
        },
        _ => None,
    }
}

fn new_decl_type(decl_kind: DeclKind, max_elements: u64, min_serialized_size: u64) -> Option<Arc<DeclType>> {
    Some(Arc::new(DeclType { decl_kind, max_elements, min_serialized_size }))
}

/// Whether a schema is an embedded resource.
pub fn is_embedded(schema: &Value) -> bool {
    schema.get("x-kubernetes-embedded-resource").and_then(Value::as_bool) == Some(true)
}

fn string_type(schema: &Value, max_length: Option<u64>) -> Option<Arc<DeclType>> {
    let max_bytes = ESTIMATED_OBJECT_BYTES - 2;
    match schema.str("format") {
        "byte" => new_decl_type(DeclKind::Bytes, max_length.unwrap_or(max_bytes), 2),
        "duration" => new_decl_type(DeclKind::Duration, TIME_BYTES, 3),
        "date" => new_decl_type(DeclKind::Date, DATE_BYTES, DATE_BYTES),
        "date-time" => new_decl_type(DeclKind::Timestamp, TIME_BYTES, 21),
        _ => {
            let values = schema.get("enum").map(Value::items).unwrap_or_default();
            let longest_value = values.iter().filter_map(Value::as_str).map(|text| text.len() as u64).max();
            // A character takes four bytes at most.
            let bytes = max_length.map(|max_length| max_length.saturating_mul(4));
            let bytes = bytes.or_else(|| (!values.is_empty()).then_some(longest_value.unwrap_or(0)));
            new_decl_type(DeclKind::String, bytes.unwrap_or(max_bytes), 2)
        }
    }
}

fn list_kind(schema: &Value) -> ListKind {
    match schema.str("x-kubernetes-list-type") {
        "set" => ListKind::Set,
        "map" => ListKind::Keyed(keys(schema)),
        _ => ListKind::Ordered,
    }
}

/// The key fields of a list's items.
pub fn keys(schema: &Value) -> Vec<String> {
    let keys = schema.get("x-kubernetes-list-map-keys").map(Value::items).unwrap_or_default();
    keys.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn object_type(schema: &Value, is_resource: bool, name: &str) -> Option<Arc<DeclType>> {
    let mut properties = schema.get("properties").and_then(Value::fields).cloned().unwrap_or_default();
    if is_resource {
        add_resource_fields(&mut properties);
    }
    let required = schema.get("required").map(Value::items).unwrap_or_default();
    let required: BTreeSet<&str> = required.iter().filter_map(Value::as_str).collect();
    let mut min_serialized_size = 2;
    let mut fields = BTreeMap::new();
    for (property, inner) in &properties {
        let escaped = escape(property);
        let inner_name = format!("{name}.{}", escaped.as_deref().unwrap_or(property));
        let Some(decl_type) = from_schema(inner, is_embedded(inner), &inner_name) else { continue };
        if required.contains(property.as_str()) && inner.get("default").is_none() {
            min_serialized_size += property.len() as u64 + decl_type.min_serialized_size + 4;
        }
        if let Some(escaped) = escaped {
            fields.insert(escaped, Property { name: property.clone(), decl_type });
        }
    }
    new_decl_type(
        DeclKind::Object(Arc::new(ObjectType { name: name.to_owned(), fields })),
        0,
        min_serialized_size,
    )
}

/// Adds kind, apiVersion and the name to the schema of a resource, whether it has them or not. CEL sees no other metadata.
fn add_resource_fields(properties: &mut Object) {
    let has_type = |value: Option<&Value>, kind: &str| value.is_some_and(|value| value.str("type") == kind);
    let meta = properties.get("metadata").and_then(|meta| meta.get("properties"));
    let is_string = |field: &str| has_type(meta.and_then(|meta| meta.get(field)), "string");
    let is_complete = has_type(properties.get("kind"), "string")
        && has_type(properties.get("apiVersion"), "string")
        && has_type(properties.get("metadata"), "object")
        && is_string("name")
        && is_string("generateName");
    if is_complete {
        return;
    }
    let typed_schema = |field: &str| {
        let mut schema = Value::object();
        schema.set("type", field);
        schema
    };
    let mut metadata_fields = Value::object();
    metadata_fields.set("name", typed_schema("string"));
    metadata_fields.set("generateName", typed_schema("string"));
    let mut metadata = typed_schema("object");
    metadata.set("properties", metadata_fields);
    properties.insert("metadata".to_owned(), metadata);
    properties.insert("kind".to_owned(), typed_schema("string"));
    properties.insert("apiVersion".to_owned(), typed_schema("string"));
}

/// The declared type of a field; of the items or values without a field name.
pub fn child_type<'s>(decl_type: &'s DeclType, field: Option<&str>) -> Option<&'s Arc<DeclType>> {
    match (&decl_type.decl_kind, field) {
        (DeclKind::Object(object), Some(field)) => Some(&object.fields.get(&escape(field)?)?.decl_type),
        (DeclKind::List(items, _) | DeclKind::Map(items), None) => Some(items),
        _ => None,
    }
}
