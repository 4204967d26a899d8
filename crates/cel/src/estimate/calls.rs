//! Cost estimates of single calls.

use crate::cost::{CHARACTER, PATTERN};
use crate::types::Type;

use super::range::Range;

/// The statically known properties of an argument.
pub struct Argument {
    /// Its size.
    pub size: Range,
    /// Its type.
    pub kind: Type,
    /// The type and size of its items, for lists.
    pub item: Option<(Type, Range)>,
    /// Its value, if it is a constant integer.
    pub number: Option<i64>,
}

/// The cost, and the size of the result if known.
type Estimate = (Range, Option<Range>);

/// The assumed length of the pattern of a named format.
const FORMAT_PATTERN: f64 = 128.0;
/// The assumed length of the name of a named format.
const FORMAT_NAME: u64 = 64;

/// Library functions of constant cost.
const CONSTANT_COST: &[&str] = &[
    "serviceAccount",
    "path",
    "group",
    "resource",
    "subresource",
    "namespace",
    "name",
    "allowed",
    "reason",
    "error",
    "errored",
    "masked",
    "prefixLength",
    "family",
    "isUnspecified",
    "isLoopback",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isGlobalUnicast",
    "format.named",
    "sign",
    "asInteger",
    "isInteger",
    "asApproximateFloat",
    "isGreaterThan",
    "isLessThan",
    "compareTo",
    "add",
    "sub",
    "major",
    "minor",
    "patch",
    "getScheme",
    "getHostname",
    "getHost",
    "getPort",
    "getEscapedPath",
    "getQuery",
];

/// The estimate for a function of a Kubernetes library; `None` for others.
pub fn library_call(
    function: &str,
    overload: &str,
    target: Option<&Argument>,
    args: &[Argument],
) -> Option<Estimate> {
    let one = Range::fixed(1);
    let cost_only = |cost: Range| Some((cost, None));
    let first = args.first().map(|arg| arg.size);
    match function {
        "check" => cost_only(Range::fixed(350_000)),
        _ if CONSTANT_COST.contains(&function) => cost_only(one),
        "fieldSelector" | "labelSelector" => {
            let length = first?;
            cost_only(Range::fixed(10).plus(length.scaled(CHARACTER)).plus(length.scaled(0.5).scaled(50.0)))
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            let target = target?;
            let Some((kind, size)) = &target.item else { return cost_only(target.size.scaled(CHARACTER)) };
            let item_cost = match kind {
                Type::String | Type::Bytes => one.plus(size.scaled(CHARACTER)),
                _ => one,
            };
            cost_only(target.size.times(item_cost))
        }
        "url" | "jsonpatch.escapeKey" => first.map(|size| (size.scaled(CHARACTER), Some(size))),
        "lowerAscii" | "upperAscii" | "substring" | "trim" => {
            target.map(|target| (target.size.scaled(CHARACTER), Some(target.size)))
        }
        "replace" => replace(target?, args),
        "split" => {
            let size = target?.size;
            let max = args.get(1).and_then(|arg| arg.number).map_or(size.max, |number| number as u64);
            Some((size.scaled(2.0 * CHARACTER), Some(Range { min: 0, max })))
        }
        "join" => join(target?, first),
        "find" | "findAll" => {
            let size = target?.size;
            let cost = size.plus(one).scaled(CHARACTER).times(first?.scaled(PATTERN));
            Some((cost, Some(Range { min: 0, max: size.max })))
        }
        "ip" if args.is_empty() => cost_only(one),
        "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
            cost_only(first?.scaled(CHARACTER))
        }
        "ip.isCanonical" => cost_only(first?.scaled(2.0 * CHARACTER)),
        "containsIP" | "containsCIDR" => cost_only(address_containment(function, overload, first)?),
        "validate" => cost_only(first?.scaled(CHARACTER).scaled(FORMAT_PATTERN * PATTERN)),
        "_==_" => opaque_equality(args),
        "sets.contains" | "sets.intersects" | "sets.equivalent" => {
            let [left, right] = args else { return None };
            let factor = if function == "sets.equivalent" { 2.0 } else { 1.0 };
            cost_only(left.size.times(right.size).scaled(factor).plus(one))
        }
        _ => None,
    }
}

fn join(target: &Argument, separator: Option<Range>) -> Option<Estimate> {
    let mut size = target.item.as_ref().map_or(Range::fixed(0), |(_, item)| target.size.times(*item));
    if let Some(separator) = separator {
        let gaps = Range { min: target.size.min.saturating_sub(1), max: target.size.max.saturating_sub(1) };
        size = size.plus(separator.times(gaps));
    }
    Some((size.scaled(CHARACTER), Some(size)))
}

