//! Structural schemas: the OpenAPI schemas of custom resources, and how objects are pruned, defaulted and validated by them.
//!
//! [`schema`] is a parsed schema. [`prune`] removes unknown fields and sets defaults, [`validate`] and [`lists`] validate,
//! [`embedded`] handles embedded resources. For server-side apply a schema becomes a type like those of built-in kinds ([`types`]).
//!
//! [`rules`] are CEL validation rules; [`decl_types`] are the types that expressions see. [`json_path`] parses the paths of printer
//! columns and selectable fields.

mod check_rules;
pub mod decl_types;
mod defaults;
pub mod embedded;
pub mod json_path;
pub mod limits;
pub mod lists;
mod properties;
pub mod prune;
pub mod pruned_defaults;
mod rule;
mod rule_path;
pub mod rules;
pub mod schema;
pub mod types;
pub mod validate;
mod value_errors;
mod values;

pub use check_rules::{StoredExpressions, check as check_rules};
pub use defaults::check as check_defaults;
