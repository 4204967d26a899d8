//! The operators.

mod equality;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

pub use equality::{equal, equality};

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;

use super::context::CallContext;
use crate::types::ListKind;
use crate::value::{Fault, Key, List, Map, Outcome, Val};

/// `!x`, `-x`.
pub fn unary<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    Ok(match (name, args) {
        ("!_", [Val::Bool(boolean)]) => Val::Bool(!boolean),
        ("-_", [Val::Int(number)]) => Val::Int(number.checked_neg().ok_or_else(overflow)?),
        ("-_", [Val::Double(number)]) => Val::Double(-number),
        ("-_", [Val::Duration(nanos)]) => {
            Val::Duration(nanos.checked_neg().ok_or_else(|| Fault::error("duration overflow"))?)
        }
        _ => return Err(Fault::no_overload()),
    })
}

fn overflow() -> Fault {
    Fault::error("integer overflow")
}

/// `x + y` and its like.
pub fn arithmetic<'v>(name: &str, args: &[Val<'v>], context: &mut CallContext) -> Outcome<'v> {
    let [left, right] = args else { return Err(Fault::no_overload()) };
    let division_by_zero =
        || Fault::error(if name == "_%_" { "modulus by zero" } else { "division by zero" });
    match (left, right) {
        (Val::Int(left), Val::Int(right)) => {
            let result = match name {
                "_+_" => left.checked_add(*right),
                "_-_" => left.checked_sub(*right),
                "_*_" => left.checked_mul(*right),
                _ if *right == 0 => return Err(division_by_zero()),
                "_/_" => left.checked_div(*right),
                _ => left.checked_rem(*right),
            };
            result.map(Val::Int).ok_or_else(overflow)
        }
        (Val::Uint(left), Val::Uint(right)) => {
            let result = match name {
                "_+_" => left.checked_add(*right),
                "_-_" => left.checked_sub(*right),
                "_*_" => left.checked_mul(*right),
                _ if *right == 0 => return Err(division_by_zero()),
                "_/_" => left.checked_div(*right),
                _ => left.checked_rem(*right),
            };
            result.map(Val::Uint).ok_or_else(|| Fault::error("unsigned integer overflow"))
        }
        (Val::Double(left), Val::Double(right)) => Ok(Val::Double(match name {
            "_+_" => left + right,
            "_-_" => left - right,
            "_*_" => left * right,
            "_/_" => left / right,
            _ => return Err(Fault::no_overload()),
        })),
        _ if name == "_+_" => add(left, right, context),
        _ if name == "_-_" => subtract(left, right),
        _ => Err(Fault::no_overload()),
    }
}

fn add<'v>(left: &Val<'v>, right: &Val<'v>, context: &mut CallContext) -> Outcome<'v> {
    let overflow = || Fault::error("timestamp overflow");
    Ok(match (left, right) {
        (Val::String(left), Val::String(right)) => Val::from(format!("{}{}", &**left, &**right)),
        (Val::Bytes(left), Val::Bytes(right)) => Val::Bytes([&**left, &**right].concat().into()),
        (Val::List(left), Val::List(right)) => Val::List(concatenate(left, right, context)?),
        (Val::Duration(left), Val::Duration(right)) => {
            Val::Duration(left.checked_add(*right).ok_or_else(|| Fault::error("duration overflow"))?)
        }
        (Val::Timestamp(instant), Val::Duration(nanos)) | (Val::Duration(nanos), Val::Timestamp(instant)) => {
            Val::Timestamp(instant.plus(i128::from(*nanos)).ok_or_else(overflow)?)
        }
        _ => return Err(Fault::no_overload()),
    })
}

fn subtract<'v>(left: &Val<'v>, right: &Val<'v>) -> Outcome<'v> {
    let overflow = || Fault::error("duration overflow");
    Ok(match (left, right) {
        (Val::Duration(left), Val::Duration(right)) => {
            Val::Duration(left.checked_sub(*right).ok_or_else(overflow)?)
        }
        (Val::Timestamp(instant), Val::Duration(nanos)) => Val::Timestamp(
            instant.plus(-i128::from(*nanos)).ok_or_else(|| Fault::error("timestamp overflow"))?,
        ),
        (Val::Timestamp(left), Val::Timestamp(right)) => {
            Val::Duration(left.since(*right).ok_or_else(overflow)?)
        }
        _ => return Err(Fault::no_overload()),
    })
}

