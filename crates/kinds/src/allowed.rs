//! The words that the facts table allows in fields, as constants that the build script makes of it: `core_v1::PodSpec::DNS_POLICY`.
//!
//! A check spells out a list of its own only where more or less is accepted than is published, or where nothing is published.

#![allow(
    dead_code,
    missing_docs,
    reason = "there is one for each list of the table, also of those that nothing checks"
)]

include!(concat!(env!("OUT_DIR"), "/allowed.rs"));

#[cfg(test)]
mod tests;
