//! The schema of a version of a custom resource, parsed once from its definition.

use pilothouse_apimachinery::formats::Format;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_apimachinery::schema::ListFact;
use pilothouse_apimachinery::value::Value;
use regex::Regex;

use super::properties::Properties;

/// A schema.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// The allowed types; empty for any.
    pub types: &'static [&'static str],
    /// Whether null is allowed.
    pub nullable: bool,
    /// Whether unknown fields are preserved.
    pub preserves_unknown_fields: bool,
    /// Whether it is an embedded resource.
    pub embedded: bool,
    /// The default value.
    pub default: Option<Value>,
    /// The size of the default.
    pub default_bytes: usize,
    /// The named fields.
    pub properties: Properties<Schema>,
    /// The schema of fields that are not named; `None` if there are none.
    pub additional_properties: Option<AdditionalProperties>,
    /// The schema of items.
    pub items: Option<Box<Schema>>,
    /// How lists are merged.
    pub list: ListFact,
    /// Whether a map is atomic.
    pub atomic: bool,
    /// Further constraints.
    pub checks: Option<Box<Checks>>,
    /// Whether it or a subschema has a default.
    pub has_defaults: bool,
    /// The names of its fields with a default.
    pub defaulted_fields: Vec<String>,
}

/// The schema of fields that are not named.
#[derive(Clone, Debug)]
pub enum AdditionalProperties {
    /// Anything.
    Any,
    /// Values of one schema.
    Schema(Box<Schema>),
}

/// Constraints beyond the type.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// The allowed values (enum).
    pub values: Vec<Value>,
    /// The string format.
    pub format: Option<(String, Format)>,
    /// The pattern, as written and compiled.
    pub pattern: Option<(String, Option<Regex>)>,
    /// The maximum length in characters.
    pub max_length: Option<i64>,
    /// The minimum length in characters.
    pub min_length: Option<i64>,
    /// The maximum, and whether it is exclusive.
    pub maximum: Option<(f64, bool)>,
    /// The minimum, and whether it is exclusive.
    pub minimum: Option<(f64, bool)>,
    /// The divisor of the number.
    pub multiple_of: Option<f64>,
    /// The maximum number of items.
    pub max_items: Option<i64>,
    /// The minimum number of items.
    pub min_items: Option<i64>,
    /// The maximum number of fields.
    pub max_fields: Option<i64>,
    /// The minimum number of fields.
    pub min_fields: Option<i64>,
    /// The required fields.
    pub required: Vec<String>,
    /// Schemas that must all match.
    pub all_of: Vec<Schema>,
    /// Schemas of which at least one must match.
    pub any_of: Vec<Schema>,
    /// Schemas of which exactly one must match.
    pub one_of: Vec<Schema>,
    /// A schema that must not match.
    pub not: Option<Box<Schema>>,
}

impl Schema {
    /// Parses a schema of a definition.
    pub fn read(value: &Value) -> Schema {
        Schema::read_with(value, &mut Patterns::default())
    }

    /// Parses a schema with shared patterns, whose total size is bounded.
    pub fn read_with(value: &Value, patterns: &mut Patterns) -> Schema {
        let flag = |name: &str| value.get(name).and_then(Value::as_bool) == Some(true);
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
        let properties: Properties<Schema> = value
            .get("properties")
            .and_then(Value::fields)
            .into_iter()
            .flatten()
            .map(|(name, schema)| (name.clone(), Schema::read_with(schema, patterns)))
            .collect();
        let additional_properties = match value.get("additionalProperties") {
            Some(schema @ Value::Object(_)) => {
                Some(AdditionalProperties::Schema(Box::new(Schema::read_with(schema, patterns))))
            }
            Some(Value::Bool(true)) => Some(AdditionalProperties::Any),
            _ => None,
        };
        let items = match value.get("items") {
            Some(schema @ Value::Object(_)) => Some(Box::new(Schema::read_with(schema, patterns))),
            _ => None,
        };
        let keys = value.get("x-kubernetes-list-map-keys").map(Value::items).unwrap_or_default();
        let keys = keys.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let mut schema = Schema {
            types: types(text("type"), flag("x-kubernetes-int-or-string")),
            nullable: flag("nullable"),
            preserves_unknown_fields: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            default: value.get("default").cloned(),
            default_bytes: value.get("default").map_or(0, |default| json::to_json(default).len()),
            list: match text("x-kubernetes-list-type") {
                "set" => ListFact::Set,
                "map" => ListFact::Map(keys),
                _ => ListFact::Atomic,
            },
            atomic: text("x-kubernetes-map-type") == "atomic",
            checks: Checks::read(value, patterns),
            has_defaults: false,
            defaulted_fields: properties
                .iter()
                .filter(|(_, inner)| inner.default.is_some())
                .map(|(name, _)| name.clone())
                .collect(),
            properties,
            additional_properties,
            items,
        };
        let has_defaults = schema.subschemas().any(|inner| inner.has_defaults || inner.default.is_some());
        schema.has_defaults = has_defaults;
        schema
    }