/// Concatenates lists. Sets keep each item once, lists of type map the last item of each key.
fn concatenate<'v>(left: &List<'v>, right: &List<'v>, context: &mut CallContext) -> Result<List<'v>, Fault> {
    let List::Borrowed(items, _, kind) = left else { return Ok(append_list(left, right)) };
    if **kind == ListKind::Ordered {
        return Ok(append_list(left, right));
    }
    context.charge_steps(items.len() + right.len())?;
    let mut all: Vec<Val<'v>> = left.iter().collect::<Result<_, _>>()?;
    let mut positions: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for (position, item) in items.iter().enumerate() {
        positions.insert(identity(item, kind), position);
    }
    for index in 0..right.len() {
        let value = right.get(index).unwrap_or(Ok(Val::Null))?;
        let identity = match right {
            List::Borrowed(items, ..) => items.get(index).map(|item| identity(item, kind)),
            _ => computed_identity(&value, kind),
        };
        match (identity.as_ref().and_then(|identity| positions.get(identity)), kind) {
            (Some(_), ListKind::Set) => {}
            (Some(position), _) => {
                if let Some(slot) = all.get_mut(*position) {
                    *slot = value;
                }
            }
            (None, _) => {
                if let Some(identity) = identity {
                    positions.insert(identity, all.len());
                }
                all.push(value);
            }
        }
    }
    Ok(List::Computed(Arc::new(all)))
}

fn append_list<'v>(left: &List<'v>, right: &List<'v>) -> List<'v> {
    let length = left.len() + right.len();
    List::Concatenated(Arc::new((left.clone(), right.clone())), length)
}

/// The identity of a list item.
fn identity(item: &Value, kind: &ListKind) -> Vec<u8> {
    match kind {
        ListKind::Keyed(keys) => {
            let fields = keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
            json::to_json(&Value::Object(fields.collect()))
        }
        _ => json::to_json(item),
    }
}

/// The identity of a computed list item.
fn computed_identity(value: &Val<'_>, kind: &ListKind) -> Option<Vec<u8>> {
    let to_json_value = |value: &Val<'_>| {
        Some(match value {
            Val::Bool(boolean) => Value::Bool(*boolean),
            Val::Int(number) => Value::Int(*number),
            Val::Double(number) => Value::Float(*number),
            Val::String(text) => Value::from(&**text),
            _ => return None,
        })
    };
    match (kind, value) {
        (
            ListKind::Keyed(_),
            Val::Map(Map::Object(fields, _) | Map::Typed(fields, _) | Map::Untyped(fields)),
        ) => Some(identity(&Value::Object((*fields).clone()), kind)),
        (ListKind::Keyed(_), _) => None,
        (_, value) => to_json_value(value).map(|value| identity(&value, kind)),
    }
}

/// `x < y` and its like.
pub fn comparison<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    let [left, right] = args else { return Err(Fault::no_overload()) };
    let Some(order) = compare(left, right)? else {
        return Err(Fault::error("NaN values cannot be ordered"));
    };
    Ok(Val::Bool(match name {
        "_<_" => order == Ordering::Less,
        "_<=_" => order != Ordering::Greater,
        "_>_" => order == Ordering::Greater,
        _ => order != Ordering::Less,
    }))
}

/// Compares two values; `None` if one is NaN.
pub fn compare(left: &Val<'_>, right: &Val<'_>) -> Result<Option<Ordering>, Fault> {
    let to_integer = |value: &Val<'_>| match value {
        Val::Int(number) => Some(i128::from(*number)),
        Val::Uint(number) => Some(i128::from(*number)),
        _ => None,
    };
    if let (Some(left), Some(right)) = (to_integer(left), to_integer(right)) {
        return Ok(Some(left.cmp(&right)));
    }
    Ok(match (left, right) {
        (Val::Double(left), Val::Double(right)) => left.partial_cmp(right),
        (Val::Double(left), right) if to_integer(right).is_some() => {
            to_integer(right).and_then(|right| compare_with_integer(*left, right))
        }
        (left, Val::Double(right)) if to_integer(left).is_some() => {
            to_integer(left).and_then(|left| compare_with_integer(*right, left)).map(Ordering::reverse)
        }
        (Val::Bool(left), Val::Bool(right)) => Some(left.cmp(right)),
        (Val::String(left), Val::String(right)) => Some((**left).cmp(&**right)),
        (Val::Bytes(left), Val::Bytes(right)) => Some(left.cmp(right)),
        (Val::Timestamp(left), Val::Timestamp(right)) => Some(left.cmp(right)),
        (Val::Duration(left), Val::Duration(right)) => Some(left.cmp(right)),
        _ => return Err(Fault::no_overload()),
    })
}

