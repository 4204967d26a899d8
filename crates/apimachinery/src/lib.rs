//! The object model: values and their schemas, encodings, patches, field ownership, and the validation that all kinds share. Pure
//! functions: no actors, no I/O, no clock, no HTTP.
//!
//! - [`value`] is a decoded object, [`json`] parses one, [`codec`] has all encodings, [`schema`] the types of built-in kinds;
//! - [`field`] has field paths and validation errors, [`field_value`] a value with its path, [`error_list`] collects errors,
//!   [`status`] is the error that a client gets;
//! - [`meta`], [`names`], [`quantity`], [`semver`], [`time`], [`formats`] and [`label_selector`] validate common fields;
//! - [`patch`] changes an object, [`managed_fields`] records the owners of its fields, [`convert`] converts between versions;
//! - [`document`] reads configuration files strictly;
//! - [`options`], [`selectors`], [`query`], [`media`] and [`response_format`] parse the parameters of a request.

pub mod codec;
pub mod convert;
pub mod document;
pub mod error_list;
pub mod features;
pub mod field;
pub mod field_value;
pub mod formats;
pub mod json;
pub mod label_selector;
pub mod limits;
pub mod managed_fields;
pub mod media;
pub mod meta;
pub mod names;
pub mod nano_quantity;
pub mod options;
pub mod patch;
pub mod pattern;
pub mod quantity;
pub mod query;
pub mod resource_list;
pub mod response_format;
pub mod schema;
pub mod selectors;
pub mod semver;
pub mod status;
pub mod stored_type;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod time;
pub mod time_zone;
pub mod value;
pub mod verb;
pub mod version;
pub mod well_known;
