//! Functions of lists.

use std::cmp::Ordering;

use super::context::CallContext;
use super::operators::{arithmetic, compare, equal};
use crate::value::{Fault, List, Outcome, Val};

/// `list.max()` and its like.
pub fn run<'v>(name: &str, args: &[Val<'v>], context: &mut CallContext) -> Outcome<'v> {
    let [Val::List(list)] = args else { return Err(Fault::no_overload()) };
    context.charge_steps(list.len())?;
    match name {
        "isSorted" => {
            let mut previous: Option<Val<'v>> = None;
            for item in list.iter() {
                let item = item?;
                if let Some(previous) = &previous
                    && compare(previous, &item)? == Some(Ordering::Greater)
                {
                    return Ok(Val::Bool(false));
                }
                previous = Some(item);
            }
            Ok(Val::Bool(true))
        }
        "sum" => sum(list, context),
        "first" | "last" => {
            let index = if name == "first" { Some(0) } else { list.len().checked_sub(1) };
            let item = index.and_then(|index| list.get(index)).transpose()?;
            Ok(item.map_or(Val::Optional(None), Val::some))
        }
        _ => {
            let replaced_order = if name == "max" { Ordering::Less } else { Ordering::Greater };
            let mut best: Option<Val<'v>> = None;
            for item in list.iter() {
                let item = item?;
                best = Some(match best {
                    Some(best) if compare(&best, &item)? != Some(replaced_order) => best,
                    _ => item,
                });
            }
            best.ok_or_else(|| Fault::error(format!("{name} called on empty list")))
        }
    }
}

fn sum<'v>(list: &List<'v>, context: &mut CallContext) -> Outcome<'v> {
    let mut total: Option<Val<'v>> = None;
    for item in list.iter() {
        let item = item?;
        total = Some(match total {
            Some(total) => arithmetic("_+_", &[total, item], context)?,
            None => item,
        });
    }
    Ok(total.unwrap_or(Val::Int(0)))
}

/// Lists as sets.
pub fn sets<'v>(name: &str, args: &[Val<'v>], context: &mut CallContext) -> Outcome<'v> {
    let [Val::List(left), Val::List(right)] = args else { return Err(Fault::no_overload()) };
    Ok(Val::Bool(match name {
        "sets.contains" => all_in(right, left, context)?,
        "sets.equivalent" => all_in(right, left, context)? && all_in(left, right, context)?,
        _ => {
            for item in left.iter() {
                if is_in(&item?, right, context)? {
                    return Ok(Val::Bool(true));
                }
            }
            false
        }
    }))
}

fn is_in<'v>(value: &Val<'v>, list: &List<'v>, context: &mut CallContext) -> Result<bool, Fault> {
    for item in list.iter() {
        if equal(value, &item?, context)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn all_in<'v>(subset: &List<'v>, all: &List<'v>, context: &mut CallContext) -> Result<bool, Fault> {
    for item in subset.iter() {
        if !is_in(&item?, all, context)? {
            return Ok(false);
        }
    }
    Ok(true)
}
