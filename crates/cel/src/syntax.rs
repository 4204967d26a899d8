//! The syntax of expressions: from a text to a tree in which macros are expanded.
//!
//! [`source`] has the text and the error messages with positions in it. [`lexer`] splits it into tokens, [`literal_values`] reads
//! the values of literals. [`parser`] builds the tree ([`ast`]) by [`tree_builder`] and expands calls of [`macros`].

pub mod ast;
mod lexer;
mod literal_values;
pub mod macros;
pub mod parser;
pub mod source;
mod tree_builder;
