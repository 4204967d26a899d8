//! The order of lists in a strategic merge patch.
//!
//! Items of the patch come in the order of the patch, items that only the server has keep their order, and the two are
//! interleaved by their previous positions.

use std::collections::HashMap;

use super::body::{kind, printed};
use super::strategic::{DIRECTIVE, Fault, no_merge_key, wrong_type};
use crate::codec::to_json;
use crate::value::{Object, Value};

/// The longest list that is sorted by insertion; see [`sort_by_order`].
const MAX_INSERTION_SORT: usize = 20;

/// The identification of list items: by value, or by a merge key.
#[derive(Clone, Copy)]
pub struct Identity<'k>(pub Option<&'k str>);

impl Identity<'_> {
    /// The identity of an item; `None` if it lacks the merge key.
    pub fn of_item(self, item: &Value) -> Option<Vec<u8>> {
        match self.0 {
            None => Some(to_json(item)),
            Some(key) => item.fields()?.get(key).map(to_json),
        }
    }

    /// The identity of an item that must have the merge key.
    pub fn required(self, item: &Value) -> Result<Vec<u8>, Fault> {
        if let (Some(key), Some(fields)) = (self.0, item.fields())
            && !fields.contains_key(key)
        {
            return Err(no_merge_key(fields, key));
        }
        self.of_item(item).ok_or_else(|| wrong_type("map[string]interface {}", item))
    }

    /// The position of each item; the first one counts.
    pub fn positions(self, items: &[Value]) -> HashMap<Vec<u8>, usize> {
        let mut positions = HashMap::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            if let Some(identity) = self.of_item(item) {
                positions.entry(identity).or_insert(index);
            }
        }
        positions
    }
}

/// The type of the items of some lists. It must be the same for all.
pub fn element_kind(lists: &[&[Value]]) -> Result<&'static str, Fault> {
    let mut items = lists.iter().flat_map(|list| list.iter());
    let first = items.next().ok_or_else(|| Fault::unfit("no elements in any of the given slices"))?;
    if matches!(first, Value::Array(_)) {
        return Err(Fault::DoesNotApply);
    }
    if first.is_null() || items.any(|item| kind(item) != kind(first)) {
        let lists = lists.iter().map(|list| printed(&Value::Array(list.to_vec().into()))).collect::<Vec<_>>();
        let rendered = lists.join(" ");
        return Err(Fault::unfit(format!("list element types are not identical: [{rendered}]")));
    }
    Ok(kind(first))
}

/// Splits items into those that `listed` contains and the others.
pub fn split_by_identity(
    items: Vec<Value>,
    listed: &[Value],
    identity: Identity<'_>,
) -> Result<(Vec<Value>, Vec<Value>), Fault> {
    let positions = identity.positions(listed);
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for item in items {
        let is_listed = positions.contains_key(&identity.required(&item)?);
        if is_listed { inside.push(item) } else { outside.push(item) }
    }
    Ok((inside, outside))
}

/// All items: those of the patch in the order of `patch_order`, the others in that of `server_order`.
pub fn interleave(
    patch: Vec<Value>,
    server: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    identity: Identity<'_>,
) -> Result<Vec<Value>, Fault> {
    let patch = sort_by_order(patch, patch_order, identity)?;
    let server = sort_by_order(server, server_order, identity)?;
    let positions = identity.positions(server_order);
    let position =
        |item: &Value| identity.of_item(item).and_then(|identity| positions.get(&identity).copied());
    let mut all = Vec::with_capacity(patch.len() + server.len());
    let (mut patch, mut server) = (patch.into_iter().peekable(), server.into_iter().peekable());
    while let (Some(left), Some(right)) = (server.peek(), patch.peek()) {
        let server_first =
            matches!((position(left), position(right)), (Some(left), Some(right)) if left < right);
        all.extend(if server_first { server.next() } else { patch.next() });
    }
    all.extend(server);
    all.extend(patch);
    Ok(all)
}

/// The items in the order of `order`. Items marked for deletion go last.
fn sort_by_order(items: Vec<Value>, order: &[Value], identity: Identity<'_>) -> Result<Vec<Value>, Fault> {
    if identity.0.is_some() {
        order.iter().try_for_each(|item| identity.required(item).map(drop))?;
    }
    let positions = identity.positions(order);
    let (mut sorted, mut deletions) = (Vec::new(), Vec::new());
    for item in items {
        let position = positions.get(&identity.required(&item)?).copied();
        let is_deletion = item.fields().is_some_and(is_deletion);
        if is_deletion { deletions.push(item) } else { sorted.push((position, item)) }
    }
    if sorted.len() <= MAX_INSERTION_SORT {
        // An item that the order does not contain compares as smaller in both directions: the result depends on the sorting
        // algorithm. Short lists are sorted as in the reference.
        let precedes = |left: Option<usize>, right: Option<usize>| match (left, right) {
            (Some(left), Some(right)) => left < right,
            _ => true,
        };
        for end in 1..sorted.len() {
            for index in (1..=end).rev() {
                let (left, right) =
                    (sorted.get(index - 1).map(|item| item.0), sorted.get(index).map(|item| item.0));
                if !precedes(right.flatten(), left.flatten()) {
                    break;
                }
                sorted.swap(index - 1, index);
            }
        }
    } else {
        sorted.sort_by_key(|(position, _)| *position);
    }
    Ok(sorted.into_iter().map(|(_, item)| item).chain(deletions).collect())
}

/// Whether an item has the directive to delete it.
pub fn is_deletion(item: &Object) -> bool {
    item.get(DIRECTIVE).and_then(Value::as_str) == Some("delete")
}
