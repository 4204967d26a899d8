//! Custom kinds as OpenAPI describes them.

use super::status;
use crate::api::codec::json;
use crate::api::descriptions;
use crate::api::openapi::Custom;
use crate::api::schema::GroupVersionKind;
use crate::api::value::Value;

/// What the schemas of kinds and lists refer to.
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
/// Kinds whose fields are documented as those of every kind are.
const OBJECT: &str = "io.k8s.api.core.v1.Pod";
const LIST: &str = "io.k8s.api.core.v1.PodList";
const CONVENTIONS: &str =
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";

/// What the second version cannot say, or its clients do not understand: what values must be like.
const THIRD_ONLY: [&str; 20] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "nullable",
    "enum",
    "format",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "multipleOf",
    "maxProperties",
    "minProperties",
    "x-kubernetes-validations",
];

/// The kinds of a definition that is served, and those of their lists.
pub fn published(definition: &Value) -> Vec<Custom> {
    let empty = Value::object();
    let spec = definition.get("spec").unwrap_or(&empty);
    let names = definition.at(&["status", "acceptedNames"]).unwrap_or(&empty);
    let (group, kind, list) = (spec.str("group"), names.str("kind"), names.str("listKind"));
    let versions = spec.get("versions").map(Value::items).unwrap_or_default();
    let served = versions.iter().filter(|one| one.get("served").and_then(Value::as_bool) == Some(true));
    let keeps_all = spec.get("preserveUnknownFields").and_then(Value::as_bool) == Some(true);
    let established = status::is_true(definition, status::ESTABLISHED);
    served
        .filter(|_| established)
        .flat_map(|version| {
            let schema = version.at(&["schema", "openAPIV3Schema"]).unwrap_or(&empty);
            let named = |kind: &str| GroupVersionKind::new(group, version.str("name"), kind);
            let write = |made: &dyn Fn(Dialect) -> Value| {
                (json::to_json(&made(Dialect::Third)), json::to_json(&made(Dialect::Second)))
            };
            let object = write(&|dialect| object(schema, &named(kind), keeps_all, dialect));
            let lists = write(&|dialect| list_of(&named(kind), list, names.str("plural"), dialect));
            [(named(kind), object), (named(list), lists)].map(|(kind, (schema, schema_v2))| Custom {
                published: published_name(&kind),
                kind,
                schema,
                schema_v2,
            })
        })
        .collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Second,
    Third,
}

impl Dialect {
    fn reference(self, name: &str) -> String {
        match self {
            Dialect::Second => format!("#/definitions/{name}"),
            Dialect::Third => format!("#/components/schemas/{name}"),
        }
    }
}

/// `com.example.v1.Kite`: the group read from its end.
fn published_name(kind: &GroupVersionKind) -> String {
    let mut parts: Vec<&str> = kind.group.split('.').rev().collect();
    parts.extend([kind.version.as_str(), kind.kind.as_str()]);
    parts.join(".")
}

fn described(kind: &str, field: &str) -> String {
    descriptions::of_field(kind, field).unwrap_or_default().to_owned()
}

fn set_text(value: &mut Value, name: &str, text: String) {
    if !text.is_empty() {
        value.set(name, text);
    }
}

/// Adds the fields that say what an object is.
fn add_own(schema: &mut Value, of: &str, meta: &str, dialect: Dialect) {
    for field in ["apiVersion", "kind"] {
        let mut property = Value::object();
        set_text(&mut property, "description", described(of, field));
        property.set("type", "string");
        schema.entry("properties").set(field, property);
    }
    let mut metadata = Value::object();
    set_text(&mut metadata, "description", described(of, "metadata"));
    metadata.set("$ref", dialect.reference(&format!("{META}.{meta}")));
    schema.entry("properties").set("metadata", metadata);
}

fn add_kind(schema: &mut Value, kind: &GroupVersionKind) {
    let mut named = Value::object();
    named.set("group", kind.group.as_str());
    named.set("version", kind.version.as_str());
    named.set("kind", kind.kind.as_str());
    schema.set("x-kubernetes-group-version-kind", Value::Array(vec![named]));
}

fn object(schema: &Value, kind: &GroupVersionKind, keeps_all: bool, dialect: Dialect) -> Value {
    let flag = |name: &str| schema.get(name).and_then(Value::as_bool) == Some(true);
    // With nothing but its metadata clients would take every other field for unknown.
    let says_nothing = schema.fields().is_none_or(|fields| fields.is_empty())
        || (dialect == Dialect::Second && (keeps_all || flag("x-kubernetes-preserve-unknown-fields")));
    let mut made = Value::object();
    if says_nothing {
        made.set("type", "object");
    } else {
        made = schema.clone();
        embedded(&mut made, dialect);
        if dialect == Dialect::Second {
            simplify(&mut made);
        }
        add_own(&mut made, OBJECT, "ObjectMeta", dialect);
    }
    add_kind(&mut made, kind);
    made
}

