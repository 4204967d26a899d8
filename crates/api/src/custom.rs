//! Custom resources: definitions, and how their objects are decoded, defaulted, validated and printed.
//!
//! [`definition`] makes resources of a definition that join the catalog; each carries a [`CustomResource`] with the schema of its
//! version. Custom objects are decoded and stored without a type (`Registry::free_object`), and the schema is applied to the value
//! (`pilothouse_structural`).
//!
//! [`conversion`] builds the requests to conversion webhooks and reads their responses.

pub mod conversion;
pub mod definition;
mod kind;
pub mod openapi;

pub use kind::{CustomResource, stored};
