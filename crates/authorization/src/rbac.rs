//! RBAC. Pure: stored objects come in as text.
//!
//! `rule` evaluates one rule, `role` finds the relevant rules of a role, `index` finds the roles of a user, and `escalation`
//! finds the rights of a role that its author lacks.

pub mod aggregate;
pub mod escalation;
pub mod index;
pub mod role;
pub mod rule;

/// The four resources of the group.
pub const RESOURCES: [&str; 4] = ["clusterroles", "roles", "clusterrolebindings", "rolebindings"];
