//! The runtime cost of evaluation steps. The numbers are the reference's, so that an expression within the limit there is within
//! it here.

use crate::value::Val;

/// The cost of an identifier or a field selection.
pub const NAME: u64 = 1;
/// The cost of a list construction.
pub const LIST: u64 = 10;
/// The cost of a map construction.
pub const MAP: u64 = 30;
/// The cost of an object construction.
pub const OBJECT: u64 = 40;
/// The cost per character of a string traversal.
pub const CHARACTER: f64 = 0.1;
/// The cost per character of a regular expression, times a tenth of the string's length.
pub const PATTERN: f64 = 0.25;

fn traversal(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

/// The part of a call's cost that depends on its arguments.
pub fn call_cost(function: &str, args: &[Val<'_>]) -> u64 {
    let size = |index: usize| args.get(index).map_or(1, Val::size);
    let is_text = |index: usize| matches!(args.get(index), Some(Val::String(_) | Val::Bytes(_)));
    let comparison = || traversal(size(0).min(size(1)), CHARACTER);
    let pattern_cost =
        || traversal(size(0).saturating_add(1), CHARACTER).saturating_mul(traversal(size(1), PATTERN));
    match function {
        "check" => 350_000,
        "fieldSelector" | "labelSelector" => {
            10 + traversal(size(1), CHARACTER) + traversal(size(1), 0.5).saturating_mul(50)
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            args.first().map_or(0, traversal_cost)
        }
        "url"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver"
        | "jsonpatch.escapeKey" => traversal(size(0), CHARACTER),
        "ip" if is_text(0) => traversal(size(0), CHARACTER),
        "ip.isCanonical" | "replace" | "split" => traversal(size(0), 2.0 * CHARACTER),
        // Charged by the result.
        "join" => 0,
        "find" | "findAll" | "matches" => pattern_cost(),
        "validate" => match args.first() {
            Some(Val::Format(format)) => traversal(size(1).saturating_add(1), CHARACTER)
                .saturating_mul(traversal(format.pattern_size, PATTERN)),
            _ => 1,
        },
        "containsIP" => {
            traversal(size(0) * 2, CHARACTER) + if is_text(1) { traversal(size(1), CHARACTER) } else { 0 }
        }
        "containsCIDR" => {
            let parsing = if is_text(1) { traversal(size(1), CHARACTER) } else { 0 };
            traversal(size(0) * 2, CHARACTER) + traversal(size(0), CHARACTER) + 1 + parsing
        }
        "startsWith" | "endsWith" | "strings.quote" | "format" => traversal(size(0), CHARACTER),
        "bytes" | "string" if is_text(0) => traversal(size(0), CHARACTER),
        "@in" => match args.get(1) {
            Some(Val::List(list)) => list.len() as u64,
            _ => 1,
        },
        "_==_" | "_!=_" => match args.first() {
            Some(
                Val::Quantity(_) | Val::Ip(_) | Val::Cidr(..) | Val::Format(_) | Val::Url(_) | Val::Semver(_),
            ) => 1,
            _ => comparison(),
        },
        "_<_" | "_<=_" | "_>_" | "_>=_" if is_text(0) => comparison(),
        "_+_" if is_text(0) => traversal(size(0).saturating_add(size(1)), CHARACTER),
        "contains" => traversal(size(0), CHARACTER).saturating_mul(traversal(size(1), CHARACTER)),
        "sets.contains" | "sets.intersects" => size(0).saturating_mul(size(1)).saturating_add(1),
        "sets.equivalent" => size(0).saturating_mul(size(1)).saturating_mul(2).saturating_add(1),
        _ => 1,
    }
}

/// The part of a call's cost that depends on its result.
pub fn result_cost(function: &str, result: &Val<'_>) -> u64 {
    if function == "join" { traversal(result.size(), 2.0 * CHARACTER) } else { 0 }
}

/// The cost of traversing a value.
fn traversal_cost(value: &Val<'_>) -> u64 {
    match value {
        Val::String(text) => (text.len() as f64 * CHARACTER) as u64,
        Val::Bytes(bytes) => (bytes.len() as f64 * CHARACTER) as u64,
        Val::List(list) => {
            list.iter().flatten().map(|item| traversal_cost(&item)).fold(0, u64::saturating_add)
        }
        _ => 1,
    }
}
