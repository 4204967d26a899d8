//! What a CustomResourceDefinition makes of the API: resources that join the catalog ([`definition`]), and their OpenAPI documents
//! ([`openapi`]).

pub mod definition;
pub mod openapi;
