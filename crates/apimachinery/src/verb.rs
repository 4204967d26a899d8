//! The verbs of requests, as authorization and discovery name them.

use std::fmt;

/// The verb of a request. On a resource it is one of the API's verbs, elsewhere the HTTP method in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verb {
    /// Create an object.
    Create,
    /// Delete an object.
    Delete,
    /// Delete all matching objects.
    DeleteCollection,
    /// Read an object, or a non-resource path.
    Get,
    /// Read all matching objects.
    List,
    /// Change a part of an object.
    Patch,
    /// Replace an object.
    Update,
    /// Receive events of objects.
    Watch,
    /// The deprecated proxy to a node, pod or service, by a path prefix.
    Proxy,
    /// POST to a non-resource path.
    Post,
    /// PUT to a non-resource path.
    Put,
    /// HEAD of a non-resource path.
    Head,
    /// OPTIONS of a non-resource path.
    Options,
    /// TRACE of a non-resource path.
    Trace,
    /// CONNECT to a non-resource path.
    Connect,
    /// An unknown method: no rule grants it and no handler accepts it.
    Unknown,
}

/// The verbs that a resource can support, in the order of discovery.
pub const RESOURCE_VERBS: [Verb; 8] = [
    Verb::Create,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Update,
    Verb::Watch,
];

impl Verb {
    /// The verb as rules and logs write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Create => "create",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Patch => "patch",
            Verb::Update => "update",
            Verb::Watch => "watch",
            Verb::Proxy => "proxy",
            Verb::Post => "post",
            Verb::Put => "put",
            Verb::Head => "head",
            Verb::Options => "options",
            Verb::Trace => "trace",
            Verb::Connect => "connect",
            Verb::Unknown => "",
        }
    }

    /// The resource verb of this name.
    pub fn parse_resource_verb(name: &str) -> Option<Verb> {
        RESOURCE_VERBS.into_iter().find(|verb| verb.as_str() == name)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of verbs.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Verbs(u16);

impl Verbs {
    /// Whether the set contains `verb`.
    pub fn contains(self, verb: Verb) -> bool {
        self.0 & Verbs::bit(verb) != 0
    }

    /// The resource verbs in this set, in the order of discovery.
    pub fn iter(self) -> impl Iterator<Item = Verb> {
        RESOURCE_VERBS.into_iter().filter(move |verb| self.contains(*verb))
    }

    fn bit(verb: Verb) -> u16 {
        1 << verb as u8
    }
}

impl FromIterator<Verb> for Verbs {
    fn from_iter<I: IntoIterator<Item = Verb>>(verbs: I) -> Verbs {
        Verbs(verbs.into_iter().fold(0, |bits, verb| bits | Verbs::bit(verb)))
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verb_set_contains_and_lists_its_verbs() {
        let verbs = Verbs::from_iter([Verb::Watch, Verb::Get, Verb::Create]);
        assert!(verbs.contains(Verb::Get) && !verbs.contains(Verb::List) && !verbs.contains(Verb::Unknown));
        assert_eq!(verbs.iter().map(Verb::as_str).collect::<Vec<_>>(), ["create", "get", "watch"]);
    }

    #[test]
    fn resource_verbs_are_looked_up_by_name() {
        assert_eq!(Verb::parse_resource_verb("deletecollection"), Some(Verb::DeleteCollection));
        assert_eq!(Verb::parse_resource_verb("post"), None);
        assert_eq!(Verb::parse_resource_verb(""), None);
    }
}
