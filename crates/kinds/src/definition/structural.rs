//! Checks that a schema is structural: every field has one type, stated in one place.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;

use super::pattern;

/// The position of a schema in an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Fields that a structural schema cannot have; they are reported elsewhere.
const UNSUPPORTED: [(&str, &str); 7] = [
    ("id", "id"),
    ("$schema", "schema"),
    ("$ref", "$ref"),
    ("patternProperties", "patternProperties"),
    ("dependencies", "dependencies"),
    ("additionalItems", "additionalItems"),
    ("definitions", "definitions"),
];

/// Why a schema cannot be parsed as a structural one.
pub fn unsupported(schema: &FieldValue<'_>) -> Option<String> {
    for (field, rendered) in UNSUPPORTED {
        if !schema.child(field).is_empty() || (field == "additionalItems" && schema.child(field).is_set()) {
            return Some(format!("OpenAPIV3Schema '{rendered}' is not supported"));
        }
    }
    if !schema.child("items").value.items().is_empty() {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    let preserves = schema.child("x-kubernetes-preserve-unknown-fields");
    if preserves.is_set() && !preserves.is_true() {
        let detail = "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined";
        return Some(detail.to_owned());
    }
    subschemas(schema).into_iter().find_map(|part| unsupported(&part))
}

/// The direct subschemas.
pub fn subschemas<'a>(schema: &FieldValue<'a>) -> Vec<FieldValue<'a>> {
    let mut schemas = Vec::new();
    for field in ["items", "additionalProperties", "not"] {
        let part = schema.child(field);
        if part.value.fields().is_some() {
            schemas.push(part);
        }
    }
    schemas.extend(schema.child("items").items());
    for list in ["allOf", "anyOf", "oneOf"] {
        schemas.extend(schema.child(list).items());
    }
    schemas.extend(schema.child("properties").entries().map(|(_, part)| part));
    schemas
}

/// Validates a schema; errors are sorted by text.
pub fn validate(schema: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut structural_errors = ErrorList::new();
    validate_invariants(schema, Level::Root, &mut structural_errors);
    validate_completeness(schema, schema, &mut structural_errors);
    structural_errors.sort_by_key(ToString::to_string);
    errors.append(&mut structural_errors);
}

fn has_extension(schema: &FieldValue<'_>, name: &str) -> bool {
    schema.child(&format!("x-kubernetes-{name}")).is_true()
}

fn validate_invariants(schema: &FieldValue<'_>, level: Level, errors: &mut ErrorList) {
    let (kind, items, additional) =
        (schema.child("type"), schema.child("items"), schema.child("additionalProperties"));
    if kind.text() == "array" && !items.is_set() {
        items.required(errors, "must be specified");
    }
    // A list of schemas is refused elsewhere.
    if items.value.fields().is_some() {
        validate_invariants(&items, Level::Item, errors);
    }
    for (_, property) in schema.child("properties").entries() {
        validate_invariants(&property, Level::Field, errors);
    }
    if additional.is_set() {
        if level == Level::Root {
            additional.forbidden(errors, "must not be used at the root");
        }
        if additional.value.fields().is_some() {
            validate_invariants(&additional, Level::Field, errors);
        }
    }
    validate_extensions(schema, errors);
    validate_values(schema, is_int_or_string(&schema.child("anyOf")), errors);
    validate_types(schema, level, errors);
    validate_resource(schema, level, errors);
}

fn validate_extensions(schema: &FieldValue<'_>, errors: &mut ErrorList) {
    for other in ["preserve-unknown-fields", "embedded-resource"] {
        if has_extension(schema, "int-or-string") && has_extension(schema, other) {
            let node = schema.child(&format!("x-kubernetes-{other}"));
            node.invalid(errors, "must be false if x-kubernetes-int-or-string is true");
        }
    }
}

fn validate_types(schema: &FieldValue<'_>, level: Level, errors: &mut ErrorList) {
    let kind = schema.child("type");
    let is_embedded = has_extension(schema, "embedded-resource");
    if is_embedded && kind.text() != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        if kind.is_empty() {
            kind.required(errors, detail);
        } else {
            kind.invalid(errors, detail);
        }
    } else if kind.is_empty()
        && !has_extension(schema, "int-or-string")
        && !has_extension(schema, "preserve-unknown-fields")
    {
        kind.required(
            errors,
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        );
    }
    if is_embedded && schema.child("additionalProperties").is_set() {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        schema.child("additionalProperties").forbidden(errors, detail);
    }
    if level == Level::Root && !kind.is_empty() && kind.text() != "object" {
        kind.invalid(errors, "must be object at the root");
    }
}

