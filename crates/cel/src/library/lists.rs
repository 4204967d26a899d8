//! Functions of lists.

use std::cmp::Ordering;

use super::super::eval::CallContext;
use super::super::value::{Fault, List, Outcome, Val};
use super::operators::{arithmetic, compared, equal};

/// `list.max()` and its like.
pub fn run<'v>(name: &str, args: &[Val<'v>], work: &mut CallContext) -> Outcome<'v> {
    let [Val::List(list)] = args else { return Err(Fault::no_overload()) };
    work.effort(list.len())?;
    match name {
        "isSorted" => {
            let mut before: Option<Val<'v>> = None;
            for item in list.iter() {
                let item = item?;
                if let Some(before) = &before
                    && compared(before, &item)? == Some(Ordering::Greater)
                {
                    return Ok(Val::Bool(false));
                }
                before = Some(item);
            }
            Ok(Val::Bool(true))
        }
        "sum" => sum(list, work),
        "first" | "last" => {
            let index = if name == "first" { Some(0) } else { list.len().checked_sub(1) };
            let found = index.and_then(|index| list.get(index)).transpose()?;
            Ok(found.map_or(Val::Optional(None), Val::some))
        }
        _ => {
            let wanted = if name == "max" { Ordering::Less } else { Ordering::Greater };
            let mut best: Option<Val<'v>> = None;
            for item in list.iter() {
                let item = item?;
                best = Some(match best {
                    Some(best) if compared(&best, &item)? != Some(wanted) => best,
                    _ => item,
                });
            }
            best.ok_or_else(|| Fault::error(format!("{name} called on empty list")))
        }
    }
}

fn sum<'v>(list: &List<'v>, work: &mut CallContext) -> Outcome<'v> {
    let mut all: Option<Val<'v>> = None;
    for item in list.iter() {
        let item = item?;
        all = Some(match all {
            Some(all) => arithmetic("_+_", &[all, item], work)?,
            None => item,
        });
    }
    Ok(all.unwrap_or(Val::Int(0)))
}

/// Lists as sets.
pub fn sets<'v>(name: &str, args: &[Val<'v>], work: &mut CallContext) -> Outcome<'v> {
    let [Val::List(left), Val::List(right)] = args else { return Err(Fault::no_overload()) };
    Ok(Val::Bool(match name {
        "sets.contains" => all_in(right, left, work)?,
        "sets.equivalent" => all_in(right, left, work)? && all_in(left, right, work)?,
        _ => {
            for item in left.iter() {
                if is_in(&item?, right, work)? {
                    return Ok(Val::Bool(true));
                }
            }
            false
        }
    }))
}

fn is_in<'v>(value: &Val<'v>, list: &List<'v>, work: &mut CallContext) -> Result<bool, Fault> {
    for item in list.iter() {
        if equal(value, &item?, work)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn all_in<'v>(some: &List<'v>, all: &List<'v>, work: &mut CallContext) -> Result<bool, Fault> {
    for item in some.iter() {
        if !is_in(&item?, all, work)? {
            return Ok(false);
        }
    }
    Ok(true)
}
