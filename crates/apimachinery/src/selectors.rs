//! Selectors of lists and watches, as clients write them.

pub mod fields;
mod labels;

pub use fields::{FieldSelector, Term};
pub use labels::parse as parse_labels;
