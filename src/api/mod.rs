//! What the API says: pure functions over schemas and values. No actors, no I/O, no clock, nothing of HTTP.

pub mod codec;
pub mod defaults;
pub mod field;
pub mod limits;
pub mod schema;
pub mod status;
pub mod value;
pub mod words;
