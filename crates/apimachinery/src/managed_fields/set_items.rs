//! Counts the items of sets, each of which has owners of its own. The size of a body does not reveal them, and their managed fields
//! take many times the memory of the items.

use super::Versions;
use super::shape::{self, Shape};
use crate::limits::OWNED_DEPTH;
use crate::schema::Registry;
use crate::value::Value;
use crate::version::GroupVersion;

/// The number of items of all sets in a value of this version.
pub fn count_set_items(versions: &Versions<'_>, version: &GroupVersion, value: &Value) -> usize {
    let Some(ty) = versions.type_in(version) else { return 0 };
    count(versions.registry, shape::for_type(versions.registry, ty, None), value, OWNED_DEPTH)
}

fn count(registry: &Registry, shape: Shape<'_>, value: &Value, depth: usize) -> usize {
    let Some(depth) = depth.checked_sub(1) else { return 0 };
    let fields = || value.fields().into_iter().flatten();
    match shape {
        Shape::Set(_) => value.items().len(),
        Shape::Keyed(item, _) => {
            let shape = shape::for_item(registry, shape, item);
            value.items().iter().map(|item| count(registry, shape, item, depth)).sum()
        }
        Shape::Struct(structure) => fields()
            .filter_map(|(name, inner)| Some((shape::for_name(registry, structure, name)?, inner)))
            .map(|(shape, inner)| count(registry, shape, inner, depth))
            .sum(),
        Shape::Map(entry) => {
            let shape = shape::for_type(registry, entry, None);
            fields().map(|(_, inner)| count(registry, shape, inner, depth)).sum()
        }
        // Values without a schema have no sets.
        Shape::Atomic(_) | Shape::Untyped(_) => 0,
    }
}
