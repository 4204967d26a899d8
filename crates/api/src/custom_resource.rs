//! One version of a custom resource, and how its objects are processed. They are decoded and stored without a type
//! (`Registry::free_object`), and the schema is applied to the value (`pilothouse_structural`).
//!
//! [`conversion`] builds the requests to conversion webhooks and reads their responses.

pub mod conversion;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::patch::Coerce;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_structural::json_path::JsonPath;
use pilothouse_structural::rules::Rules;
use pilothouse_structural::schema::Schema;
use pilothouse_structural::{embedded, lists, prune, validate};
use pilothouse_types::filter::MARK_FIELD;
use pilothouse_types::object::Pairs;

use crate::age::Ages;
use crate::custom_resource::conversion::Conversion;
use crate::limits::FILLED_BYTES;
use crate::subresources::SubresourceStrategy;

/// The schemas of all versions, by apiVersion.
pub type Schemas = Arc<BTreeMap<String, Arc<Schema>>>;

/// One version of a custom resource.
#[derive(Debug)]
pub struct CustomResource {
    /// The kind of the objects.
    pub kind: Arc<str>,
    /// The apiVersion of this version.
    pub api_version: Arc<str>,
    /// The apiVersion of the storage version.
    pub storage_api_version: Arc<str>,
    /// The schema of this version.
    pub schema: Arc<Schema>,
    /// The schemas of all versions: an object may be stored in any of them.
    pub schemas: Schemas,
    /// The CEL validation rules.
    pub rules: Option<Arc<Rules>>,
    /// Whether unknown fields are preserved everywhere.
    pub preserves_unknown_fields: bool,
    /// Its types, and the built-in ones.
    pub registry: Arc<Registry>,
    /// The table cells after the name.
    pub cells: Vec<Cell>,
    /// The ordinals of the current resources of its definition.
    pub ordinals: RangeInclusive<u32>,
    /// The selectable fields and their paths.
    pub selectable: Vec<(String, JsonPath)>,
    /// Tells fields that were extracted under the current definition from older ones.
    pub mark: Arc<str>,
    /// Its scale subresource, if it has one.
    pub scale: Option<SubresourceStrategy>,
    /// The deprecation warning.
    pub deprecation: Option<Arc<str>>,
    /// Whether its definition is terminating: then nothing can be created.
    pub is_terminating: bool,
    /// The conversion webhook; without one, versions differ only in `apiVersion`.
    pub conversion: Option<Arc<Conversion>>,
}

/// One table cell.
#[derive(Debug)]
pub struct Cell {
    /// The path of its value.
    pub path: JsonPath,
    /// The type of the column.
    pub kind: Arc<str>,
}

impl PartialEq for CustomResource {
    fn eq(&self, other: &CustomResource) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Coerce for CustomResource {
    fn coerce(&self, object: &mut Value) -> Result<Vec<String>, String> {
        if self.preserves_unknown_fields {
            return Ok(Vec::new());
        }
        let mut unknown = prune::prune(&self.schema, object);
        prune::drop_nulls(&self.schema, object);
        let mut embedded = embedded::coerce(&self.schema, object, &self.registry, false)?;
        unknown.append(&mut embedded);
        Ok(unknown.into_iter().map(|path| format!("unknown field {}", quoted(&path))).collect())
    }
}

impl CustomResource {
    /// The unknown fields of a body that states another apiVersion: those of that version, or all if there is no such version.
    pub fn unknown_fields_in(&self, api_version: &str, object: &mut Value) -> Vec<String> {
        if self.preserves_unknown_fields {
            return Vec::new();
        }
        let unknown = match self.schemas.get(api_version) {
            Some(schema) => prune::prune(schema, object),
            None => prune::prune(&Schema::default(), object),
        };
        unknown.into_iter().map(|path| format!("unknown field {}", quoted(&path))).collect()
    }

    /// Sets defaults. Returns whether they stay within the limit.
    pub fn set_defaults(&self, object: &mut Value) -> bool {
        let mut budget = FILLED_BYTES;
        prune::apply_defaults(&self.schema, object, &mut budget)
    }

    /// A stored object as this version shows it. Defaults come from the schema of the version it was stored in; this version only
    /// prunes.
    pub fn to_served_version(&self, mut object: Value) -> Value {
        let stored_schema = self.schemas.get(object.str("apiVersion")).unwrap_or(&self.schema);
        self.clean(stored_schema, &mut object);
        // Defaults that exceed the limit now did so when the object was stored.
        let _fits = prune::apply_defaults(stored_schema, &mut object, &mut { FILLED_BYTES });
        object.set("apiVersion", &*self.api_version);
        if !Arc::ptr_eq(stored_schema, &self.schema) {
            self.clean(&self.schema, &mut object);
        }
        object
    }

