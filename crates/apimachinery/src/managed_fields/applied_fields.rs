//! The fields that an applied configuration states, and the same set including their parents.

use super::field_set::{FieldSet, PathElement};
use super::shape::{self, Position, Shape};
use crate::limits::OWNED_DEPTH;
use crate::schema::{Registry, TypeId};
use crate::value::Value;

/// The fields that an object states and that can have an owner, `null` and empty ones too.
pub fn owned_fields(registry: &Registry, ty: TypeId, value: &Value) -> Result<FieldSet, String> {
    stated(registry, shape::of_type(registry, ty, None), Position::Root, value, OWNED_DEPTH)
}

/// All fields that an object states.
pub fn all_fields(registry: &Registry, ty: TypeId, value: &Value) -> Result<FieldSet, String> {
    stated(registry, shape::of_type(registry, ty, None), Position::Inside, value, OWNED_DEPTH)
}

fn stated(
    registry: &Registry,
    shape: Shape<'_>,
    place: Position,
    value: &Value,
    depth: usize,
) -> Result<FieldSet, String> {
    let Some(depth) = depth.checked_sub(1) else { return Ok(FieldSet::leaf()) };
    let mut set = FieldSet::default();
    match (shape.settled([Some(value)]), value) {
        (Shape::Whole(_), _) => set.member = true,
        (Shape::Struct(structure), Value::Object(fields)) => {
            for (name, value) in fields.iter().filter(|(name, _)| !place.skips(name)) {
                let Some(shape) = shape::of_name(registry, structure, name) else { continue };
                let mut below = stated(registry, shape, place.under(name), value, depth)?;
                // Nobody owns the metadata as a whole. What the type does not name is an entry of a map.
                below.member |= is_nothing(value) && place.under(name) != Position::Metadata;
                below.member |= structure.field(name).is_none();
                set.push(PathElement::field(name), below);
            }
        }
        (Shape::Map(ty), Value::Object(entries)) => {
            let shape = shape::of_type(registry, ty, None);
            for (key, value) in entries {
                let mut below = stated(registry, shape, Position::Inside, value, depth)?;
                below.member = true;
                set.push(PathElement::field(key), below);
            }
        }
        (Shape::Set(item) | Shape::Keyed(item, _), Value::Array(items)) => {
            let inner = shape::of_item(registry, shape, item);
            for (index, value) in items.iter().enumerate() {
                let element = shape::element(registry, shape, value)
                    .map_err(|error| format!(": element {index}: {error}"))?;
                let mut below = stated(registry, inner, Position::Inside, value, depth)?;
                below.member = true;
                set.push(element, below);
            }
        }
        _ => {}
    }
    set.sort();
    set.join_twins();
    Ok(set)
}

/// Whether a value is owned though it holds nothing that could be.
pub(super) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// The set and every field of a struct on the way to something in it. To take a field out of an object is to take out
/// what nothing but it kept there.
pub fn with_named(registry: &Registry, ty: TypeId, set: &FieldSet) -> FieldSet {
    named(registry, shape::of_type(registry, ty, None), set)
}

fn named(registry: &Registry, shape: Shape<'_>, set: &FieldSet) -> FieldSet {
    let mut all = FieldSet::default();
    all.member = set.member;
    for (element, below) in set.below() {
        let (inner, is_field) = match (shape, element) {
            (Shape::Struct(structure), PathElement::Field(name)) => {
                (shape::of_name(registry, structure, name), structure.field(name).is_some())
            }
            (Shape::Map(ty) | Shape::Free(ty), PathElement::Field(_)) => {
                (Some(shape::of_type(registry, ty, None)), false)
            }
            (Shape::Keyed(item, _), PathElement::Key(_)) => {
                (Some(shape::of_type(registry, item, None)), false)
            }
            _ => (None, false),
        };
        let mut below = match inner {
            Some(inner) => named(registry, inner, below),
            None => below.clone(),
        };
        below.member |= is_field;
        all.push(element.clone(), below);
    }
    all
}
