//! The operators.

mod equality;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

pub use equality::{equal, equality};

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;

use super::super::eval::CallContext;
use super::super::types::ListKind;
use super::super::value::{Fault, Key, List, Map, Outcome, Val};

/// `!x`, `-x`.
pub fn unary<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    Ok(match (name, args) {
        ("!_", [Val::Bool(truth)]) => Val::Bool(!truth),
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
pub fn arithmetic<'v>(name: &str, args: &[Val<'v>], work: &mut CallContext) -> Outcome<'v> {
    let [left, right] = args else { return Err(Fault::no_overload()) };
    let by_zero = || Fault::error(if name == "_%_" { "modulus by zero" } else { "division by zero" });
    match (left, right) {
        (Val::Int(left), Val::Int(right)) => {
            let result = match name {
                "_+_" => left.checked_add(*right),
                "_-_" => left.checked_sub(*right),
                "_*_" => left.checked_mul(*right),
                _ if *right == 0 => return Err(by_zero()),
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
                _ if *right == 0 => return Err(by_zero()),
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
        _ if name == "_+_" => added(left, right, work),
        _ if name == "_-_" => subtracted(left, right),
        _ => Err(Fault::no_overload()),
    }
}

fn added<'v>(left: &Val<'v>, right: &Val<'v>, work: &mut CallContext) -> Outcome<'v> {
    let lost = || Fault::error("timestamp overflow");
    Ok(match (left, right) {
        (Val::String(left), Val::String(right)) => Val::from(format!("{}{}", &**left, &**right)),
        (Val::Bytes(left), Val::Bytes(right)) => Val::Bytes([&**left, &**right].concat().into()),
        (Val::List(left), Val::List(right)) => Val::List(joined(left, right, work)?),
        (Val::Duration(left), Val::Duration(right)) => {
            Val::Duration(left.checked_add(*right).ok_or_else(|| Fault::error("duration overflow"))?)
        }
        (Val::Timestamp(instant), Val::Duration(nanos)) | (Val::Duration(nanos), Val::Timestamp(instant)) => {
            Val::Timestamp(instant.plus(i128::from(*nanos)).ok_or_else(lost)?)
        }
        _ => return Err(Fault::no_overload()),
    })
}

fn subtracted<'v>(left: &Val<'v>, right: &Val<'v>) -> Outcome<'v> {
    let too_long = || Fault::error("duration overflow");
    Ok(match (left, right) {
        (Val::Duration(left), Val::Duration(right)) => {
            Val::Duration(left.checked_sub(*right).ok_or_else(too_long)?)
        }
        (Val::Timestamp(instant), Val::Duration(nanos)) => Val::Timestamp(
            instant.plus(-i128::from(*nanos)).ok_or_else(|| Fault::error("timestamp overflow"))?,
        ),
        (Val::Timestamp(left), Val::Timestamp(right)) => {
            Val::Duration(left.since(*right).ok_or_else(too_long)?)
        }
        _ => return Err(Fault::no_overload()),
    })
}

/// Concatenates lists. Sets keep each item once, lists of type map the last item of each key.
fn joined<'v>(left: &List<'v>, right: &List<'v>, work: &mut CallContext) -> Result<List<'v>, Fault> {
    let List::Given(items, _, kind) = left else { return Ok(behind(left, right)) };
    if **kind == ListKind::Ordered {
        return Ok(behind(left, right));
    }
    work.effort(items.len() + right.len())?;
    let mut all: Vec<Val<'v>> = left.iter().collect::<Result<_, _>>()?;
    let mut places: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        places.insert(identity(item, kind), place);
    }
    for index in 0..right.len() {
        let value = right.get(index).unwrap_or(Ok(Val::Null))?;
        let known = match right {
            List::Given(items, ..) => items.get(index).map(|item| identity(item, kind)),
            _ => identity_of(&value, kind),
        };
        match (known.as_ref().and_then(|known| places.get(known)), kind) {
            (Some(_), ListKind::Set) => {}
            (Some(place), _) => {
                if let Some(slot) = all.get_mut(*place) {
                    *slot = value;
                }
            }
            (None, _) => {
                if let Some(known) = known {
                    places.insert(known, all.len());
                }
                all.push(value);
            }
        }
    }
    Ok(List::Made(Arc::new(all)))
}

