//! The object model: values and their schemas, the forms in which objects are read and written, patches, field ownership, and
//! the rules that all kinds share. Pure functions: no actors, no I/O, no clock, no HTTP.
//!
//! - [`value`] is a decoded object, [`json`] reads one, [`codec`] knows the other forms, [`schema`] the types of built-in kinds;
//! - [`field`] names a place in an object, [`field_value`] is what stands there, [`error_list`] collects what is wrong with it,
//!   [`status`] is the error that a client gets;
//! - [`meta`], [`names`], [`quantity`], [`time`], [`formats`] and [`label_selector`] are the rules of common fields;
//! - [`patch`] changes an object, [`managed_fields`] tells whose its fields are, [`convert`] brings it into another version;
//! - [`options`], [`selectors`], [`query`], [`media`] and [`response_format`] read what a request asks for.

pub mod codec;
pub mod convert;
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
pub mod status;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod time;
pub mod time_zone;
pub mod value;
pub mod verb;
pub mod version;
pub mod well_known;
