//! Embedded resources: objects within custom resources that have kind and metadata.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::meta::{self, MetaRules};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::schema::decode::{self, Refused};
use pilothouse_apimachinery::schema::{Registry, encode};
use pilothouse_apimachinery::value::{Object, Value};

use super::schema::{AdditionalProperties, Schema};
use super::values::shown;

/// Normalizes the metadata of embedded resources, and answers the paths of unknown fields. Invalid metadata is an error, or
/// dropped if `lenient`.
pub fn coerce(
    schema: &Schema,
    object: &mut Value,
    registry: &Registry,
    lenient: bool,
) -> Result<Vec<String>, String> {
    let mut walk = Walk { registry, lenient, unknown: Vec::new() };
    walk.below(schema, object, &FieldPath::root()).map_err(|error| error.to_string())?;
    Ok(walk.unknown)
}

/// The same for a default, which may itself be an embedded resource.
pub fn coerce_default(
    schema: &Schema,
    default: &mut Value,
    path: &FieldPath,
    registry: &Registry,
) -> Result<(), FieldError> {
    Walk { registry, lenient: false, unknown: Vec::new() }.value(schema, default, path)
}

/// Removes the unknown and the invalid fields from the metadata of a value that may itself be an embedded resource.
pub fn drop_unknown(schema: &Schema, value: &mut Value, registry: &Registry) {
    let mut walk = Walk { registry, lenient: true, unknown: Vec::new() };
    // A lenient walk finds nothing wrong.
    let _right = walk.value(schema, value, &FieldPath::root());
}

struct Walk<'r> {
    registry: &'r Registry,
    lenient: bool,
    unknown: Vec<String>,
}

impl Walk<'_> {
    fn value(&mut self, schema: &Schema, value: &mut Value, path: &FieldPath) -> Result<(), FieldError> {
        if schema.embedded
            && let Value::Object(fields) = value
        {
            if !self.lenient {
                named_by_texts(fields, path)?;
            }
            self.metadata(fields, path)?;
        }
        self.below(schema, value, path)
    }

    fn below(&mut self, schema: &Schema, value: &mut Value, path: &FieldPath) -> Result<(), FieldError> {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    if let Some(inner) = schema.field(name) {
                        self.value(inner, value, &path.child(name))?;
                    }
                }
            }
            Value::Array(items) => {
                if let Some(inner) = &schema.items {
                    for (index, item) in items.iter_mut().enumerate() {
                        self.value(inner, item, &path.index(index))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn metadata(&mut self, fields: &mut Object, path: &FieldPath) -> Result<(), FieldError> {
        let (Some(said), Some(ty)) = (fields.get("metadata"), self.registry.meta("ObjectMeta")) else {
            return Ok(());
        };
        match decode::decode(self.registry, ty, &json::to_json(said)) {
            Ok(read) => {
                let place = path.child("metadata");
                let names = read
                    .strict
                    .iter()
                    .filter_map(|one| one.strip_prefix("unknown field \"")?.strip_suffix('"'));
                self.unknown.extend(names.map(|name| place.child(name).to_string()));
                let written = encode::encode(self.registry, ty, &read.value);
                let mut value = json::read(&written).unwrap_or_default();
                // An unset time is omitted.
                if value.get("creationTimestamp").is_none() {
                    value.remove("creationTimestamp");
                }
                fields.insert("metadata".to_owned(), value);
            }
            Err(_) if self.lenient => {
                fields.remove("metadata");
            }
            Err(refused) => {
                let why = match refused {
                    Refused::Type(why) => why,
                    Refused::Tokens => "exceeded max depth".to_owned(),
                };
                return Err(FieldError::invalid(&path.child("metadata"), &shown(said), &why));
            }
        }
        Ok(())
    }
}

/// Refuses an embedded resource whose kind or apiVersion is no string.
fn named_by_texts(fields: &Object, path: &FieldPath) -> Result<(), FieldError> {
    for field in ["apiVersion", "kind"] {
        if let Some(said) = fields.get(field).filter(|said| said.as_str().is_none()) {
            return Err(FieldError::invalid(&path.child(field), &shown(said), "must be a string"));
        }
    }
    Ok(())
}

/// Validates the kinds and metadata of embedded resources.
pub fn check(schema: &Schema, object: &Value, registry: &Registry, errors: &mut ErrorList) {
    inside(schema, object, &FieldPath::root(), registry, errors);
}

/// Validates embedded resources inside of a value, and the value itself if it is one.
pub fn inside(schema: &Schema, value: &Value, path: &FieldPath, registry: &Registry, errors: &mut ErrorList) {
    match value {
        Value::Object(fields) => {
            if schema.embedded {
                check_one(fields, path, registry, errors);
            }
            for (name, value) in fields {
                match (schema.properties.get(name), &schema.others) {
                    (Some(inner), _) => inside(inner, value, &path.child(name), registry, errors),
                    (None, Some(AdditionalProperties::Of(inner))) => {
                        inside(inner, value, &path.key(name), registry, errors);
                    }
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    inside(inner, item, &path.index(index), registry, errors);
                }
            }
        }
        _ => {}
    }
}

fn check_one(fields: &Object, path: &FieldPath, registry: &Registry, errors: &mut ErrorList) {
    for field in ["apiVersion", "kind"] {
        let place = path.child(field);
        match fields.get(field) {
            None => errors.push(FieldError::required(&place, "must not be empty")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid(&place, &quoted(text), "must not be empty"));
            }
            Some(Value::String(text)) if field == "apiVersion" && text.matches('/').count() > 1 => {
                let why = format!("unexpected GroupVersion string: {text}");
                errors.push(FieldError::invalid(&place, &quoted(text), &why));
            }
            Some(Value::String(text)) if field == "kind" => {
                let wrong = names::dns_1035_label(&text.to_lowercase());
                if !wrong.is_empty() {
                    let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
                    errors.push(FieldError::invalid(&place, &quoted(text), &why));
                }
            }
            Some(Value::String(_)) => {}
            Some(other) => errors.push(FieldError::invalid(&place, &shown(other), "must be a string")),
        }
    }
    let Some(said) = fields.get("metadata") else { return };
    let Some(ty) = registry.meta("ObjectMeta") else { return };
    let Ok(read) = decode::decode(registry, ty, &json::to_json(said)) else { return };
    let mut object = Value::object();
    object.set("metadata", read.value);
    if meta::name(&object).is_empty() {
        object.entry("metadata").set("name", "fakename");
    }
    let namespaced = !meta::of(&object).str("namespace").is_empty();
    let mut found = ErrorList::new();
    let rules = MetaRules {
        name: names::path_segment,
        own_name: meta::any_name,
        namespaced,
        known_finalizers: false,
    };
    meta::validate(&object, rules, &mut found);
    for error in &*found {
        let place = path.child(&error.path.to_string());
        errors.push(FieldError { path: place, ..error.clone() });
    }
}
