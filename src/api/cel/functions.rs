//! The functions that expressions may call: their names, what they take and what they answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::library;
use super::types::Type;

/// One way to call a function.
#[derive(Debug)]
pub struct Overload {
    /// Its name among all overloads.
    pub id: String,
    /// Whether its first argument stands before a dot.
    pub is_member: bool,
    /// What it takes.
    pub takes: Vec<Type>,
    /// What it answers.
    pub answers: Type,
}

/// A set of functions that come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    /// Operators, conversions, sizes, texts, times.
    Standard,
    /// What may not be there.
    Optionals,
    /// More on texts.
    Strings,
    /// More on lists.
    Lists,
    /// Parts of texts that match a pattern.
    Regex,
    /// URLs.
    Urls,
    /// Amounts of resources.
    Quantity,
    /// Lists as sets.
    Sets,
    /// Addresses.
    Ip,
    /// Ranges of addresses.
    Cidr,
    /// Named forms of texts.
    Format,
    /// Folds that see keys and values.
    TwoVariables,
    /// Versions of software.
    Semver,
    /// The paths of a JSON Patch.
    JsonPatch,
    /// Whether somebody may do something. Who answers is a value of the caller's.
    Authorizer,
}

impl Library {
    /// What new expressions may use: what release 1.32 knew, because they must be understood by it.
    pub const NEW: [Library; 13] = [
        Library::Standard,
        Library::Optionals,
        Library::Strings,
        Library::Lists,
        Library::Regex,
        Library::Urls,
        Library::Quantity,
        Library::Sets,
        Library::Ip,
        Library::Cidr,
        Library::Format,
        Library::TwoVariables,
        Library::Authorizer,
    ];
}

/// Functions by their names.
#[derive(Debug)]
pub struct Functions(BTreeMap<String, Vec<Overload>>);

impl Functions {
    /// The functions of some libraries.
    pub fn of(libraries: &[Library]) -> Functions {
        let mut all: BTreeMap<String, Vec<Overload>> = BTreeMap::new();
        let mut add = |name: &str, id: &str, signature: &str| {
            if let Some(overload) = overload(id, signature) {
                all.entry(name.to_owned()).or_default().push(overload);
            }
        };
        for one in libraries {
            for (name, id, signature) in library::declared(*one) {
                add(name, id, signature);
            }
            for (name, id, signature) in library::generated(*one) {
                add(&name, &id, &signature);
            }
        }
        Functions(all)
    }

    /// The overloads of a function.
    pub fn get(&self, name: &str) -> Option<&[Overload]> {
        self.0.get(name.strip_prefix('.').unwrap_or(name)).map(Vec::as_slice)
    }

    /// How many overloads there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

/// Reads `string.(int, A) -> list(A)`.
fn overload(id: &str, signature: &str) -> Option<Overload> {
    let (takes, answers) = signature.split_once(" -> ")?;
    let takes = takes.strip_suffix(')')?;
    let (receiver, takes) = match takes.split_once(".(") {
        Some((receiver, takes)) => (Some(kind(receiver)?), takes),
        None => (None, takes.strip_prefix('(')?),
    };
    let is_member = receiver.is_some();
    let rest: Option<Vec<Type>> = split(takes).into_iter().map(kind).collect();
    let takes = receiver.into_iter().chain(rest?).collect();
    Some(Overload { id: id.to_owned(), is_member, takes, answers: kind(answers)? })
}

/// The parts between commas, those within parentheses apart.
fn split(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, c) in list.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(list.get(start..at).unwrap_or_default().trim());
                start = at + 1;
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

/// Types that are known by their names, and how tables write them.
pub const NAMED: [(&str, &str); 11] = [
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

fn kind(text: &str) -> Option<Type> {
    if let Some((name, inner)) = text.split_once('(') {
        let mut inner = split(inner.strip_suffix(')')?).into_iter().map(kind);
        return Some(match name {
            "list" => Type::list(inner.next()??),
            "map" => {
                let keys = inner.next()??;
                Type::map(keys, inner.next()??)
            }
            "optional" => Type::optional(inner.next()??),
            "type" => Type::of(inner.next()??),
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
        _ => Type::named(NAMED.iter().find(|(short, _)| *short == text)?.1),
    })
}

/// The type that a name means where a value is wanted, such as `int` in `type(x) == int`.
pub fn type_named(name: &str) -> Option<Type> {
    Some(Type::of(match name.strip_prefix('.').unwrap_or(name) {
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
        other => Type::Opaque(NAMED.iter().find(|(_, name)| *name == other)?.1, Arc::new([])),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_can_be_read() {
        let all = [&Library::NEW[..], &[Library::Semver, Library::JsonPatch]].concat();
        let wanted: usize =
            all.iter().map(|one| library::declared(*one).len() + library::generated(*one).len()).sum();
        assert_eq!(Functions::of(&all).len(), wanted);
        assert!(wanted > 200);
    }
}
