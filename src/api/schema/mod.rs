//! One model of types for every kind, built in or custom.

pub mod builtin;
pub mod table;
