//! Validates the schemas of custom resources, except for being structural (`structural.rs`) and for their CEL expressions
//! (`pilothouse_structural::check_rules`).

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;
use pilothouse_structural::StoredExpressions;

use super::structural;
use crate::allowed::apiextensions_v1;
use crate::messages;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// The fields allowed at the root of a schema if there is a status subresource, with their names in messages.
const ALLOWED_AT_ROOT: [(&str, &str); 22] = [
    ("description", "Description"),
    ("type", "Type"),
    ("format", "Format"),
    ("title", "Title"),
    ("maximum", "Maximum"),
    ("exclusiveMaximum", "ExclusiveMaximum"),
    ("minimum", "Minimum"),
    ("exclusiveMinimum", "ExclusiveMinimum"),
    ("maxLength", "MaxLength"),
    ("minLength", "MinLength"),
    ("pattern", "Pattern"),
    ("maxItems", "MaxItems"),
    ("minItems", "MinItems"),
    ("uniqueItems", "UniqueItems"),
    ("multipleOf", "MultipleOf"),
    ("required", "Required"),
    ("items", "Items"),
    ("properties", "Properties"),
    ("externalDocs", "ExternalDocs"),
    ("example", "Example"),
    ("x-kubernetes-preserve-unknown-fields", "XPreserveUnknownFields"),
    ("x-kubernetes-validations", "XValidations"),
];

/// Validates the schema of a version: the field `openAPIV3Schema` of `parent`. `stored`: the expressions that are not new.
pub fn validate(
    parent: &FieldValue<'_>,
    has_status: bool,
    stored: &StoredExpressions<'_>,
    errors: &mut ErrorList,
) {
    let schema = parent.child("openAPIV3Schema");
    if !schema.is_set() {
        return;
    }
    let errors_before = errors.len();
    if has_status {
        validate_root_with_status(parent, &schema, errors);
    }
    if schema.child("nullable").is_true() {
        let path = parent.path.child("openAPIV3Schema.nullable");
        errors.push(FieldError::forbidden(&path, "nullable cannot be true at the root"));
    }
    let unsupported = structural::unsupported(&schema);
    let errors_before_structural = errors.len();
    if unsupported.is_none() {
        structural::validate(&schema, errors);
        if errors.len() == errors_before_structural {
            pilothouse_structural::check_defaults(schema.value, &schema.path, errors);
        }
    }
    let is_structural = unsupported.is_none() && errors.len() == errors_before_structural;
    validate_schema(&schema, SchemaPosition { is_root: true, ..SchemaPosition::default() }, errors);
    if is_structural {
        pilothouse_structural::check_rules(schema.value, &schema.path, stored, errors);
    }
    if let Some(detail) = unsupported.filter(|_| errors.len() == errors_before) {
        errors.push(FieldError::invalid(&schema.path, "\"\"", &detail));
    }
}

fn validate_root_with_status(parent: &FieldValue<'_>, schema: &FieldValue<'_>, errors: &mut ErrorList) {
    let kind = schema.child("type");
    if kind.is_set() && kind.text() != "object" {
        let path = parent.path.child("openAPIV3Schema.type");
        let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        errors.push(FieldError::invalid(&path, &quoted(kind.text()), detail));
        return;
    }
    let is_disallowed = |field: &String, value: &Value| {
        let is_empty = FieldValue { value, path: schema.path.clone() }.is_empty();
        !is_empty && !ALLOWED_AT_ROOT.iter().any(|(known, _)| known == field)
    };
    if schema.value.fields().into_iter().flatten().any(|(field, value)| is_disallowed(field, value)) {
        let names: Vec<&str> = ALLOWED_AT_ROOT.iter().map(|(_, name)| *name).collect();
        let detail = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
            names.join(" ")
        );
        messages::invalid_struct(&schema.path, "apiextensions.JSONSchemaProps", errors, &detail);
    }
}

/// The position of a schema, as far as rules depend on it.
#[derive(Clone, Copy, Default)]
struct SchemaPosition<'a> {
    is_root: bool,
    in_metadata: bool,
    /// Why a default is forbidden here.
    no_default: Option<&'a str>,
}