    /// Decodes a stored object in the version it is stored in, with defaults; `None` if it is corrupt.
    pub fn read_stored(&self, bytes: &[u8]) -> Option<Value> {
        let mut object = codec::decode_stored(bytes, self.registry.free_object(), &self.registry)?;
        let stored_schema = self.schemas.get(object.str("apiVersion")).unwrap_or(&self.schema);
        self.clean(stored_schema, &mut object);
        // Defaults that exceed the limit now did so when the object was stored.
        let _fits = prune::apply_defaults(stored_schema, &mut object, &mut { FILLED_BYTES });
        Some(object)
    }

    /// A converted object, pruned by the schema of this version.
    pub fn prune_converted(&self, object: Value) -> Value {
        self.prune_converted_to(&self.api_version, object)
    }

    /// A converted object, pruned by the schema of another version.
    pub fn prune_converted_to(&self, api_version: &str, mut object: Value) -> Value {
        if let Some(schema) = self.schemas.get(api_version) {
            self.clean(schema, &mut object);
        }
        object
    }

    /// Prunes a stored object, or one about to be stored, by the schema of a version.
    fn clean(&self, schema: &Schema, object: &mut Value) {
        if !self.preserves_unknown_fields {
            prune::prune(schema, object);
            prune::drop_nulls(schema, object);
            // Invalid embedded metadata was accepted once, and is dropped.
            let _dropped = embedded::coerce(schema, object, &self.registry, true);
        }
    }

    /// Decodes a stored object as this version shows it; `None` if it is corrupt.
    pub fn read(&self, bytes: &[u8]) -> Option<Value> {
        codec::decode_stored(bytes, self.registry.free_object(), &self.registry)
            .map(|value| self.to_served_version(value))
    }

    /// The selectable fields to store with an object. Objects written in another version are converted, so their fields are
    /// extracted when a selector needs them.
    pub fn stored_fields(&self, object: &Value) -> Pairs {
        if self.selectable.is_empty() || self.api_version != self.storage_api_version {
            return Pairs::default();
        }
        let fields = self.selectable_values(&self.to_served_version(object.clone()));
        fields.iter().chain([(MARK_FIELD, &*self.mark)]).collect()
    }

    /// The selectable fields of an object, besides name and namespace. An absent one counts as empty, so empty ones are not
    /// stored.
    pub fn selectable_values(&self, object: &Value) -> Pairs {
        let field_text = |value: &Value| if value.is_null() { String::new() } else { text(value) };
        let pairs = self
            .selectable
            .iter()
            .map(|(name, path)| (name.as_str(), path.first(object).map(field_text).unwrap_or_default()));
        pairs.filter(|(_, value)| !value.is_empty()).collect()
    }

    /// Validates a new object, except for its metadata and by the rules.
    pub fn check_new(&self, object: &Value, errors: &mut ErrorList) {
        if self.check_kind(object, errors) {
            validate::check(&self.schema, object, None, &FieldPath::root(), errors);
            self.check_scale(object, true, errors);
        }
        embedded::check(&self.schema, object, &self.registry, errors);
        lists::check(&self.schema, object, errors);
    }

    /// Evaluates the CEL rules only for their cost, which the caller measures, and drops the errors.
    pub fn evaluate_rules(&self, new: &Value, old: Option<&Value>) {
        self.check_rules(new, old, &mut ErrorList::new(), &mut WarningList::new());
    }

    /// Validates an object by the CEL rules, which come last.
    pub fn check_rules(
        &self,
        new: &Value,
        old: Option<&Value>,
        errors: &mut ErrorList,
        warnings: &mut WarningList,
    ) {
        if let Some(rules) = &self.rules {
            rules.check(&self.schema, new, old, errors, warnings);
        }
    }

    /// Validates a changed object, except for its metadata and by the rules.
    pub fn check_change(&self, new: &Value, old: &Value, errors: &mut ErrorList) {
        if self.check_kind(new, errors) {
            validate::check(&self.schema, new, Some(old), &FieldPath::root(), errors);
            self.check_scale(new, true, errors);
        }
        embedded::check(&self.schema, new, &self.registry, errors);
        self.check_lists(new, old, errors);
    }

    /// Validates a changed status, except by the rules.
    pub fn check_status(&self, new: &Value, old: &Value, errors: &mut ErrorList) {
        let status = |object: &'_ Value| object.fields().and_then(|fields| fields.get("status")).cloned();
        if self.check_kind(new, errors) {
            if let (Some(schema), Some(value)) = (self.schema.properties.get("status"), status(new)) {
                validate::check(schema, &value, status(old).as_ref(), &FieldPath::new("status"), errors);
            }
            self.check_scale(new, false, errors);
        }
        self.check_lists(new, old, errors);
    }

