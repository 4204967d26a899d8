//! The effect of a CustomResourceDefinition on the API: resources for the catalog ([`definition`]), and OpenAPI schemas
//! ([`openapi`]).

pub mod definition;
pub mod openapi;
