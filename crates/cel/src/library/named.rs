//! Functions of quantities and semantic versions.

use std::cmp::Ordering;
use std::sync::Arc;

use pilothouse_apimachinery::quantity::Quantity;

use super::super::eval::CallContext;
use super::super::value::{Fault, Outcome, Val};
use super::semver::Semver;

/// `quantity('1Gi')`, `semver('1.2.3')` and their member functions.
pub fn run<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    match (name, args) {
        ("quantity", [Val::String(text)]) => {
            Quantity::parse(text).map(|found| Val::Quantity(Arc::new(found))).map_err(Fault::error)
        }
        ("isQuantity", [Val::String(text)]) => Ok(Val::Bool(Quantity::parse(text).is_ok())),
        ("semver", [Val::String(text)]) => version(text, false),
        ("semver", [Val::String(text), Val::Bool(lenient)]) => version(text, *lenient),
        ("isSemver", [Val::String(text)]) => Ok(Val::Bool(version(text, false).is_ok())),
        ("isSemver", [Val::String(text), Val::Bool(lenient)]) => {
            Ok(Val::Bool(version(text, *lenient).is_ok()))
        }
        (name, [Val::Quantity(one), Val::Quantity(other)]) => of_two(name, one, other),
        (name, [Val::Quantity(one), Val::Int(number)]) if matches!(name, "add" | "sub") => {
            let other = Quantity::parse(&number.to_string()).map_err(Fault::error)?;
            of_two(name, one, &other)
        }
        (name, [Val::Quantity(one)]) => of_one(name, one),
        (name, [Val::Semver(one), Val::Semver(other)]) => ordered(name, one.compare(other)),
        (name, [Val::Semver(one)]) => {
            let [major, minor, patch] = one.numbers;
            let number = match name {
                "major" => major,
                "minor" => minor,
                "patch" => patch,
                _ => return Err(Fault::no_overload()),
            };
            Ok(Val::Int(number as i64))
        }
        _ => Err(Fault::no_overload()),
    }
}

fn version<'v>(text: &str, lenient: bool) -> Outcome<'v> {
    let read = if lenient { Semver::lenient(text) } else { Semver::parse(text) };
    read.map(|found| Val::Semver(Arc::new(found))).map_err(Fault::Error)
}

fn ordered<'v>(name: &str, order: Ordering) -> Outcome<'v> {
    match name {
        "isGreaterThan" => Ok(Val::Bool(order == Ordering::Greater)),
        "isLessThan" => Ok(Val::Bool(order == Ordering::Less)),
        "compareTo" => Ok(Val::Int(order as i64)),
        _ => Err(Fault::no_overload()),
    }
}

fn of_two<'v>(name: &str, one: &Quantity, other: &Quantity) -> Outcome<'v> {
    match name {
        "add" => Ok(Val::Quantity(Arc::new(one.plus(other)))),
        "sub" => Ok(Val::Quantity(Arc::new(one.minus(other)))),
        _ => ordered(name, one.cmp(other)),
    }
}

fn of_one<'v>(name: &str, one: &Quantity) -> Outcome<'v> {
    match name {
        "sign" => Ok(Val::Int(if one.is_zero() {
            0
        } else if one.is_negative() {
            -1
        } else {
            1
        })),
        "asApproximateFloat" => Ok(Val::Double(one.approximate())),
        "isInteger" => Ok(Val::Bool(one.whole().is_some())),
        "asInteger" => {
            one.whole().map(Val::Int).ok_or_else(|| Fault::error("cannot convert value to integer"))
        }
        _ => Err(Fault::no_overload()),
    }
}