fn validate_schema(schema: &FieldValue<'_>, position: SchemaPosition<'_>, errors: &mut ErrorList) {
    validate_standard_fields(schema, position, errors);
    if schema.child("uniqueItems").is_true() {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        schema.child("uniqueItems").forbidden(errors, detail);
    }
    let inner = SchemaPosition { is_root: false, ..position };
    let (additional, properties) = (schema.child("additionalProperties"), schema.child("properties"));
    if additional.is_set() && additional.value.as_bool() != Some(true) && !properties.is_empty() {
        additional.forbidden(errors, "additionalProperties and properties are mutual exclusive");
    }
    if additional.value.fields().is_some() {
        let no_default = match position.in_metadata {
            true => Some("inside additionalProperties applying to object metadata"),
            false => position.no_default,
        };
        validate_schema(&additional, SchemaPosition { no_default, ..inner }, errors);
    }
    for (name, property) in properties.entries() {
        let is_meta = matches!(name, "metadata" | "kind" | "apiVersion")
            && (position.is_root || schema.child("x-kubernetes-embedded-resource").is_true());
        let no_default_reason = format!("in top-level {name}");
        let no_default =
            if is_meta && position.is_root { Some(no_default_reason.as_str()) } else { position.no_default };
        validate_schema(
            &property,
            SchemaPosition { is_root: false, in_metadata: position.in_metadata || is_meta, no_default },
            errors,
        );
    }
    if schema.child("not").is_set() {
        validate_schema(&schema.child("not"), inner, errors);
    }
    for list in ["allOf", "oneOf", "anyOf"] {
        for subschema in schema.child(list).items() {
            validate_schema(&subschema, inner, errors);
        }
    }
    for (_, subschema) in schema.child("definitions").entries() {
        validate_schema(&subschema, inner, errors);
    }
    let items = schema.child("items");
    if items.value.fields().is_some() {
        validate_schema(&items, inner, errors);
    }
    for subschema in items.items() {
        validate_schema(&subschema, inner, errors);
    }
    for (_, subschema) in
        schema.child("dependencies").entries().filter(|(_, subschema)| subschema.value.fields().is_some())
    {
        validate_schema(&subschema, inner, errors);
    }
    let preserve = schema.child("x-kubernetes-preserve-unknown-fields");
    if preserve.value.as_bool() == Some(false) {
        preserve.invalid(errors, "must be true or undefined");
    }
    validate_collections(schema, errors);
    validate_rules(schema, errors);
}

fn validate_standard_fields(schema: &FieldValue<'_>, position: SchemaPosition<'_>, errors: &mut ErrorList) {
    let kind = schema.child("type");
    if !kind.is_empty() {
        kind.one_of(errors, &TYPES);
    }
    if let Some(detail) = position.no_default.filter(|_| schema.child("default").is_set()) {
        schema.child("default").forbidden(errors, &format!("must not be set {detail}"));
    }
    for field in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        let node = schema.child(field);
        let is_present = if field == "additionalItems" { node.is_set() } else { !node.is_empty() };
        if is_present {
            node.forbidden(errors, &format!("{field} is not supported"));
        }
    }
    if kind.text() == "null" {
        kind.forbidden(errors, "type cannot be set to null, use nullable as an alternative");
    }
    if !schema.child("items").value.items().is_empty() {
        schema.child("items").forbidden(errors, "items must be a schema object and not an array");
    }
    let embedded = schema.child("x-kubernetes-embedded-resource");
    if position.in_metadata && embedded.is_true() {
        embedded.forbidden(errors, "must not be used inside of resource meta");
    }
}

/// Checks the type that an extension field requires.
fn require_type(kind: &FieldValue<'_>, expected: &str, field: &str, errors: &mut ErrorList) {
    if kind.text() == expected {
        return;
    }
    let detail = format!("must be {expected} if {field} is specified");
    if kind.is_empty() {
        kind.required(errors, &detail);
    } else {
        kind.invalid(errors, &detail);
    }
}

