//! The OpenAPI schemas of custom resources.

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::schema::GroupVersionKind;
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::definition::status;

use crate::descriptions;
use crate::openapi::CustomSchema;
use crate::openapi::META_PACKAGE;

/// Kinds whose common fields have the usual descriptions.
const OBJECT: &str = "io.k8s.api.core.v1.Pod";
const LIST: &str = "io.k8s.api.core.v1.PodList";
const CONVENTIONS: &str =
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";

/// Keywords that OpenAPI v2 lacks.
const COMBINATORS: [&str; 4] = ["allOf", "anyOf", "oneOf", "not"];
/// Keywords about the schema itself.
const OMITTED: [&str; 2] = ["example", "externalDocs"];
/// Booleans that are omitted if false.
const FLAGS: [&str; 7] = [
    "nullable",
    "uniqueItems",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
];

/// The schemas of a served definition's kinds, and of their lists.
pub fn published(definition: &Value) -> Vec<CustomSchema> {
    let empty = Value::object();
    let spec = definition.get("spec").unwrap_or(&empty);
    let names = definition.get_path(&["status", "acceptedNames"]).unwrap_or(&empty);
    let (group, kind, list_kind) = (spec.str("group"), names.str("kind"), names.str("listKind"));
    let versions = spec.get("versions").map(Value::items).unwrap_or_default();
    let served =
        versions.iter().filter(|version| version.get("served").and_then(Value::as_bool) == Some(true));
    let preserves_unknown_fields = spec.get("preserveUnknownFields").and_then(Value::as_bool) == Some(true);
    let established = status::is_true(definition, status::ESTABLISHED);
    served
        .filter(|_| established)
        .flat_map(|version| {
            let schema = version.get_path(&["schema", "openAPIV3Schema"]).unwrap_or(&empty);
            let gvk = |kind: &str| GroupVersionKind::new(group, version.str("name"), kind);
            let encode = |build: &dyn Fn(Dialect) -> Value| {
                let encode_dialect = |dialect| {
                    let mut schema = build(dialect);
                    add_selectable_fields(&mut schema, version);
                    json::to_json(&schema)
                };
                (encode_dialect(Dialect::V3), encode_dialect(Dialect::V2))
            };
            let object = encode(&|dialect| object(schema, &gvk(kind), preserves_unknown_fields, dialect));
            let list_schema = encode(&|dialect| list(&gvk(kind), list_kind, names.str("plural"), dialect));
            [(gvk(kind), object), (gvk(list_kind), list_schema)].map(|(kind, (schema, schema_v2))| {
                CustomSchema { published: published_name(&kind), kind, schema, schema_v2 }
            })
        })
        .collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

impl Dialect {
    fn reference(self, name: &str) -> String {
        match self {
            Dialect::V2 => format!("#/definitions/{name}"),
            Dialect::V3 => format!("#/components/schemas/{name}"),
        }
    }
}

/// `com.example.v1.Kite`: the group in reverse.
fn published_name(kind: &GroupVersionKind) -> String {
    let mut parts: Vec<&str> = kind.group.split('.').rev().collect();
    parts.extend([kind.version.as_str(), kind.kind.as_str()]);
    parts.join(".")
}

fn field_description(kind: &str, field: &str) -> String {
    descriptions::for_field(kind, field).unwrap_or_default().to_owned()
}

fn set_text(value: &mut Value, name: &str, text: String) {
    if !text.is_empty() {
        value.set(name, text);
    }
}

/// Adds kind, apiVersion and metadata.
fn add_standard_fields(schema: &mut Value, described_type: &str, meta: &str, dialect: Dialect) {
    for field in ["apiVersion", "kind"] {
        let mut property = Value::object();
        set_text(&mut property, "description", field_description(described_type, field));
        property.set("type", "string");
        schema.entry("properties").set(field, property);
    }
    let mut metadata = Value::object();
    set_text(&mut metadata, "description", field_description(described_type, "metadata"));
    let reference = dialect.reference(&format!("{META_PACKAGE}.{meta}"));
    match dialect {
        Dialect::V2 => metadata.set("$ref", reference),
        // In OpenAPI v3 a reference must stand alone.
        Dialect::V3 => {
            let mut target = Value::object();
            target.set("$ref", reference);
            metadata.set("allOf", Value::Array(vec![target].into()));
        }
    }
    schema.entry("properties").set("metadata", metadata);
}

fn add_kind(schema: &mut Value, kind: &GroupVersionKind) {
    let mut gvk = Value::object();
    gvk.set("group", kind.group.as_str());
    gvk.set("version", kind.version.as_str());
    gvk.set("kind", kind.kind.as_str());
    schema.set("x-kubernetes-group-version-kind", Value::Array(vec![gvk].into()));
}

fn object(
    schema: &Value,
    kind: &GroupVersionKind,
    preserves_unknown_fields: bool,
    dialect: Dialect,
) -> Value {
    let flag = |name: &str| schema.get(name).and_then(Value::as_bool) == Some(true);
    // With only its metadata listed, clients would take every other field for unknown.
    let is_unspecified = schema.fields().is_none_or(|fields| fields.is_empty())
        || (dialect == Dialect::V2
            && (preserves_unknown_fields || flag("x-kubernetes-preserve-unknown-fields")));
    let mut published = Value::object();
    if is_unspecified {
        published.set("type", "object");
    } else {
        published = schema.clone();
        unfold(&mut published);
        if dialect == Dialect::V2 {
            simplify(&mut published);
        }
        add_standard_fields(&mut published, OBJECT, "ObjectMeta", dialect);
        embedded(&mut published, dialect);
    }
    add_kind(&mut published, kind);
    published
}

/// Visits the direct subschemas.
fn for_each_subschema(schema: &mut Value, visit: &mut dyn FnMut(&mut Value)) {
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(&mut *visit);
    }
    for field in ["items", "additionalProperties"] {
        if let Some(subschema @ Value::Object(_)) = schema.get_mut(field) {
            visit(subschema);
        }
    }
}

