//! The order of lists in a strategic merge patch.
//!
//! Items of the patch come in the order of the patch, items that only the server has keep their order, and the two are
//! interleaved by their previous positions.

use std::collections::HashMap;

use super::body::{kind, printed};
use super::strategic::{DIRECTIVE, Fault, no_merge_key, wrong_type};
use crate::codec::to_json;
use crate::value::{Object, Value};

/// The longest list that is sorted by insertion; see [`sorted`].
const SHORT: usize = 20;

/// How the items of a list are identified: by value, or by a merge key.
#[derive(Clone, Copy)]
pub struct Identity<'k>(pub Option<&'k str>);

impl Identity<'_> {
    /// The identity of an item; `None` if it lacks the merge key.
    pub fn of(self, item: &Value) -> Option<Vec<u8>> {
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
        self.of(item).ok_or_else(|| wrong_type("map[string]interface {}", item))
    }

    /// The position of each item; the first one counts.
    pub fn places(self, items: &[Value]) -> HashMap<Vec<u8>, usize> {
        let mut places = HashMap::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            if let Some(identity) = self.of(item) {
                places.entry(identity).or_insert(at);
            }
        }
        places
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
        let shown = lists.join(" ");
        return Err(Fault::unfit(format!("list element types are not identical: [{shown}]")));
    }
    Ok(kind(first))
}

/// Splits items into those that `named` contains and the others.
pub fn parted(
    items: Vec<Value>,
    named: &[Value],
    identity: Identity<'_>,
) -> Result<(Vec<Value>, Vec<Value>), Fault> {
    let places = identity.places(named);
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for item in items {
        let known = places.contains_key(&identity.required(&item)?);
        if known { inside.push(item) } else { outside.push(item) }
    }
    Ok((inside, outside))
}

/// All items: those of the patch in the order of `patch_order`, the others in that of `server_order`.
pub fn ordered(
    patch: Vec<Value>,
    server: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    identity: Identity<'_>,
) -> Result<Vec<Value>, Fault> {
    let patch = sorted(patch, patch_order, identity)?;
    let server = sorted(server, server_order, identity)?;
    let places = identity.places(server_order);
    let place = |item: &Value| identity.of(item).and_then(|identity| places.get(&identity).copied());
    let mut all = Vec::with_capacity(patch.len() + server.len());
    let (mut patch, mut server) = (patch.into_iter().peekable(), server.into_iter().peekable());
    while let (Some(left), Some(right)) = (server.peek(), patch.peek()) {
        let server_first = matches!((place(left), place(right)), (Some(left), Some(right)) if left < right);
        all.extend(if server_first { server.next() } else { patch.next() });
    }
    all.extend(server);
    all.extend(patch);
    Ok(all)
}

/// The items in the order of `order`. Items marked for deletion go last.
fn sorted(items: Vec<Value>, order: &[Value], identity: Identity<'_>) -> Result<Vec<Value>, Fault> {
    if identity.0.is_some() {
        order.iter().try_for_each(|item| identity.required(item).map(drop))?;
    }
    let places = identity.places(order);
    let (mut kept, mut marked) = (Vec::new(), Vec::new());
    for item in items {
        let place = places.get(&identity.required(&item)?).copied();
        let deletes = item.fields().is_some_and(is_deletion);
        if deletes { marked.push(item) } else { kept.push((place, item)) }
    }
    if kept.len() <= SHORT {
        // An item that the order does not contain compares as smaller in both directions: the result depends on the sorting
        // algorithm. Short lists are sorted as in the reference.
        let before = |left: Option<usize>, right: Option<usize>| match (left, right) {
            (Some(left), Some(right)) => left < right,
            _ => true,
        };
        for end in 1..kept.len() {
            for at in (1..=end).rev() {
                let (left, right) = (kept.get(at - 1).map(|item| item.0), kept.get(at).map(|item| item.0));
                if !before(right.flatten(), left.flatten()) {
                    break;
                }
                kept.swap(at - 1, at);
            }
        }
    } else {
        kept.sort_by_key(|(place, _)| *place);
    }
    Ok(kept.into_iter().map(|(_, item)| item).chain(marked).collect())
}

/// Whether an item has the directive to delete it.
pub fn is_deletion(item: &Object) -> bool {
    item.get(DIRECTIVE).and_then(Value::as_str) == Some("delete")
}
