//! How many items of an object have owners of their own by their value: a text does not tell them from other items, and their owners
//! take many times what they take themselves.

use super::Versions;
use super::shape::{self, Shape};
use crate::limits::OWNED_DEPTH;
use crate::schema::Registry;
use crate::value::Value;
use crate::version::GroupVersion;

/// The number of items of all sets in a value of this version.
pub fn count_set_items(versions: &Versions<'_>, version: &GroupVersion, value: &Value) -> usize {
    let Some(ty) = versions.type_in(version) else { return 0 };
    count(versions.registry, shape::of_type(versions.registry, ty, None), value, OWNED_DEPTH)
}

fn count(registry: &Registry, shape: Shape<'_>, value: &Value, depth: usize) -> usize {
    let Some(depth) = depth.checked_sub(1) else { return 0 };
    let fields = || value.fields().into_iter().flatten();
    match shape {
        Shape::Set(_) => value.items().len(),
        Shape::Keyed(item, _) => {
            let shape = shape::of_item(registry, shape, item);
            value.items().iter().map(|item| count(registry, shape, item, depth)).sum()
        }
        Shape::Struct(structure) => fields()
            .filter_map(|(name, inner)| Some((shape::of_name(registry, structure, name)?, inner)))
            .map(|(shape, inner)| count(registry, shape, inner, depth))
            .sum(),
        Shape::Map(entry) => {
            let shape = shape::of_type(registry, entry, None);
            fields().map(|(_, inner)| count(registry, shape, inner, depth)).sum()
        }
        // What has no schema has no sets.
        Shape::Whole(_) | Shape::Free(_) => 0,
    }
}