/// Adds the standard fields to embedded resources. No URL path states their kind, so `kind` and `apiVersion` are required.
fn embedded(schema: &mut Value, dialect: Dialect) {
    for_each_subschema(schema, &mut |subschema| embedded(subschema, dialect));
    let flag = |name: &str| schema.get(name).and_then(Value::as_bool) == Some(true);
    if !flag("x-kubernetes-embedded-resource")
        || (dialect == Dialect::V2 && flag("x-kubernetes-preserve-unknown-fields"))
    {
        return;
    }
    add_standard_fields(schema, OBJECT, "ObjectMeta", dialect);
    for (field, description, anchor) in [
        ("apiVersion", "The group and version that this object is written in", "resources"),
        ("kind", "What this object is, in CamelCase", "types-kinds"),
    ] {
        let text = format!("{description}. More info: {CONVENTIONS}#{anchor}");
        schema.entry("properties").entry(field).set("description", text);
    }
    let mut required = schema.get("required").map(Value::items).unwrap_or_default().to_vec();
    for field in ["kind", "apiVersion"] {
        if !required.iter().any(|name| name.as_str() == Some(field)) {
            required.push(field.into());
        }
    }
    schema.set("required", Value::Array(required.into()));
}

fn is_set(schema: &Value, flag: &str) -> bool {
    schema.get(flag).and_then(Value::as_bool) == Some(true)
}

