//! The fields that an applied configuration states, and the same set including their parents.

use super::field_set::{FieldSet, PathElement};
use super::shape::{self, Position, Shape};
use crate::limits::OWNED_DEPTH;
use crate::schema::{Registry, TypeId};
use crate::value::Value;

/// The fields that an object states and that can have an owner, `null` and empty ones too.
pub fn owned_fields(registry: &Registry, ty: TypeId, value: &Value) -> Result<FieldSet, String> {
    stated_fields(registry, shape::for_type(registry, ty, None), Position::Root, value, OWNED_DEPTH)
}

/// All fields that an object states.
pub fn all_fields(registry: &Registry, ty: TypeId, value: &Value) -> Result<FieldSet, String> {
    stated_fields(registry, shape::for_type(registry, ty, None), Position::Inside, value, OWNED_DEPTH)
}

fn stated_fields(
    registry: &Registry,
    shape: Shape<'_>,
    position: Position,
    value: &Value,
    depth: usize,
) -> Result<FieldSet, String> {
    let Some(depth) = depth.checked_sub(1) else { return Ok(FieldSet::leaf()) };
    let mut set = FieldSet::default();
    match (shape.resolve([Some(value)]), value) {
        (Shape::Atomic(_), _) => set.member = true,
        (Shape::Struct(structure), Value::Object(fields)) => {
            for (name, value) in fields.iter().filter(|(name, _)| !position.is_unowned(name)) {
                let Some(shape) = shape::for_name(registry, structure, name) else { continue };
                let mut below = stated_fields(registry, shape, position.child(name), value, depth)?;
                // The metadata as a whole has no owner. A field that the type does not declare counts as an entry of a map.
                below.member |= is_null_or_empty(value) && position.child(name) != Position::Metadata;
                below.member |= structure.field(name).is_none();
                set.push(PathElement::field(name), below);
            }
        }
        (Shape::Map(ty), Value::Object(entries)) => {
            let shape = shape::for_type(registry, ty, None);
            for (key, value) in entries {
                let mut below = stated_fields(registry, shape, Position::Inside, value, depth)?;
                below.member = true;
                set.push(PathElement::field(key), below);
            }
        }
        (Shape::Set(item) | Shape::Keyed(item, _), Value::Array(items)) => {
            let inner = shape::for_item(registry, shape, item);
            for (index, value) in items.iter().enumerate() {
                let element = shape::element(registry, shape, value)
                    .map_err(|error| format!(": element {index}: {error}"))?;
                let mut below = stated_fields(registry, inner, Position::Inside, value, depth)?;
                below.member = true;
                set.push(element, below);
            }
        }
        _ => {}
    }
    set.sort();
    set.merge_duplicates();
    Ok(set)
}

/// Whether a value is empty, and therefore owned itself.
pub(super) fn is_null_or_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// The set, and every struct field that is a parent of a member. Removing a field also removes parents that exist only because of
/// it.
pub fn with_struct_fields(registry: &Registry, ty: TypeId, set: &FieldSet) -> FieldSet {
    add_struct_fields(registry, shape::for_type(registry, ty, None), set)
}

fn add_struct_fields(registry: &Registry, shape: Shape<'_>, set: &FieldSet) -> FieldSet {
    let mut all = FieldSet::default();
    all.member = set.member;
    for (element, below) in set.below() {
        let (inner, is_field) = match (shape, element) {
            (Shape::Struct(structure), PathElement::Field(name)) => {
                (shape::for_name(registry, structure, name), structure.field(name).is_some())
            }
            (Shape::Map(ty) | Shape::Untyped(ty), PathElement::Field(_)) => {
                (Some(shape::for_type(registry, ty, None)), false)
            }
            (Shape::Keyed(item, _), PathElement::Key(_)) => {
                (Some(shape::for_type(registry, item, None)), false)
            }
            _ => (None, false),
        };
        let mut below = match inner {
            Some(inner) => add_struct_fields(registry, inner, below),
            None => below.clone(),
        };
        below.member |= is_field;
        all.push(element.clone(), below);
    }
    all
}
