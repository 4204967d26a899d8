//! The structure of types for field ownership: atomic, or part by part.

use std::borrow::Cow;
use std::sync::Arc;

use super::field_set::PathElement;
use crate::schema::encode::{EmptyLists, Print, printed};
use crate::schema::{Field, List, ListFact, Registry, Scalar, Struct, Type, TypeId};
use crate::value::{Object, Value};

/// The structure of a type for field ownership.
#[derive(Clone, Copy)]
pub(super) enum Shape<'r> {
    /// Each field has its own owners.
    Struct(&'r Struct),
    /// Each entry has its own owners.
    Map(TypeId),
    /// Each item has its own owners, identified by its value.
    Set(TypeId),
    /// Each item has its own owners, identified by these fields.
    Keyed(TypeId, &'r [String]),
    /// Atomic: owned as a whole.
    Atomic(TypeId),
    /// Without a schema: an object has owners for each entry, anything else is atomic. See [`Shape::resolve`].
    Untyped(TypeId),
}

impl Shape<'_> {
    /// The final shape, once its values are known.
    pub(super) fn resolve<'v>(self, values: impl IntoIterator<Item = Option<&'v Value>>) -> Self {
        let Shape::Untyped(ty) = self else { return self };
        let mut values = values.into_iter().flatten().filter(|value| !value.is_null()).peekable();
        let any = values.peek().is_some();
        if any && values.all(|value| matches!(value, Value::Object(_))) {
            Shape::Map(ty)
        } else {
            Shape::Atomic(ty)
        }
    }
}

/// The position in an object: only at the root and in the metadata there are fields without owners.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Position {
    Root,
    Metadata,
    Inside,
}

/// Metadata that the server sets, without owners.
const UNOWNED_METADATA: [&str; 8] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "selfLink",
    "managedFields",
];

impl Position {
    /// Whether a field here has no owner.
    pub(super) fn is_unowned(self, name: &str) -> bool {
        match self {
            Position::Root => matches!(name, "kind" | "apiVersion"),
            Position::Metadata => UNOWNED_METADATA.contains(&name),
            Position::Inside => false,
        }
    }

    /// The position of a field.
    pub(super) fn child(self, name: &str) -> Position {
        if self == Position::Root && name == "metadata" { Position::Metadata } else { Position::Inside }
    }
}

/// The shape of a type.
pub(super) fn for_type(registry: &Registry, ty: TypeId, is_atomic: Option<bool>) -> Shape<'_> {
    match registry.get(ty) {
        Type::Struct(structure) if !is_atomic.unwrap_or(structure.atomic) => Shape::Struct(structure),
        Type::Map(map) if is_atomic != Some(true) => Shape::Map(map.value),
        Type::List(list) => for_list(list).unwrap_or(Shape::Atomic(ty)),
        Type::Scalar(Scalar::Free) => Shape::Untyped(ty),
        _ => Shape::Atomic(ty),
    }
}

/// The shape of an associative list; `None` if the list is atomic.
pub(super) fn for_list(list: &List) -> Option<Shape<'_>> {
    match &list.merge {
        ListFact::Set => Some(Shape::Set(list.item)),
        ListFact::Map(keys) => Some(Shape::Keyed(list.item, keys)),
        ListFact::Unspecified | ListFact::Atomic => None,
    }
}

/// The shape of a struct's field; `None` if there is none.
pub(super) fn for_name<'r>(registry: &'r Registry, structure: &Struct, name: &str) -> Option<Shape<'r>> {
    match structure.field(name) {
        Some(field) => Some(for_field(registry, field)),
        None => structure.open.map(|ty| for_type(registry, ty, None)),
    }
}

/// The shape of a field.
pub(super) fn for_field<'r>(registry: &'r Registry, field: &Field) -> Shape<'r> {
    for_type(registry, field.ty, field.map_atomic)
}

/// The shape of the items of an associative list.
pub(super) fn for_item<'r>(registry: &'r Registry, list: Shape<'_>, item: TypeId) -> Shape<'r> {
    match list {
        Shape::Keyed(..) => for_type(registry, item, None),
        _ => Shape::Atomic(item),
    }
}

/// The path element of a list item.
pub(super) fn element(registry: &Registry, shape: Shape<'_>, item: &Value) -> Result<PathElement, String> {
    match (shape, item) {
        (Shape::Keyed(ty, keys), Value::Object(fields)) => key_element(registry, ty, keys, fields),
        (Shape::Keyed(..), Value::Null) => {
            Err("associative list with keys may not have a null element".to_owned())
        }
        (Shape::Keyed(..), _) => Err("associative list with keys may not have non-map elements".to_owned()),
        (_, Value::Object(_)) => {
            Err("associative list without keys has an element that's a map type".to_owned())
        }
        (_, Value::Array(_)) => Err("not supported: associative list with lists as elements".to_owned()),
        (_, Value::Null) => {
            Err("associative list without keys has an element that's an explicit null".to_owned())
        }
        (_, scalar) => Ok(PathElement::Value(scalar.clone())),
    }
}

fn key_element(
    registry: &Registry,
    item: TypeId,
    keys: &[String],
    fields: &Object,
) -> Result<PathElement, String> {
    let structure = registry.structure(item);
    let mut values: Vec<(Arc<str>, Value)> = Vec::with_capacity(keys.len());
    for name in keys {
        let field = structure.and_then(|structure| structure.field(name));
        let value = key(registry, item, name, fields).ok_or_else(|| {
            format!("associative list with keys has an element that omits key field {name:?} (and doesn't have default value)")
        })?;
        let name = field.map_or_else(|| name.as_str().into(), |field| field.name.clone());
        values.push((name, value.into_owned()));
    }
    values.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    Ok(PathElement::Key(values.into()))
}

/// The value of a key field of an item: the stated one, its default, or the zero value of a field that is always printed.
pub(super) fn key<'v>(
    registry: &'v Registry,
    item: TypeId,
    name: &str,
    fields: &'v Object,
) -> Option<Cow<'v, Value>> {
    // Null is a valid key value, and is not replaced by the default.
    if let Some(stated) = fields.get(name) {
        return Some(Cow::Borrowed(stated));
    }
    let field = registry.structure(item)?.field(name)?;
    match &field.default {
        Some(default) => Some(Cow::Borrowed(default)),
        None => printed_zero(registry, field).map(Cow::Owned),
    }
}

/// The printed value of an unset field: its zero value, if the type prints it.
fn printed_zero(registry: &Registry, field: &Field) -> Option<Value> {
    match (printed(registry, field, None, EmptyLists::AsStored), registry.get(field.ty)) {
        (Print::Zero, Type::Scalar(scalar)) => match scalar {
            Scalar::String => Some("".into()),
            Scalar::Int32 | Scalar::Int64 | Scalar::IntOrString => Some(0.into()),
            Scalar::Bool => Some(false.into()),
            _ => None,
        },
        _ => None,
    }
}
