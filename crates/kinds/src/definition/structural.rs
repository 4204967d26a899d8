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
    for (field, shown) in UNSUPPORTED {
        if !schema.child(field).is_empty() || (field == "additionalItems" && schema.child(field).is_set()) {
            return Some(format!("OpenAPIV3Schema '{shown}' is not supported"));
        }
    }
    if !schema.child("items").value.items().is_empty() {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    let preserves = schema.child("x-kubernetes-preserve-unknown-fields");
    if preserves.is_set() && !preserves.is_true() {
        let why = "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined";
        return Some(why.to_owned());
    }
    below(schema).into_iter().find_map(|part| unsupported(&part))
}

/// The direct subschemas.
pub fn below<'a>(schema: &FieldValue<'a>) -> Vec<FieldValue<'a>> {
    let mut all = Vec::new();
    for field in ["items", "additionalProperties", "not"] {
        let part = schema.child(field);
        if part.value.fields().is_some() {
            all.push(part);
        }
    }
    all.extend(schema.child("items").items());
    for list in ["allOf", "anyOf", "oneOf"] {
        all.extend(schema.child(list).items());
    }
    all.extend(schema.child("properties").entries().map(|(_, part)| part));
    all
}

/// Validates a schema; errors are sorted by text.
pub fn validate(schema: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut found = ErrorList::new();
    invariants(schema, Level::Root, &mut found);
    completeness(schema, schema, &mut found);
    found.sort_by_key(ToString::to_string);
    errors.append(&mut found);
}

fn flag(schema: &FieldValue<'_>, name: &str) -> bool {
    schema.child(&format!("x-kubernetes-{name}")).is_true()
}

fn invariants(schema: &FieldValue<'_>, level: Level, errors: &mut ErrorList) {
    let (kind, items, more) =
        (schema.child("type"), schema.child("items"), schema.child("additionalProperties"));
    if kind.text() == "array" && !items.is_set() {
        items.required(errors, "must be specified");
    }
    // A list of schemas is refused elsewhere.
    if items.value.fields().is_some() {
        invariants(&items, Level::Item, errors);
    }
    for (_, property) in schema.child("properties").entries() {
        invariants(&property, Level::Field, errors);
    }
    if more.is_set() {
        if level == Level::Root {
            more.forbidden(errors, "must not be used at the root");
        }
        if more.value.fields().is_some() {
            invariants(&more, Level::Field, errors);
        }
    }
    extensions(schema, errors);
    values(schema, is_int_or_string(&schema.child("anyOf")), errors);
    types(schema, level, errors);
    resource(schema, level, errors);
}

fn extensions(schema: &FieldValue<'_>, errors: &mut ErrorList) {
    for other in ["preserve-unknown-fields", "embedded-resource"] {
        if flag(schema, "int-or-string") && flag(schema, other) {
            let node = schema.child(&format!("x-kubernetes-{other}"));
            node.invalid(errors, "must be false if x-kubernetes-int-or-string is true");
        }
    }
}

fn types(schema: &FieldValue<'_>, level: Level, errors: &mut ErrorList) {
    let kind = schema.child("type");
    let embedded = flag(schema, "embedded-resource");
    if embedded && kind.text() != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        if kind.is_empty() {
            kind.required(errors, why);
        } else {
            kind.invalid(errors, why);
        }
    } else if kind.is_empty() && !flag(schema, "int-or-string") && !flag(schema, "preserve-unknown-fields") {
        kind.required(
            errors,
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        );
    }
    if embedded && schema.child("additionalProperties").is_set() {
        let why = "must not be used if x-kubernetes-embedded-resource is set";
        schema.child("additionalProperties").forbidden(errors, why);
    }
    if level == Level::Root && !kind.is_empty() && kind.text() != "object" {
        kind.invalid(errors, "must be object at the root");
    }
}

/// The fields that every object has must keep their types.
fn resource(schema: &FieldValue<'_>, level: Level, errors: &mut ErrorList) {
    let embedded = flag(schema, "embedded-resource");
    let is_resource = level == Level::Root || embedded;
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
        if level == Level::Root && !is_bare_metadata(metadata.value) {
            let why = "must not specify anything other than name and generateName, but metadata is implicitly \
                       specified";
            metadata.forbidden(errors, why);
        }
    }
    if embedded && !flag(schema, "preserve-unknown-fields") && properties.is_empty() {
        let why = "must not be empty if x-kubernetes-embedded-resource is true without \
                   x-kubernetes-preserve-unknown-fields";
        properties.required(errors, why);
    }
}

