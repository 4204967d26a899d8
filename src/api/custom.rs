//! Custom kinds: what definitions say, and how their objects are read, filled in, checked and shown.
//!
//! A definition says of each version of its kind what its objects may look like. [`definition`] makes resources of it that
//! join the catalog; each carries a [`Custom`], which knows the schema. Objects of custom kinds are read and stored as they are
//! (`Registry::free_object`), and the schema is applied to the value: [`prune`] takes out what it does not know and fills
//! in what is left out, [`validate`] and [`lists`] check, [`embedded`] looks after objects within objects. For ownership and
//! apply the schema is a type as those of built-in kinds are ([`types`]).
//!
//! [`rules`] are those that are written as expressions; [`shapes`] says what expressions may speak of.
//!
//! [`conversion`] is what webhooks are asked that turn objects into other versions, and what their answers mean.
//!
//! [`status`] is what the server itself writes into definitions.

mod check_rules;
pub mod conversion;
mod defaults;
pub mod definition;
mod embedded;
pub mod formats;
mod found;
mod kind;
mod lists;
pub mod path;
pub mod pattern;
mod prune;
pub mod published;
mod rule;
mod rule_path;
pub mod rules;
mod schema;
mod shapes;
pub mod status;
mod types;
mod validate;
mod values;

pub use check_rules::check as check_rules;
pub use defaults::check as check_defaults;
pub use kind::{Custom, stored, warn_of_finalizers};
