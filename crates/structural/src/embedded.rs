//! Embedded resources: objects within custom resources that have kind and metadata.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::meta::{self, MetaRules};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::schema::decode::{self, DecodeFailure};
use pilothouse_apimachinery::schema::{Registry, encode};
use pilothouse_apimachinery::value::{Object, Value};

use super::schema::{AdditionalProperties, Schema};
use super::values::render;

/// Normalizes the metadata of embedded resources, and returns the paths of unknown fields. Invalid metadata is an error, or
/// dropped if `lenient`.
pub fn coerce(
    schema: &Schema,
    object: &mut Value,
    registry: &Registry,
    lenient: bool,
) -> Result<Vec<String>, String> {
    let mut coercion = Coercion { registry, lenient, unknown: Vec::new() };
    coercion.coerce_children(schema, object, &FieldPath::root()).map_err(|error| error.to_string())?;
    Ok(coercion.unknown)
}

/// The same for a default, which may itself be an embedded resource.
pub fn coerce_default(
    schema: &Schema,
    default: &mut Value,
    path: &FieldPath,
    registry: &Registry,
) -> Result<(), FieldError> {
    Coercion { registry, lenient: false, unknown: Vec::new() }.coerce_value(schema, default, path)
}

/// Removes the unknown and the invalid fields from the metadata of a value that may itself be an embedded resource.
pub fn drop_unknown(schema: &Schema, value: &mut Value, registry: &Registry) {
    let mut coercion = Coercion { registry, lenient: true, unknown: Vec::new() };
    // A lenient coercion never fails.
    let _ok = coercion.coerce_value(schema, value, &FieldPath::root());
}

struct Coercion<'r> {
    registry: &'r Registry,
    lenient: bool,
    unknown: Vec<String>,
}

impl Coercion<'_> {
    fn coerce_value(
        &mut self,
        schema: &Schema,
        value: &mut Value,
        path: &FieldPath,
    ) -> Result<(), FieldError> {
        if schema.embedded
            && let Value::Object(fields) = value
        {
            if !self.lenient {
                check_type_fields(fields, path)?;
            }
            self.coerce_metadata(fields, path)?;
        }
        self.coerce_children(schema, value, path)
    }

    fn coerce_children(
        &mut self,
        schema: &Schema,
        value: &mut Value,
        path: &FieldPath,
    ) -> Result<(), FieldError> {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    if let Some(inner) = schema.field(name) {
                        self.coerce_value(inner, value, &path.child(name))?;
                    }
                }
            }
            Value::Array(items) => {
                if let Some(inner) = &schema.items {
                    for (index, item) in items.iter_mut().enumerate() {
                        self.coerce_value(inner, item, &path.index(index))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn coerce_metadata(&mut self, fields: &mut Object, path: &FieldPath) -> Result<(), FieldError> {
        let (Some(metadata), Some(ty)) = (fields.get("metadata"), self.registry.meta("ObjectMeta")) else {
            return Ok(());
        };
        match decode::decode(self.registry, ty, &json::to_json(metadata)) {
            Ok(decoded) => {
                let metadata_path = path.child("metadata");
                let names = decoded
                    .strict
                    .iter()
                    .filter_map(|error| error.strip_prefix("unknown field \"")?.strip_suffix('"'));
                self.unknown.extend(names.map(|name| metadata_path.child(name).to_string()));
                let encoded = encode::encode(self.registry, ty, &decoded.value);
                let mut value = json::read(&encoded).unwrap_or_default();
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
                let message = match refused {
                    DecodeFailure::Type(message) => message,
                    DecodeFailure::Tokens => "exceeded max depth".to_owned(),
                };
                return Err(FieldError::invalid(&path.child("metadata"), &render(metadata), &message));
            }
        }
        Ok(())
    }
}

/// Refuses an embedded resource whose kind or apiVersion is no string.
fn check_type_fields(fields: &Object, path: &FieldPath) -> Result<(), FieldError> {
    for field in ["apiVersion", "kind"] {
        if let Some(value) = fields.get(field).filter(|value| value.as_str().is_none()) {
            return Err(FieldError::invalid(&path.child(field), &render(value), "must be a string"));
        }
    }
    Ok(())
}

/// Validates the kinds and metadata of embedded resources.
pub fn check(schema: &Schema, object: &Value, registry: &Registry, errors: &mut ErrorList) {
    check_value(schema, object, &FieldPath::root(), registry, errors);
}

/// Validates embedded resources inside of a value, and the value itself if it is one.
pub fn check_value(
    schema: &Schema,
    value: &Value,
    path: &FieldPath,
    registry: &Registry,
    errors: &mut ErrorList,
) {
    match value {
        Value::Object(fields) => {
            if schema.embedded {
                check_resource(fields, path, registry, errors);
            }
            for (name, value) in fields {
                match (schema.properties.get(name), &schema.additional_properties) {
                    (Some(inner), _) => check_value(inner, value, &path.child(name), registry, errors),
                    (None, Some(AdditionalProperties::Schema(inner))) => {
                        check_value(inner, value, &path.key(name), registry, errors);
                    }
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    check_value(inner, item, &path.index(index), registry, errors);
                }
            }
        }
        _ => {}
    }
}

fn check_resource(fields: &Object, path: &FieldPath, registry: &Registry, errors: &mut ErrorList) {
    for field in ["apiVersion", "kind"] {
        let field_path = path.child(field);
        match fields.get(field) {
            None => errors.push(FieldError::required(&field_path, "must not be empty")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid(&field_path, &quoted(text), "must not be empty"));
            }
            Some(Value::String(text)) if field == "apiVersion" && text.matches('/').count() > 1 => {
                let message = format!("unexpected GroupVersion string: {text}");
                errors.push(FieldError::invalid(&field_path, &quoted(text), &message));
            }
            Some(Value::String(text)) if field == "kind" => {
                let syntax_errors = names::dns_1035_label(&text.to_lowercase());
                if !syntax_errors.is_empty() {
                    let message = format!(
                        "may have mixed case, but should otherwise match: {}",
                        syntax_errors.join(",")
                    );
                    errors.push(FieldError::invalid(&field_path, &quoted(text), &message));
                }
            }
            Some(Value::String(_)) => {}
            Some(other) => errors.push(FieldError::invalid(&field_path, &render(other), "must be a string")),
        }
    }
    let Some(metadata) = fields.get("metadata") else { return };
    let Some(ty) = registry.meta("ObjectMeta") else { return };
    let Ok(decoded) = decode::decode(registry, ty, &json::to_json(metadata)) else { return };
    let mut object = Value::object();
    object.set("metadata", decoded.value);
    if meta::name(&object).is_empty() {
        object.entry("metadata").set("name", "fakename");
    }
    let namespaced = !meta::metadata(&object).str("namespace").is_empty();
    let mut metadata_errors = ErrorList::new();
    let rules = MetaRules {
        name: names::path_segment,
        validate_name: meta::any_name,
        namespaced,
        requires_standard_finalizers: false,
    };
    meta::validate(&object, rules, &mut metadata_errors);
    for error in &*metadata_errors {
        let field_path = path.child(&error.path.to_string());
        errors.push(FieldError { path: field_path, ..error.clone() });
    }
}
