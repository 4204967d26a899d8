//! A schema as a type: what ownership and apply see of custom resources.

use std::sync::Arc;

use super::schema::{Others, Schema};
use crate::api::schema::registry::{Addition, plain_field, structure};
use crate::api::schema::{Field, List, Map, Registry, Scalar, Type, TypeId};

/// Makes types out of the schemas of one definition.
pub struct Types<'a> {
    base: &'a Arc<Registry>,
    added: Addition,
}

impl<'a> Types<'a> {
    /// On top of these.
    pub fn on(base: &'a Arc<Registry>) -> Types<'a> {
        Types { base, added: Addition::to(base) }
    }

    /// The type of a kind with this schema.
    pub fn object(&mut self, schema: &Schema) -> TypeId {
        self.structure(schema, true)
    }

    /// Where all of it is.
    pub fn added(self) -> Addition {
        self.added
    }

    fn field(&mut self, name: &str, schema: &Schema) -> Field {
        Field {
            pointer: true,
            default: schema.default.clone().map(Box::new),
            map_atomic: schema.atomic.then_some(true),
            ..plain_field(name.into(), self.value(schema))
        }
    }

    /// `whole`: whether it has a kind and metadata of its own.
    fn structure(&mut self, schema: &Schema, whole: bool) -> TypeId {
        let mut fields = Vec::new();
        if whole {
            let text = self.scalar(Scalar::String);
            fields.extend(["kind", "apiVersion"].map(|name| plain_field(name.into(), text)));
            if let Some(metadata) = self.base.meta("ObjectMeta") {
                fields.push(plain_field("metadata".into(), metadata));
            }
        }
        let own = |name: &str| whole && matches!(name, "kind" | "apiVersion" | "metadata");
        for (name, inner) in schema.properties.iter().filter(|(name, _)| !own(name)) {
            let field = self.field(name, inner);
            fields.push(field);
        }
        let open = schema.preserves.then(|| self.base.free());
        let mut made = structure("", whole, fields, open);
        made.atomic = schema.atomic;
        self.added.add(Type::Struct(made))
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
                    self.added.add(Type::List(List { item, merge: schema.list.clone(), name: None }))
                }
                None => self.base.free(),
            },
            ["object"] if schema.embedded => self.structure(schema, true),
            ["object"] => match &schema.others {
                Some(Others::Of(inner)) => {
                    let value = self.value(inner);
                    self.added.add(Type::Map(Map { value }))
                }
                Some(Others::Any) => self.base.free(),
                None if schema.properties.is_empty() && schema.preserves => self.base.free(),
                None => self.structure(schema, false),
            },
            _ if !schema.properties.is_empty() => self.structure(schema, false),
            _ => self.base.free(),
        }
    }

    fn scalar(&mut self, scalar: Scalar) -> TypeId {
        self.added.add(Type::Scalar(scalar))
    }
}
