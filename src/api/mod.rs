//! What the API says: pure functions over schemas and values. No actors, no I/O, no clock, nothing of HTTP.

pub mod field;
pub mod kinds;
pub mod meta;
pub mod names;
pub mod status;
pub mod value;
pub mod words;
