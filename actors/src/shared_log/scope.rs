//! Which log has the objects of which type, if there are several.

use std::collections::HashSet;
use std::sync::Arc;

use pilothouse_types::object::TypeName;

/// The types whose objects are in a log. What else is in there is foreign. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeScope {
    /// These.
    Only(Arc<HashSet<TypeName>>),
    /// All others, among them those that become known later.
    AllBut(Arc<HashSet<TypeName>>),
}

impl TypeScope {
    /// All types.
    pub fn all() -> TypeScope {
        TypeScope::AllBut(Arc::default())
    }

    /// Whether the objects of this type are in the log.
    pub fn has(&self, type_name: &TypeName) -> bool {
        match self {
            TypeScope::Only(types) => types.contains(type_name),
            TypeScope::AllBut(types) => !types.contains(type_name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_is_in_one_of_two_scopes() {
        let [events, pods] = ["events", "pods"].map(TypeName::new);
        let types = Arc::new(HashSet::from([events.clone()]));
        let (only, others) = (TypeScope::Only(Arc::clone(&types)), TypeScope::AllBut(types));
        assert!(only.has(&events) && !only.has(&pods));
        assert!(!others.has(&events) && others.has(&pods));
        assert!(TypeScope::all().has(&events));
    }
}
