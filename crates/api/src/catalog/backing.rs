//! What serves a resource: a store for most, and code of the server for those whose objects exist only in responses.

use std::sync::Arc;

use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::AUTHORIZATION_GROUP;
use pilothouse_authorization::reviews::IDENTITY_GROUP;
use pilothouse_authorization::reviews::access::ReviewedSubject;
use pilothouse_types::object::TypeName;

/// What serves a resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Backing {
    /// A store keeps its objects.
    Store(Stored),
    /// Its objects are computed for each request and never stored.
    Computed(Computed),
    /// Another resource of the same group version, by this subresource.
    Subresource {
        /// The plural of that resource.
        resource: &'static str,
        /// The subresource.
        subresource: &'static str,
    },
    /// Nothing.
    Unserved,
}

/// Where the objects of a resource are stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The store. All versions of a kind share it.
    pub store: TypeName,
    /// The storage version.
    pub version: GroupVersion,
    /// The version in which the reference stores them: the one that the hash names.
    pub reference_version: GroupVersion,
    /// The storage version hash in discovery, which clients only compare.
    pub hash: Arc<str>,
}

/// How the objects of a resource are computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Computed {
    /// The computation.
    pub kind: ComputedKind,
    /// For code that works with stored and computed objects alike: the version of the resource, and a store that has no objects.
    pub placeholder: Stored,
}

/// The computations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputedKind {
    /// Health checks of control plane components.
    ComponentStatus,
    /// A created object that is returned with its status.
    Review(ReviewKind),
}

/// The kinds of reviews.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewKind {
    /// Whether a user may perform an action.
    Access(ReviewedSubject),
    /// The rights of the requesting user.
    Rights,
    /// The identity of the requesting user.
    Identity,
    /// The user of a token.
    Token,
}

impl Backing {
    /// What serves a built-in resource that has no store.
    pub fn unstored(gv: &GroupVersion, plural: &str) -> Backing {
        let kind = match (&*gv.group, plural) {
            ("", "componentstatuses") => ComputedKind::ComponentStatus,
            // Bindings that name their pod in the body.
            ("", "bindings") => return Backing::Subresource { resource: "pods", subresource: "binding" },
            (AUTHORIZATION_GROUP, "selfsubjectaccessreviews") => {
                ComputedKind::Review(ReviewKind::Access(ReviewedSubject::RequestUser))
            }
            (AUTHORIZATION_GROUP, "subjectaccessreviews") => {
                ComputedKind::Review(ReviewKind::Access(ReviewedSubject::SpecUser))
            }
            (AUTHORIZATION_GROUP, "localsubjectaccessreviews") => {
                ComputedKind::Review(ReviewKind::Access(ReviewedSubject::SpecUserInNamespace))
            }
            (AUTHORIZATION_GROUP, "selfsubjectrulesreviews") => ComputedKind::Review(ReviewKind::Rights),
            (IDENTITY_GROUP, "selfsubjectreviews") => ComputedKind::Review(ReviewKind::Identity),
            (IDENTITY_GROUP, "tokenreviews") => ComputedKind::Review(ReviewKind::Token),
            _ => return Backing::Unserved,
        };
        let placeholder = Stored {
            store: TypeName::new(""),
            version: gv.clone(),
            reference_version: gv.clone(),
            hash: "".into(),
        };
        Backing::Computed(Computed { kind, placeholder })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::build::Builtin;

    #[test]
    fn every_builtin_resource_is_served() {
        let builtin = Builtin::load().unwrap();
        for resource in builtin.resources() {
            assert_ne!(resource.backing, Backing::Unserved, "{}", resource.name());
        }
    }
}
