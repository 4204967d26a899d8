//! What the API says: pure functions over schemas and values. No actors, no I/O, no clock, nothing of HTTP.

pub mod bootstrap;
pub mod catalog;
pub mod codec;
pub mod convert;
pub mod deletion;
pub mod descriptions;
pub mod discovery;
pub mod field;
pub mod kinds;
pub mod limits;
pub mod media;
pub mod meta;
pub mod names;
pub mod options;
pub mod path;
pub mod query;
pub mod schema;
pub mod select;
pub mod status;
pub mod value;
pub mod verb;
pub mod version;
pub mod words;
