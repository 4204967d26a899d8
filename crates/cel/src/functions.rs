//! Function declarations: names, overloads and signatures.

mod declarations;
mod recent;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use declarations::Library;
pub use recent::RecentLibraries;

use crate::types::Type;

/// An overload.
#[derive(Debug)]
pub struct Overload {
    /// The overload ID.
    pub id: String,
    /// Whether it is a member function, whose receiver is the first argument.
    pub is_member: bool,
    /// The parameter types.
    pub parameters: Vec<Type>,
    /// The result type.
    pub result: Type,
}

/// Overloads by function name.
#[derive(Debug)]
pub struct Functions(BTreeMap<String, Vec<Overload>>);

impl Functions {
    /// The functions of some libraries.
    pub fn from_libraries(libraries: &[Library]) -> Functions {
        let mut all: BTreeMap<String, Vec<Overload>> = BTreeMap::new();
        let mut add = |name: &str, id: &str, signature: &str| {
            if let Some(overload) = parse_overload(id, signature) {
                all.entry(name.to_owned()).or_default().push(overload);
            }
        };
        for library in libraries {
            for (name, id, signature) in library.declarations() {
                add(name, id, signature);
            }
            for (name, id, signature) in library.generated_declarations() {
                add(&name, &id, &signature);
            }
        }
        Functions(all)
    }

    /// The overloads of a function.
    pub fn get(&self, name: &str) -> Option<&[Overload]> {
        self.0.get(name.strip_prefix('.').unwrap_or(name)).map(Vec::as_slice)
    }

    /// The number of overloads.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

/// Parses a signature such as `string.(int, A) -> list(A)`.
fn parse_overload(id: &str, signature: &str) -> Option<Overload> {
    let (parameters, result) = signature.split_once(" -> ")?;
    let parameters = parameters.strip_suffix(')')?;
    let (receiver, parameters) = match parameters.split_once(".(") {
        Some((receiver, parameters)) => (Some(parse_type(receiver)?), parameters),
        None => (None, parameters.strip_prefix('(')?),
    };
    let is_member = receiver.is_some();
    let arguments: Option<Vec<Type>> = split_arguments(parameters).into_iter().map(parse_type).collect();
    let parameters = receiver.into_iter().chain(arguments?).collect();
    Some(Overload { id: id.to_owned(), is_member, parameters, result: parse_type(result)? })
}

/// Splits at commas outside parentheses.
fn split_arguments(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (index, c) in list.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(list.get(start..index).unwrap_or_default().trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    let last = list.get(start..).unwrap_or_default().trim();
    if !last.is_empty() {
        parts.push(last);
    }
    parts
}

/// Opaque types, and their names in the tables.
pub const OPAQUE_TYPES: [(&str, &str); 11] = [
    ("url", "kubernetes.URL"),
    ("quantity", "kubernetes.Quantity"),
    ("ip", "net.IP"),
    ("cidr", "net.CIDR"),
    ("format", "kubernetes.NamedFormat"),
    ("semver", "kubernetes.Semver"),
    ("authorizer", "kubernetes.authorization.Authorizer"),
    ("path_check", "kubernetes.authorization.PathCheck"),
    ("group_check", "kubernetes.authorization.GroupCheck"),
    ("resource_check", "kubernetes.authorization.ResourceCheck"),
    ("decision", "kubernetes.authorization.Decision"),
];

fn parse_type(text: &str) -> Option<Type> {
    if let Some((name, inner)) = text.split_once('(') {
        let mut inner = split_arguments(inner.strip_suffix(')')?).into_iter().map(parse_type);
        return Some(match name {
            "list" => Type::list(inner.next()??),
            "map" => {
                let keys = inner.next()??;
                Type::map(keys, inner.next()??)
            }
            "optional" => Type::optional(inner.next()??),
            "type" => Type::type_of(inner.next()??),
            _ => return None,
        });
    }
    Some(match text {
        "null" => Type::Null,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "dyn" => Type::Dyn,
        "A" => Type::Param(0),
        "B" => Type::Param(1),
        _ => Type::opaque(OPAQUE_TYPES.iter().find(|(short, _)| *short == text)?.1),
    })
}

/// The type that an identifier denotes as a value, such as `int` in `type(x) == int`.
pub fn type_named(name: &str) -> Option<Type> {
    Some(Type::type_of(match name.strip_prefix('.').unwrap_or(name) {
        "null_type" => Type::Null,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "google.protobuf.Timestamp" => Type::Timestamp,
        "google.protobuf.Duration" => Type::Duration,
        "dyn" => Type::Dyn,
        "type" => Type::Type(None),
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "optional_type" => Type::optional(Type::Dyn),
        other => Type::Opaque(OPAQUE_TYPES.iter().find(|(_, name)| *name == other)?.1, Arc::new([])),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_parse_every_signature() {
        let mut all = RecentLibraries::STORED.libraries();
        all.push(Library::JsonPatch);
        let expected: usize = all
            .iter()
            .map(|library| library.declarations().len() + library.generated_declarations().len())
            .sum();
        assert_eq!(Functions::from_libraries(&all).len(), expected);
        assert!(expected > 200);
    }
}