fn is_bare_metadata(metadata: &Value) -> bool {
    let names = |value: &Value| {
        value
            .fields()
            .is_some_and(|all| all.keys().all(|key| matches!(key.as_str(), "name" | "generateName")))
    };
    metadata.fields().into_iter().flatten().all(|(field, value)| match field.as_str() {
        "type" | "default" | "externalDocs" | "example" => true,
        "properties" => names(value),
        _ => value.is_null(),
    })
}

/// Whether an anyOf is that of int-or-string.
fn is_int_or_string(any_of: &FieldValue<'_>) -> bool {
    let only = |item: FieldValue<'_>, kind: &str| item.len() == 1 && item.child("type").text() == kind;
    let mut items = any_of.items();
    any_of.len() == 2
        && items.next().is_some_and(|one| only(one, "integer"))
        && items.next().is_some_and(|one| only(one, "string"))
}

/// Validates the parts of a schema that constrain values without giving them a type.
fn values(schema: &FieldValue<'_>, skip_any_of: bool, errors: &mut ErrorList) {
    if !skip_any_of {
        for part in schema.child("anyOf").items() {
            nested(&part, false, errors);
        }
    }
    for (index, part) in schema.child("allOf").items().enumerate() {
        nested(&part, index == 0 && is_int_or_string(&part.child("anyOf")), errors);
    }
    for part in schema.child("oneOf").items() {
        nested(&part, false, errors);
    }
    if schema.child("not").is_set() {
        nested(&schema.child("not"), false, errors);
    }
    let pattern = schema.child("pattern");
    if let Err(why) = pattern::check(pattern.text()) {
        pattern.invalid(errors, &format!("must be a valid regular expression, but isn't: {why}"));
    }
}

/// Validates a schema that only adds constraints to another.
fn nested(schema: &FieldValue<'_>, skip_any_of: bool, errors: &mut ErrorList) {
    values(schema, skip_any_of, errors);
    if schema.child("items").value.fields().is_some() {
        nested(&schema.child("items"), false, errors);
    }
    for (_, property) in schema.child("properties").entries() {
        nested(&property, false, errors);
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
    for (field, why) in table {
        let node = schema.child(field);
        let there = if matches!(field, "default") { node.is_set() } else { !node.is_empty() };
        if there {
            node.forbidden(errors, why);
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
fn completeness(schema: &FieldValue<'_>, limits: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut all: Vec<FieldValue<'_>> = Vec::new();
    if limits.child("not").is_set() {
        all.push(limits.child("not"));
    }
    for list in ["allOf", "anyOf", "oneOf"] {
        all.extend(limits.child(list).items());
    }
    for part in &all {
        nested_completeness(schema, part, errors);
    }
}

fn nested_completeness(schema: &FieldValue<'_>, limits: &FieldValue<'_>, errors: &mut ErrorList) {
    completeness(schema, limits, errors);
    let missing = |path: &FieldPath, errors: &mut ErrorList, at: &FieldPath| {
        errors.push(pilothouse_apimachinery::field::FieldError::required(
            path,
            &format!("because it is defined in {at}"),
        ));
    };
    let items = limits.child("items");
    if items.value.fields().is_some() {
        if schema.child("items").is_set() {
            nested_completeness(&schema.child("items"), &items, errors);
        } else {
            missing(&schema.child("items").path, errors, &items.path);
        }
    }
    let properties = schema.child("properties");
    for (name, limited) in limits.child("properties").entries() {
        let path = properties.path.key(name);
        match properties.value.get(name) {
            Some(value) => nested_completeness(&FieldValue { value, path }, &limited, errors),
            None => missing(&path, errors, &limited.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn each_rule_of_structure_refuses() {
        let base = object(
            r#"{"s":{"type":"object","properties":{"metadata":{"type":"object","properties":{"name":{"type":"string"}}},
                "a":{"type":"array","items":{"type":"string","pattern":"^a$"}},
                "i":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}]},
                "e":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}}}}"#,
        );
        each_refused(
            &base,
            |object, errors| validate(&FieldValue::of(object, "s"), errors),
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