/// Validates the list and map types.
fn validate_collections(schema: &FieldValue<'_>, errors: &mut ErrorList) {
    let (map_type, list_type, keys) = (
        schema.child("x-kubernetes-map-type"),
        schema.child("x-kubernetes-list-type"),
        schema.child("x-kubernetes-list-map-keys"),
    );
    let (kind, items) = (schema.child("type"), schema.child("items"));
    if map_type.is_set() {
        require_type(&kind, "object", "x-kubernetes-map-type", errors);
        map_type.one_of(errors, &["atomic", "granular"]);
    }
    if list_type.is_set() {
        require_type(&kind, "array", "x-kubernetes-list-type", errors);
    }
    if list_type.text() == "set" && kind.text() == "array" {
        const ATOMIC: &str = "must be atomic as item of a list with x-kubernetes-list-type=set";
        let inner = items.child("x-kubernetes-list-type");
        match items.child("type").text() {
            "array" if inner.is_set() && inner.text() != "atomic" => inner.invalid(errors, ATOMIC),
            "object" if items.child("x-kubernetes-map-type").text() != "atomic" => {
                let path = items.child("x-kubernetes-map-type").path;
                let rendered = if inner.is_set() { inner.render() } else { "\"null\"".to_owned() };
                errors.push(FieldError::invalid(&path, &rendered, ATOMIC));
            }
            _ => {}
        }
    }
    if list_type.is_set() {
        list_type.one_of(errors, &["atomic", "set", "map"]);
    }
    if !keys.is_empty() && list_type.text() != "map" {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        if list_type.is_set() {
            list_type.invalid(errors, detail);
        } else {
            list_type.required(errors, detail);
        }
    }
    if list_type.text() == "map" {
        validate_list_map(&keys, &items, errors);
    }
    validate_list_items(list_type.text(), &keys, &items, errors);
}

fn validate_list_map(keys: &FieldValue<'_>, items: &FieldValue<'_>, errors: &mut ErrorList) {
    if keys.is_empty() {
        keys.required(errors, "must not be empty if x-kubernetes-list-type is map");
    }
    if !items.is_set() {
        items.required(errors, "must have a schema if x-kubernetes-list-type is map");
        return;
    }
    if items.value.fields().is_none() {
        let detail = "must only have a single schema if x-kubernetes-list-type is map";
        messages::invalid_struct(&items.path, "apiextensions.JSONSchemaPropsOrArray", errors, detail);
        return;
    }
    let kind = items.child("type");
    if kind.text() != "object" {
        kind.invalid_text(errors, "must be object if parent array's x-kubernetes-list-type is map");
        return;
    }
    let (properties, mut seen) = (items.child("properties"), BTreeSet::new());
    for key in keys.items() {
        let path = properties.path.key(key.text()).child("type");
        match properties.value.get(key.text()).map(|property| property.str("type")) {
            Some("array" | "object") => {
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(FieldError::invalid(&path, &quoted(kind.text()), detail));
            }
            Some(_) => {}
            None => keys.invalid(errors, "entries must all be names of item properties"),
        }
        if !seen.insert(key.text()) {
            keys.invalid(errors, "must not contain duplicate entries");
        }
    }
}

/// The keys of list items must be required or have a default, and must not be nullable.
fn validate_list_items(
    list_type: &str,
    keys: &FieldValue<'_>,
    items: &FieldValue<'_>,
    errors: &mut ErrorList,
) {
    if !matches!(list_type, "set" | "map") || items.value.fields().is_none() {
        return;
    }
    if items.child("nullable").is_true() {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        items.child("nullable").forbidden(errors, &detail);
    }
    let required: BTreeSet<&str> = items.child("required").items().map(|name| name.text()).collect();
    for key in keys.items().filter(|_| list_type == "map") {
        let properties = items.child("properties");
        let Some(value) = properties.value.get(key.text()) else { continue };
        let property = FieldValue { value, path: properties.path.key(key.text()) };
        let is_required = required.contains(key.text());
        if !is_required && !property.child("default").is_set() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            property.child("default").required(errors, detail);
        }
        if property.child("nullable").is_true() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            property.child("nullable").forbidden(errors, detail);
        }
    }
}

/// Validates CEL rules, except for their expressions.
fn validate_rules(schema: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut is_opaque = None;
    for rule in schema.child("x-kubernetes-validations").items() {
        let (text, message, computed, field) = (
            rule.child("rule"),
            rule.child("message"),
            rule.child("messageExpression"),
            rule.child("fieldPath"),
        );
        let trimmed = |node: &FieldValue<'_>| node.text().trim().to_owned();
        let has_line_breaks = |text: &str| text.contains(['\n', '\r']);
        if trimmed(&text).is_empty() {
            text.required(errors, "rule is not specified");
        } else if !message.is_empty() && trimmed(&message).is_empty() {
            message.invalid(errors, "message must be non-empty if specified");
        } else if has_line_breaks(&trimmed(&message)) {
            message.invalid(errors, "message must not contain line breaks");
        } else if has_line_breaks(&trimmed(&text)) && message.is_empty() {
            message.required(errors, "message must be specified if rule contains line breaks");
        }
        if !computed.is_empty() && trimmed(&computed).is_empty() {
            computed.required(errors, "messageExpression must be non-empty if specified");
        }
        rule.child("reason").one_of_if_set(errors, apiextensions_v1::ValidationRule::REASON);
        if field.is_empty() {
            continue;
        }
        if trimmed(&field).is_empty() {
            field.invalid(errors, "fieldPath must be non-empty if specified");
        }
        if has_line_breaks(field.text()) {
            field.invalid(errors, "fieldPath must not contain line breaks");
        }
        // A path cannot be looked up in an invalid schema.
        if find_schema(field.text(), schema, true).is_err()
            && !*is_opaque.get_or_insert_with(|| structural::unsupported(schema).is_some())
        {
            field.invalid(errors, "fieldPath must be a valid path");
        }
    }
}

