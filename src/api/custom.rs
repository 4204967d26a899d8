//! Custom resources: definitions, and how their objects are decoded, defaulted, validated and printed.
//!
//! A definition has a schema for each version of its kind. [`definition`] makes resources of it that join the catalog; each
//! carries a [`CustomResource`] with the schema. Custom objects are decoded and stored without a type (`Registry::free_object`), and the
//! schema is applied to the value: [`prune`] removes unknown fields and sets defaults, [`validate`] and [`lists`] validate,
//! [`embedded`] handles embedded resources. For server-side apply the schema becomes a type like those of built-in kinds
//! ([`types`]).
//!
//! [`rules`] are CEL validation rules; [`decl_types`] are the types that expressions see.
//!
//! [`conversion`] builds the requests to conversion webhooks and reads their responses.
//!
//! [`status`] is what the server writes into the status of definitions.

mod check_rules;
pub mod conversion;
mod decl_types;
mod defaults;
pub mod definition;
mod embedded;
pub mod json_path;
mod kind;
mod lists;
pub mod openapi;
mod properties;
mod prune;
mod pruned_defaults;
mod rule;
mod rule_path;
pub mod rules;
mod schema;
pub mod status;
mod types;
mod validate;
mod value_errors;
mod values;

pub use check_rules::check as check_rules;
pub use defaults::check as check_defaults;
pub use kind::{CustomResource, stored, warn_of_finalizers};
