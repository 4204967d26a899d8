//! Cost estimates of single calls.

use super::cost::{CHARACTER, PATTERN};
use super::estimate::Range;
use super::types::Type;

/// What is known of an argument.
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
const AT_ONCE: &[&str] = &[
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
pub fn of_library(
    function: &str,
    overload: &str,
    target: Option<&Argument>,
    args: &[Argument],
) -> Option<Estimate> {
    let one = Range::fixed(1);
    let only = |cost: Range| Some((cost, None));
    let first = args.first().map(|arg| arg.size);
    // IP addresses have 4 or 16 bytes.
    let addresses = Range { least: 4, most: 16 };
    let compared = addresses.plus(addresses).scaled(CHARACTER);
    match function {
        "check" => only(Range::fixed(350_000)),
        _ if AT_ONCE.contains(&function) => only(one),
        "fieldSelector" | "labelSelector" => {
            let length = first?;
            only(Range::fixed(10).plus(length.scaled(CHARACTER)).plus(length.scaled(0.5).scaled(50.0)))
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            let target = target?;
            let Some((kind, size)) = &target.item else { return only(target.size.scaled(CHARACTER)) };
            let each = match kind {
                Type::String | Type::Bytes => one.plus(size.scaled(CHARACTER)),
                _ => one,
            };
            only(target.size.times(each))
        }
        "url" | "jsonpatch.escapeKey" => first.map(|size| (size.scaled(CHARACTER), Some(size))),
        "lowerAscii" | "upperAscii" | "substring" | "trim" => {
            target.map(|target| (target.size.scaled(CHARACTER), Some(target.size)))
        }
        "replace" => replaced(target?, args),
        "split" => {
            let size = target?.size;
            let most = args.get(1).and_then(|arg| arg.number).map_or(size.most, |number| number as u64);
            Some((size.scaled(2.0 * CHARACTER), Some(Range { least: 0, most })))
        }
        "join" => {
            let target = target?;
            let mut size = target.item.as_ref().map_or(Range::fixed(0), |(_, item)| target.size.times(*item));
            if let Some(between) = first {
                let gaps = Range {
                    least: target.size.least.saturating_sub(1),
                    most: target.size.most.saturating_sub(1),
                };
                size = size.plus(between.times(gaps));
            }
            Some((size.scaled(CHARACTER), Some(size)))
        }
        "find" | "findAll" => {
            let size = target?.size;
            let cost = size.plus(one).scaled(CHARACTER).times(first?.scaled(PATTERN));
            Some((cost, Some(Range { least: 0, most: size.most })))
        }
        "ip" if args.is_empty() => only(one),
        "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
            only(first?.scaled(CHARACTER))
        }
        "ip.isCanonical" => only(first?.scaled(2.0 * CHARACTER)),
        "containsIP" | "containsCIDR" => {
            let mut cost = compared;
            if function == "containsCIDR" {
                cost = cost.plus(addresses.scaled(CHARACTER)).plus(one);
            }
            if overload.ends_with("_string") {
                cost = cost.plus(first?.scaled(CHARACTER));
            }
            only(cost)
        }
        "validate" => only(first?.scaled(CHARACTER).scaled(FORMAT_PATTERN * PATTERN)),
        "_==_" => named_equality(args),
        "sets.contains" | "sets.intersects" | "sets.equivalent" => {
            let [left, right] = args else { return None };
            let factor = if function == "sets.equivalent" { 2.0 } else { 1.0 };
            only(left.size.times(right.size).scaled(factor).plus(one))
        }
        _ => None,
    }
}

/// Types whose values are compared at constant cost.
fn named_equality(args: &[Argument]) -> Option<Estimate> {
    let [left, right] = args else { return None };
    let (Type::Opaque(name, _), true) = (&left.kind, left.kind == right.kind) else { return None };
    let cost = match *name {
        "kubernetes.NamedFormat" => Range { least: 1, most: FORMAT_NAME }.scaled(CHARACTER),
        "kubernetes.URL" => Range { least: 1, most: right.size.most }.scaled(CHARACTER),
        name if name.starts_with("kubernetes.") || name.starts_with("net.") => Range::fixed(1),
        _ => return None,
    };
    Some((cost, None))
}

fn replaced(target: &Argument, args: &[Argument]) -> Option<Estimate> {
    let [old, new, ..] = args else { return None };
    let (size, old, new) = (target.size, old.size, new.size);
    let parts = |size: u64, by: u64| (size as f64 / by as f64).ceil() as u64;
    let (mut count, mut kept) = (Range::fixed(0), Range::fixed(0));
    // The maximum length of the result.
    if old.least == 0 {
        (count.most, kept.most) = (size.most.saturating_add(1), size.most);
    } else if new.most <= old.least {
        kept.most = size.most;
    } else {
        count.most = parts(size.most, old.least);
    }
    // The minimum length.
    if old.most == 0 {
        (count.least, kept.least) = (size.least.saturating_add(1), size.least);
    } else if old.most <= new.least {
        kept.least = size.least;
    } else {
        count.least = parts(size.least, old.most);
    }
    Some((size.scaled(2.0 * CHARACTER), Some(count.times(new).plus(kept))))
}

/// The estimate for a function of the standard library.
pub fn of_standard(overload: &str, target: Option<&Argument>, args: &[Argument]) -> Estimate {
    let one = Range::fixed(1);
    let size = |index: usize| args.get(index).map_or(Range::UNKNOWN, |arg| arg.size);
    let receiver = target.map_or(Range::UNKNOWN, |target| target.size);
    match overload {
        "string_format" => (receiver.scaled(CHARACTER), None),
        "string_to_bytes" => {
            let size = size(0);
            (size.scaled(CHARACTER), Some(Range { least: size.least, most: size.most.saturating_mul(4) }))
        }
        "bytes_to_string" => {
            let size = size(0);
            (size.scaled(CHARACTER), Some(Range { least: size.least / 4, most: size.most }))
        }
        "strings_quote" => {
            let size = size(0);
            let result = Range {
                least: size.least.saturating_add(2),
                most: size.most.saturating_mul(2).saturating_add(2),
            };
            (size.scaled(CHARACTER), Some(result))
        }
        "starts_with_string" | "ends_with_string" => (size(0).scaled(CHARACTER), None),
        "in_list" => (size(1), None),
        "matches_string" => (receiver.plus(one).scaled(CHARACTER).times(size(0).scaled(PATTERN)), None),
        "contains_string" => (receiver.scaled(CHARACTER).times(size(0).scaled(CHARACTER)), None),
        "equals" | "not_equals" => (compared(size(0), size(1)), None),
        other if is_ordering(other) => (compared(size(0), size(1)), None),
        _ => (one, None),
    }
}

/// Whether the overload compares two strings.
fn is_ordering(overload: &str) -> bool {
    let ends = overload.ends_with("_string") || overload.ends_with("_bytes");
    ends && (overload.starts_with("less") || overload.starts_with("greater"))
}

fn compared(left: Range, right: Range) -> Range {
    let most = left.most.min(right.most);
    Range { least: u64::from(most > 0), most }.scaled(CHARACTER)
}
