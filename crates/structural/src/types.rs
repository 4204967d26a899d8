//! The type of a schema, for field ownership and server-side apply.

use std::sync::Arc;

use pilothouse_apimachinery::schema::registry::{Addition, plain_field, structure};
use pilothouse_apimachinery::schema::{Field, List, Map, Registry, Scalar, Type, TypeId};

use super::schema::{AdditionalProperties, Schema};

/// Makes types from the schemas of one definition.
pub struct Types<'a> {
    base: &'a Arc<Registry>,
    types: Addition,
    /// The metadata type of embedded resources, made on demand.
    inner_metadata: Option<TypeId>,
}

/// The fields that a struct has besides its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ImplicitFields {
    /// None.
    Part,
    /// Kind and metadata, as in every object.
    Object,
    /// Kind and metadata of an embedded resource: its metadata has no defaults, so a field is present only if it was set.
    Embedded,
}

impl<'a> Types<'a> {
    /// Creates types on top of a registry.
    pub fn new(base: &'a Arc<Registry>) -> Types<'a> {
        Types { base, types: Addition::new(base), inner_metadata: None }
    }

    /// The type of a kind with this schema.
    pub fn object(&mut self, schema: &Schema) -> TypeId {
        self.structure(schema, ImplicitFields::Object)
    }

    /// All new types.
    pub fn added(self) -> Addition {
        self.types
    }

    fn field(&mut self, name: &str, schema: &Schema) -> Field {
        Field {
            pointer: true,
            nullable: schema.nullable,
            default: schema.default.clone().map(Box::new),
            map_atomic: schema.atomic.then_some(true),
            ..plain_field(name.into(), self.value(schema))
        }
    }

    /// The metadata type of an embedded resource.
    fn inner_metadata(&mut self) -> Option<TypeId> {
        if self.inner_metadata.is_none() {
            let mut metadata = self.base.structure(self.base.meta("ObjectMeta")?)?.clone();
            metadata.fields.iter_mut().for_each(|field| field.pointer = true);
            self.inner_metadata = Some(self.types.add(Type::Struct(metadata)));
        }
        self.inner_metadata
    }

    fn structure(&mut self, schema: &Schema, implicit: ImplicitFields) -> TypeId {
        let mut fields = Vec::new();
        let is_object = implicit != ImplicitFields::Part;
        if is_object {
            let text = self.scalar(Scalar::String);
            fields.extend(["kind", "apiVersion"].map(|name| plain_field(name.into(), text)));
            let embedded = implicit == ImplicitFields::Embedded;
            let metadata = if embedded { self.inner_metadata() } else { self.base.meta("ObjectMeta") };
            if let Some(metadata) = metadata {
                fields.push(Field { pointer: embedded, ..plain_field("metadata".into(), metadata) });
            }
        }
        let is_implicit = |name: &str| is_object && matches!(name, "kind" | "apiVersion" | "metadata");
        for (name, inner) in schema.properties.iter().filter(|(name, _)| !is_implicit(name)) {
            let field = self.field(name, inner);
            fields.push(field);
        }
        let unknown_fields = schema.preserves_unknown_fields.then(|| self.base.free());
        let mut structure = structure("", is_object, fields, unknown_fields);
        structure.atomic = schema.atomic;
        self.types.add(Type::Struct(structure))
    }

    fn value(&mut self, schema: &Schema) -> TypeId {
        match schema.types {
            ["string"] => self.scalar(Scalar::String),
            ["integer"] => self.scalar(Scalar::Int64),
            ["number"] => self.scalar(Scalar::Double),
            ["boolean"] => self.scalar(Scalar::Bool),
            ["integer", "string"] => self.scalar(Scalar::IntOrString),
            ["array"] => match &schema.items {
                Some(items) => {
                    let item = self.value(items);
                    self.types.add(Type::List(List { item, merge: schema.list.clone(), name: None }))
                }
                None => self.base.free(),
            },
            ["object"] if schema.embedded => self.structure(schema, ImplicitFields::Embedded),
            ["object"] => match &schema.additional_properties {
                Some(AdditionalProperties::Schema(inner)) => {
                    let value = self.value(inner);
                    self.types.add(Type::Map(Map { value }))
                }
                Some(AdditionalProperties::Any) => self.base.free(),
                None if schema.properties.is_empty() && schema.preserves_unknown_fields => self.base.free(),
                None => self.structure(schema, ImplicitFields::Part),
            },
            _ if !schema.properties.is_empty() => self.structure(schema, ImplicitFields::Part),
            _ => self.base.free(),
        }
    }

    fn scalar(&mut self, scalar: Scalar) -> TypeId {
        self.types.add(Type::Scalar(scalar))
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::convert::ConversionTable;
    use pilothouse_apimachinery::json;
    use pilothouse_apimachinery::managed_fields::{self, Conversion, Versions, Write};
    use pilothouse_apimachinery::schema::GroupVersionKind;
    use pilothouse_apimachinery::value::Value;
    use pilothouse_apimachinery::version::GroupVersion;

    use super::*;

    fn value(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    /// The owned fields after creating an object with this schema.
    fn owned(schema: &str, object: &str) -> Value {
        let base = Arc::new(Registry::builtin().unwrap());
        let mut types = Types::new(&base);
        let kind = types.object(&Schema::read(&value(schema)));
        let mut types = types.added();
        types.kind(&GroupVersionKind::new("g", "v1", "K"), kind);
        let registry = types.build();
        let version = GroupVersion::new("g", "v1");
        let versions = Versions {
            registry: &registry,
            kind: "K",
            stored: &version,
            conversion: Conversion::Table(ConversionTable::EMPTY),
            is_custom: false,
        };
        let write = Write { manager: "m", version: &version, subresource: "", now: "now", reset: &[] };
        let mut object = value(object);
        managed_fields::record(&versions, &write, None, &mut object);
        object.get_path(&["metadata", "managedFields"]).unwrap().items()[0].get("fieldsV1").unwrap().clone()
    }

    #[test]
    fn embedded_metadata_is_owned_only_where_set() {
        let schema = r#"{"type":"object","properties":{"e":{"type":"object","x-kubernetes-embedded-resource":true,
            "x-kubernetes-preserve-unknown-fields":true}}}"#;
        let inner = |metadata: &str| {
            let object = format!(
                r#"{{"kind":"K","apiVersion":"g/v1","metadata":{{"name":"n"}},"e":{{"kind":"P","apiVersion":"v1"{metadata}}}}}"#
            );
            owned(schema, &object).get_path(&["f:e", "f:metadata"]).cloned()
        };
        assert_eq!(inner(""), None);
        let named = inner(r#","metadata":{"name":"p"}"#).unwrap();
        assert_eq!((named.get("f:name"), named.get("f:creationTimestamp")), (Some(&Value::object()), None));
    }

    #[test]
    fn list_and_map_types_decide_field_ownership() {
        let schema = r#"{"type":"object","properties":{"spec":{"type":"object","properties":{
            "set":{"type":"array","items":{"type":"string"},"x-kubernetes-list-type":"set"},
            "whole":{"type":"array","items":{"type":"string"}},
            "keyed":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],
                "items":{"type":"object","properties":{"k":{"type":"string"},"v":{"type":"integer"}}}},
            "atomic":{"type":"object","x-kubernetes-map-type":"atomic","properties":{"a":{"type":"string"}}},
            "map":{"type":"object","additionalProperties":{"type":"string"}},
            "nul":{"type":"string","nullable":true},
            "free":{"x-kubernetes-preserve-unknown-fields":true},
            "open":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"a":{"type":"string"}}}}}}}"#;
        let object = r#"{"kind":"K","apiVersion":"g/v1","metadata":{"name":"n"},"spec":{"set":["a"],"whole":["b"],
            "keyed":[{"k":"x","v":1}],"atomic":{"a":"1"},"map":{"m":"1"},"nul":null,"free":{"a":{"b":[1]},"c":1},
            "open":{"a":"1","z":{"y":true}}}}"#;
        let expected = r#"{"f:spec":{".":{},"f:set":{".":{},"v:\"a\"":{}},"f:whole":{},
            "f:keyed":{".":{},"k:{\"k\":\"x\"}":{".":{},"f:k":{},"f:v":{}}},"f:atomic":{},"f:map":{".":{},"f:m":{}},
            "f:nul":{},"f:free":{".":{},"f:a":{".":{},"f:b":{}},"f:c":{}},
            "f:open":{".":{},"f:a":{},"f:z":{".":{},"f:y":{}}}}}"#;
        assert_eq!(owned(schema, object), value(expected));
    }
}
