//! Who may do what, by roles and bindings. Pure: what is stored comes in as text, and nobody is asked.
//!
//! `rule` is what one rule allows, `role` finds the rules of a role that matter, `index` finds the roles of somebody, and
//! `escalation` says what a role would give that its author does not have.

pub mod aggregate;
pub mod escalation;
pub mod index;
pub mod role;
pub mod rule;

/// The four resources of the group.
pub const RESOURCES: [&str; 4] = ["clusterroles", "roles", "clusterrolebindings", "rolebindings"];