/// Compares a double with an integer, without loss.
fn compare_with_integer(left: f64, right: i128) -> Option<Ordering> {
    if left.is_nan() {
        return None;
    }
    // Beyond this, doubles exceed every CEL integer.
    if left.abs() >= 1e30 {
        return Some(if left > 0.0 { Ordering::Greater } else { Ordering::Less });
    }
    let floor = left.floor();
    let order = (floor as i128).cmp(&right);
    Some(if order == Ordering::Equal && left > floor { Ordering::Greater } else { order })
}

/// `x[y]`, `x[?y]`.
pub fn index<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    let [target, key] = args else { return Err(Fault::no_overload()) };
    let (target, is_optional) = match target {
        Val::Optional(None) => return Ok(Val::Optional(None)),
        Val::Optional(Some(inner)) => (&**inner, true),
        other => (other, name == "_[?_]"),
    };
    let item = lookup(target, key)?;
    if is_optional {
        return Ok(item.map_or(Val::Optional(None), Val::some));
    }
    item.ok_or_else(|| match target {
        Val::List(_) => Fault::error(format!("index out of bounds: {key}")),
        _ => Fault::error(format!("no such key: {key}")),
    })
}

fn lookup<'v>(target: &Val<'v>, key: &Val<'v>) -> Result<Option<Val<'v>>, Fault> {
    match target {
        Val::Map(map) => map.get(key),
        Val::List(list) => {
            let index = match key {
                Val::Int(index) => usize::try_from(*index).ok(),
                Val::Uint(index) => usize::try_from(*index).ok(),
                Val::Double(index) if index.fract() == 0.0 && (0.0..1e15).contains(index) => {
                    Some(*index as usize)
                }
                Val::Double(_) => None,
                _ => {
                    return Err(Fault::error(format!(
                        "unsupported index type '{}' in list",
                        key.type_name()
                    )));
                }
            };
            index.and_then(|index| list.get(index)).transpose()
        }
        _ => Err(Fault::no_overload()),
    }
}

/// `x in y`.
pub fn is_in<'v>(_: &str, args: &[Val<'v>], context: &mut CallContext) -> Outcome<'v> {
    match args {
        [value, Val::List(list)] => {
            for item in list.iter() {
                if equal(value, &item?, context)? {
                    return Ok(Val::Bool(true));
                }
            }
            Ok(Val::Bool(false))
        }
        [key, Val::Map(map)] => Ok(Val::Bool(map.get(key)?.is_some())),
        _ => Err(Fault::no_overload()),
    }
}

/// `size(x)`.
pub fn size<'v>(_: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    match args {
        [value @ (Val::String(_) | Val::Bytes(_) | Val::List(_) | Val::Map(_))] => {
            Ok(Val::Int(i64::try_from(value.size()).unwrap_or(i64::MAX)))
        }
        _ => Err(Fault::no_overload()),
    }
}

/// The entries of a computed map.
pub type Entries<'v> = BTreeMap<Key<'v>, (Val<'v>, Val<'v>)>;

/// Inserts an entry, or all entries of another map.
pub fn insert<'v>(entries: &mut Entries<'v>, args: &[Val<'v>]) -> Result<(), Fault> {
    let mut insert = |key: &Val<'v>, value: Val<'v>| {
        let map_key =
            key.key().ok_or_else(|| Fault::error(format!("unsupported key type: {}", key.type_name())))?;
        match entries.insert(map_key, (key.clone(), value)) {
            Some(_) => Err(Fault::error(format!("insert failed: key {key} already exists"))),
            None => Ok(()),
        }
    };
    match args {
        [key, value] => insert(key, value.clone()),
        [Val::Map(other)] => {
            for key in other.keys() {
                if let Some(value) = other.get(&key)? {
                    insert(&key, value)?;
                }
            }
            Ok(())
        }
        _ => Err(Fault::no_overload()),
    }
}