    /// The direct subschemas of fields and items.
    fn subschemas(&self) -> impl Iterator<Item = &Schema> {
        let additional_properties = match &self.additional_properties {
            Some(AdditionalProperties::Schema(schema)) => Some(&**schema),
            _ => None,
        };
        self.properties.values().chain(additional_properties).chain(self.items.as_deref())
    }

    /// The schema of a field.
    pub fn field(&self, name: &str) -> Option<&Schema> {
        match (self.properties.get(name), &self.additional_properties) {
            (Some(schema), _) => Some(schema),
            (None, Some(AdditionalProperties::Schema(schema))) => Some(schema),
            _ => None,
        }
    }

    /// Whether a value is a forbidden null.
    pub fn forbids_null(&self, value: &Value) -> bool {
        value.is_null() && !self.nullable
    }
}

fn types(name: &str, int_or_string: bool) -> &'static [&'static str] {
    match name {
        _ if int_or_string => &["integer", "string"],
        "object" => &["object"],
        "array" => &["array"],
        "string" => &["string"],
        "integer" => &["integer"],
        "number" => &["number"],
        "boolean" => &["boolean"],
        _ => &[],
    }
}

impl Checks {
    fn read(value: &Value, patterns: &mut Patterns) -> Option<Box<Checks>> {
        let number = |name: &str| match value.get(name) {
            Some(Value::Int(number)) => Some(*number as f64),
            Some(Value::Float(number)) => Some(*number),
            _ => None,
        };
        let flag = |name: &str| value.get(name).and_then(Value::as_bool) == Some(true);
        let count = |name: &str| value.get(name).and_then(Value::as_int);
        let mut schemas = |name: &str| -> Vec<Schema> {
            let items = value.get(name).map(Value::items).unwrap_or_default().iter();
            items.map(|schema| Schema::read_with(schema, patterns)).collect()
        };
        let format = value.get("format").and_then(Value::as_str);
        let pattern = value.get("pattern").and_then(Value::as_str).filter(|pattern| !pattern.is_empty());
        let [all_of, any_of, one_of] = ["allOf", "anyOf", "oneOf"].map(&mut schemas);
        let required = value.get("required").map(Value::items).unwrap_or_default();
        let checks = Checks {
            values: value.get("enum").map(Value::items).unwrap_or_default().to_vec(),
            format: format.and_then(|name| Some((name.to_owned(), Format::named(name)?))),
            pattern: pattern.map(|pattern| (pattern.to_owned(), patterns.compiled(pattern))),
            max_length: count("maxLength"),
            min_length: count("minLength"),
            maximum: number("maximum").map(|maximum| (maximum, flag("exclusiveMaximum"))),
            minimum: number("minimum").map(|minimum| (minimum, flag("exclusiveMinimum"))),
            multiple_of: number("multipleOf"),
            max_items: count("maxItems"),
            min_items: count("minItems"),
            max_fields: count("maxProperties"),
            min_fields: count("minProperties"),
            required: required.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            all_of,
            any_of,
            one_of,
            not: value.get("not").map(|schema| Box::new(Schema::read_with(schema, patterns))),
        };
        checks.is_constraining().then(|| Box::new(checks))
    }

    fn is_constraining(&self) -> bool {
        let numbers = [
            self.max_length,
            self.min_length,
            self.max_items,
            self.min_items,
            self.max_fields,
            self.min_fields,
        ];
        !self.values.is_empty()
            || self.format.is_some()
            || self.pattern.is_some()
            || numbers.iter().any(Option::is_some)
            || self.maximum.is_some()
            || self.minimum.is_some()
            || self.multiple_of.is_some()
            || !self.required.is_empty()
            || [&self.all_of, &self.any_of, &self.one_of].iter().any(|list| !list.is_empty())
            || self.not.is_some()
    }
}