/// The cost of `containsIP` and `containsCIDR`; `None` without the argument that is to be parsed.
fn address_containment(function: &str, overload: &str, argument: Option<Range>) -> Option<Range> {
    // IP addresses have 4 or 16 bytes.
    let address_size = Range { min: 4, max: 16 };
    let mut cost = address_size.plus(address_size).scaled(CHARACTER);
    if function == "containsCIDR" {
        cost = cost.plus(address_size.scaled(CHARACTER)).plus(Range::fixed(1));
    }
    if overload.ends_with("_string") {
        cost = cost.plus(argument?.scaled(CHARACTER));
    }
    Some(cost)
}

/// The estimate for the equality of opaque values, which hardly depends on their sizes; `None` for other types.
fn opaque_equality(args: &[Argument]) -> Option<Estimate> {
    let [left, right] = args else { return None };
    let (Type::Opaque(name, _), true) = (&left.kind, left.kind == right.kind) else { return None };
    let cost = match *name {
        "kubernetes.NamedFormat" => Range { min: 1, max: FORMAT_NAME }.scaled(CHARACTER),
        "kubernetes.URL" => Range { min: 1, max: right.size.max }.scaled(CHARACTER),
        name if name.starts_with("kubernetes.") || name.starts_with("net.") => Range::fixed(1),
        _ => return None,
    };
    Some((cost, None))
}

fn replace(target: &Argument, args: &[Argument]) -> Option<Estimate> {
    let [old, new, ..] = args else { return None };
    let (size, old, new) = (target.size, old.size, new.size);
    let pieces = |size: u64, divisor: u64| (size as f64 / divisor as f64).ceil() as u64;
    let (mut count, mut unchanged) = (Range::fixed(0), Range::fixed(0));
    // The maximum length of the result.
    if old.min == 0 {
        (count.max, unchanged.max) = (size.max.saturating_add(1), size.max);
    } else if new.max <= old.min {
        unchanged.max = size.max;
    } else {
        count.max = pieces(size.max, old.min);
    }
    // The minimum length.
    if old.max == 0 {
        (count.min, unchanged.min) = (size.min.saturating_add(1), size.min);
    } else if old.max <= new.min {
        unchanged.min = size.min;
    } else {
        count.min = pieces(size.min, old.max);
    }
    Some((size.scaled(2.0 * CHARACTER), Some(count.times(new).plus(unchanged))))
}

/// The estimate for a function of the standard library.
pub fn standard_call(overload: &str, target: Option<&Argument>, args: &[Argument]) -> Estimate {
    let one = Range::fixed(1);
    let size = |index: usize| args.get(index).map_or(Range::UNKNOWN, |arg| arg.size);
    let receiver = target.map_or(Range::UNKNOWN, |target| target.size);
    match overload {
        "string_format" => (receiver.scaled(CHARACTER), None),
        "string_to_bytes" => {
            let size = size(0);
            (size.scaled(CHARACTER), Some(Range { min: size.min, max: size.max.saturating_mul(4) }))
        }
        "bytes_to_string" => {
            let size = size(0);
            (size.scaled(CHARACTER), Some(Range { min: size.min / 4, max: size.max }))
        }
        "strings_quote" => {
            let size = size(0);
            let result =
                Range { min: size.min.saturating_add(2), max: size.max.saturating_mul(2).saturating_add(2) };
            (size.scaled(CHARACTER), Some(result))
        }
        "starts_with_string" | "ends_with_string" => (size(0).scaled(CHARACTER), None),
        "in_list" => (size(1), None),
        "matches_string" => (receiver.plus(one).scaled(CHARACTER).times(size(0).scaled(PATTERN)), None),
        "contains_string" => (receiver.scaled(CHARACTER).times(size(0).scaled(CHARACTER)), None),
        "equals" | "not_equals" => (comparison(size(0), size(1)), None),
        other if is_ordering(other) => (comparison(size(0), size(1)), None),
        _ => (one, None),
    }
}

/// Whether the overload compares two strings.
fn is_ordering(overload: &str) -> bool {
    let is_text = overload.ends_with("_string") || overload.ends_with("_bytes");
    is_text && (overload.starts_with("less") || overload.starts_with("greater"))
}

fn comparison(left: Range, right: Range) -> Range {
    let max = left.max.min(right.max);
    Range { min: u64::from(max > 0), max }.scaled(CHARACTER)
}
