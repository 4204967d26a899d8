//! The rules of the API: pure functions over schemas and values. No actors, no I/O, no clock, no HTTP.

pub mod admission_plugins;
pub mod aggregation;
pub mod audit;
pub mod bootstrap;
pub mod catalog;
pub mod connect;
pub mod custom;
pub mod deletion;
pub mod descriptions;
pub mod discovery;
pub mod flows;
pub mod gates;
pub mod openapi;
pub mod path;
pub mod print;
pub mod quota;
pub mod release;
pub mod routes;
pub mod select;
pub mod subresources;
