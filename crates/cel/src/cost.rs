//! The runtime cost of evaluation steps. The numbers are the reference's, so that an expression within the limit there is within
//! it here.

use super::value::Val;

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

fn walked(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

/// The part of a call's cost that depends on its arguments.
pub fn before(function: &str, args: &[Val<'_>]) -> u64 {
    let size = |index: usize| args.get(index).map_or(1, Val::size);
    let text = |index: usize| matches!(args.get(index), Some(Val::String(_) | Val::Bytes(_)));
    let least = || walked(size(0).min(size(1)), CHARACTER);
    let matched = || walked(size(0).saturating_add(1), CHARACTER).saturating_mul(walked(size(1), PATTERN));
    match function {
        "check" => 350_000,
        "fieldSelector" | "labelSelector" => {
            10 + walked(size(1), CHARACTER) + walked(size(1), 0.5).saturating_mul(50)
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => args.first().map_or(0, traversed),
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
        | "jsonpatch.escapeKey" => walked(size(0), CHARACTER),
        "ip" if text(0) => walked(size(0), CHARACTER),
        "ip.isCanonical" | "replace" | "split" => walked(size(0), 2.0 * CHARACTER),
        // Charged by the result.
        "join" => 0,
        "find" | "findAll" | "matches" => matched(),
        "validate" => match args.first() {
            Some(Val::Format(format)) => walked(size(1).saturating_add(1), CHARACTER)
                .saturating_mul(walked(format.pattern_size, PATTERN)),
            _ => 1,
        },
        "containsIP" => walked(size(0) * 2, CHARACTER) + if text(1) { walked(size(1), CHARACTER) } else { 0 },
        "containsCIDR" => {
            let other = if text(1) { walked(size(1), CHARACTER) } else { 0 };
            walked(size(0) * 2, CHARACTER) + walked(size(0), CHARACTER) + 1 + other
        }
        "startsWith" | "endsWith" | "strings.quote" | "format" => walked(size(0), CHARACTER),
        "bytes" | "string" if text(0) => walked(size(0), CHARACTER),
        "@in" => match args.get(1) {
            Some(Val::List(list)) => list.len() as u64,
            _ => 1,
        },
        "_==_" | "_!=_" => match args.first() {
            Some(
                Val::Quantity(_) | Val::Ip(_) | Val::Cidr(..) | Val::Format(_) | Val::Url(_) | Val::Semver(_),
            ) => 1,
            _ => least(),
        },
        "_<_" | "_<=_" | "_>_" | "_>=_" if text(0) => least(),
        "_+_" if text(0) => walked(size(0).saturating_add(size(1)), CHARACTER),
        "contains" => walked(size(0), CHARACTER).saturating_mul(walked(size(1), CHARACTER)),
        "sets.contains" | "sets.intersects" => size(0).saturating_mul(size(1)).saturating_add(1),
        "sets.equivalent" => size(0).saturating_mul(size(1)).saturating_mul(2).saturating_add(1),
        _ => 1,
    }
}

/// The part of a call's cost that depends on its result.
pub fn after(function: &str, result: &Val<'_>) -> u64 {
    if function == "join" { walked(result.size(), 2.0 * CHARACTER) } else { 0 }
}

/// The cost of traversing a value.
fn traversed(value: &Val<'_>) -> u64 {
    match value {
        Val::String(text) => (text.len() as f64 * CHARACTER) as u64,
        Val::Bytes(bytes) => (bytes.len() as f64 * CHARACTER) as u64,
        Val::List(list) => list.iter().flatten().map(|item| traversed(&item)).fold(0, u64::saturating_add),
        _ => 1,
    }
}