/// The schemas right inside of another.
fn each_below(schema: &mut Value, act: &mut dyn FnMut(&mut Value)) {
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(&mut *act);
    }
    for field in ["items", "additionalProperties"] {
        if let Some(below @ Value::Object(_)) = schema.get_mut(field) {
            act(below);
        }
    }
}

/// Objects within objects have a kind and metadata too.
fn embedded(schema: &mut Value, dialect: Dialect) {
    each_below(schema, &mut |below| embedded(below, dialect));
    let flag = |name: &str| schema.get(name).and_then(Value::as_bool) == Some(true);
    if !flag("x-kubernetes-embedded-resource")
        || (dialect == Dialect::Second && flag("x-kubernetes-preserve-unknown-fields"))
    {
        return;
    }
    add_own(schema, OBJECT, "ObjectMeta", dialect);
    let mut required = schema.get("required").map(Value::items).unwrap_or_default().to_vec();
    for field in ["kind", "apiVersion"] {
        if !required.iter().any(|one| one.as_str() == Some(field)) {
            required.push(field.into());
        }
    }
    schema.set("required", Value::Array(required));
}

/// Leaves out what the second version does not know.
fn simplify(schema: &mut Value) {
    let flag = |name: &str| schema.get(name).and_then(Value::as_bool) == Some(true);
    let open = flag("nullable") || flag("x-kubernetes-preserve-unknown-fields");
    if flag("nullable") {
        schema.remove("type");
    }
    if open {
        schema.remove("properties");
        schema.remove("items");
    }
    for field in THIRD_ONLY {
        schema.remove(field);
    }
    each_below(schema, &mut simplify);
}

fn list_of(kind: &GroupVersionKind, list: &str, plural: &str, dialect: Dialect) -> Value {
    let mut made = Value::object();
    made.set("type", "object");
    made.set("description", format!("{list} is a list of {}", kind.kind));
    made.set("required", vec!["items"]);
    let mut item = Value::object();
    item.set("$ref", dialect.reference(&published_name(kind)));
    let mut items = Value::object();
    items.set("type", "array");
    items.set("description", format!("List of {plural}. More info: {CONVENTIONS}"));
    items.set("items", item);
    made.entry("properties").set("items", items);
    add_own(&mut made, LIST, "ListMeta", dialect);
    add_kind(&mut made, &GroupVersionKind { kind: list.to_owned(), ..kind.clone() });
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_and_its_list_are_described_in_both_versions() {
        let definition = json::read(
            br#"{"spec":{"group":"g.example","versions":[{"name":"v1","served":true,"schema":{"openAPIV3Schema":{
                "type":"object","properties":{"spec":{"type":"object","required":["a"],"properties":{
                "a":{"type":"string","enum":["x"],"description":"a word"},"n":{"type":"string","nullable":true}}}}}}},
                {"name":"v2","served":false}]},
                "status":{"conditions":[{"type":"Established","status":"True"}],
                "acceptedNames":{"plural":"kites","kind":"Kite","listKind":"KiteList"}}}"#,
        )
        .unwrap();
        let all = published(&definition);
        let names: Vec<&str> = all.iter().map(|one| one.published.as_str()).collect();
        assert_eq!(names, ["example.g.v1.Kite", "example.g.v1.KiteList"]);
        let third = json::read(&all[0].schema).unwrap();
        let a = third.at(&["properties", "spec", "properties", "a"]).unwrap();
        assert!(a.get("enum").is_some() && a.str("description") == "a word");
        let reference = third.at(&["properties", "metadata"]).unwrap().str("$ref");
        assert_eq!(reference, format!("#/components/schemas/{META}.ObjectMeta"));
        let second = json::read(&all[0].schema_v2).unwrap();
        assert!(second.at(&["properties", "spec", "properties", "a", "enum"]).is_none());
        assert_eq!(second.at(&["properties", "spec", "properties", "n"]), Some(&Value::object()));
        let list = json::read(&all[1].schema).unwrap();
        let item = list.at(&["properties", "items", "items"]).unwrap().str("$ref");
        assert_eq!(item, "#/components/schemas/example.g.v1.Kite");
    }
}
