//! The implementations of functions.

mod context;
mod convert;
mod formatting;
mod lists;
mod named_formats;
mod network;
mod operators;
mod optionals;
mod quantities;
mod strings;
mod times;
mod urls;

pub use context::CallContext;
pub use operators::insert;

use crate::value::{Fault, Outcome, Val};

/// An implementation. It gets the function's name, because related functions share one implementation.
pub type FunctionImpl = for<'v> fn(&str, &[Val<'v>], &mut CallContext) -> Outcome<'v>;

/// The implementation of a function. All overloads share it, and it dispatches on its arguments.
pub fn run(name: &str) -> Option<FunctionImpl> {
    Some(match name.strip_prefix('.').unwrap_or(name) {
        "!_" | "-_" => operators::unary,
        "_==_" | "_!=_" => operators::equality,
        "_<_" | "_<=_" | "_>_" | "_>=_" => operators::comparison,
        "_+_" | "_-_" | "_*_" | "_/_" | "_%_" => operators::arithmetic,
        "_[_]" | "_[?_]" => operators::index,
        "@in" => operators::is_in,
        "size" => operators::size,
        "type" | "bool" | "bytes" | "double" | "duration" | "dyn" | "int" | "string" | "timestamp"
        | "uint" => convert::convert,
        "contains" | "endsWith" | "startsWith" | "charAt" | "lowerAscii" | "upperAscii" | "replace"
        | "split" | "substring" | "trim" | "strings.quote" | "join" => strings::run,
        "matches" | "find" | "findAll" => strings::match_pattern,
        "jsonpatch.escapeKey" => strings::escape_pointer_key,
        "indexOf" | "lastIndexOf" => strings::index_of,
        "format" => formatting::run,
        "isSorted" | "sum" | "max" | "min" | "first" | "last" => lists::run,
        "sets.contains" | "sets.equivalent" | "sets.intersects" => lists::sets,
        "getFullYear" | "getMonth" | "getDayOfYear" | "getDayOfMonth" | "getDate" | "getDayOfWeek"
        | "getHours" | "getMinutes" | "getSeconds" | "getMilliseconds" => times::run,
        "optional.of"
        | "optional.ofNonZeroValue"
        | "optional.none"
        | "value"
        | "hasValue"
        | "optional.unwrap"
        | "unwrapOpt" => optionals::run,
        "url" | "isURL" | "getScheme" | "getHost" | "getHostname" | "getPort" | "getEscapedPath"
        | "getQuery" => urls::run,
        "quantity" | "isQuantity" | "sign" | "asApproximateFloat" | "asInteger" | "isInteger" | "add"
        | "sub" | "isGreaterThan" | "isLessThan" | "compareTo" | "semver" | "isSemver" | "major"
        | "minor" | "patch" => quantities::run,
        "ip"
        | "family"
        | "ip.isCanonical"
        | "isUnspecified"
        | "isLoopback"
        | "isLinkLocalMulticast"
        | "isLinkLocalUnicast"
        | "isGlobalUnicast"
        | "isIP"
        | "cidr"
        | "containsIP"
        | "containsCIDR"
        | "prefixLength"
        | "masked"
        | "isCIDR" => network::run,
        "validate" | "format.named" => named_formats::run,
        name if name.starts_with("format.") => named_formats::run,
        // Implemented by the values of the caller: see `Foreign`.
        "path" | "group" | "serviceAccount" | "resource" | "subresource" | "namespace" | "name"
        | "fieldSelector" | "labelSelector" | "check" | "errored" | "error" | "allowed" | "reason" => {
            no_overload
        }
        _ => return None,
    })
}

fn no_overload<'v>(_: &str, _: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    Err(Fault::no_overload())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::{Library, RecentLibraries};

    #[test]
    fn every_declared_function_has_an_implementation() {
        const SPECIAL: [&str; 8] =
            ["_?_:_", "_&&_", "_||_", "@not_strictly_false", "or", "orValue", "_?._", "cel.@mapInsert"];
        for library in RecentLibraries::STORED.libraries().into_iter().chain([Library::JsonPatch]) {
            let names = library.declarations().iter().map(|(name, ..)| (*name).to_owned());
            for name in names.chain(library.generated_declarations().into_iter().map(|(name, ..)| name)) {
                assert!(SPECIAL.contains(&name.as_str()) || run(&name).is_some(), "{name}");
            }
        }
    }
}
