//! The CEL types of schemas, with their sizes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilothouse_apimachinery::value::{Object, Value};
use pilothouse_cel::escape::escape;
use pilothouse_cel::types::{DeclKind, DeclType, ListKind, ObjectType, Property};

use crate::limits::REQUEST_BYTES_PRICED;

/// The maximum length of a date-time or duration, with quotes.
const TIME_BYTES: u64 = 32;
/// The length of a date, with quotes.
const DATE_BYTES: u64 = 12;

/// The shape of the values of a schema; `None` if CEL cannot refer to them. `is_resource` tells that they have kind and metadata,
/// and `name` is the name of their type.
pub fn shape(said: &Value, is_resource: bool, name: &str) -> Option<Arc<DeclType>> {
    let flag = |field: &str| said.get(field).and_then(Value::as_bool) == Some(true);
    let most =
        |field: &str| said.get(field).and_then(Value::as_int).map(|most| u64::try_from(most).unwrap_or(0));
    if flag("x-kubernetes-int-or-string") {
        return made(DeclKind::Dyn, REQUEST_BYTES_PRICED - 2, 1);
    }
    match said.str("type") {
        "boolean" => made(DeclKind::Bool, 0, 4),
        "number" => made(DeclKind::Double, 0, 1),
        "integer" => made(DeclKind::Int, 0, 1),
        "string" => text(said, most("maxLength")),
        "array" => {
            let items = said.get("items").filter(|items| items.fields().is_some())?;
            let items = shape(items, is_embedded(items), &format!("{name}.@idx"))?;
            let count = most("maxItems").unwrap_or((REQUEST_BYTES_PRICED - 2) / (items.least + 1));
            made(DeclKind::List(items, list_kind(said)), count, 2)
        }
        "object" => match said.get("additionalProperties").filter(|values| values.fields().is_some()) {
            Some(values) => {
                let values = shape(values, is_embedded(values), &format!("{name}.@elem"))?;
                let count = most("maxProperties").unwrap_or((REQUEST_BYTES_PRICED - 2) / (values.least + 6));
                made(DeclKind::Map(values), count, 2)
            }
            None => object(said, is_resource, name),
        },
        _ => None,
    }
}

fn made(form: DeclKind, most: u64, least: u64) -> Option<Arc<DeclType>> {
    Some(Arc::new(DeclType { form, most, least }))
}

/// Whether a schema is an embedded resource.
pub fn is_embedded(said: &Value) -> bool {
    said.get("x-kubernetes-embedded-resource").and_then(Value::as_bool) == Some(true)
}

fn text(said: &Value, longest: Option<u64>) -> Option<Arc<DeclType>> {
    let any = REQUEST_BYTES_PRICED - 2;
    match said.str("format") {
        "byte" => made(DeclKind::Bytes, longest.unwrap_or(any), 2),
        "duration" => made(DeclKind::Duration, TIME_BYTES, 3),
        "date" => made(DeclKind::Date, DATE_BYTES, DATE_BYTES),
        "date-time" => made(DeclKind::Timestamp, TIME_BYTES, 21),
        _ => {
            let values = said.get("enum").map(Value::items).unwrap_or_default();
            let longest_value = values.iter().filter_map(Value::as_str).map(|text| text.len() as u64).max();
            // A character takes four bytes at most.
            let bytes = longest.map(|longest| longest.saturating_mul(4));
            let bytes = bytes.or_else(|| (!values.is_empty()).then_some(longest_value.unwrap_or(0)));
            made(DeclKind::String, bytes.unwrap_or(any), 2)
        }
    }
}

fn list_kind(said: &Value) -> ListKind {
    match said.str("x-kubernetes-list-type") {
        "set" => ListKind::Set,
        "map" => ListKind::Keyed(keys(said)),
        _ => ListKind::Ordered,
    }
}

/// The key fields of a list's items.
pub fn keys(said: &Value) -> Vec<String> {
    let keys = said.get("x-kubernetes-list-map-keys").map(Value::items).unwrap_or_default();
    keys.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn object(said: &Value, is_resource: bool, name: &str) -> Option<Arc<DeclType>> {
    let mut properties = said.get("properties").and_then(Value::fields).cloned().unwrap_or_default();
    if is_resource {
        add_names(&mut properties);
    }
    let required = said.get("required").map(Value::items).unwrap_or_default();
    let required: BTreeSet<&str> = required.iter().filter_map(Value::as_str).collect();
    let mut least = 2;
    let mut fields = BTreeMap::new();
    for (property, inner) in &properties {
        let escaped = escape(property);
        let inner_name = format!("{name}.{}", escaped.as_deref().unwrap_or(property));
        let Some(shape) = shape(inner, is_embedded(inner), &inner_name) else { continue };
        if required.contains(property.as_str()) && inner.get("default").is_none() {
            least += property.len() as u64 + shape.least + 4;
        }
        if let Some(escaped) = escaped {
            fields.insert(escaped, Property { name: property.clone(), shape });
        }
    }
    made(DeclKind::Object(Arc::new(ObjectType { name: name.to_owned(), fields })), 0, least)
}

/// Adds kind, apiVersion and the name to the schema of a resource, whether it has them or not. CEL sees no other metadata.
fn add_names(properties: &mut Object) {
    let is = |value: Option<&Value>, kind: &str| value.is_some_and(|value| value.str("type") == kind);
    let meta = properties.get("metadata").and_then(|meta| meta.get("properties"));
    let named = |field: &str| is(meta.and_then(|meta| meta.get(field)), "string");
    let complete = is(properties.get("kind"), "string")
        && is(properties.get("apiVersion"), "string")
        && is(properties.get("metadata"), "object")
        && named("name")
        && named("generateName");
    if complete {
        return;
    }
    let text = |field: &str| {
        let mut schema = Value::object();
        schema.set("type", field);
        schema
    };
    let mut names = Value::object();
    names.set("name", text("string"));
    names.set("generateName", text("string"));
    let mut metadata = text("object");
    metadata.set("properties", names);
    properties.insert("metadata".to_owned(), metadata);
    properties.insert("kind".to_owned(), text("string"));
    properties.insert("apiVersion".to_owned(), text("string"));
}

/// The shape of a field, of items, or of other fields.
pub fn below<'s>(shape: &'s DeclType, field: Option<&str>) -> Option<&'s Arc<DeclType>> {
    match (&shape.form, field) {
        (DeclKind::Object(object), Some(field)) => Some(&object.fields.get(&escape(field)?)?.shape),
        (DeclKind::List(items, _) | DeclKind::Map(items), None) => Some(items),
        _ => None,
    }
}