/// Removes meaningless keywords, and expands int-or-string.
fn unfold(schema: &mut Value) {
    OMITTED.iter().for_each(|field| drop(schema.remove(field)));
    for flag in FLAGS {
        if schema.get(flag).is_some() && !is_set(schema, flag) {
            schema.remove(flag);
        }
    }
    if is_set(schema, "x-kubernetes-int-or-string") {
        let typed = |name: &str| {
            let mut schema_of_type = Value::object();
            schema_of_type.set("type", name);
            schema_of_type
        };
        let both = Value::from(["integer", "string"].map(typed).to_vec());
        let first =
            schema.get("allOf").and_then(|all| all.items().first()).and_then(|first| first.get("anyOf"));
        let is_present = schema.get("anyOf") == Some(&both) || first == Some(&both);
        if !is_present && schema.get("anyOf").is_none() {
            schema.set("anyOf", both);
        } else if !is_present {
            let mut any = Value::object();
            any.set("anyOf", both);
            let rest = schema.get("allOf").map(Value::items).unwrap_or_default();
            let all = std::iter::once(any).chain(rest.iter().cloned()).collect::<Vec<Value>>();
            schema.set("allOf", Value::Array(all.into()));
        }
    }
    for_each_subschema(schema, &mut unfold);
}

/// Removes keywords that OpenAPI v2 lacks or its clients do not understand.
fn simplify(schema: &mut Value) {
    schema.remove("default");
    COMBINATORS.iter().for_each(|field| drop(schema.remove(field)));
    let (nullable, preserves) =
        (is_set(schema, "nullable"), is_set(schema, "x-kubernetes-preserve-unknown-fields"));
    if nullable {
        schema.remove("nullable");
    }
    if nullable || preserves {
        schema.remove("properties");
        schema.remove("items");
    }
    let is_bare = match schema.str("type") {
        "array" => schema.get("items").is_none(),
        "object" => preserves,
        _ => false,
    };
    if nullable || is_bare {
        schema.remove("type");
    }
    let may_be_null = |schema: Option<&Value>| schema.is_some_and(|schema| is_set(schema, "nullable"));
    if let Some(required) = schema.get("required") {
        let additional_nullable = may_be_null(schema.get("additionalProperties"));
        let property = |name: &Value| schema.get_path(&["properties", name.as_str().unwrap_or_default()]);
        let required_names =
            required.items().iter().filter(|name| !additional_nullable && !may_be_null(property(name)));
        let required_names: Vec<Value> = required_names.cloned().collect();
        schema.remove("required");
        if !required_names.is_empty() {
            schema.set("required", Value::Array(required_names.into()));
        }
    }
    for_each_subschema(schema, &mut simplify);
}

/// Adds the selectable fields.
fn add_selectable_fields(schema: &mut Value, version: &Value) {
    let fields = version.get("selectableFields").map(Value::items).unwrap_or_default();
    let entry = |field: &Value| {
        let (path, mut entry) = (field.str("jsonPath"), Value::object());
        entry.set("fieldPath", path.strip_prefix('.').unwrap_or(path));
        entry
    };
    if !fields.is_empty() {
        schema.set("x-kubernetes-selectable-fields", Value::Array(fields.iter().map(entry).collect()));
    }
}