    fn check_lists(&self, new: &Value, old: &Value, errors: &mut ErrorList) {
        let mut old_errors = ErrorList::new();
        lists::check(&self.schema, old, &mut old_errors);
        if old_errors.is_empty() {
            lists::check(&self.schema, new, errors);
        }
    }

    /// Whether an object has this kind. If not, neither its metadata nor its schema is checked, but its lists and rules are.
    fn check_kind(&self, object: &Value, errors: &mut ErrorList) -> bool {
        let identity = [("kind", &self.kind), ("apiVersion", &self.api_version)];
        let mut mismatches =
            identity.into_iter().filter(|(field, expected)| object.str(field) != &***expected).peekable();
        if mismatches.peek().is_none() {
            return true;
        }
        errors.clear();
        for (field, expected) in mismatches {
            let message = format!("must be {expected}");
            errors.push(FieldError::invalid(&FieldPath::new(field), &quoted(object.str(field)), &message));
        }
        false
    }

    fn check_scale(&self, object: &Value, with_spec: bool, errors: &mut ErrorList) {
        if let Some(paths) = self.scale.as_ref().and_then(SubresourceStrategy::replica_paths) {
            paths.check(object, with_spec, errors);
        }
    }

    /// The table cells of an object.
    pub fn row(&self, object: &Value, ages: Ages) -> Vec<Value> {
        let mut cells = vec![Value::from(meta::name(object))];
        cells.extend(self.cells.iter().map(|cell| cell.value(object, ages)));
        cells
    }
}

/// A value as text.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<no value>".to_owned(),
        Value::Float(number) => json::short_float(*number),
        other => String::from_utf8_lossy(&json::to_json(other)).into_owned(),
    }
}

impl Cell {
    fn value(&self, object: &Value, ages: Ages) -> Value {
        let Some(value) = self.path.first(object) else { return Value::Null };
        match (&*self.kind, value) {
            ("string", value) => Value::String(text(value)),
            ("integer", Value::Int(_)) | ("number", Value::Float(_)) | ("boolean", Value::Bool(_)) => {
                value.clone()
            }
            ("integer", Value::Float(number)) => Value::Int(*number as i64),
            ("number", Value::Int(number)) => Value::Float(*number as f64),
            ("date", Value::String(text)) if matches!(text.as_str(), "" | "null") => {
                Value::String(ages.since(None))
            }
            ("date", Value::String(text)) => match time::parse_seconds(text) {
                Ok(seconds) => Value::String(ages.since(Some(seconds))),
                Err(_) => Value::from("<invalid>"),
            },
            _ => Value::Null,
        }
    }
}

/// The stored bytes of an object of this kind.
pub fn encode_stored(custom: &CustomResource, object: &Value) -> codec::Encoded {
    let mut object = object.clone();
    object.set("apiVersion", &*custom.storage_api_version);
    if let Some(schema) = custom
        .schemas
        .get(&*custom.storage_api_version)
        .filter(|_| custom.storage_api_version != custom.api_version)
    {
        custom.clean(schema, &mut object);
    }
    codec::encode_draft(&custom.registry, custom.registry.free_object(), &object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_values_have_the_type_of_their_column() {
        let cell = |kind: &str, value: &str| {
            let object = json::read(format!(r#"{{"v":{value}}}"#).as_bytes()).unwrap();
            let cell = Cell { path: JsonPath::parse(".v").unwrap(), kind: kind.into() };
            cell.value(&object, Ages::At(100))
        };
        let table = [
            ("string", r#""x""#, r#""x""#),
            ("string", "3", r#""3""#),
            ("string", "2.50", r#""2.5""#),
            ("string", "1234567.5", r#""1.2345675e+06""#),
            ("string", "0.00001", r#""1e-05""#),
            ("string", "true", r#""true""#),
            ("string", "null", r#""<no value>""#),
            ("string", r#"{"a":"<b>"}"#, r#""{\"a\":\"\\u003cb\\u003e\"}""#),
            ("integer", "2.9", "2"),
            ("integer", r#""3""#, "null"),
            ("number", "3", "3.0"),
            ("boolean", "true", "true"),
            ("boolean", r#""true""#, "null"),
            ("date", r#""1970-01-01T00:01:30Z""#, r#""10s""#),
            ("date", r#""soon""#, r#""<invalid>""#),
            ("date", r#""""#, r#""<unknown>""#),
            ("date", "null", "null"),
        ];
        for (kind, value, expected) in table {
            assert_eq!(cell(kind, value), json::read(expected.as_bytes()).unwrap(), "{kind} {value}");
        }
    }
}