fn behind<'v>(left: &List<'v>, right: &List<'v>) -> List<'v> {
    let length = left.len() + right.len();
    List::Joined(Arc::new((left.clone(), right.clone())), length)
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
fn identity_of(value: &Val<'_>, kind: &ListKind) -> Option<Vec<u8>> {
    let plain = |value: &Val<'_>| {
        Some(match value {
            Val::Bool(truth) => Value::Bool(*truth),
            Val::Int(number) => Value::Int(*number),
            Val::Double(number) => Value::Float(*number),
            Val::String(text) => Value::from(&**text),
            _ => return None,
        })
    };
    match (kind, value) {
        (
            ListKind::Keyed(_),
            Val::Map(Map::Object(fields, _) | Map::Given(fields, _) | Map::Free(fields)),
        ) => Some(identity(&Value::Object((*fields).clone()), kind)),
        (ListKind::Keyed(_), _) => None,
        (_, value) => plain(value).map(|value| identity(&value, kind)),
    }
}

/// `x < y` and its like.
pub fn comparison<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    let [left, right] = args else { return Err(Fault::no_overload()) };
    let Some(order) = compared(left, right)? else {
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
pub fn compared(left: &Val<'_>, right: &Val<'_>) -> Result<Option<Ordering>, Fault> {
    let whole = |value: &Val<'_>| match value {
        Val::Int(number) => Some(i128::from(*number)),
        Val::Uint(number) => Some(i128::from(*number)),
        _ => None,
    };
    if let (Some(left), Some(right)) = (whole(left), whole(right)) {
        return Ok(Some(left.cmp(&right)));
    }
    Ok(match (left, right) {
        (Val::Double(left), Val::Double(right)) => left.partial_cmp(right),
        (Val::Double(left), right) if whole(right).is_some() => {
            whole(right).and_then(|right| to_whole(*left, right))
        }
        (left, Val::Double(right)) if whole(left).is_some() => {
            whole(left).and_then(|left| to_whole(*right, left)).map(Ordering::reverse)
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
fn to_whole(left: f64, right: i128) -> Option<Ordering> {
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
    let found = at(target, key)?;
    if is_optional {
        return Ok(found.map_or(Val::Optional(None), Val::some));
    }
    found.ok_or_else(|| match target {
        Val::List(_) => Fault::error(format!("index out of bounds: {key}")),
        _ => Fault::error(format!("no such key: {key}")),
    })
}

fn at<'v>(target: &Val<'v>, key: &Val<'v>) -> Result<Option<Val<'v>>, Fault> {
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
pub fn contained<'v>(_: &str, args: &[Val<'v>], work: &mut CallContext) -> Outcome<'v> {
    match args {
        [value, Val::List(list)] => {
            for item in list.iter() {
                if equal(value, &item?, work)? {
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
    let mut put = |key: &Val<'v>, value: Val<'v>| {
        let found =
            key.key().ok_or_else(|| Fault::error(format!("unsupported key type: {}", key.type_name())))?;
        match entries.insert(found, (key.clone(), value)) {
            Some(_) => Err(Fault::error(format!("insert failed: key {key} already exists"))),
            None => Ok(()),
        }
    };
    match args {
        [key, value] => put(key, value.clone()),
        [Val::Map(more)] => {
            for key in more.keys() {
                if let Some(value) = more.get(&key)? {
                    put(&key, value)?;
                }
            }
            Ok(())
        }
        _ => Err(Fault::no_overload()),
    }
}