fn list(kind: &GroupVersionKind, list_kind: &str, plural: &str, dialect: Dialect) -> Value {
    let mut schema = Value::object();
    schema.set("type", "object");
    schema.set("description", format!("{list_kind} is a list of {}", kind.kind));
    schema.set("required", vec!["items"]);
    let mut item = Value::object();
    item.set("$ref", dialect.reference(&published_name(kind)));
    let mut items = Value::object();
    items.set("type", "array");
    items.set("description", format!("List of {plural}. More info: {CONVENTIONS}"));
    items.set("items", item);
    schema.entry("properties").set("items", items);
    add_standard_fields(&mut schema, LIST, "ListMeta", dialect);
    add_kind(&mut schema, &GroupVersionKind { kind: list_kind.to_owned(), ..kind.clone() });
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_and_list_have_schemas_in_openapi_v2_and_v3() {
        let definition = json::read(
            br#"{"spec":{"group":"g.example","versions":[{"name":"v1","served":true,"schema":{"openAPIV3Schema":{
                "type":"object","properties":{"spec":{"type":"object","required":["a","n"],"properties":{
                "a":{"type":"string","enum":["x"],"default":"x","description":"a word","nullable":false},"n":{"type":"string","nullable":true},
                "i":{"x-kubernetes-int-or-string":true,"pattern":"x"},
                "j":{"x-kubernetes-int-or-string":true,"anyOf":[{"pattern":"y"}]},
                "p":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"q":{"type":"string"}}},
                "e":{"type":"object","x-kubernetes-embedded-resource":true,"properties":{"spec":{"type":"object"}}},
                "l":{"type":"array","nullable":true,"items":{"type":"string"},"example":[1]}}}}}},
                "selectableFields":[{"jsonPath":".spec.a"}]},
                {"name":"v2","served":false}]},
                "status":{"conditions":[{"type":"Established","status":"True"}],
                "acceptedNames":{"plural":"kites","kind":"Kite","listKind":"KiteList"}}}"#,
        )
        .unwrap();
        let all = published(&definition);
        let names: Vec<&str> = all.iter().map(|schema| schema.published.as_str()).collect();
        assert_eq!(names, ["example.g.v1.Kite", "example.g.v1.KiteList"]);
        let third = json::read(&all[0].schema).unwrap();
        let a = third.get_path(&["properties", "spec", "properties", "a"]).unwrap();
        assert!(a.get("enum").is_some() && a.str("description") == "a word");
        let reference = third.get_path(&["properties", "metadata", "allOf"]).unwrap().items()[0].str("$ref");
        assert_eq!(reference, format!("#/components/schemas/{META_PACKAGE}.ObjectMeta"));
        let second = json::read(&all[0].schema_v2).unwrap();
        let part = |schema: &Value, path: &[&str]| {
            let path: Vec<&str> = ["properties", "spec"].iter().chain(path).copied().collect();
            schema.get_path(&path).map(|part| String::from_utf8(json::to_json(part)).unwrap())
        };
        let field = |schema: &Value, name: &str| part(schema, &["properties", name]).unwrap();
        assert_eq!(field(&second, "a"), r#"{"description":"a word","enum":["x"],"type":"string"}"#);
        assert_eq!((field(&second, "n").as_str(), field(&second, "l").as_str()), ("{}", "{}"));
        assert_eq!(part(&second, &["required"]).unwrap(), r#"["a"]"#, "nullable fields are not required");
        assert_eq!(part(&third, &["required"]).unwrap(), r#"["a","n"]"#);
        assert_eq!(
            field(&third, "i"),
            r#"{"anyOf":[{"type":"integer"},{"type":"string"}],"pattern":"x","x-kubernetes-int-or-string":true}"#
        );
        assert_eq!(
            field(&third, "j"),
            r#"{"allOf":[{"anyOf":[{"type":"integer"},{"type":"string"}]}],"anyOf":[{"pattern":"y"}],"x-kubernetes-int-or-string":true}"#
        );
        assert_eq!(field(&second, "i"), r#"{"pattern":"x","x-kubernetes-int-or-string":true}"#);
        assert_eq!(field(&second, "p"), r#"{"x-kubernetes-preserve-unknown-fields":true}"#);
        assert!(field(&third, "p").contains(r#""q":{"type":"string"}"#));
        for schema in [&third, &second] {
            assert_eq!(part(schema, &["properties", "e", "required"]).unwrap(), r#"["kind","apiVersion"]"#);
            let inner = part(schema, &["properties", "e", "properties", "kind"]).unwrap();
            let own =
                String::from_utf8(json::to_json(schema.get_path(&["properties", "kind"]).unwrap())).unwrap();
            assert!(
                inner.contains("in CamelCase. More info:") && inner.contains(r#""type":"string""#),
                "{inner}"
            );
            assert!(
                own.contains("Servers may infer this"),
                "only the kind of embedded resources cannot be inferred: {own}"
            );
            let selectable = schema.get("x-kubernetes-selectable-fields").map(json::to_json).unwrap();
            assert_eq!(String::from_utf8(selectable).unwrap(), r#"[{"fieldPath":"spec.a"}]"#);
        }
        let list = json::read(&all[1].schema).unwrap();
        let item = list.get_path(&["properties", "items", "items"]).unwrap().str("$ref");
        assert_eq!(item, "#/components/schemas/example.g.v1.Kite");
    }
}
