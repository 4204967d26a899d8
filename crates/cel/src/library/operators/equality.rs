//! Equality.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::mem::discriminant;
use std::sync::Arc;

use pilothouse_apimachinery::value::Value;

use super::super::context::CallContext;
use super::{compare, identity};
use crate::types::ListKind;
use crate::value::{ConstructedObject, Fault, List, Map, Outcome, Val};

/// `x == y`, `x != y`.
pub fn equality<'v>(name: &str, args: &[Val<'v>], context: &mut CallContext) -> Outcome<'v> {
    let [left, right] = args else { return Err(Fault::no_overload()) };
    let wants_equal = name == "_==_";
    if is_library_type(left) && !matches!(right, Val::Null) && discriminant(left) != discriminant(right) {
        // These types can only be compared with themselves; the reference takes the failed comparison for a difference.
        return if wants_equal { Err(Fault::no_overload()) } else { Ok(Val::Bool(true)) };
    }
    Ok(Val::Bool(equal(left, right, context)? == wants_equal))
}

/// Whether a value is of a type that the libraries of the API add to the language.
fn is_library_type(value: &Val<'_>) -> bool {
    matches!(
        value,
        Val::Quantity(_) | Val::Url(_) | Val::Ip(_) | Val::Cidr(..) | Val::Format(_) | Val::Semver(_)
    )
}

/// Whether two values are equal.
pub fn equal<'v>(left: &Val<'v>, right: &Val<'v>, context: &mut CallContext) -> Result<bool, Fault> {
    context.charge_steps(1)?;
    Ok(match (left, right) {
        (Val::Null, Val::Null) => true,
        (Val::Bool(left), Val::Bool(right)) => left == right,
        (Val::Int(_) | Val::Uint(_) | Val::Double(_), Val::Int(_) | Val::Uint(_) | Val::Double(_)) => {
            compare(left, right).is_ok_and(|order| order == Some(Ordering::Equal))
        }
        (Val::String(left), Val::String(right)) => {
            context.charge_steps(left.len().min(right.len()) / 64)?;
            **left == **right
        }
        (Val::Bytes(left), Val::Bytes(right)) => left == right,
        (Val::List(left), Val::List(right)) => equal_lists(left, right, context)?,
        (Val::Map(left), Val::Map(right)) => equal_maps(left, right, context)?,
        (Val::Timestamp(left), Val::Timestamp(right)) => left == right,
        (Val::Duration(left), Val::Duration(right)) => left == right,
        (Val::Type(left), Val::Type(right)) => left == right,
        (Val::Optional(left), Val::Optional(right)) => match (left, right) {
            (Some(left), Some(right)) => equal(left, right, context)?,
            (left, right) => left.is_none() && right.is_none(),
        },
        (Val::Quantity(left), Val::Quantity(right)) => left == right,
        (Val::Url(left), Val::Url(right)) => left.text == right.text,
        (Val::Ip(left), Val::Ip(right)) => left == right,
        (Val::Cidr(left, bits), Val::Cidr(right, other_bits)) => left == right && bits == other_bits,
        (Val::Format(left), Val::Format(right)) => left.name == right.name,
        (Val::Semver(left), Val::Semver(right)) => left == right,
        (Val::Constructed(left), Val::Constructed(right)) => equal_constructed(left, right, context)?,
        (Val::Foreign(left), Val::Foreign(right)) => Arc::ptr_eq(left, right),
        _ => false,
    })
}

fn equal_lists<'v>(left: &List<'v>, right: &List<'v>, context: &mut CallContext) -> Result<bool, Fault> {
    if left.len() != right.len() {
        return Ok(false);
    }
    // Sets and lists of type map are compared by the identity of items.
    if let (List::Borrowed(items, decl_type, kind), List::Borrowed(others, other_decl_type, _)) =
        (left, right)
        && **kind != ListKind::Ordered
    {
        context.charge_steps(items.len() * 2)?;
        let others_by_identity: BTreeMap<Vec<u8>, &Value> =
            others.iter().map(|item| (identity(item, kind), item)).collect();
        for item in *items {
            let Some(other) = others_by_identity.get(&identity(item, kind)) else { return Ok(false) };
            if !equal(&Val::typed(item, decl_type)?, &Val::typed(other, other_decl_type)?, context)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    for (left, right) in left.iter().zip(right.iter()) {
        if !equal(&left?, &right?, context)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn equal_constructed<'v>(
    left: &ConstructedObject<'v>,
    right: &ConstructedObject<'v>,
    context: &mut CallContext,
) -> Result<bool, Fault> {
    if left.name() != right.name() || left.fields().len() != right.fields().len() {
        return Ok(false);
    }
    for ((name, left), (other, right)) in left.fields().iter().zip(right.fields()) {
        if name != other || !equal(left, right, context)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn equal_maps<'v>(left: &Map<'v>, right: &Map<'v>, context: &mut CallContext) -> Result<bool, Fault> {
    if left.len() != right.len() {
        return Ok(false);
    }
    // Fields outside of the schema count, too.
    if let (Map::Object(fields, object), Map::Object(others, _)) = (left, right) {
        let is_declared = |name: &str| object.fields.values().any(|property| property.name == *name);
        for (name, value) in fields.iter().filter(|(name, _)| !is_declared(name)) {
            context.charge_steps(1)?;
            if others.get(name).is_some_and(|other| other != value) {
                return Ok(false);
            }
        }
    }
    for key in left.keys() {
        match (left.get(&key)?, right.get(&key)?) {
            (Some(left), Some(right)) if equal(&left, &right, context)? => {}
            (None, None) => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}