/// The metadata fields of every object must keep their types.
fn validate_resource(schema: &FieldValue<'_>, level: Level, errors: &mut ErrorList) {
    let is_embedded = has_extension(schema, "embedded-resource");
    let is_resource = level == Level::Root || is_embedded;
    let properties = schema.child("properties");
    let find = |name: &str| {
        properties.value.get(name).map(|value| FieldValue { value, path: properties.path.key(name) })
    };
    for name in ["kind", "apiVersion"] {
        let kind = find(name).filter(|_| is_resource).map(|property| property.child("type"));
        if let Some(kind) = kind.filter(|kind| kind.text() != "string") {
            kind.invalid_text(errors, "must be string");
        }
    }
    if let Some(metadata) = find("metadata") {
        if is_resource && metadata.child("type").text() != "object" {
            metadata.child("type").invalid_text(errors, "must be object");
        }
        if level == Level::Root && !has_only_names(metadata.value) {
            let detail = "must not specify anything other than name and generateName, but metadata is implicitly \
                       specified";
            metadata.forbidden(errors, detail);
        }
    }
    if is_embedded && !has_extension(schema, "preserve-unknown-fields") && properties.is_empty() {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                   x-kubernetes-preserve-unknown-fields";
        properties.required(errors, detail);
    }
}

fn has_only_names(metadata: &Value) -> bool {
    let only_names = |value: &Value| {
        value.fields().is_some_and(|properties| {
            properties.keys().all(|key| matches!(key.as_str(), "name" | "generateName"))
        })
    };
    metadata.fields().into_iter().flatten().all(|(field, value)| match field.as_str() {
        "type" | "default" | "externalDocs" | "example" => true,
        "properties" => only_names(value),
        _ => value.is_null(),
    })
}

/// Whether an anyOf is that of int-or-string.
fn is_int_or_string(any_of: &FieldValue<'_>) -> bool {
    let has_only_type =
        |item: FieldValue<'_>, kind: &str| item.len() == 1 && item.child("type").text() == kind;
    let mut items = any_of.items();
    any_of.len() == 2
        && items.next().is_some_and(|item| has_only_type(item, "integer"))
        && items.next().is_some_and(|item| has_only_type(item, "string"))
}

/// Validates the parts of a schema that constrain values without giving them a type.
fn validate_values(schema: &FieldValue<'_>, skip_any_of: bool, errors: &mut ErrorList) {
    if !skip_any_of {
        for part in schema.child("anyOf").items() {
            validate_nested(&part, false, errors);
        }
    }
    for (index, part) in schema.child("allOf").items().enumerate() {
        validate_nested(&part, index == 0 && is_int_or_string(&part.child("anyOf")), errors);
    }
    for part in schema.child("oneOf").items() {
        validate_nested(&part, false, errors);
    }
    if schema.child("not").is_set() {
        validate_nested(&schema.child("not"), false, errors);
    }
    let pattern = schema.child("pattern");
    if let Err(detail) = pattern::check(pattern.text()) {
        pattern.invalid(errors, &format!("must be a valid regular expression, but isn't: {detail}"));
    }
}

