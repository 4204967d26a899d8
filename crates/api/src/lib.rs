//! The API as it is served: pure functions. No actors, no I/O, no clock, no HTTP.
//!
//! - [`catalog`] lists the resources, [`path`] and [`routes`] find the one that a request is for, [`select`] the objects of it;
//! - [`discovery`], [`openapi`] and [`descriptions`] describe the API to clients, [`aggregation`] adds extension API servers;
//! - [`print`] makes tables, [`subresources`] and [`connect`] are the parts of an object with paths of their own;
//! - [`custom`] builds resources from definitions, each with its [`custom_resource`]; [`bootstrap`] has the objects of a new cluster;
//! - [`draft`] makes the stored form of an object, [`stored_defaults`] marks what the reference stores later;
//! - [`deletion`], [`quota`], [`audit`] and [`storage_versions`] are the rules of these features.

pub mod admission_plugins;
pub mod age;
pub mod aggregation;
pub mod audit;
pub mod bootstrap;
pub mod catalog;
pub mod connect;
pub mod custom;
pub mod custom_resource;
pub mod deletion;
pub mod descriptions;
pub mod discovery;
pub mod draft;
pub mod emulation;
pub mod gates;
pub mod limits;
pub mod openapi;
pub mod path;
pub mod print;
pub mod quota;
pub mod release;
pub mod routes;
pub mod select;
pub mod storage_versions;
pub mod stored_defaults;
pub mod subresources;
