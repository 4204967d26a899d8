//! Functions of quantities and semantic versions.

use std::cmp::Ordering;
use std::sync::Arc;

use pilothouse_apimachinery::quantity::Quantity;
use pilothouse_apimachinery::semver::Semver;

use super::context::CallContext;
use crate::value::{Fault, Outcome, Val};

/// `quantity('1Gi')`, `semver('1.2.3')` and their member functions.
pub fn run<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    match (name, args) {
        ("quantity", [Val::String(text)]) => {
            Quantity::parse(text).map(|quantity| Val::Quantity(Arc::new(quantity))).map_err(Fault::error)
        }
        ("isQuantity", [Val::String(text)]) => Ok(Val::Bool(Quantity::parse(text).is_ok())),
        ("semver", [Val::String(text)]) => parse_version(text, false),
        ("semver", [Val::String(text), Val::Bool(lenient)]) => parse_version(text, *lenient),
        ("isSemver", [Val::String(text)]) => Ok(Val::Bool(parse_version(text, false).is_ok())),
        ("isSemver", [Val::String(text), Val::Bool(lenient)]) => {
            Ok(Val::Bool(parse_version(text, *lenient).is_ok()))
        }
        (name, [Val::Quantity(left), Val::Quantity(right)]) => binary_function(name, left, right),
        (name, [Val::Quantity(left), Val::Int(number)]) if matches!(name, "add" | "sub") => {
            let right = Quantity::parse(&number.to_string()).map_err(Fault::error)?;
            binary_function(name, left, &right)
        }
        (name, [Val::Quantity(quantity)]) => unary_function(name, quantity),
        (name, [Val::Semver(left), Val::Semver(right)]) => comparison_result(name, left.cmp(right)),
        (name, [Val::Semver(version)]) => {
            let [major, minor, patch] = version.numbers;
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

fn parse_version<'v>(text: &str, lenient: bool) -> Outcome<'v> {
    let parsed = if lenient { Semver::parse_lenient(text) } else { Semver::parse(text) };
    parsed.map(|version| Val::Semver(Arc::new(version))).map_err(Fault::Error)
}

fn comparison_result<'v>(name: &str, order: Ordering) -> Outcome<'v> {
    match name {
        "isGreaterThan" => Ok(Val::Bool(order == Ordering::Greater)),
        "isLessThan" => Ok(Val::Bool(order == Ordering::Less)),
        "compareTo" => Ok(Val::Int(order as i64)),
        _ => Err(Fault::no_overload()),
    }
}

fn binary_function<'v>(name: &str, left: &Quantity, right: &Quantity) -> Outcome<'v> {
    match name {
        "add" => Ok(Val::Quantity(Arc::new(left.plus(right)))),
        "sub" => Ok(Val::Quantity(Arc::new(left.minus(right)))),
        _ => comparison_result(name, left.cmp(right)),
    }
}

fn unary_function<'v>(name: &str, quantity: &Quantity) -> Outcome<'v> {
    match name {
        "sign" => Ok(Val::Int(if quantity.is_zero() {
            0
        } else if quantity.is_negative() {
            -1
        } else {
            1
        })),
        "asApproximateFloat" => Ok(Val::Double(quantity.approximate())),
        "isInteger" => Ok(Val::Bool(quantity.whole().is_some())),
        "asInteger" => {
            quantity.whole().map(Val::Int).ok_or_else(|| Fault::error("cannot convert value to integer"))
        }
        _ => Err(Fault::no_overload()),
    }
}