/// Validates a schema that only adds constraints to another.
fn validate_nested(schema: &FieldValue<'_>, skip_any_of: bool, errors: &mut ErrorList) {
    validate_values(schema, skip_any_of, errors);
    if schema.child("items").value.fields().is_some() {
        validate_nested(&schema.child("items"), false, errors);
    }
    for (_, property) in schema.child("properties").entries() {
        validate_nested(&property, false, errors);
    }
    let table = [
        ("type", "must be empty to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ];
    for (field, detail) in table {
        let node = schema.child(field);
        let is_present = if matches!(field, "default") { node.is_set() } else { !node.is_empty() };
        if is_present {
            node.forbidden(errors, detail);
        }
    }
    if schema.child("additionalProperties").value.fields().is_some() {
        schema.child("additionalProperties").forbidden(errors, "must be undefined to be structural");
    }
    let metadata = schema.child("properties");
    if metadata.value.get("metadata").is_some() {
        let node = FieldValue { value: metadata.value, path: metadata.path.key("metadata") };
        node.forbidden(errors, "must not be specified in a nested context");
    }
}

/// Checks that a field with constraints also exists in the structural schema.
fn validate_completeness(schema: &FieldValue<'_>, constraints: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut constraint_schemas: Vec<FieldValue<'_>> = Vec::new();
    if constraints.child("not").is_set() {
        constraint_schemas.push(constraints.child("not"));
    }
    for list in ["allOf", "anyOf", "oneOf"] {
        constraint_schemas.extend(constraints.child(list).items());
    }
    for part in &constraint_schemas {
        validate_nested_completeness(schema, part, errors);
    }
}

fn validate_nested_completeness(
    schema: &FieldValue<'_>,
    constraints: &FieldValue<'_>,
    errors: &mut ErrorList,
) {
    validate_completeness(schema, constraints, errors);
    let report_missing = |path: &FieldPath, errors: &mut ErrorList, defined_at: &FieldPath| {
        errors.push(pilothouse_apimachinery::field::FieldError::required(
            path,
            &format!("because it is defined in {defined_at}"),
        ));
    };
    let items = constraints.child("items");
    if items.value.fields().is_some() {
        if schema.child("items").is_set() {
            validate_nested_completeness(&schema.child("items"), &items, errors);
        } else {
            report_missing(&schema.child("items").path, errors, &items.path);
        }
    }
    let properties = schema.child("properties");
    for (name, constraint) in constraints.child("properties").entries() {
        let path = properties.path.key(name);
        match properties.value.get(name) {
            Some(value) => validate_nested_completeness(&FieldValue { value, path }, &constraint, errors),
            None => report_missing(&path, errors, &constraint.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn structural_validation_refuses_each_violation() {
        let base = object(
            r#"{"s":{"type":"object","properties":{"metadata":{"type":"object","properties":{"name":{"type":"string"}}},
                "a":{"type":"array","items":{"type":"string","pattern":"^a$"}},
                "i":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}]},
                "e":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}}}}"#,
        );
        each_refused(
            &base,
            |object, errors| validate(&FieldValue::top_level(object, "s"), errors),
            &[
                ("s.type", "null", "s.type: Required value: must not be empty at the root"),
                ("s.type", r#""string""#, "s.type: Invalid value: \"string\": must be object at the root"),
                ("s.properties.a.items", "null", "s.properties[a].items: Required value: must be specified"),
                ("s.properties.a.items.type", "null", "must not be empty for specified array items"),
                (
                    "s.properties.b",
                    "{}",
                    "s.properties[b].type: Required value: must not be empty for specified object fields",
                ),
                (
                    "s.properties.a.items.pattern",
                    r#""[""#,
                    "must be a valid regular expression, but isn't: error parsing regexp: missing closing ]: `[`",
                ),
                (
                    "s.additionalProperties",
                    "true",
                    "s.additionalProperties: Forbidden: must not be used at the root",
                ),
                (
                    "s.properties.kind",
                    r#"{"type":"integer"}"#,
                    "s.properties[kind].type: Invalid value: \"integer\": must be string",
                ),
                (
                    "s.properties.metadata.description",
                    r#""x""#,
                    "s.properties[metadata]: Forbidden: must not specify anything other than name",
                ),
                ("s.properties.metadata.type", r#""string""#, "must be object"),
                (
                    "s.properties.i.x-kubernetes-preserve-unknown-fields",
                    "true",
                    "must be false if x-kubernetes-int-or-string is true",
                ),
                ("s.properties.e.type", "null", "must be object if x-kubernetes-embedded-resource is true"),
                (
                    "s.properties.e.x-kubernetes-preserve-unknown-fields",
                    "null",
                    "properties: Required value: must not be empty if x-kubernetes-embedded-resource",
                ),
                (
                    "s.properties.a.anyOf",
                    r#"[{"type":"string"}]"#,
                    "s.properties[a].anyOf[0].type: Forbidden: must be empty to be structural",
                ),
                (
                    "s.anyOf",
                    r#"[{"description":"x"}]"#,
                    "s.anyOf[0].description: Forbidden: must be empty to be structural",
                ),
                ("s.not", r#"{"default":1}"#, "s.not.default: Forbidden: must be undefined to be structural"),
                (
                    "s.allOf",
                    r#"[{"properties":{"z":{"minLength":1}}}]"#,
                    "s.properties[z]: Required value: because it is defined in s.allOf[0].properties[z]",
                ),
                (
                    "s.oneOf",
                    r#"[{"additionalProperties":{"minLength":1}}]"#,
                    "s.oneOf[0].additionalProperties: Forbidden: must be undefined to be structural",
                ),
            ],
        );
    }
}