/// The schema at a path such as `.spec.size` or `.data['a.b']`.
pub fn find_schema<'a>(
    path: &str,
    schema: &FieldValue<'a>,
    allow_brackets: bool,
) -> Result<FieldValue<'a>, String> {
    const NO_FIELD: &str = "does not refer to a valid field";
    const UNEXPECTED_END: &str = "unexpected end of JSON path";
    let (mut position, mut rest) = (schema.clone(), path);
    while !rest.is_empty() {
        let name;
        if let Some(after) = rest.strip_prefix('[') {
            if !allow_brackets {
                return Err("array notation is not allowed".to_owned());
            }
            let inner = after.strip_prefix('\'').ok_or_else(|| {
                if after.is_empty() {
                    UNEXPECTED_END.to_owned()
                } else {
                    format!("expected single quoted string but got {after}")
                }
            })?;
            let (quoted, after) = inner.split_once("']").ok_or_else(|| UNEXPECTED_END.to_owned())?;
            (name, rest) = (quoted, after);
        } else if let Some(after) = rest.strip_prefix('.') {
            if after.is_empty() {
                return Err(UNEXPECTED_END.to_owned());
            }
            let end = after.find(['.', '[', ']']).unwrap_or(after.len());
            name = after.get(..end).unwrap_or_default();
            rest = after.get(end..).unwrap_or_default();
        } else {
            let end = rest.find(['.', '[', ']']).unwrap_or(rest.len()).max(1);
            return Err(format!("expected [ or . but got: {}", rest.get(..end).unwrap_or(rest)));
        }
        let properties = position.child("properties");
        position = if properties.is_set() {
            let value = properties.value.get(name).ok_or_else(|| NO_FIELD.to_owned())?;
            FieldValue { value, path: properties.path.key(name) }
        } else if position.child("additionalProperties").value.fields().is_some() {
            position.child("additionalProperties")
        } else {
            return Err(NO_FIELD.to_owned());
        };
    }
    Ok(position)
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn unparsable_schema_is_reported_once() {
        for (opaque, expected) in [
            (r#""items":[{"type":"string"}]"#, "items must be a schema object and not an array"),
            (r#""x-kubernetes-preserve-unknown-fields":false"#, "must be true or undefined"),
        ] {
            let object = object(&format!(
                r#"{{"v":{{"openAPIV3Schema":{{"type":"object","not":{{"type":"string"}},"x-kubernetes-validations":[{{"rule":"a","fieldPath":".zz"}}],
                    "properties":{{"x":{{"type":"object",{opaque}}},"d":{{"type":"integer","default":"x"}}}}}}}}}}"#
            ));
            let mut errors = ErrorList::new();
            validate(&FieldValue::top_level(&object, "v"), false, &StoredExpressions::default(), &mut errors);
            assert!(errors.len() == 1 && errors[0].to_string().contains(expected), "{errors:?}");
        }
    }

    #[test]
    fn schema_validation_refuses_each_violation() {
        let base = object(
            r#"{"v":{"openAPIV3Schema":{"type":"object","properties":{
                "l":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],
                    "items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"}}}},
                "s":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},
                "m":{"type":"object","x-kubernetes-map-type":"atomic","additionalProperties":{"type":"string"}},
                "d":{"type":"integer","default":1},"e":{"type":"string","enum":["a","b"],"default":"a"}}}}}"#,
        );
        let field_path = |rest: &str| format!("v.openAPIV3Schema.{rest}");
        let list_path = |rest: &str| field_path(&format!("properties.l.{rest}"));
        let table: Vec<(String, &str, &str)> = vec![
            (
                field_path("nullable"),
                "true",
                "v.openAPIV3Schema.nullable: Forbidden: nullable cannot be true at the root",
            ),
            (
                field_path("properties.x"),
                r#"{"type":"foo"}"#,
                "v.openAPIV3Schema.properties[x].type: Unsupported value: \"foo\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
            ),
            (
                field_path("properties.x"),
                r##"{"$ref":"#/x"}"##,
                "properties[x].$ref: Forbidden: $ref is not supported",
            ),
            (
                field_path("properties.x"),
                r#"{"type":"string","$schema":"y"}"#,
                "v.openAPIV3Schema: Invalid value: \"\": OpenAPIV3Schema 'schema' is not supported",
            ),
            (
                field_path("properties.x"),
                r#"{"type":"array","items":{"type":"string"},"uniqueItems":true}"#,
                "uniqueItems cannot be set to true since",
            ),
            (
                field_path("properties.kind"),
                r#"{"type":"string","default":"K"}"#,
                "properties[kind].default: Forbidden: must not be set in top-level kind",
            ),
            (
                field_path("properties.m.properties"),
                r#"{"a":{"type":"string"}}"#,
                "additionalProperties and properties are mutual exclusive",
            ),
            (
                field_path("properties.m.x-kubernetes-map-type"),
                r#""x""#,
                "supported values: \"atomic\", \"granular\"",
            ),
            (
                field_path("properties.m.x-kubernetes-preserve-unknown-fields"),
                "false",
                "must be true or undefined",
            ),
            (list_path("x-kubernetes-list-type"), r#""x""#, "x"),
            (
                list_path("x-kubernetes-list-map-keys"),
                r#"["z"]"#,
                "entries must all be names of item properties",
            ),
            (list_path("x-kubernetes-list-map-keys"), r#"["k","k"]"#, "must not contain duplicate entries"),
            (list_path("items.required"), "[]", "so it must have a default or be a required property"),
            (list_path("items.nullable"), "true", "cannot be nullable when x-kubernetes-list-type is map"),
            (list_path("items.properties.k.nullable"), "true", "so it cannot be nullable"),
            (
                field_path("properties.s.items"),
                r#"{"type":"object","x-kubernetes-preserve-unknown-fields":true}"#,
                "items.x-kubernetes-map-type: Invalid value: \"null\": must be atomic as item of a list",
            ),
            (
                field_path("properties.d.default"),
                r#""x""#,
                "properties[d].default: Invalid value: \"string\":  in body must be of type integer: \"string\"",
            ),
            (
                field_path("properties.e.default"),
                r#""c""#,
                "properties[e].default: Unsupported value: \"c\": supported values: \"a\", \"b\"",
            ),
            (
                field_path("x-kubernetes-validations"),
                r#"[{"rule":" "}]"#,
                "x-kubernetes-validations[0].rule: Required value: rule is not specified",
            ),
            (
                field_path("x-kubernetes-validations"),
                r#"[{"rule":"a","message":"x\ny"}]"#,
                "message must not contain line breaks",
            ),
            (
                field_path("x-kubernetes-validations"),
                r#"[{"rule":"a\nb"}]"#,
                "message must be specified if rule contains line breaks",
            ),
            (
                field_path("x-kubernetes-validations"),
                r#"[{"rule":"a","reason":"X"}]"#,
                "\"FieldValueDuplicate\", \"FieldValueForbidden\"",
            ),
            (
                field_path("x-kubernetes-validations"),
                r#"[{"rule":"a","fieldPath":".zz"}]"#,
                "fieldPath must be a valid path",
            ),
        ];
        for (path, json, expected) in table.iter().filter(|(_, _, expected)| *expected != "x") {
            each_refused(
                &base,
                |object, errors| {
                    validate(
                        &FieldValue::top_level(object, "v"),
                        false,
                        &StoredExpressions::default(),
                        errors,
                    );
                },
                &[(path.as_str(), json, expected)],
            );
        }
        each_refused(
            &base,
            |object, errors| {
                validate(&FieldValue::top_level(object, "v"), true, &StoredExpressions::default(), errors);
            },
            &[(
                "v.openAPIV3Schema.x-kubernetes-map-type",
                r#""atomic""#,
                "only [Description Type Format Title",
            )],
        );
        let schema = object(r#"{"s":{"properties":{"a":{"additionalProperties":{"type":"string"}}}}}"#);
        let schema = FieldValue::top_level(&schema, "s");
        assert!(find_schema(".a['x.y']", &schema, true).is_ok() && find_schema(".b", &schema, true).is_err());
        assert_eq!(find_schema(".a['x']", &schema, false).unwrap_err(), "array notation is not allowed");
    }
}
